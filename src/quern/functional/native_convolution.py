"""What convolutions in C have in common: when they can be had, and how autograd sees them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quern.functional import native
from quern.functional.autograd import gradients_of, needs_gradients_by_autograd, needs_plain
from quern.functional.products import Geometry, block_convolution, block_weight
from quern.functional.shapes import is_channels_last

CONJUGATE = torch.tensor([1.0, -1.0, -1.0, -1.0]).view(4, 1, 1, 1, 1)
PRODUCTS_OF_A_THREAD = 1 << 20  # fewer are done before another thread has begun


@dataclass(frozen=True)
class Passes:
    """The three passes of a convolution in C: from images in any layout, to images in channels_last."""

    forward: Callable[[Tensor, Tensor, Tensor | None, Geometry], Tensor]
    gradient_of_input: Callable[[Tensor, Tensor, Tensor, Geometry], Tensor]  # of gradient, input and weight
    gradient_of_weight: Callable[[Tensor, Tensor, Tensor, Geometry], Tensor]  # of the same


def can_be_native(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether plain images in float32 are convolved, with nobody watching but eager autograd."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and not needs_plain(x, weight, bias)  # compilers go no further
        and x.dim() == 4
        and x.numel() > 0
        and all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
        and native.is_available()
    )


def threads_for(products: int) -> int:
    """How many threads so many real products are worth."""
    return max(1, min(torch.get_num_threads(), products // PRODUCTS_OF_A_THREAD))


def laid_as(x: Tensor, y: Tensor) -> Tensor:
    """A result in channels_last in the layout of the images ``x``."""
    return y if is_channels_last(x) else y.contiguous()


class _NativeConvolution(torch.autograd.Function):
    """Nothing but the inputs is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, passes: Passes) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.geometry, ctx.passes = geometry, passes
        return laid_as(x, passes.forward(x, weight, None if bias is None else bias.flatten(), geometry))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight, _ = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        if needs_gradients_by_autograd(grad):

            def plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                return block_convolution(x, block_weight(weight, groups=geometry.groups), bias, geometry)

            return *gradients_of(plain, ctx.saved_tensors, ctx.needs_input_grad[:3], grad), None, None
        need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
        passes: Passes = ctx.passes
        grad_x = laid_as(x, passes.gradient_of_input(grad, x, weight, geometry)) if need_x else None
        grad_weight = passes.gradient_of_weight(grad, x, weight, geometry) if need_weight else None
        grad_bias = grad.sum((0, 2, 3)).view(4, -1) if need_bias else None
        return grad_x, grad_weight, grad_bias, None, None


def native_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, passes: Passes) -> Tensor:
    """``W (x) x + b`` by three passes in C, and by plain operations for derivatives of derivatives."""
    return _NativeConvolution.apply(x, weight, bias, geometry, passes)  # pyright: ignore[reportReturnType]
