# The command surface. CI calls these too; nothing here needs to be done by hand first.
#
#   make lab      set up, then open the quickstart notebook in JupyterLab
#   make demo     set up, then play the quickstart in this terminal
#   make test     everything that must hold: check, tests, notebooks, browser
#   make check    lint, format, types, import contracts (a minute)
#   make bench    measure; writes benchmarks/results/*.json
#   make setup    the environment in .venv alone

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup lab demo test check fast alone chromium bench clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up
REPORTS := tests/artifacts/reports

help:
	@sed -n '3,8s/^# *//p' Makefile

setup: $(STAMP)

# Made again when what is installed changes; a second `make setup` does nothing.
$(STAMP): pyproject.toml constraints.txt djinn_jupyter/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Djinn needs Python 3.11 or later; name one with: make setup PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,lab,test]'
	@touch $@

lab: setup
	$(BIN)/jupyter lab notebooks/01_quickstart.ipynb

demo: setup
	@$(BIN)/python examples/play_notebook.py notebooks/01_quickstart.ipynb

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Two stages: what may share the cores, then what needs them alone. The sum of both is the last line.
test: check chromium fast alone
	@$(BIN)/python tests/tally.py $(REPORTS)/fast.xml $(REPORTS)/alone.xml

fast: setup
	$(BIN)/pytest tests -m 'not alone and not browser and not slow' --numprocesses 2 --dist loadfile \
	  --junit-xml $(REPORTS)/fast.xml

alone: setup
	$(BIN)/pytest tests notebooks --nbval -m '(alone or browser) and not slow' --junit-xml $(REPORTS)/alone.xml

# A browser for the tests: $DJINN_CHROMIUM, or `chromium` on the path, or Debian's package when we may install it.
chromium:
	@if [ -n "$${DJINN_CHROMIUM:-}" ] || command -v chromium >/dev/null; then exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
	  echo "The browser tests need Chromium: install it, or set DJINN_CHROMIUM to its executable."; exit 1; \
	fi

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache tests/artifacts build dist
