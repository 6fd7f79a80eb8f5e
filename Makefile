# On a fresh machine: `make demo`, `make test` and `make docs`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test docs venv lint clean

demo: .venv/.demo
	$(BIN)/pseudocore demo --out demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.docs
	$(BIN)/python docs/build.py

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

.venv/.docs: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv demo build .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
