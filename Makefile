# Everything runs in .venv, which the first target that needs it sets up. Needs Python 3.11 or newer and make.
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
	@echo "make demo      set up, train a machine on digits, clean noisy ones; writes demo/report.html"
	@echo "make tours     pictures of unit types, solver and likelihoods; writes tours/"
	@echo "make test      set up, then run all tests"
	@echo "make quick     run the first case of every test that is not long (90 seconds on two cores)"
	@echo "make test-slow run the tests that take minutes"
	@echo "make test-oldest  run all tests with the oldest supported version of every dependency (oldest.txt), in $(OLDEST)"
	@echo "make test-newest  run all tests with the newest version of every dependency, in $(NEWEST)"
	@echo "make torture   kill, stop, damage and fill up, hundreds of times (more than an hour)"
	@echo "make lint      ruff and mypy"
	@echo "make format    let ruff rewrite the code"
	@echo "make docs      build the documentation site, in site/; warnings are errors"
	@echo "make gallery   run the scripts of the gallery and update their pictures (DATA=FOLDER for those that need data)"
	@echo "make release-check  build sdist and wheel, check them, install the wheel elsewhere and try it"
	@echo "make bench     time what is meant to be fast, and how it grows"
	@echo "make bench-peers  the same work by scikit-learn, rbms, paysage and learnergy (MNIST=FOLDER, or it is downloaded)"
	@echo "make accuracy  hold every unit type against mpmath at 20,000 points (minutes)"
	@echo "make survey    hold AIS and TAP against exact ln Z on 200 random machines (minutes)"
	@echo "make hashes    update hashes.txt, after a change of versions"
	@echo "make audit     ask for known vulnerabilities of all versions in use (needs the network)"
	@echo "make clean     remove the environments and caches"

$(READY): pyproject.toml constraints.txt hashes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tapmachine needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.11"; exit 1; }
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

# A process for each core with one thread each is twice as fast as one process with all of them.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

# Every module is at work but the demo and the paper's figures, though not every unit type, shape and seed; no other
# processes, no documentation.
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

# Upgraded every time, since there may be newer ones.
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

# Build tools and the wheel each in an environment of their own, so that nothing of the development environment helps.
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

# In an environment of its own: what the others need is no part of the project. Two ask for packages they do not use here.
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

# In an environment of its own: what it needs is no part of the project.
audit:
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(RELEASE) dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis demo tours
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
