# Every target does its own set-up. `make help` explains them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SEEDS  ?= 200
SOAK   ?= 30m
SEED   ?= 7

.DEFAULT_GOAL := help
.PHONY: help demo test check sanitize versions sim soak bench clean

help:           ## show this
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /  make \1\t/' | expand -t 20

demo: $(READY)  ## streams, clusters on two continents, advertising on Spark: each with kill -9 and a verdict (about two minutes)
	@$(BIN)/tailrace demo

test: $(READY)  ## every test
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(READY) ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

sanitize: $(READY) ## the native tests and the fuzzer under ASan and UBSan, a race under TSan
	PYTHON=$(abspath $(BIN)/python) bash tests/native/run_sanitized.sh
	bash tests/native/run_tsan.sh

versions:       ## install from source with every supported Python on this machine, and use it
	bash tests/versions.sh

sim: $(READY)   ## whole worlds in one process from many seeds, longer than the tests take; SEEDS=N for more
	PIPELINE_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/sim -n 2
	PYTHONPATH=tests $(BIN)/python tests/sim/copytree_world.py 1-$(SEEDS)

soak: $(READY)  ## five clusters in network namespaces, killed and cut at random; SOAK=30m SEED=7, needs root
	$(BIN)/python tests/cluster/copytree_soak.py --for $(SOAK) --seed $(SEED)

bench: $(READY) ## reproduce the figures of the README: JSON and a table in bench/results/
	$(BIN)/python bench/run.py

clean:          ## remove what the other targets made
	rm -rf $(VENV) build dist bench/results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -f src/tailrace/native/_*.c src/tailrace/native/*.so

# The environment is made anew when what it is made from changes.
$(READY): pyproject.toml setup.py constraints.txt $(wildcard src/tailrace/native/*.c src/tailrace/native/*.h src/tailrace/native/*.pyx src/tailrace/native/*.pxd)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Tailrace needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Try: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
