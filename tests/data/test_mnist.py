"""MNIST: idx files to arrays."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quern.data import _archives, _mnist
from quern.data._archives import BadFile
from tests.data.made_sets import IDX_NAMES, MNIST, idx, idx_files, put, same, zipped


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)))
def test_idx_files_come_back(array: np.ndarray) -> None:
    found = _mnist._idx(idx(array), "name")
    assert found.dtype == np.uint8
    assert found.shape == array.shape
    assert np.array_equal(found, array)


@given(
    array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)),
    place=st.floats(0, 1, exclude_max=True),
)
def test_cut_or_lengthened_idx_files_are_refused(array: np.ndarray, place: float) -> None:
    whole = idx(array)
    for content in (whole[: int(place * len(whole))], whole + b"\0"):
        with pytest.raises(BadFile, match="name is no idx file, or is cut short"):
            _mnist._idx(content, "name")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>not found</html>",
        b"\0\0\x0d\1\0\0\0\1\0\0\0\0",  # floats
        b"\0\0\x08\0",  # no axes
        b"\0\0\x08\x64" + b"\0\0\0\1" * 100 + b"\0",  # a hundred axes
        b"\0\0\x08\3\0\0\0\0" + b"\xff" * 7,  # cut within a size
        b"\0\0\x08\3" + b"\x80\0\0\0" * 2 + b"\0\0\0\4",  # 2 to the 64 bytes, which is 0 for 64 bits
    ],
    ids=["empty", "html", "floats", "no axes", "axes", "cut", "huge"],
)
def test_what_is_no_idx_file_of_bytes(content: bytes) -> None:
    with pytest.raises(BadFile, match="no idx file"):
        _mnist._idx(content, "name")


@pytest.mark.parametrize("change", [dict, zipped], ids=["raw", "gz"])
def test_mnist_files(tmp_path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    folder = put(tmp_path, change(idx_files(MNIST)))
    assert same(_mnist.read_mnist(_archives.in_folder(folder)), MNIST)


def test_damaged_gz_files_are_named(tmp_path: Path) -> None:
    for damage in (lambda b: b[:-9], lambda b: b"no gzip" + b, lambda b: b[:20] + bytes([b[20] ^ 255]) + b[21:]):
        files = zipped(idx_files(MNIST))
        files[f"{IDX_NAMES[2]}.gz"] = damage(files[f"{IDX_NAMES[2]}.gz"])
        with pytest.raises(BadFile, match=f"{IDX_NAMES[2]}.gz is damaged"):
            _mnist.read_mnist(_archives.in_folder(put(tmp_path, files)))
