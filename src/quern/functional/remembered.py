"""Calls of a layer that is not training, as they were made the last time.

At batch 1 it takes longer to choose the form of a small product than to compute it. So a layer's
:class:`~quern.functional.weight_cache.WeightCache` keeps one of these, for inputs of the same shape and dtype and for
the same options. They take the input and the bias, and leave no trace for autograd.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from quern.functional import native, winograd
from quern.functional.autograd import needs_plain
from quern.functional.products import Geometry

Call = Callable[[Tensor, Tensor | None], Tensor]

# For kernels larger than 3x3 torch goes to oneDNN, whose overhead is more than a small convolution takes: one whose
# input, unfolded to a row for each position, has at most so many numbers.
UNFOLDED_NUMBERS = 1 << 17
_convolve_without_onednn = torch.ops.aten.thnn_conv2d.default


def _flat(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.flatten()


def linear_call(real: Tensor) -> Call:
    """A linear map in the block form, from the expanded weight."""
    return lambda x, bias: F.linear(x, real, _flat(bias))


def block_call(real: Tensor, geometry: Geometry, layout: torch.memory_format | None, x: Tensor) -> Call:
    """A convolution in the block form and one group, from the expanded weight, of inputs like ``x``."""
    _, inner, *kernel = real.shape
    small = (
        len(kernel) == 2
        and min(kernel) > 3
        and x.shape[0] == 1
        and x.shape[2] * x.shape[3] * inner * kernel[0] * kernel[1] <= UNFOLDED_NUMBERS
        and geometry.dilation == (1, 1)
        and x.dtype == torch.float32
    )

    def call(x: Tensor, bias: Tensor | None) -> Tensor:
        x = x if layout is None else x.to(memory_format=layout)
        if small and not needs_plain(x, bias):
            return _convolve_without_onednn(x, real, kernel, _flat(bias), geometry.stride, geometry.padding)
        return geometry.apply(x, real, _flat(bias), 1)

    return call


def winograd_call(
    transformed: winograd.Weights, geometry: Geometry, layout: torch.memory_format | None, otherwise: Call
) -> Call:
    """A convolution by Winograd's filtering; ``otherwise`` where the kernel cannot be had or somebody is watching."""

    def call(x: Tensor, bias: Tensor | None) -> Tensor:
        if type(x) is not Tensor or not native.is_available() or needs_plain(x, bias):
            return otherwise(x, bias)
        x = x if layout is None else x.to(memory_format=layout)
        return winograd.winograd_forward(x, transformed, bias, geometry)

    return call
