"""The runtime as WebAssembly: it is its source, it is small, and in a browser it computes what the libraries do."""

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quern import runtime
from tests.browser import IN_BROWSER, window
from tests.runtime.compilers import ROOT, RUNTIME
from tests.runtime.mutations import corpus, sealed
from tests.runtime.test_runtime import inputs_of, outputs_of

WASM = RUNTIME / "quern_rt.wasm"
CLANG = "14.0.6"  # that built the one in the repository; change it with `make wasm`
in_browser = [
    *IN_BROWSER,
    pytest.mark.skipif(not runtime.is_built(), reason="the C runtime was not built: no compiler"),
]


def _version(command: str) -> str:
    if shutil.which(command) is None:
        return "not there"
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    return CLANG if f" {CLANG}" in said.splitlines()[0] else said.splitlines()[0]


@pytest.mark.slow
def test_it_is_what_the_source_gives(tmp_path: Path) -> None:
    """Byte for byte. Where this fails the source was changed: `make wasm` builds it anew."""
    tools = {name: _version(name) for name in ("clang", "wasm-ld", "make")}
    if {tools["clang"], tools["wasm-ld"]} != {CLANG} or tools["make"] == "not there":
        pytest.skip(
            f"THE WEBASSEMBLY WAS NOT COMPARED WITH ITS SOURCE: that takes clang and lld {CLANG}, here are {tools}"
        )
    made = tmp_path / "made.wasm"
    subprocess.run(["make", "--silent", "wasm", f"WASM={made}"], cwd=ROOT, capture_output=True, check=True)
    assert made.read_bytes() == WASM.read_bytes()


def test_it_is_small() -> None:
    assert WASM.read_bytes().startswith(b"\0asm")
    assert WASM.stat().st_size <= 64 * 1024


# Runs a network on inputs, all in base64: the sentence of what is wrong, or the outputs; independent of the page's own.
RUN = """async ([wasm, blob, inputs]) => {
  const raw = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const { exports: c } = (await WebAssembly.instantiate(raw(wasm), {})).instance;
  let end = Math.ceil(c.__heap_base.value / 64) * 64;
  const take = (size) => {
    const at = end;
    end += Math.ceil((size + 1) / 64) * 64;
    c.memory.grow(Math.max(0, Math.ceil((end - c.memory.buffer.byteLength) / 65536)));
    return at;
  };
  const put = (text) => {
    const content = raw(text), at = take(content.length);
    new Uint8Array(c.memory.buffer).set(content, at);
    return [at, content.length];
  };
  const [at, size] = put(blob), wrong = c.qrn_check(at, size);
  if (wrong) {
    const text = new Uint8Array(c.memory.buffer, wrong, 200);
    return String.fromCharCode(...text.slice(0, text.indexOf(0)));
  }
  const ins = inputs.map((one) => put(one)[0]), outs = [];
  for (let n = 0; n < c.qrn_outputs(at); n++) {
    const tensor = take(28);
    c.qrn_output(tensor, at, n);
    const [dtype, axes, ...sizes] = new Uint32Array(c.memory.buffer, tensor, 7);
    const bytes = sizes.slice(0, axes).reduce((all, one) => all * one, dtype === 0 || dtype === 3 ? 4 : 1);
    outs.push([take(bytes), bytes]);
  }
  const results = [];
  for (const fast of [0, 1]) {
    const ram = c.qrn_arena(at, fast), arena = take(ram), lists = take(4 * (ins.length + outs.length));
    new Uint32Array(c.memory.buffer, lists).set([...ins, ...outs.map(([place]) => place)]);
    if (c.qrn_run(at, arena, ram, lists, lists + 4 * ins.length)) return "it failed";
    const made = (place, bytes) => btoa(String.fromCharCode(...new Uint8Array(c.memory.buffer, place, bytes)));
    results.push(outs.map(([place, bytes]) => made(place, bytes)));
  }
  return results;
}"""


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


class TestInABrowser:
    pytestmark = in_browser

    def test_it_needs_nothing_and_gives_what_the_page_takes(self, chromium: Any) -> None:
        code = """async (text) => {
          const module = await WebAssembly.compile(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
          return [WebAssembly.Module.imports(module).length, WebAssembly.Module.exports(module).map((one) => one.name)];
        }"""
        with window(chromium) as page:
            needs, gives = page.evaluate(code, _text(WASM.read_bytes()))
        assert needs == 0
        functions = {"qrn_check", "qrn_arena", "qrn_inputs", "qrn_outputs", "qrn_input", "qrn_output", "qrn_run"}
        assert set(gives) == functions | {"memory", "__heap_base"}

    def test_it_computes_what_the_libraries_do(self, chromium: Any) -> None:
        """Every operation there is, with the least memory and with the most; whole numbers exactly."""
        wasm = _text(WASM.read_bytes())
        with window(chromium) as page:
            for blob in corpus():
                network = runtime.PackedNetwork(blob)
                inputs = inputs_of(network, 1)
                results = page.evaluate(RUN, [wasm, _text(blob), [_text(one.tobytes()) for one in inputs]])
                assert len(results) == 2, results
                for arena, made in zip((network.least_arena, network.arena), results, strict=True):
                    for wanted, text in zip(outputs_of(network, inputs, arena), made, strict=True):
                        _assert_same(
                            wanted[0], np.frombuffer(base64.b64decode(text), wanted.dtype).reshape(wanted.shape[1:])
                        )

    def test_damage_gets_the_same_sentence(self, chromium: Any) -> None:
        wasm, whole = _text(WASM.read_bytes()), corpus()[0]
        damaged = [whole[:-4], whole[:40], b"", bytes([whole[0] ^ 1]) + whole[1:], whole[:60] + b"\xff" + whole[61:]]
        damaged += [sealed(whole[:at] + b"\xff\xff\xff\x7f" + whole[at + 4 :]) for at in range(12, len(whole) - 4, 4)]
        refused = 0
        with window(chromium) as page:
            for blob in damaged:
                said = runtime.open_library(runtime.builds()[-1]).qrn_check(blob, len(blob))
                if said is not None:
                    assert page.evaluate(RUN, [wasm, _text(blob), []]) == said.decode()
                    refused += 1
        assert refused >= 30


def _assert_same(wanted: np.ndarray, made: np.ndarray) -> None:
    if wanted.dtype.kind != "f":
        assert (wanted == made).all()
        return
    fine = np.isfinite(wanted) & (np.abs(wanted) < 1e20)
    scale = np.abs(wanted[fine]).max(initial=1e-3)
    assert np.abs(wanted[fine] - made[fine]).max(initial=0.0) <= 1e-5 * scale
