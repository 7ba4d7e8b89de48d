# `make demo` and `make test` are all a new machine needs: python3 (3.11 or later) with venv; for the tests also npm, which pyright runs on.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEVELOP := .venv/.ready-to-develop
PIP = $(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable

.PHONY: demo test check bench setup chromium clean

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/quern compress --max-params 1000 --threads 1 --out runs/demo

test: check chromium
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not unchecked"
	QUERN_TYPECHECK=0 $(BIN)/python -m pytest -n 2 -q -m unchecked

check: $(DEVELOP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(DEVELOP)
	$(BIN)/python benchmarks/layers.py --json benchmarks/layers.json
	$(BIN)/python benchmarks/chart.py
	$(BIN)/python benchmarks/training.py --json benchmarks/training.json

.PHONY: graph
graph: $(DEVELOP)
	$(BIN)/python benchmarks/import_graph.py

setup: $(READY)

# The browser that opens the reports in tests. Without it those tests are skipped, so this never fails.
chromium:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then exit 0; fi; \
	ROOT=; test "$$(id -u)" = 0 || ROOT="sudo -n"; \
	if command -v apt-get >/dev/null && { test -z "$$ROOT" || sudo -n true 2>/dev/null; }; then \
		$$ROOT apt-get update -qq && $$ROOT apt-get install -y -qq --no-install-recommends chromium; \
	fi; \
	command -v chromium || echo "*** NO CHROMIUM: the tests of reports in a browser will be SKIPPED; install it by hand. ***"

# Set up anew when what is to be installed has changed, and not otherwise. The demo does not wait for developers' tools.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) .
	touch $@

$(DEVELOP): $(READY)
	$(PIP) '.[dev]'
	touch $@

clean:
	rm -rf .venv
