# Each target makes the virtual environment it needs on first use. Another interpreter: make test PYTHON=python3.12
# What ARGS holds is handed on: make demo ARGS="--seed 1", make test ARGS="-k fista"

PYTHON ?= python3
ARGS ?=
SHELL := bash

VENV := .venv
CORE := .venv-core
PY := $(VENV)/bin/python
CORE_PY := $(CORE)/bin/python

# pip reports every package it looks at; what it downloads, and how much, is what a person waiting wants to see.
SHOW_PROGRESS := sed -u -n -E \
	-e 's/^ *(Downloading|Using cached|Processing) +([^ ]*\/)?([^ \/]+\.whl)( \([0-9][^)]*\))?.*/    \3\4/p' \
	-e 's/^Installing collected packages.*/    unpacking .../p'
PIP_INSTALL = -m pip install --disable-pip-version-check --no-input -c constraints.txt

.PHONY: help demo test browser-test check lint types imports core docs bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train on handwritten digits, look at the result in torchpfc-demo.html"
	@echo "make test    run the tests and print the coverage"
	@echo "make check   what CI runs first: lint, types, imports, core, test, docs"
	@echo "make browser-test   what CI runs then: the explorer in Chromium"
	@echo "make core    try the package with torch and numpy alone"
	@echo "make docs    build the documentation into site/"
	@echo "make bench   run the benchmarks"
	@echo "make clean   remove environments, caches and built files"

demo: $(VENV)/.stamp-experiments
	$(PY) -m torchpfc demo $(ARGS)

test: $(VENV)/.stamp-dev
	OMP_NUM_THREADS=1 $(PY) -m pytest --cov -n auto --dist worksteal $(ARGS)

browser-test: $(VENV)/.stamp-browser
	@command -v "$${TORCHPFC_CHROMIUM:-chromium}" chromium-browser >/dev/null || { \
		echo "browser-test needs Chromium: apt install chromium, or name it: TORCHPFC_CHROMIUM=/path/to/it" >&2; exit 1; }
	$(PY) -m pytest tests/explorer/test_browser.py $(ARGS)

check: lint types imports core test docs

lint: $(VENV)/.stamp-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.stamp-dev
	$(PY) -m mypy

imports: $(VENV)/.stamp-dev
	$(VENV)/bin/lint-imports --no-logo

# Installed as a wheel, not in place: so this also notices a file that the package forgot to ship.
core: $(CORE)/.stamp-core
	@echo "==> torchpfc with torch and numpy alone"
	@$(CORE_PY) $(PIP_INSTALL) --quiet --no-deps --force-reinstall .
	$(CORE_PY) -W error -c "import torchpfc"
	$(CORE_PY) -W error -m torchpfc --version
	@for example in $$(grep -sL '^# needs: ' examples/*.py); do \
		echo "$(CORE_PY) -W error $$example"; $(CORE_PY) -W error $$example || exit 1; \
	done

docs: $(VENV)/.stamp-dev
	$(PY) -m torchpfc report --results docs/results --out docs --check
	$(PY) benchmarks/page.py --check
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

bench: $(VENV)/.stamp-benchmarks
	@for benchmark in $(filter-out benchmarks/page.py,$(wildcard benchmarks/[a-z]*.py)); do \
		echo "==> $$benchmark"; $(PY) $$benchmark $(ARGS) || exit 1; \
	done

clean:
	rm -rf $(VENV) $(CORE) site build dist .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last: an installation that was interrupted starts again.

$(VENV)/.stamp-python $(CORE)/.stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "torchpfc needs Python 3.11 or newer, and $(PYTHON) --version says: $$($(PYTHON) --version 2>&1)" >&2; \
		echo "Name another interpreter: make PYTHON=python3.12" >&2; exit 1; }
	@echo "==> making $(@D) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(@D)
	@touch $@

$(VENV)/.stamp-experiments: $(VENV)/.stamp-python pyproject.toml constraints.txt
	@echo "==> installing torchpfc[experiments] into $(VENV) (torch is large: this can take some minutes)"
	@set -o pipefail; $(PY) $(PIP_INSTALL) -e '.[experiments]' | $(SHOW_PROGRESS)
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-python pyproject.toml constraints.txt
	@echo "==> installing torchpfc[dev] into $(VENV) (torch is large: this can take some minutes)"
	@set -o pipefail; $(PY) $(PIP_INSTALL) -e '.[dev]' | $(SHOW_PROGRESS)
	@touch $@

$(VENV)/.stamp-benchmarks: $(VENV)/.stamp-dev
	@echo "==> installing torchpfc[benchmarks] into $(VENV)"
	@set -o pipefail; $(PY) $(PIP_INSTALL) -e '.[benchmarks]' | $(SHOW_PROGRESS)
	@touch $@

$(VENV)/.stamp-browser: $(VENV)/.stamp-dev
	@echo "==> installing torchpfc[browser] into $(VENV)"
	@set -o pipefail; $(PY) $(PIP_INSTALL) -e '.[browser]' | $(SHOW_PROGRESS)
	@touch $@

$(CORE)/.stamp-core: $(CORE)/.stamp-python pyproject.toml constraints.txt
	@echo "==> installing torch and numpy into $(CORE) (torch is large: this can take some minutes)"
	@set -o pipefail; $(CORE_PY) $(PIP_INSTALL) . | $(SHOW_PROGRESS)
	@touch $@
