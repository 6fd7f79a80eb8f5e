# On a fresh machine: `make demo`, `make test` and `make docs`.
PYTHON ?= python3
BIN := .venv/bin
ENGINE := .venv/engine/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-engine docs venv lint clean fuzz chaos soak lock locked

demo: .venv/.demo
	$(BIN)/pseudocore demo --out demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Ray and submitit in an environment of their own, over the packages of .venv.
test-engine: .venv/.engine
	$(ENGINE)/python -m pytest tests/unit/engine

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.docs
	$(BIN)/python docs/build.py

# What breaks a reader is kept in tests/hostile/corpus, which `make test` replays.
fuzz: .venv/.fuzz
	$(BIN)/python tests/hostile/fuzz.py --inputs 5000 --seed $(or $(SEED),0) --keep
	$(BIN)/python tests/hostile/fuzz_coverage.py -max_total_time=300

chaos: .venv/.dev
	$(BIN)/python tests/hostile/chaos.py kills --num $(or $(KILLS),10)
	$(BIN)/python tests/hostile/chaos.py pairs
	$(BIN)/python tests/hostile/chaos.py evaluations
	$(BIN)/python tests/hostile/faults.py
	$(BIN)/python tests/hostile/flags.py

soak: .venv/.dev
	$(BIN)/python tests/hostile/soak.py --minutes $(or $(MINUTES),5)

# Versions and hashes of all that development installs, without torch and what only torch needs:
# its builds have indices of their own, and constraints.txt pins its version.
lock: .venv/bin/python
	$(PIP) uv
	mkdir -p build
	echo editables | $(BIN)/uv pip compile - pyproject.toml --quiet --universal --python-version 3.11 \
		--extra dev --extra docs --extra fuzz --constraint constraints.txt --generate-hashes \
		--no-annotate --no-header --output-file build/requirements-dev.lock
	(echo "# Written by: make lock"; awk '/^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z]+)==/ \
		{skip = 1; next} /^[^ ]/ {skip = 0} !skip' build/requirements-dev.lock) > requirements-dev.lock

locked: .venv/bin/python
	$(PIP) torch
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch .venv/.dev .venv/.docs .venv/.fuzz

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

.venv/.engine: .venv/.dev
	$(BIN)/python -m venv .venv/engine
	$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
		> $$(echo .venv/engine/lib/python*/site-packages)/base.pth
	$(ENGINE)/pip install --quiet "ray>=2.40" "submitit>=1.5"
	touch $@

.venv/.fuzz: .venv/.dev
	$(PIP) --editable ".[fuzz]"
	touch $@

.venv/.docs: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv demo build .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
