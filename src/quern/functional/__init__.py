"""Stateless quaternion operations on component-major activations.

An activation is a real tensor whose quaternion axis has size 4*C in the order ``[r | i | j | k]``. For convolutions,
normalisation and pooling that axis is 1, for linear maps the last; operations that could mean either take ``dim``.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from quern import algebra
from quern.algebra import UNITS
from quern.functional import depthwise, hadamard, products, winograd
from quern.functional.channels import (
    channel_shuffle,
    chunk,
    pixel_shuffle,
    pixel_unshuffle,
    reshape,
    slice_channels,
    split_channels,
)
from quern.functional.norms import batch_norm, group_norm, layer_norm, whiten
from quern.functional.products import Geometry
from quern.functional.remembered import block_call, linear_call, winograd_call
from quern.functional.shapes import axis, check_padding, in_layout_of, same_padding, split, tuple_of, weight_layout
from quern.functional.split_max_pool import split_max_pool2d
from quern.functional.weight_cache import WeightCache, cached

__all__ = ["batch_norm", "cat", "channel_shuffle", "chunk", "conv", "conv_transpose", "dropout", "encode_gray"]
__all__ += ["encode_rgb", "group_norm", "layer_norm", "linear", "max_pool", "mod_relu", "modulus", "pixel_shuffle"]
__all__ += ["pixel_unshuffle", "reshape", "slice_channels", "split_channels", "split_conv2d", "split_max_pool2d"]
__all__ += ["whiten"]


def _full_precision(x: Tensor) -> bool:
    """The block form adds up inside one real operation. The others add what operations gave, and half precision has
    neither the room for that above its largest number nor the digits."""
    kind = x.device.type
    halved = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return x.dtype in (torch.float32, torch.float64) and not halved


SPACE = {1: "1d", 2: "2d", 3: "3d"}


def linear(
    x: Float[Tensor, "... n"],
    weight: Float[Tensor, "4 out in"],
    bias: Float[Tensor, "4 out"] | None = None,
    *,
    input_parts: str = UNITS,
    cache: WeightCache | None = None,
) -> Float[Tensor, "... m"]:
    r"""The quaternion linear map :math:`y_o = \sum_c w_{oc} \otimes x_c + b_o` of the last axis.

    ``x`` is ``(..., len(input_parts) * in)`` and the result ``(..., 4 * out)``.
    """
    if cache is not None and (call := cache.recall(weight, x, input_parts)) is not None:
        return call(x, bias)
    _, out, inner = weight.shape
    wanted = len(input_parts) * inner
    if x.dim() == 0 or x.shape[-1] != wanted:
        raise ValueError(f"the last axis of the input must have size {wanted}, but its shape is {tuple(x.shape)}.")
    rows = x.numel() // wanted
    form = "block"
    if input_parts == UNITS and _full_precision(x):
        form = products.choose_linear_form(x.device, inner, out, rows)
    if form == "hadamard":
        weights = cached(cache, form, weight, lambda: hadamard.hadamard_weights(weight))
        return hadamard.hadamard_linear(x, weights, bias)
    if form == "stacked":
        return products.stacked_linear(x, weight, bias)
    real = cached(cache, form, weight, lambda: products.block_weight(weight, input_parts))
    if cache is not None:
        cache.remember(weight, (x.shape, x.dtype, input_parts), linear_call(real))
    return F.linear(x, real, None if bias is None else bias.flatten())


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    input_parts: str,
    cache: WeightCache | None,
    options: tuple[Any, ...] | None = None,
) -> Tensor:
    """``options`` are those of a call that may be remembered."""
    space = weight.dim() - 3
    channels_in = weight.shape[2] * geometry.groups
    wanted = len(input_parts) * channels_in
    if x.dim() not in (space + 1, space + 2) or x.shape[-space - 1] != wanted:
        raise ValueError(
            f"a {SPACE[space]} convolution of {wanted} real channels takes (batch, {wanted}, *space) or "
            f"({wanted}, *space), but the input's shape is {tuple(x.shape)}."
        )
    batched = x.dim() == space + 2
    x = x if batched else x.unsqueeze(0)
    layout = weight_layout(weight)
    if layout is not None:
        x = x.to(memory_format=layout)  # unlike contiguous(), it also settles the layout of a single channel
    form = "block"
    if input_parts == UNITS and _full_precision(x):
        positions = x.shape[0] * math.prod(x.shape[2:]) // (1 if geometry.transposed else math.prod(geometry.stride))
        area = math.prod(weight.shape[3:])
        native = None
        # What is told from sizes first: a small convolution takes about as long as all these questions.
        if min(weight.shape[1:3]) >= products.NARROWEST_IN_TILES and winograd.can_convolve(x, weight, bias, geometry):
            native = "winograd"
        elif geometry.groups > 1 and depthwise.can_convolve(x, weight, bias, geometry):
            native = "depthwise"
        sizes = (channels_in, weight.shape[1], geometry.groups, area, positions)
        form = products.choose_conv_form(x.device, *sizes, native)
    shape = (geometry.groups, geometry.transposed, layout or torch.contiguous_format)
    if form == "hadamard":
        weights = cached(cache, form, weight, lambda: hadamard.hadamard_weights(weight, *shape))
        y = hadamard.hadamard_convolution(x, weights, bias, geometry)
    elif form == "winograd":
        transformed = cached(cache, form, weight, lambda: winograd.winograd_weights(weight.detach()))
        y = winograd.winograd_convolution(x, weight, bias, geometry, transformed)
        if cache is not None and options is not None and batched:
            again = partial(_again, weight, geometry, input_parts, cache)
            cache.remember(weight, (x.shape, x.dtype, options), winograd_call(transformed, geometry, layout, again))
    elif form == "depthwise":
        y = depthwise.depthwise_convolution(x, weight, bias, geometry)
    elif form == "stacked":
        y = products.stacked_convolution(x, weight, bias, geometry)
    else:
        real = cached(cache, form, weight, lambda: products.block_weight(weight, input_parts, *shape))
        y = products.block_convolution(x, real, bias, geometry, input_parts)
        if cache is not None and options is not None and batched and geometry.groups == 1:
            cache.remember(weight, (x.shape, x.dtype, options), block_call(real, geometry, layout, x))
    return y if batched else y.squeeze(0)


def _again(
    weight: Tensor, geometry: Geometry, input_parts: str, cache: WeightCache, x: Tensor, bias: Tensor | None
) -> Tensor:
    """A convolution that was remembered, chosen anew."""
    return _convolve(x, weight, bias, geometry, input_parts, cache)


def conv(
    x: Float[Tensor, "..."],
    weight: Float[Tensor, "4 out in *kernel"],
    bias: Float[Tensor, "4 out"] | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    input_parts: str = UNITS,
    cache: WeightCache | None = None,
) -> Float[Tensor, "..."]:
    r"""The quaternion convolution (cross-correlation, as in torch) :math:`y_o = \sum_c w_{oc} \star x_c + b_o`.

    It has 1, 2 or 3 dimensions, told from the weight ``(4, out, in/groups, *kernel)``.

    ``x`` is ``(batch, len(input_parts) * in, *space)``, with or without the batch. ``groups`` divides the quaternion
    channels, so each group has all four components of its channels.
    """
    options = (stride, padding, dilation, groups, input_parts)
    if cache is not None and (call := cache.recall(weight, x, options)) is not None:
        return call(x, bias)
    # A word may pad the input first, and a list may be another one next time.
    plain = all(type(option) in (int, tuple) for option in (stride, padding, dilation))
    space = weight.dim() - 3
    x, padding = _in_numbers(x, weight, stride, padding, dilation)
    geometry = Geometry(
        stride=tuple_of(stride, space),
        padding=padding,
        dilation=tuple_of(dilation, space),
        groups=groups,
        output_padding=(0,) * space,
    )
    return _convolve(x, weight, bias, geometry, input_parts, cache, options if plain else None)


def _in_numbers(
    x: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
) -> tuple[Tensor, tuple[int, ...]]:
    """``padding`` in numbers if it is a word, and ``x`` padded where these are not the same on both sides."""
    space = weight.dim() - 3
    check_padding(padding, tuple_of(stride, space))
    if not isinstance(padding, str):
        return x, tuple_of(padding, space)
    sides = [(0, 0)] * space
    if padding == "same":
        sides = same_padding(weight.shape[3:], tuple_of(dilation, space))
    if any(far > near for near, far in sides):  # the convolution itself pads both sides alike
        x = F.pad(x, [more for near, far in reversed(sides) for more in (0, far - near)])
    return x, tuple(near for near, _ in sides)


def split_conv2d(
    x: Float[Tensor, "... channels height width"],
    weight: Float[Tensor, "4 n 1 h w"],
    bias: Float[Tensor, "4 n"] | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
) -> Float[Tensor, "..."]:
    r"""Each component of each channel with a filter of its own: :math:`y_{nc} = w_{nc} \star x_{nc} + b_{nc}`.

    ``x`` is ``(batch, 4*n, height, width)``, with or without the batch. The channels are as they lie real ones, and so
    it is torch's depthwise convolution.
    """
    channels = 4 * weight.shape[1]
    if x.dim() not in (3, 4) or x.shape[-3] != channels:
        raise ValueError(
            f"a depthwise convolution of {channels} real channels takes (batch, {channels}, height, width) or "
            f"({channels}, height, width), but the input's shape is {tuple(x.shape)}."
        )
    x, padding = _in_numbers(x, weight, stride, padding, dilation)
    options: Any = (stride, padding, dilation)
    return F.conv2d(x, weight.flatten(0, 1), None if bias is None else bias.flatten(), *options, groups=channels)


def conv_transpose(
    x: Float[Tensor, "..."],
    weight: Float[Tensor, "4 out in *kernel"],
    bias: Float[Tensor, "4 out"] | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    input_parts: str = UNITS,
    cache: WeightCache | None = None,
) -> Float[Tensor, "..."]:
    """The quaternion transposed convolution; sizes as in torch, the weight ``(4, out, in/groups, *kernel)`` as in
    :func:`conv`, so that a neuron is one index of axis 1 in every layer."""
    space = weight.dim() - 3
    geometry = Geometry(
        stride=tuple_of(stride, space),
        padding=tuple_of(padding, space),
        dilation=tuple_of(dilation, space),
        groups=groups,
        transposed=True,
        output_padding=tuple_of(output_padding, space),
    )
    return _convolve(x, weight, bias, geometry, input_parts, cache)


# ---------------------------------------------------------------------------------- pooling, activations, the rest


def max_pool(
    x: Float[Tensor, "batch channels *space"],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quaternion max-pooling: of each window the quaternion of largest modulus, whole; and where it stood.

    ``x`` is ``(batch, 4*C, *space)``; the indices are those of torch, one per quaternion: ``(batch, C, *space)``.
    """
    space = x.dim() - 2
    if space not in SPACE:
        raise ValueError(f"max_pool takes (batch, 4*C, *space) in 1 to 3 dimensions, but got {tuple(x.shape)}.")
    h = split(x, 1)
    pool: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[space - 1]
    with torch.no_grad():
        r, i, j, k = h.unbind(1)
        size = torch.hypot(torch.hypot(r, i), torch.hypot(j, k))  # no square leaves the range of the dtype
        _, indices = pool(size, kernel_size, stride, padding, dilation, ceil_mode=ceil_mode, return_indices=True)
    picked = indices.flatten(2).unsqueeze(1).expand(-1, 4, -1, -1)
    y = h.flatten(3).gather(3, picked).view(x.shape[0], x.shape[1], *indices.shape[2:])
    return in_layout_of(x, y), indices


