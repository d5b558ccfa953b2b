PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: sweep test test-all check unit format golden schema docs clean

# Measures the quickstart and prints the verdict; a second run continues, or shows it at once.
# Exit code 1 (undecided) is an answer, too.
sweep: .venv/run
	$(BIN)/autotune sweep sweeps/quickstart.yaml --resume || test $$? -eq 1

test: check unit

check: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell autotune templates tests sweeps examples benchmarks *.md

# Tests of one process share the cores; those that start workers of their own come one by one.
ALONE := tests/unit tests/property tests/simulation tests/architecture

unit: .venv/dev
	$(BIN)/python -m pytest $(ALONE) --numprocesses 2
	$(BIN)/python -m pytest tests/integration

test-all: check
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -m ""

format: .venv/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

golden: .venv/dev
	$(BIN)/python -m pytest tests/unit/test_render_golden.py tests/unit/test_result.py --update-golden

schema: .venv/dev
	$(BIN)/python -m autotune.spec.schema

docs: .venv/dev
	mkdir -p docs
	$(BIN)/python -m autotune.wiring.table > docs/dialects.md
	$(BIN)/python -m autotune.lint.page > docs/lint-rules.md

clean:
	rm -rf .venv build dist

.venv/run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

.venv/dev: .venv/run
	$(INSTALL) -e '.[dev]'
	touch $@
