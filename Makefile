# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test venv lint clean

demo: .venv/.demo
	$(BIN)/pseudocore demo --out demo

test: lint
	$(BIN)/python -m pytest -n 2

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

venv: .venv/.dev

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch first and alone: its pin is what keeps pip from fetching a CUDA build.
.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) --editable ".[report]"
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
