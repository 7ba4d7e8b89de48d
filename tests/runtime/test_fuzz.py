"""A stranger's packed network: refused, or run without touching what is not its own.

``benchmarks/fuzz_blobs.py`` tries tens of thousands.
"""

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.fuzz_blobs import fuzz

from quern import runtime
from quern.errors import ExportError, PackedError
from quern.export._packed import pack
from quern.export._program import Program
from quern.runtime import format as qrn
from tests import networks
from tests.runtime.compilers import COMPILERS, hostile_program, outcomes
from tests.runtime.mutations import Hand, corpus, damaged, operations

built = pytest.mark.skipif(not runtime.is_built(), reason="the C runtime was not built: no compiler")
VECTORS = ("scalar", *runtime.builds()[1:])  # each has forms of its own


def test_the_corpus_has_all_of_the_format() -> None:
    """Every operation, every kind of it, and every way to store weights is among what is damaged."""
    found: dict[str, set[Any]] = {name: set() for name in ("ops", "nest", "unary", "recurrent", "pool", "embed")}
    stored = set[tuple[int, ...]]()
    for blob in corpus():
        words = np.frombuffer(blob, np.uint32)
        for start, size in operations(blob):
            code, of = int(words[start]), words[start + 2 : start + size].astype(int)
            found["ops"].add(code)
            kinds = {qrn.OP_NEST: "nest", qrn.OP_UNARY: "unary", qrn.OP_RECURRENT: "recurrent", qrn.OP_POOL: "pool"}
            if code in kinds:
                found[kinds[code]].add(int(of[0]))
            if code == qrn.OP_EMBED:
                found["embed"].add(int(of[qrn.EMBED_DTYPE]))
            if code in (qrn.OP_CONV, qrn.OP_LINEAR):
                weights = of[qrn.CONV_WEIGHTS if code == qrn.OP_CONV else qrn.LINEAR_WEIGHTS :]
                x = of[qrn.CONV_X_DTYPE if code == qrn.OP_CONV else qrn.LINEAR_X_DTYPE]
                sparse = weights[qrn.W_STARTS] != 0xFFFFFFFF
                stored.add((code, weights[qrn.W_COMPONENTS], weights[qrn.W_DTYPE], x, sparse))
    codes = {number for name, number in qrn.NUMBERS.items() if name.startswith("OP_")}
    assert found["ops"] == codes
    assert found["nest"] == set(range(qrn.NEST_KINDS))
    assert found["unary"] == set(range(qrn.ACTIVATIONS))
    assert found["recurrent"] == {qrn.RNN_TANH, qrn.RNN_RELU, qrn.LSTM, qrn.GRU}
    assert found["pool"] == {qrn.POOL_MAX, qrn.POOL_MEAN, qrn.POOL_MODULUS}
    assert found["embed"] == {qrn.F32, qrn.F16, qrn.I8}
    assert len(stored) == 2 * 2 * (3 + 1) * 2  # three types of weights of floats, one of bytes; dense and sparse


def drawn_networks(count: int) -> list[bytes]:
    """What the exporter makes of random networks, but for those that cannot be packed."""
    made = list[bytes]()
    for seed in range(count):
        drawn = networks.draw(random.Random(seed))
        inputs = tuple(networks.cast(drawn.inputs[0], torch.float32))
        try:
            made.append(pack(Program(drawn.model.float().eval(), inputs, None), "float32")[0])
        except ExportError:
            continue
    return made


@pytest.mark.skipif(not COMPILERS, reason="NO C COMPILER: nothing was tried with hostile blobs")
@pytest.mark.slow
@pytest.mark.parametrize("vectors", VECTORS)
def test_blobs_under_the_sanitizers(vectors: str, tmp_path: Path) -> None:
    """Whole ones run with every arena that is allowed, whatever it held before; damaged ones do no harm."""
    program = hostile_program(tmp_path, vectors)
    blobs = [*corpus(), *drawn_networks(30)]
    assert len(blobs) > 100
    tables = ["n" if any(_codes(blob) == qrn.OP_EMBED) else "k" for blob in blobs]  # n: numbers of entries at random
    assert outcomes(program, blobs, "whole") == "".join(tables)
    lines: list[str] = []
    wrong = fuzz(2000, 0, program, lines.append)
    assert not wrong, "\n".join(lines)