def mod_relu(x: Float[Tensor, "..."], bias: Float[Tensor, " n"], dim: int = 1) -> Float[Tensor, "..."]:
    r"""The modulus through a shifted ReLU, the direction kept: :math:`\mathrm{ReLU}(|q| + b)\, q / |q|`, 0 at 0."""
    h, dim = split(x, dim), axis(x, dim)
    shape = [1] * h.dim()
    shape[dim + 1] = -1
    size = algebra.modulus(h, dim, keepdim=True)
    grown = F.relu(size + bias.view(shape))
    return (h / torch.where(size == 0, 1, size) * grown).flatten(dim, dim + 1)


def modulus(x: Float[Tensor, "..."], dim: int = 1) -> Float[Tensor, "..."]:
    """The modulus of every quaternion of an activation: size 4*C along ``dim`` becomes C. Gradient 0 at 0."""
    return algebra.modulus(split(x, dim), axis(x, dim))


def dropout(
    x: Float[Tensor, "..."],
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    dim: int = 1,
    channelwise: bool = False,
) -> Float[Tensor, "..."]:
    """Zero whole quaternions with probability ``p`` and scale the rest by ``1/(1-p)``.

    ``channelwise`` zeroes a channel at all positions (every axis after ``dim``) at once.
    """
    if not training or p == 0:
        return x
    h, dim = split(x, dim), axis(x, dim)
    shape = list(h.shape)
    shape[dim] = 1
    if channelwise:
        shape[dim + 2 :] = [1] * (h.dim() - dim - 2)
    keep = F.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), p)
    if inplace:
        h.mul_(keep)
        return x
    return (h * keep).flatten(dim, dim + 1)


