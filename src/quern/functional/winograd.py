r"""3x3 convolutions with an eighth of the products: Winograd's minimal filtering F(4x4, 3x3) and the Hadamard form.

An image is cut into tiles of 6x6 positions that overlap by two. With the small matrices A, B and G of Winograd, the 4x4
results of a tile d and a kernel w are

.. math:: A^T [ (G w G^T) \circ (B^T d B) ] A,

36 products where 144 were. Over channels they become matrix products, one for each of the 36 places. All of this is
linear in w and in d, so the Hadamard form (:mod:`quern.functional.hadamard`) is applied to the transformed components:
8 matrix products in place of 16. The gradient of the input is the same convolution with the conjugate, turned weight;
the gradient of the weight takes the transposes of all steps.

All of it is in C (``native/``), in float32, channels-last.
"""

import torch
from torch import Tensor

from quern.functional import native
from quern.functional.hadamard import FLIP, TARGET
from quern.functional.native_convolution import (
    CONJUGATE,
    Passes,
    can_be_native,
    laid_as,
    native_convolution,
    threads_for,
)
from quern.functional.products import Geometry
from quern.functional.shapes import as_pixels

SIDE = 4  # results along each side of a tile
PLACES = 36
# Tiles that are multiplied at a time, six or twelve rows of a matrix in registers: they should stay in cache.
BLOCK = 24
SLICE_BYTES = 4 << 20  # of tiles of both sides, for the gradient of the weight

Weights = tuple[Tensor, Tensor]


def can_convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> bool:
    """Whether this is a convolution that :func:`winograd_convolution` makes, here and now."""
    return (
        can_be_native(x, weight, bias)
        and weight.shape[3:] == (3, 3)
        and geometry.groups == 1
        and not geometry.transposed
        and geometry.stride == geometry.dilation == (1, 1)
        and geometry.padding[0] == geometry.padding[1]
        and min(x.shape[2:]) + 2 * geometry.padding[0] >= 3
    )


def _of_weight(inner: int, out: int) -> native.Winograd:
    """What C has to know to transform a weight."""
    return native.Winograd(0, 0, 0, 0, inner, out, 0, threads_for(16 * PLACES * inner * out), TARGET, FLIP)


def winograd_weights(weight: Tensor) -> Weights:
    """The transformed weights ``(places * 4, in, out)`` of both products, of a weight ``(4, out, in, 3, 3)``."""
    _, out, inner, *_ = weight.shape
    first, second = torch.empty(4 * PLACES, inner, out), torch.empty(4 * PLACES, inner, out)
    taps = weight.permute(3, 4, 0, 2, 1).contiguous()
    native.run("quern_winograd_spread_taps", _of_weight(inner, out), taps, first, second)
    return first, second


def _gradient_of_parameter(first: Tensor, second: Tensor) -> Tensor:
    """The transpose of :func:`winograd_weights`: ``(4, out, in, 3, 3)``."""
    _, inner, out = first.shape
    taps = torch.empty(3, 3, 4, inner, out)
    native.run("quern_winograd_gather_taps", _of_weight(inner, out), first, second, taps)
    return taps.permute(2, 4, 3, 0, 1)


def _described(x: Tensor, inner: int, out: int, padding: int) -> tuple[native.Winograd, int]:
    """The convolution for C, without the size of its blocks, and how many tiles it has."""
    images, _, height, width = x.shape
    high, wide = (size + 2 * padding - 2 for size in (height, width))
    tiles = images * -(-high // SIDE) * -(-wide // SIDE)
    threads = threads_for(8 * PLACES * tiles * inner * out)
    return native.Winograd(images, height, width, padding, inner, out, 0, threads, TARGET, FLIP), tiles


def _convolve(x: Tensor, weights: Weights, bias: Tensor | None, padding: int) -> Tensor:
    """``(batch, 4*in, height, width)`` to ``(batch, 4*out, ...)``, channels_last."""
    images, _, height, width = x.shape
    _, inner, out = weights[0].shape
    convolution, tiles = _described(x, inner, out, padding)
    convolution.block = min(BLOCK, 12 * -(-tiles // (12 * convolution.threads)))
    high, wide = (size + 2 * padding - 2 for size in (height, width))
    y = torch.empty((images, 4 * out, high, wide), memory_format=torch.channels_last)
    scratch = torch.empty(native.ask("quern_winograd_scratch", convolution, 0))
    native.run("quern_winograd_forward", convolution, as_pixels(x), *weights, bias, y, scratch)
    return y


def _gradient_of_weight(grad: Tensor, x: Tensor, _: Tensor, geometry: Geometry) -> Tensor:
    inner, out = x.shape[1] // 4, grad.shape[1] // 4
    convolution, tiles = _described(x, inner, out, geometry.padding[0])
    convolution.block = min(tiles, max(BLOCK, SLICE_BYTES // (4 * 4 * PLACES * (inner + out))))
    sums = torch.empty(4 * PLACES, inner, out), torch.empty(4 * PLACES, inner, out)
    scratch = torch.empty(native.ask("quern_winograd_scratch", convolution, 1))
    native.run("quern_winograd_weight", convolution, as_pixels(x), as_pixels(grad), *sums, scratch)
    return _gradient_of_parameter(*sums)


def _gradient_of_input(grad: Tensor, _: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    turned = (weight * CONJUGATE).transpose(1, 2).flip(3, 4)
    return _convolve(grad, winograd_weights(turned), None, 2 - geometry.padding[0])


def winograd_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, weights: Weights
) -> Tensor:
    """``W (x) x + b`` from the parameter and its :func:`winograd_weights`, if :func:`can_convolve` says so."""

    def forward(x: Tensor, _: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        return _convolve(x, weights, bias, geometry.padding[0])

    passes = Passes(forward, _gradient_of_input, _gradient_of_weight)
    return native_convolution(x, weight, bias, geometry, passes)


def winograd_forward(x: Tensor, weights: Weights, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The same without gradients, and nobody asks."""
    return laid_as(x, _convolve(x, weights, None if bias is None else bias.flatten(), geometry.padding[0]))
