# Everything a contributor does, from a fresh clone with nothing but Python 3.11 to 3.13 and git:
# each target that needs an environment makes .venv first, or renews it when its stamp is older than the
# files that say what to install.

# Candidates are run, not only looked up: version managers leave names on the PATH that do not start.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 \
	&& echo $$python && break; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo tour test setup check bench bench-peers bench-train bench-decode bench-cost docs clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: .venv/.core  ## train a translator of numbers, score it on numbers it never saw, and look inside
	$(BIN)/qkv demo

tour: .venv/.lab  ## the attention tour: one equation, many uses, maps in the terminal and as a picture
	$(BIN)/python examples/tour.py

test: .venv/.dev  ## the whole test suite
	$(BIN)/python -m pytest -n 2

setup: .venv/.dev  ## make .venv with everything a contributor needs

check: .venv/.dev  ## lint, format, types and the rules of the house
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: .venv/.dev bench-peers  ## all measurements: attention, resumption, training, decoding, cost; what fell short comes last
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/resume.py
	$(MAKE) bench-train bench-decode bench-cost
	$(BIN)/python benchmarks/shortfalls.py

bench-peers: .venv/.dev  ## install the libraries that qkv is measured against, each in its own environment
	$(BIN)/python benchmarks/peers/install.py

bench-train: .venv/.dev  ## training speed beside other libraries (Multi30k in ../shared/data); ONLY="--only tiny" for a part
	$(BIN)/python benchmarks/train.py --out docs/benchmarks/train $(ONLY)

bench-decode: .venv/.dev  ## decoding speed beside other libraries, with the same weights
	$(BIN)/python benchmarks/decode.py --out docs/benchmarks/decode $(ONLY)

bench-cost: .venv/.dev  ## how the cost of training grows, and what limits it, with a picture
	$(BIN)/python benchmarks/roofline.py --out docs/benchmarks/cost $(ONLY)

docs: .venv/.dev  ## try what the pages say: links, commands and Python examples
	$(BIN)/python -m pytest -q tests/test_docs.py

clean:  ## remove .venv and everything generated
	rm -rf .venv dist .pytest_cache .ruff_cache .hypothesis tour.png
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The demo needs the core alone.
.venv/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing qkv into .venv (once; minutes when nothing is in pip's cache)" >&2
	$(INSTALL) -e .
	@touch $@

# The tour draws a PNG, with matplotlib.
.venv/.lab: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing qkv and matplotlib into .venv (once; minutes when nothing is in pip's cache)" >&2
	$(INSTALL) -e '.[lab]'
	@touch .venv/.core $@

# dev contains what the demo and the tour need, so one installation serves them all.
.venv/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing qkv and its test tools into .venv (once; minutes when nothing is in pip's cache)" >&2
	$(INSTALL) -e '.[dev]'
	@touch .venv/.core .venv/.lab $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found: install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
