"""The same numbers in another shape, joined, or with a border."""

import math
from collections.abc import Callable, Sequence

import torch

from quern.errors import ExportError
from quern.graph.packing.values import Packed, Packer, in_order


def reshape(packer: Packer, x: Packed, shape: Sequence[int]) -> Packed:
    """``shape`` has the batch, which must stay an axis of its own."""
    for value in (x, None):
        value = packer.contiguous(x) if value is None else value
        try:
            moved = value.moved(lambda t: t.view(tuple(shape)))
        except RuntimeError:
            continue
        if (moved.batch is None) == (x.batch is None):
            return moved
    raise ExportError("an operation mixes the samples of a batch, but a packed network takes one at a time.")


def cat(packer: Packer, parts: Sequence[Packed], dim: int = 0) -> Packed:
    like = next((part for part in parts if part.batch is not None), parts[0])
    dim %= like.view.dim()
    if dim == like.batch:
        raise ExportError("an operation joins batches, but a packed network takes one sample at a time.")
    sizes = list(like.view.shape)
    sizes[dim] = sum(part.view.shape[dim] for part in parts)
    samples = [size for n, size in enumerate(sizes) if n != like.batch]
    whole = packer.fill(samples, math.nan)
    whole = Packed(whole.buffer, in_order(samples, like.batch))
    start = 0
    for part in parts:
        size = part.view.shape[dim]
        packer.copy(part, _narrow(whole, dim, start, size))
        start += size
    return whole


def pad(packer: Packer, x: Packed, sides: Sequence[int], mode: str = "constant", value: float | None = None) -> Packed:
    """As ``torch.nn.functional.pad``: sides of the last axis first, near and far."""
    for n in range(len(sides) // 2):
        x = _pad_axis(packer, x, x.view.dim() - 1 - n, sides[2 * n], sides[2 * n + 1], mode, value or 0.0)
    return x


# Which place inside stands for one outside, of an axis of a size.
_BORDERS: dict[str, Callable[[int, int], int]] = {
    "reflect": lambda place, size: size - 1 - abs(size - 1 - abs(place)),
    "replicate": lambda place, size: min(max(place, 0), size - 1),
    "circular": lambda place, size: place % size,
}


def _pad_axis(packer: Packer, x: Packed, dim: int, near: int, far: int, mode: str, value: float) -> Packed:
    size = x.view.shape[dim]
    if dim == x.batch or near < -size or far < -size:
        raise ExportError("an operation pads the batch, or takes away more than there is.")
    x = _narrow(x, dim, max(-near, 0), size - max(-near, 0) - max(-far, 0))
    near, far, size = max(near, 0), max(far, 0), x.view.shape[dim]
    if near == far == 0:
        return x
    if mode == "constant":
        number = packer.constant(torch.full((1,) * x.view.dim(), float(value)))

        def border(width: int) -> list[Packed]:
            shape = [width if n == dim else one for n, one in enumerate(x.view.shape)]
            return [number.moved(lambda t: t.expand(shape))] if width else []

        return cat(packer, [*border(near), x, *border(far)], dim)
    if mode not in _BORDERS:
        raise ExportError(f"padding of mode {mode} cannot be packed.")

    def columns(places: range) -> list[Packed]:
        return [_narrow(x, dim, _BORDERS[mode](place, size), 1) for place in places]

    return cat(packer, [*columns(range(-near, 0)), x, *columns(range(size, size + far))], dim)


def _narrow(x: Packed, dim: int, start: int, size: int) -> Packed:
    return x.moved(lambda t: t.narrow(dim, start, size))
