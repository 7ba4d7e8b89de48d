r"""Depthwise convolutions: as many groups as quaternion channels, each with a filter of its own,

.. math:: y_c = w_c \star x_c + b_c, \qquad \nabla x_c = \bar w_c \star^T \nabla y_c, \qquad
          \nabla w_c = \nabla y_c \star \bar x_c.

A real grouped convolution wants the four components of a channel side by side, and so two copies of everything around
it. The kernels in C (``native/``, float32, channels-last) multiply vectors of channels where they lie.
"""

import torch
from torch import Tensor

from quern.functional import native
from quern.functional.native_convolution import CONJUGATE, Passes, can_be_native, native_convolution, threads_for
from quern.functional.products import Geometry
from quern.functional.shapes import as_pixels

PIECES = 16  # of the images, for the gradient of the weight: more than threads, and each long enough


def can_convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> bool:
    """Whether this is a convolution that :func:`depthwise_convolution` makes, here and now."""
    return (
        can_be_native(x, weight, bias)
        and not geometry.transposed
        and weight.shape[2] == 1
        and geometry.groups == weight.shape[1] > 1
        and min(_result_size(x, weight, geometry)) > 0
    )


def _result_size(x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[int, ...]:
    sizes = zip(x.shape[2:], weight.shape[3:], geometry.stride, geometry.padding, geometry.dilation, strict=True)
    return tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes)


def _described(source: Tensor, target: tuple[int, ...], weight: Tensor, geometry: Geometry) -> native.Depthwise:
    images, channels, *space = source.shape
    threads = threads_for(
        4 * images * channels * weight[0, 0].numel() * max(target[0] * target[1], space[0] * space[1])
    )
    axes = (tuple(space), target, tuple(weight.shape[3:]), geometry.stride, geometry.padding, geometry.dilation)
    return native.Depthwise(images, channels // 4, *axes, 0, min(images, PIECES), threads)


def _table(convolution: native.Depthwise) -> Tensor:
    return torch.empty(3 * sum(convolution.target), dtype=torch.int64)


def _convolve(convolution: native.Depthwise, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.empty((*x.shape[:2], *convolution.target), memory_format=torch.channels_last)
    taps = weight.permute(3, 4, 0, 1, 2).contiguous()
    native.run("quern_depthwise_forward", convolution, as_pixels(x), taps, bias, y, _table(convolution))
    return y


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    return _convolve(_described(x, _result_size(x, weight, geometry), weight, geometry), x, weight, bias)


def _gradient_of_input(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    convolution = _described(grad, tuple(x.shape[2:]), weight, geometry)
    convolution.transposed = 1
    return _convolve(convolution, grad, weight * CONJUGATE, None)


def _gradient_of_weight(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    convolution = _described(x, tuple(grad.shape[2:]), weight, geometry)
    _, out, _, high, wide = weight.shape
    sums = torch.empty(native.ask("quern_depthwise_sums", convolution))
    taps = torch.empty(high, wide, 4, out, 1)
    native.run("quern_depthwise_weight", convolution, as_pixels(x), as_pixels(grad), taps, sums, _table(convolution))
    return taps.permute(2, 3, 4, 0, 1)


_PASSES = Passes(_forward, _gradient_of_input, _gradient_of_weight)


def depthwise_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """``W (x) x + b`` with one filter for each channel, if :func:`can_convolve` says so."""
    return native_convolution(x, weight, bias, geometry, _PASSES)