def cat(tensors: Sequence[Float[Tensor, "..."]], dim: int = 1) -> Float[Tensor, "..."]:
    """Join activations along their quaternion channels. ``torch.cat`` would mix the components up."""
    if isinstance(tensors, Tensor) or not tensors:
        raise ValueError("cat needs a list of at least one tensor.")
    dim = axis(tensors[0], dim)
    return in_layout_of(tensors[0], torch.cat([split(t, dim) for t in tensors], dim + 1).flatten(dim, dim + 1))


def encode_gray(x: Float[Tensor, "..."], dim: int = 1) -> Float[Tensor, "..."]:
    """Gray images as quaternions (g, 0, 0, 0): size C along ``dim`` becomes 4*C."""
    return torch.cat([x, torch.zeros_like(x).repeat_interleave(3, dim)], dim)


def encode_rgb(x: Float[Tensor, "..."], dim: int = 1) -> Float[Tensor, "..."]:
    """Colour images as pure quaternions (0, r, g, b): size 3*C (all r, all g, all b) along ``dim`` becomes 4*C."""
    if x.shape[dim] % 3:
        raise ValueError(f"encode_rgb needs 3 channels (or 3*C) along dim {dim}, but the shape is {tuple(x.shape)}.")
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, x.shape[dim] // 3)), x], dim)
