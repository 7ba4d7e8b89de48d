# `make demo` and `make test` are all a new machine needs: python3 (3.11 or later) with venv; for the tests also npm, which pyright runs on.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEVELOP := .venv/.ready-to-develop
PIP = $(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable

# Tests start many processes, and pytest rewrites test files: both are quicker if compiled files stay, as they do by default.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test checked unchecked check lint quick full coverage bench setup chromium clang wasm arm mcu clean

demo: $(READY)
	rm -rf runs/demo
	$(BIN)/quern compress --max-params 1000 --threads 1 --out runs/demo

# What CI runs. The checks and then the second pass go beside the first; what they print comes when they are done.
test: $(DEVELOP) chromium clang arm
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
full: check chromium clang arm
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup --hypothesis-profile=full -m "not unchecked"
	QUERN_TYPECHECK=0 $(BIN)/python -m pytest -q -n 2 --hypothesis-profile=full -m unchecked
	$(BIN)/python -m benchmarks.fuzz_files
	$(BIN)/python -m benchmarks.fuzz_blobs

# Lines of src/quern that the tests run, in both passes and in the processes they start.
coverage: $(DEVELOP) chromium clang arm
	$(BIN)/coverage erase
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not unchecked and not full" --cov --cov-report= --cov-fail-under=0
	QUERN_TYPECHECK=0 $(BIN)/python -m pytest -q -n 2 -m "unchecked and not full" --cov --cov-append --cov-report= --cov-fail-under=0
	$(BIN)/coverage report

# Speed, as ratios of what was timed in one run; then what got slower than the committed records say.
bench: $(DEVELOP)
	$(BIN)/python benchmarks/layers.py --json benchmarks/layers.json
	$(BIN)/python benchmarks/runtime.py --json benchmarks/runtime.json
	$(BIN)/python benchmarks/runtime_avx2.py --json benchmarks/runtime_avx2.json
	$(BIN)/python benchmarks/chart.py
	$(BIN)/python benchmarks/training.py --json benchmarks/training.json
	$(BIN)/python benchmarks/compare.py benchmarks/layers.json benchmarks/training.json \
		benchmarks/runtime.json benchmarks/runtime_avx2.json

.PHONY: graph
graph: $(DEVELOP)
	$(BIN)/python benchmarks/import_graph.py

setup: $(READY)

# Debian's packages $(2), if none of the commands $(1) is there and one may install. This never fails: $(3) says what is missed.
define installed
	@for command in $(1); do command -v $$command && exit 0; done; \
	ROOT=; test "$$(id -u)" = 0 || ROOT="sudo -n"; \
	if command -v apt-get >/dev/null && { test -z "$$ROOT" || sudo -n true 2>/dev/null; }; then \
		$$ROOT apt-get update -qq && $$ROOT apt-get install -y -qq --no-install-recommends $(2); \
	fi; \
	command -v $(firstword $(1)) || echo "*** NO $(2): $(3) ***"
endef

# The browser that opens reports and pages in tests.
chromium:
	$(call installed,chromium chromium-browser google-chrome,chromium,the tests in a browser will be SKIPPED; install it by hand.)

# The compiler of the WebAssembly.
clang:
	$(call installed,wasm-ld,clang lld,the WebAssembly of the runtime will NOT be compared with its source; install them by hand.)

# The runtime for browsers. It is kept in the repository; a test builds it anew, into another file, and compares.
WASM ?= src/quern/runtime/quern_rt.wasm
WASM_FUNCTIONS := qrn_check qrn_arena qrn_inputs qrn_outputs qrn_input qrn_output qrn_run __heap_base
wasm: clang
	clang --target=wasm32 -std=c99 -Os -msimd128 -mbulk-memory -fno-math-errno -nostdlib -isystem src/quern/runtime/wasm \
		src/quern/runtime/quern_rt.c src/quern/runtime/wasm/multiply.c -o $(WASM) \
		-Wl,--no-entry,--strip-all,--stack-first,-z,stack-size=65536 $(WASM_FUNCTIONS:%=-Wl,--export=%)
	chmod -x $(WASM)

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
$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/quern/*.c src/quern/runtime/*.[ch] src/quern/functional/native/*.[ch])
	$(PYTHON) -m venv .venv
	$(PIP) .
	touch $@

$(DEVELOP): $(READY)
	$(PIP) '.[dev]'
	touch $@

clean:
	rm -rf .venv
