# The two commands a newcomer needs: `make demo` and `make test`.
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p $(IS_NEW_ENOUGH) && echo $$p && break; done)
CHECK_PYTHON = $(or $(PYTHON),false) $(IS_NEW_ENOUGH) || { echo "expected Python 3.11 or newer, found" \
	"$$($(or $(PYTHON),python3) --version 2>&1): make PYTHON=/path/to/python3.11" >&2; exit 1; }
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
COMPILED := setup.py $(wildcard rogue_net/native/*.[ch])
# Processes that tests start read what the first one compiled, also where Python is not to write that.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadgroup
RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test test-fast test-gpu test-plain test-install docs docs-slow bench soak generated page dist release clean

demo: .venv/installed
	$(BIN)/enn train --config configs/move_to_origin.ron total_timesteps=600000 max_train_time=150 \
		--checkpoint-dir $(RUN)

test: .venv/developing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m "not soak" --ignore=tests/install

# What is built for users, each in an environment of its own: wheels, the sdist, a checkout.
test-install: .venv/developing
	$(PYTEST) tests/install

# The documentation as a site, in build/docs; a warning or a name that does not resolve is an error.
docs: .venv/developing
	$(BIN)/python -m sphinx -q -W --keep-going -n -j auto -d build/doctrees docs build/docs
	@echo build/docs/index.html

# Runs the blocks of the documentation that take more than 30 s; make test runs the others.
docs-slow: .venv/developing
	DOCS=slow $(PYTEST) README.md docs

# Between edits, two minutes: what takes only a moment.
test-fast: .venv/developing
	$(BIN)/ruff check .
	$(PYTEST) -m "not slow and not soak"

# What needs a GPU, of which make test sees none.
test-gpu: .venv/developing
	$(PYTEST) -m gpu tests

# What needs no torch, in an environment of its own: make test-plain PYTHON=python3.13
test-plain:
	@$(CHECK_PYTHON)
	$(PYTHON) tests/plain.py

# Two minutes; fails if training is more than a quarter slower than committed. BENCH=--update writes.
bench: .venv/developing
	$(BIN)/python benchmarks/bench.py $(BENCH)

# What is random or long, in 30 minutes: long tests, properties with more examples, damaged saves, killed
# runs. SOAK="--seed 7" repeats the damage and the kills of one.
soak: .venv/developing
	HYPOTHESIS_PROFILE=soak $(PYTEST) -m "soak or hypothesis" tests
	$(BIN)/python -W error -m tests.soak $(SOAK)

# Everything that is made from the code: completion scripts, the schema of the settings, the reference
# pages of the site and the replay page. A test says which of the committed files are out of date.
generated: page .venv/developing
	$(BIN)/python -m docs.generate

# The replay page alone, and the checks and tests of its sources; needs Node 20 or newer.
page: PAGE = enn_trainer/viewer/page
page:
	cd $(PAGE) && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm test && npm run build

# Files to install from, equal to the byte for the same commit and compiler: the sdist, a wheel of this
# platform for every Python, and one without the compiled part for the platforms that have none.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: .venv/developing
	rm -rf dist build
	$(BIN)/python -m build --no-isolation --outdir dist .
	rm -rf build
	ENN_PURE=1 $(BIN)/python -m build --no-isolation --wheel --outdir dist .
	$(BIN)/abi3audit --strict dist/*-abi3-*.whl
	$(BIN)/auditwheel show dist/*-abi3-*.whl
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/twine check --strict dist/*

# Checks everything, keeps a save and the schema of this version for the tests of all later ones, and
# tags: make release VERSION=0.2.0. The tag, once pushed, starts the workflow that publishes.
release: SCHEMA = $(shell grep -ho 'version: [0-9]*' enn_trainer/config/config_schema.ron | grep -o '[0-9]*')
release: .venv/developing
	@test -z "$$(git status --porcelain)" || { echo "commit or remove your changes first" >&2; exit 1; }
	@! git rev-parse --quiet --verify "refs/tags/v$(VERSION)" >/dev/null || { echo "v$(VERSION) is tagged already" >&2; exit 1; }
	$(BIN)/python .github/release.py check "$(VERSION)"
	$(MAKE) test test-install dist
	$(BIN)/python tests/golden/make_checkpoint.py --replace
	$(BIN)/enn config dump-schema tests/golden/schemas/$(VERSION)-config$(SCHEMA).ron
	git add tests/golden
	git diff --cached --quiet || git commit -m "Keep a save and the schema of $(VERSION)"
	git tag -a v$(VERSION) -m "Release $(VERSION)"
	@echo "next: git push --follow-tags"

clean:
	rm -rf .venv .venv-plain-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/pip:
	@$(CHECK_PYTHON)
	rm -rf .venv
	$(PYTHON) -m venv .venv || { rm -rf .venv; echo "venv failed; on Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }

.venv/installed: pyproject.toml constraints.txt $(COMPILED) | .venv/bin/pip
	@echo "Installing into .venv, once: torch and about 30 smaller packages, 1.1 GB (4 GB more with CUDA)"
	$(INSTALL) -e .
	@touch $@

.venv/developing: pyproject.toml constraints.txt $(COMPILED) | .venv/bin/pip
	$(INSTALL) --quiet -e '.[dev]'
	@touch $@ .venv/installed
