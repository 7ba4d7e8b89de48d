# `make demo` and `make test` are all a new machine needs: python3 (3.11 or later) with venv; for the tests also npm, which pyright runs on.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEVELOP := .venv/.ready-to-develop
PIP = $(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable

# Tests start many processes, and pytest rewrites test files: both are quicker if compiled files stay, as they do by default.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test checked unchecked check lint quick full coverage bench setup chromium arm mcu clean

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/quern compress --max-params 1000 --threads 1 --out runs/demo

# What CI runs. The checks and then the second pass go beside the first; what they print comes when they are done.
test: $(DEVELOP) chromium arm
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target checked check unchecked

checked: $(DEVELOP)
	+$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not unchecked and not full"

unchecked: $(DEVELOP)
	QUERN_TYPECHECK=0 $(BIN)/python -m pytest -q -m "unchecked and not full"

check: lint
	$(BIN)/pyright

lint: $(DEVELOP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# For every save: without types, slow tests and the second pass, and with few draws.
quick: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup --hypothesis-profile=quick -m "not unchecked and not full and not slow"

# What takes longer than a test may: ten times the draws, the tests marked full, thousands of damaged files and packed networks.
full: check chromium arm
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup --hypothesis-profile=full -m "not unchecked"
	QUERN_TYPECHECK=0 $(BIN)/python -m pytest -q -n 2 --hypothesis-profile=full -m unchecked
	$(BIN)/python -m benchmarks.fuzz_files
	$(BIN)/python -m benchmarks.fuzz_blobs

# Lines of src/quern that the tests run, in both passes and in the processes they start.
coverage: $(DEVELOP) chromium arm
	$(BIN)/coverage erase
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not unchecked and not full" --cov --cov-report= --cov-fail-under=0
	QUERN_TYPECHECK=0 $(BIN)/python -m pytest -q -n 2 -m "unchecked and not full" --cov --cov-append --cov-report= --cov-fail-under=0
	$(BIN)/coverage report

# Speed, as ratios of what was timed in one run; then what got slower than the committed records say.
bench: $(DEVELOP)
	$(BIN)/python benchmarks/layers.py --json benchmarks/layers.json
	$(BIN)/python benchmarks/runtime.py --json benchmarks/runtime.json
	$(BIN)/python benchmarks/chart.py
	$(BIN)/python benchmarks/training.py --json benchmarks/training.json
	$(BIN)/python benchmarks/compare.py benchmarks/layers.json benchmarks/training.json benchmarks/runtime.json

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

# Networks on emulated microcontrollers: flash, memory, instructions for one image.
mcu: $(DEVELOP) arm
	$(BIN)/python -m benchmarks.mcu --json benchmarks/mcu.json

# The compiler for Cortex-M and the emulator of its boards. Without them what needs them is skipped, so this never fails.
arm:
	@READY='command -v qemu-system-arm && arm-none-eabi-gcc --specs=nano.specs -E - </dev/null'; \
	if eval "$$READY" >/dev/null 2>&1; then exit 0; fi; \
	ROOT=; test "$$(id -u)" = 0 || ROOT="sudo -n"; \
	if command -v apt-get >/dev/null && { test -z "$$ROOT" || sudo -n true 2>/dev/null; }; then \
		$$ROOT apt-get update -qq && $$ROOT apt-get install -y -qq --no-install-recommends \
			gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm; \
	fi; \
	eval "$$READY" >/dev/null 2>&1 || \
		echo "*** NO gcc-arm-none-eabi OR qemu-system-arm: the tests on emulated boards will be SKIPPED; install them by hand. ***"

# Set up anew when what is to be installed has changed, and not otherwise. The demo does not wait for developers' tools.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/quern/runtime/*.[ch])
	$(PYTHON) -m venv .venv
	$(PIP) .
	touch $@

$(DEVELOP): $(READY)
	$(PIP) '.[dev]'
	touch $@

clean:
	rm -rf .venv
