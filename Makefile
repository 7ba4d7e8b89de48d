# `make demo` and `make test` are all a new machine needs: python3 (3.11 or later) with venv, and npm for pyright.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench setup clean

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/quern compress --max-params 1000 --threads 1 --out runs/demo

test: check
	$(BIN)/python -m pytest -n 2 -q -m "not unchecked"
	QUERN_TYPECHECK=0 $(BIN)/python -m pytest -n 2 -q -m unchecked

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/python benchmarks/layers.py --json benchmarks/layers.json
	$(BIN)/python benchmarks/chart.py
	$(BIN)/python benchmarks/training.py --json benchmarks/training.json

setup: $(READY)

# Set up anew when what is to be installed has changed, and not otherwise.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
