# Targets run in .venv, which is created when first needed. Requires Python 3.11 or newer and make.
# VERSIONS=oldest or VERSIONS=newest uses the lower bounds of all dependencies or their newest releases instead of the
# pinned versions, in an environment of their own. ARGS are passed on to pytest.
PYTHON ?= python3
VERSIONS ?= pinned
ifeq ($(VERSIONS),pinned)
VENV := .venv
PINS := -c requirements/constraints.txt
else ifeq ($(VERSIONS),oldest)
VENV := .venv-oldest
PINS := -r requirements/oldest.txt
else
VENV := .venv-newest
PINS := --upgrade --upgrade-strategy eager
endif
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINS)
READY := $(VENV)/.ready
RELEASE := .venv-release
# One single-threaded process per core is twice as fast as one process with a thread per core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

.PHONY: help demo reproduce test quick torture lint docs gallery bench release-check clean

help:
	@echo "make demo           train a machine on digits, denoise images, and write demo/report.html"
	@echo "make reproduce      draw the figures of the paper with small machines (DATA=FOLDER: with the paper's machines)"
	@echo "make test           run the tests (VERSIONS=oldest or newest: with other versions of the dependencies;"
	@echo "                    ARGS='-m slow': the tests that take minutes)"
	@echo "make quick          run the first case of every fast test (90 seconds on two cores)"
	@echo "make torture        run the tests of faults: hostile files and folders, full disks, memory limits, interrupts"
	@echo "make lint           run ruff and mypy"
	@echo "make docs           build the documentation site in site/, with warnings as errors"
	@echo "make gallery        run the gallery scripts and update their figures (DATA=FOLDER for scripts that need data)"
	@echo "make bench          measure speed and scaling"
	@echo "make release-check  build and check the sdist and the wheel, and test the wheel in a separate environment"
	@echo "make clean          remove the environments and caches"

$(READY): pyproject.toml requirements/constraints.txt requirements/oldest.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tapmachine requires Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py --out demo

reproduce: $(READY)
	$(BIN)/python -m reproduction all $(if $(DATA),--data $(DATA),--quick)

test: $(READY)
	$(PYTEST) $(ARGS)

# Covers every module except the demo, but not every unit type, shape and seed. Tests of the documentation and of
# subprocesses are excluded.
quick: $(READY)
	$(PYTEST) -m quick $(ARGS)

torture: $(READY)
	$(PYTEST) -m "torture or not torture" tests/test_torture.py $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

gallery: $(READY)
	$(BIN)/python tools/gallery.py docs/images/gallery $(DATA)
	$(BIN)/python examples/start_figures.py docs/images/start

bench: $(READY)
	$(BIN)/python benchmarks/units.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/annealing.py
	$(BIN)/python benchmarks/training.py

# Separate environments for the build tools and the wheel ensure that the result does not depend on the development
# environment.
release-check:
	rm -rf dist $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/build
	$(RELEASE)/build/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(RELEASE)/build/bin/python -m build --outdir dist .
	$(RELEASE)/build/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)/fresh
	$(RELEASE)/fresh/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cp tools/release_check.py $(RELEASE)/ && cd $(RELEASE) && fresh/bin/python release_check.py

clean:
	rm -rf .venv* dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
