# Targets run in .venv, which is created when first needed. Requires Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
READY := $(VENV)/.ready
OLDEST := $(VENV)-oldest
NEWEST := $(VENV)-newest
RELEASE := $(VENV)-release

.PHONY: help demo tours test quick test-slow test-oldest test-newest torture lint format docs gallery release-check bench bench-peers accuracy survey hashes audit clean

help:
	@echo "make demo      train a machine on digits, denoise images, and write demo/report.html"
	@echo "make tours     create figures of unit types, the solver and likelihoods in tours/"
	@echo "make test      run all tests"
	@echo "make quick     run the first case of every fast test (90 seconds on two cores)"
	@echo "make test-slow run the tests that take minutes"
	@echo "make test-oldest  run all tests with the oldest supported version of every dependency (oldest.txt), in $(OLDEST)"
	@echo "make test-newest  run all tests with the newest version of every dependency, in $(NEWEST)"
	@echo "make torture   run hundreds of tests with kills, signals, damaged files and full disks (more than an hour)"
	@echo "make lint      run ruff and mypy"
	@echo "make format    format the code with ruff"
	@echo "make docs      build the documentation site in site/, with warnings as errors"
	@echo "make gallery   run the gallery scripts and update their figures (DATA=FOLDER for scripts that need data)"
	@echo "make release-check  build and check the sdist and the wheel, and test the wheel in a separate environment"
	@echo "make bench     measure speed and scaling"
	@echo "make bench-peers  compare with scikit-learn, rbms, paysage and learnergy (MNIST=FOLDER; downloaded by default)"
	@echo "make accuracy  compare every unit type with mpmath at 20,000 points (minutes)"
	@echo "make survey    compare AIS and TAP with the exact ln Z of 200 random machines (minutes)"
	@echo "make hashes    update hashes.txt after a change of versions"
	@echo "make audit     search for known vulnerabilities of all pinned versions (needs network access)"
	@echo "make clean     remove the environments and caches"

$(READY): pyproject.toml constraints.txt hashes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tapmachine requires Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --only-binary :all: --no-deps -r hashes.txt
	PIP_CONSTRAINT=constraints.txt $(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/tapmachine demo --out demo

tours: $(READY)
	$(BIN)/python examples/units_tour.py tours
	$(BIN)/python examples/solver_tour.py tours
	$(BIN)/python examples/likelihood_tour.py tours

# One single-threaded process per core is twice as fast as one process with a thread per core.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

# Covers every module except the demo and the paper's figures, but not every unit type, shape and seed. Tests of the
# documentation and of subprocesses are excluded.
quick: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 -m quick

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

$(OLDEST)/.ready: pyproject.toml oldest.txt
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -r oldest.txt -e '.[dev]'
	@touch $@

test-oldest: $(OLDEST)/.ready
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n auto --maxprocesses 8

# Packages are upgraded on every call, since there may be new releases.
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[dev]'
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -n auto --maxprocesses 8

torture: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'slow or not slow' -s tests/test_reliability.py tests/test_dirty_data.py tests/test_damaged_runs.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

gallery: $(READY)
	$(BIN)/python tools/gallery.py docs/images/gallery $(DATA)
	$(BIN)/python examples/start_figures.py docs/images/start

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

bench: $(READY)
	$(BIN)/python benchmarks/units.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/annealing.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/growth.py

# A separate environment, because the dependencies of the other packages are not part of the project. Two of these
# packages declare dependencies that are not needed here, and are installed without them.
bench-peers:
	$(PYTHON) -m venv $(VENV)/peers
	PIP_CONSTRAINT=constraints.txt $(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check -e . -r benchmarks/peers.txt
	$(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps paysage==0.2.1 learnergy==2.0.2
	$(VENV)/peers/bin/python benchmarks/peers.py $(MNIST)

accuracy: $(READY)
	$(BIN)/python tests/accuracy.py --points 20000

survey: $(READY)
	$(BIN)/python tests/survey.py --machines 200

hashes:
	$(PYTHON) tests/hashes.py

# A separate environment, because pip-audit is not a dependency of the project.
audit:
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(RELEASE) dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis demo tours
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
