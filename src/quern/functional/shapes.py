"""How quaternions lie in real tensors: sizes, axes, memory layouts, and the refusals when they do not fit."""

import math
import operator
from collections.abc import Iterable, Sequence

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


def same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Near and far padding of each axis that keep its size at stride 1; an even kernel has one more on the far side."""
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(t // 2, t - t // 2) for t in total]


def axis(x: Tensor, dim: int) -> int:
    """``dim`` counted from the front, or a sentence if ``x`` has no such axis."""
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"the quaternions should be on dim {dim}, but the input's shape is {tuple(x.shape)}.")
    return dim % x.dim()


def split(x: Tensor, dim: int) -> Tensor:
    """A view with the quaternion axis taken apart: size 4 at ``dim`` and C after it."""
    dim = axis(x, dim)
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


def is_channels_last(x: Tensor) -> bool:
    # In this order: torch.vmap cannot answer the last question.
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def in_layout_of(x: Tensor, y: Tensor) -> Tensor:
    """``y`` in channels_last if the images ``x`` are."""
    return y.contiguous(memory_format=torch.channels_last) if is_channels_last(x) else y


def as_pixels(x: Tensor) -> Tensor:
    """Images ``(batch, channels, height, width)`` as ``(batch, height, width, channels)``, contiguous."""
    return x.permute(0, 2, 3, 1).contiguous()


def swap_channel_order(x: Tensor, outer: int, inner: int) -> Tensor:
    """Channels indexed (outer, inner, rest) become (inner, outer, rest); the layout of images is kept."""
    if is_channels_last(x):
        return x.movedim(1, -1).unflatten(-1, (outer, inner, -1)).transpose(-3, -2).flatten(-3).movedim(-1, 1)
    return x.unflatten(1, (outer, inner, -1)).transpose(1, 2).flatten(1, 3)


def tuple_of(value: int | Sequence[int], length: int) -> tuple[int, ...]:
    """One number per axis, from one for all or a sequence of them."""
    if type(value) is tuple and len(value) == length:  # what the layers pass, on every call
        return value
    numbers = tuple(value) if isinstance(value, Iterable) else (value,)
    if len(numbers) not in (1, length):
        raise ValueError(f"{value}, but it must be one number or {length} numbers.")
    return tuple(operator.index(n) for n in (numbers * length if len(numbers) == 1 else numbers))
