"""Channels cut, joined and seen in other shapes as whole quaternions, where torch's own functions would cut components
apart.

``dim`` is the axis of the 4*C real numbers ``[r | i | j | k]``, and sizes count real channels, as torch's functions do.
All is written with torch's operations on ``x`` alone, so that it can be recorded into a graph of them as it stands.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as TF

Value = Any  # a tensor, or its stand-in while a graph is recorded


def _apart(x: Value, dim: int) -> tuple[Value, int]:
    """``x`` with sizes 4 and C in place of 4*C along ``dim``, and the axis of the C."""
    return x.unflatten(dim, (4, -1)), dim + 1 if dim >= 0 else dim


def _joined(h: Value, dim: int) -> Value:
    """The way back; ``dim`` is the axis of the C."""
    return h.flatten(dim - 1, dim)


def _quarter(size: Any, what: str) -> Any:
    if isinstance(size, int) and size % 4:
        raise ValueError(f"{what} is {size}, which is no whole number of quaternions: it must be a multiple of 4.")
    return size if size is None else size // 4


def chunk(x: Value, chunks: int, dim: int = 1) -> tuple[Value, ...]:
    """``torch.chunk`` of whole quaternion channels: of ``(..., 4*C, ...)`` so many ``(..., 4*C/chunks, ...)``."""
    h, at = _apart(x, dim)
    pieces = h.chunk(chunks, at)
    return tuple(_joined(pieces[n], at) for n in range(chunks))


def split_channels(x: Value, sizes: int | Sequence[int], dim: int = 1) -> Any:
    """``torch.split`` of whole quaternion channels into pieces of ``sizes`` real channels, all multiples of 4."""
    h, at = _apart(x, dim)
    if isinstance(sizes, int):
        return tuple(_joined(piece, at) for piece in h.split(_quarter(sizes, "the size of a piece"), at))
    pieces = h.split([_quarter(size, "the size of a piece") for size in sizes], at)
    return tuple(_joined(pieces[n], at) for n in range(len(sizes)))


def slice_channels(x: Value, start: int | None = None, stop: int | None = None, dim: int = 1) -> Value:
    """``x[..., start:stop, ...]`` along ``dim`` in whole quaternion channels: both ends are multiples of 4, and count
    from the back where they are negative."""
    h, at = _apart(x, dim)
    own = slice(_quarter(start, "the start of a slice"), _quarter(stop, "the end of a slice"))
    index = (..., own, *[slice(None)] * (-1 - at)) if at < 0 else (*[slice(None)] * at, own)
    return _joined(h[index], at)


def reshape(x: Value, sizes: Sequence[Any], dim: int, to: int) -> Value:
    """``x.reshape(sizes)`` in which the quaternions along ``dim`` stay whole, and stand along ``to`` afterwards.

    Both axes are counted from the front. The four components are taken out, the rest is seen in the new shape, in which
    ``sizes[to]`` is a quarter of what it says, and the components are put back there.
    """
    h = x.unflatten(dim, (4, -1)).movedim(dim, 0)
    wanted = [*sizes]
    if not (isinstance(wanted[to], int) and wanted[to] == -1):
        wanted[to] = _quarter(wanted[to], f"size {to} of the new shape")
    return h.reshape(4, *wanted).movedim(0, to).flatten(to, to + 1)


def pixel_shuffle(x: Value, upscale_factor: int) -> Value:
    """``torch.nn.functional.pixel_shuffle`` of quaternions: ``(batch, 4*C*r*r, h, w)`` to ``(batch, 4*C, hr, wr)``."""
    return TF.pixel_shuffle(x.unflatten(1, (4, -1)), upscale_factor).flatten(1, 2)


def pixel_unshuffle(x: Value, downscale_factor: int) -> Value:
    """The way back from :func:`pixel_shuffle`."""
    return TF.pixel_unshuffle(x.unflatten(1, (4, -1)), downscale_factor).flatten(1, 2)


def channel_shuffle(x: Value, groups: int) -> Value:
    """``torch.nn.functional.channel_shuffle`` of whole quaternion channels ``(batch, 4*C, *space)``."""
    h = x.unflatten(1, (4, groups, -1))
    return torch.transpose(h, 2, 3).flatten(1, 3)
