"""How quaternions lie in real tensors: sizes, axes, memory layouts, and the refusals when they do not fit."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quern.algebra import UNITS


def quaternions(size: int, what: str, parts: str = UNITS) -> int:
    """How many quaternions ``size`` real numbers are, ``len(parts)`` of them each, or a sentence that says why not."""
    if size <= 0 or size % len(parts):
        raise ValueError(
            f"{what} is {size}, but it must be a positive multiple of {len(parts)}: "
            f"the components {', '.join(parts)} of every quaternion."
        )
    return size // len(parts)


def check_parts(input_parts: str) -> str:
    """``input_parts`` if it is some of r, i, j, k in that order, or a sentence that says so."""
    if not input_parts or "".join(part for part in UNITS if part in input_parts) != input_parts:
        raise ValueError(
            f"input_parts is {input_parts!r}, but it must name some of the components r, i, j, k in that order: "
            "'r' for gray images, 'ijk' for RGB, 'rijk' for quaternions."
        )
    return input_parts


def check_padding(padding: int | Sequence[int] | str, stride: Sequence[int]) -> None:
    """A sentence if ``padding`` is a word that torch does not know either."""
    if isinstance(padding, str) and padding not in ("same", "valid"):
        raise ValueError(f"padding is {padding!r}, but as a word it must be 'same' or 'valid'.")
    if padding == "same" and any(s != 1 for s in stride):
        raise ValueError("padding='same' needs stride 1: with a larger stride the size cannot stay the same.")


def in_layout_of(x: Tensor, y: Tensor) -> Tensor:
    """``y`` in channels_last if the images ``x`` are."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return y.contiguous(memory_format=torch.channels_last)
    return y


def split(x: Tensor, dim: int) -> Tensor:
    """A view with the quaternion axis taken apart: size 4 at ``dim`` and C after it."""
    dim = dim % x.dim()
    return x.unflatten(dim, (4, quaternions(x.shape[dim], f"the size of dim {dim}")))


def weight_layout(weight: Tensor) -> torch.memory_format | None:
    """``channels_last`` (or its 3d kin) if the weight ``(4, out, in, *kernel)`` was put into that layout.

    As in torch: a module moved by ``.to(memory_format=torch.channels_last)`` computes in that layout. The strides tell,
    also for one input channel or a kernel of one, where torch's own ``is_contiguous`` cannot.
    """
    if weight.dim() not in (5, 6):
        return None
    inner, *kernel = weight.shape[2:]
    if weight.stride(2) == 1 and weight.stride(-1) == inner and inner * math.prod(kernel) > 1:
        return torch.channels_last if weight.dim() == 5 else torch.channels_last_3d
    return None


def swap_channel_order(x: Tensor, outer: int, inner: int) -> Tensor:
    """Channels indexed (outer, inner, rest) become (inner, outer, rest)."""
    return x.unflatten(1, (outer, inner, -1)).transpose(1, 2).flatten(1, 3)


def tuple_of(value: int | Sequence[int], length: int) -> tuple[int, ...]:
    return (value,) * length if isinstance(value, int) else tuple(value)
