"""Damaged files; ``benchmarks/fuzz_files.py`` tries thousands of all kinds."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.fuzz_files import KINDS, fuzz
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quern.errors import FileError
from tests.io.network_files import content_of, read, refused, same


@pytest.mark.slow
def test_every_bit_of_a_file_counts() -> None:
    """With the fuzzing below: a file that differs from what was saved in any single bit is refused."""
    small = content_of(nn.Linear(1, 1))
    fresh = nn.Linear(1, 1)
    same(read(small, fresh), read(small, fresh))
    for at in range(len(small)):
        wrong = bytearray(small)
        wrong[at] ^= 1 << (at % 8)
        with pytest.raises(FileError):
            read(bytes(wrong), fresh)


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_random_bytes(content: bytes) -> None:
    refused(content)
    refused(len(content).to_bytes(8, "little") + content)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to bound the memory")
def test_mutated_files() -> None:
    """12,500 files and the hostile ones, in 128 MB more than quern itself takes."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from tests.io.mutations import fuzz; fuzz(0, 10_000, 2_500)"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    changed, forged, good = map(int, process.stdout.split())
    assert changed + forged == 12_500
    assert 0 < good < forged / 2


@pytest.mark.unchecked
def test_damaged_files_give_success_or_one_sentence() -> None:
    lines: list[str] = []
    kinds = tuple(kind for kind in KINDS if kind.folder not in ("compressed", "unfinished"))  # those take long to make
    wrong = fuzz(300, 3, kinds, lines.append)
    assert not wrong, "\n".join(lines)
