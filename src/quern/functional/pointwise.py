r"""Real convolutions with a kernel of one position, whose gradients are one pass over the gradient of the result.

With numbers as ``(rows, channels)``, a row for each position, the result is :math:`y = x W^T + b` and

.. math:: \nabla x = \nabla y\, W, \qquad \nabla W = \nabla y^T x, \qquad \nabla b = \sum \nabla y.

oneDNN makes the result at the processor's peak, but reads what is no longer in the cache badly in the gradient of the
weight. In C (``native/``) rows are taken some at a time, for all three gradients; float32, channels-last.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quern.functional import native
from quern.functional.autograd import gradients_of, needs_gradients_by_autograd, needs_plain

NARROWEST = 32  # channels, and
LARGEST_WEIGHT = 1 << 15  # numbers of a weight: outside of these oneDNN is as fast
PIECES = 16  # of the rows: more than threads, and each long enough
PRODUCTS_OF_A_THREAD = 1 << 20  # fewer are done before another thread has begun


def can_convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether this is a convolution that :func:`pointwise_convolution` makes, here and now, in steps of one position
    and without padding."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        weight.shape[2:] == (1, 1)
        and x.dim() == 4
        and not needs_plain(x, weight, bias)  # compilers go no further
        and torch.is_grad_enabled()
        and any(t.requires_grad for t in tensors)
        and all(
            type(t) in (Tensor, nn.Parameter) and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors
        )
        and min(weight.shape[:2]) >= NARROWEST
        and weight.numel() <= LARGEST_WEIGHT
        and x.numel() > 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and native.is_available()
    )


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return F.conv2d(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (x, weight, bias) = grads, ctx.saved_tensors
        if needs_gradients_by_autograd(grad):
            return gradients_of(F.conv2d, (x, weight, bias), ctx.needs_input_grad, grad)
        out, inner = weight.shape[:2]
        rows = x.numel() // inner
        threads = max(1, min(torch.get_num_threads(), rows * inner * out // PRODUCTS_OF_A_THREAD))
        convolution = native.Pointwise(rows, inner, out, min(PIECES, rows), threads)
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        both, sums = torch.empty(out * inner + out), torch.empty(native.ask("quern_pointwise_sums", convolution))
        matrix = weight.reshape(out, inner)
        native.run("quern_pointwise_backward", convolution, x, matrix, grad, grad_x, both, sums)
        return grad_x, both[: out * inner].view_as(weight), both[out * inner :] if bias is not None else None


def pointwise_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.conv2d(x, weight, bias)`` for a ``weight`` of shape ``(out, in, 1, 1)``, if :func:`can_convolve` says so."""
    return _Pointwise.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
