"""Functions of channels do to each component what torch's own do to real channels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern import functional as F


def apart(x: Tensor, dim: int) -> list[Tensor]:
    """The four components, each a real tensor."""
    return list(x.split(x.shape[dim] // 4, dim))


def by_component(function: Callable[[Tensor], Any], x: Tensor, dim: int, to: int | None = None) -> Any:
    """``function`` of each component alone, joined again."""
    results = [function(part) for part in apart(x, dim)]
    to = dim if to is None else to
    if isinstance(results[0], Tensor):
        return torch.cat(results, to)
    return tuple(torch.cat(pieces, to) for pieces in zip(*results, strict=True))


@given(pieces=st.integers(1, 3), size=st.integers(1, 3), rank=st.integers(2, 4), data=st.data())
def test_pieces_are_those_of_each_component(pieces: int, size: int, rank: int, data: st.DataObject) -> None:
    dim = data.draw(st.integers(-rank, rank - 1))
    shape = [2] * rank
    shape[dim] = 4 * pieces * size
    x = torch.randn(shape)
    assert_same = torch.testing.assert_close
    assert_same(F.chunk(x, pieces, dim), by_component(lambda p: p.chunk(pieces, dim), x, dim))
    assert_same(F.split_channels(x, 4 * size, dim), by_component(lambda p: p.split(size, dim), x, dim))
    sizes = [4 * size] * pieces
    assert_same(F.split_channels(x, sizes, dim), by_component(lambda p: p.split(size, dim), x, dim))
    start, stop = sorted(data.draw(st.lists(st.integers(0, pieces * size), min_size=2, max_size=2)))
    cut = F.slice_channels(x, 4 * start, 4 * stop, dim)
    assert_same(cut, by_component(lambda p: p.narrow(dim, start, stop - start), x, dim))
    assert_same(F.slice_channels(x, -4, None, dim), by_component(lambda p: p.narrow(dim, -1, 1), x, dim))


@given(channels=st.integers(1, 3), factor=st.integers(1, 3), height=st.integers(1, 3))
def test_shuffles_are_those_of_each_component(channels: int, factor: int, height: int) -> None:
    x = torch.randn(2, 4 * channels * factor * factor, height, 2)
    up = F.pixel_shuffle(x, factor)
    assert torch.equal(up, by_component(lambda p: TF.pixel_shuffle(p, factor), x, 1))
    assert torch.equal(F.pixel_unshuffle(up, factor), x)
    shuffled = by_component(lambda p: TF.channel_shuffle(p, factor), x, 1)
    assert torch.equal(F.channel_shuffle(x, factor), shuffled)


@given(heads=st.integers(1, 3), width=st.integers(1, 3))
def test_views_keep_quaternions_whole(heads: int, width: int) -> None:
    x = torch.randn(2, 3, 4 * heads * width)
    into = F.reshape(x, (2, 3, heads, 4 * width), 2, 3)
    assert torch.equal(into, by_component(lambda p: p.reshape(2, 3, heads, width), x, 2, 3))
    assert torch.equal(F.reshape(into, (2, 3, -1), 3, 2), x)


def test_sizes_that_cut_a_quaternion_are_refused() -> None:
    x = torch.randn(2, 16)
    for refused in (
        lambda: F.split_channels(x, 6),
        lambda: F.split_channels(x, [6, 10]),
        lambda: F.slice_channels(x, 2),
        lambda: F.slice_channels(x, 0, 7),
        lambda: F.reshape(x, (2, 8, 2), 1, 2),
    ):
        with pytest.raises(ValueError, match="must be a multiple of 4"):
            refused()
