# What contributors run; `make` alone lists it. Needed: Python 3.11 or newer and Java 17 or newer, nothing else.
# Everything Python goes into .venv, versions stand in pyproject.toml.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

ARGS ?=
PYTEST_ARGS ?=
PENSTOCK_SOAK_ROUNDS ?= 20

# Tests run side by side; pytest stays in one process with PYTEST_ARGS="-n 0", as a debugger needs it.
PYTEST := $(BIN)/python -m pytest -n auto
# Of layers with real servers `make test` runs what is marked smoke, and of the simulator's seeds the first ones.
SOME := not (kafka or spark or containers or browser or more) or smoke

# Some environments set it. Without byte code each start of Python compiles the sources again: seconds a process.
unexport PYTHONDONTWRITEBYTECODE

# Stamps: the environment itself; what a user needs for the demo; what a contributor needs (holds the demo's too).
MADE := $(VENV)/.made
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev

# An environment that was moved here, or whose Python is gone, cannot be mended: it is made again.
ifneq ($(shell cat $(MADE) 2>/dev/null && $(BIN)/python -c '' 2>/dev/null && echo works),$(CURDIR) works)
.PHONY: $(MADE)
endif

.PHONY: help install demo test test-all lint docs bench soak images clean java

help: ## list these targets
	@echo "usage: make TARGET"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

install: $(DEV) ## set up .venv with everything a contributor needs

demo: java $(DEMO) ## run the demo; its options go into ARGS="..."
	@$(BIN)/penstock demo $(ARGS)

test: java lint ## lint, then what shows most in ten minutes; options for pytest go into PYTEST_ARGS="..."
	@$(PYTEST) -m "$(SOME)" $(PYTEST_ARGS)

test-all: java lint ## lint, then every test, as CI runs them
	@$(PYTEST) --durations=30 $(PYTEST_ARGS)

lint: $(DEV) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: java $(DEV) ## build the website from docs/ into build/website; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file website/mkdocs.yml
	@echo "build/website/index.html"

bench: java $(DEV) ## measure, in some minutes: one table; options go into ARGS="..." (--help lists them)
	@$(BIN)/python -m benchmarks $(ARGS)

soak: java $(DEV) ## repeat the soak tests PENSTOCK_SOAK_ROUNDS times (20)
	@PENSTOCK_SOAK_ROUNDS=$(PENSTOCK_SOAK_ROUNDS) $(PYTEST) -m soak $(PYTEST_ARGS)

images: java $(DEV) ## build the container images (docs/containers.md) in the local engine
	@$(BIN)/python docker/build.py

clean: ## remove .venv, builds and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db
	rm -f derby.log .coverage
	find . -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# The shortest form of the check that the programs make themselves, so that nothing is downloaded in vain.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	said="$$("$$java" -version 2>&1 || true)"; \
	version="$$(sed -nE '/version "/{s/.*version "(1\.)?([0-9]+).*/\2/p;q;}' <<<"$$said")"; \
	if [ "$${version:-0}" -lt 17 ]; then \
		if [ -n "$$version" ]; then echo "$$java is Java $$version, which is too old." >&2; \
		else echo "There is no working java command ($$java)." >&2; fi; \
		echo "Java 17 or newer is needed to run Kafka and Spark: install a JRE (openjdk-17-jre-headless on Debian and" >&2; \
		echo "Ubuntu, java-17-openjdk-headless on Fedora, openjdk@17 in Homebrew), and put it on the PATH or name its" >&2; \
		echo "folder in JAVA_HOME." >&2; \
		exit 1; \
	fi

$(MADE):
	@for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "Python 3.11 or newer is needed, and neither python3.13, python3.12, python3.11 nor python3 on the PATH is" >&2; \
		echo "that. Install one, or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$$found cannot make virtual environments: install its venv module (python3-venv on Debian and Ubuntu)." >&2; \
		exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv --clear $(VENV)
	@printf '%s ' '$(CURDIR)' > $@

$(DEMO): $(MADE) pyproject.toml
	@echo "Installing into $(VENV) what the demo needs"
	@$(PIP) install --editable '.[demo]'
	@touch $@

$(DEV): $(MADE) pyproject.toml
	@echo "Installing into $(VENV) what contributors need"
	@$(PIP) install --editable '.[dev]'
	@touch $(DEMO) $@
