# The two commands a newcomer needs: `make demo` and `make test`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
COMPILED := setup.py $(wildcard rogue_net/native/*.[ch])
# Processes that tests start read what the first one compiled, also where Python is not to write that.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadgroup
RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test test-fast bench soak clean

demo: .venv/installed
	$(BIN)/enn train --config configs/move_to_origin.ron total_timesteps=600000 max_train_time=150 \
		--checkpoint-dir $(RUN)

test: .venv/developing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST)

# Between edits, two minutes: what takes only a moment.
test-fast: .venv/developing
	$(BIN)/ruff check .
	$(PYTEST) -m "not slow"

# Two minutes; fails if training is more than a quarter slower than committed. BENCH=--update writes.
bench: .venv/developing
	$(BIN)/python benchmarks/bench.py $(BENCH)

# Damages saves and kills runs for many minutes; the tests do some of it. SOAK="--seed 7" repeats one.
soak: .venv/developing
	$(BIN)/python -W error -m tests.soak $(SOAK)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 was not found: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt $(COMPILED) | .venv/bin/python
	$(INSTALL) -e .
	@touch $@

.venv/developing: pyproject.toml constraints.txt $(COMPILED) | .venv/bin/python
	$(INSTALL) -e '.[dev]'
	@touch $@ .venv/installed