def _codes(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint32)[[start for start, _ in operations(blob)]]


@built
def test_damage_is_seen_by_the_checksum() -> None:
    rng = random.Random(1)
    blobs = [damaged(rng, number) for number in range(300)]
    assert sum(map(_is_sealed, blobs)) >= 150
    for blob in blobs:
        if not _is_sealed(blob):
            with pytest.raises(PackedError, match=r"^it cannot be run: [^\n]*\.$"):
                runtime.PackedNetwork(blob, "it")


def _is_sealed(blob: bytes) -> bool:
    start = 4 * qrn.HEADER_VERSION
    return len(blob) > start and zlib.crc32(blob[start:]) == int.from_bytes(blob[start - 4 : start], "little")


# ------------------------------------------------------------------------------------------- what chance hardly finds


def _window_outside(made: Hand, x: int, y: int) -> None:
    """A window of which every place is in the border."""
    sizes = {"HEIGHT": (3, 3), "OUT": (1, 3), "KERNEL": (2, 1), "STRIDE": (1, 1), "PADDING": (1, 0), "DILATION": (4, 1)}
    made.add("POOL", KIND=qrn.POOL_MODULUS, X=x, Y=y, CHANNELS=1, **sizes)


def _huge_mean(made: Hand, x: int, y: int) -> None:
    """A sum of so many bytes that it does not fit 32 bits."""
    made.tensor(1 << 24, dtype="I8")
    made.add("POOL", KIND=qrn.POOL_MEAN, X=x, Y=y, CHANNELS=1, HEIGHT=(1 << 12, 1 << 12), OUT=(1, 1), DTYPE=qrn.I8)


def _many_rows_of_nothing(made: Hand, x: int, y: int) -> None:
    for _ in range(99):
        made.add("ARGMAX", X=x, Y=y, OUTER=0xFFFFFFFF, COUNT=1, INNER=0)


def _many_entries_of_nothing(made: Hand, x: int, y: int) -> None:
    made.tensor(1 << 27)
    table = made.numbers([], np.float32)
    for _ in range(999):
        made.add("EMBED", X=x, Y=y, ROWS=1 << 27, WIDTH=0, ENTRIES=1 << 31, TABLE=table, SCALES=qrn.NONE)


def _many_taps(made: Hand, x: int, y: int) -> None:
    """More scratch memory than 32 bits can say."""
    pair = dict.fromkeys(("STRIDE", "DILATION", "STUFFING"), (1, 1))
    numbers = made.numbers([0] * 8, np.float32)
    weights = [1, qrn.F32, 1, 1 << 22, numbers, numbers, numbers, numbers, numbers, qrn.NONE]
    sizes = {"HEIGHT": (2048, 2048), "CHANNELS": 1, "GROUPS": 1, "KERNEL": (2048, 2048), "PARTS": 1}
    made.tensor(1 << 24)
    made.add("CONV", X=x, Y=y, **pair, **sizes, CONSTANT=qrn.NONE, WEIGHTS=weights)


@built
@pytest.mark.parametrize(
    "write", [_window_outside, _huge_mean, _many_rows_of_nothing, _many_entries_of_nothing, _many_taps]
)
def test_is_refused(write: Callable[[Hand, int, int], None]) -> None:
    made = Hand()
    y, x = made.tensor(12, end="outputs"), made.tensor(36, end="inputs")
    write(made, x, y)
    with pytest.raises(PackedError, match=r"^it cannot be run: (a|an|it) [^\n]*\.$"):
        runtime.PackedNetwork(made.blob(), "it")
