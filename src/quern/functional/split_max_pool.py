"""Max-pooling of each component by itself, as torch's: 2x2 windows side by side are pooled in C where nobody but eager
autograd is watching."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quern.functional import native
from quern.functional.autograd import needs_gradients_by_autograd, needs_plain
from quern.functional.shapes import tuple_of

NUMBERS_OF_A_THREAD = 1 << 15  # fewer are done before another thread has begun
NUMBERS_WITHOUT_GRADIENT = 1 << 15  # of fewer, torch's is sooner begun
Size = int | Sequence[int]


def can_pool(x: Tensor, kernel_size: Size, stride: Size, padding: Size, dilation: Size) -> bool:
    """Whether the kernels are here, and these are channels_last images and windows for them."""
    windows = (kernel_size, stride, padding, dilation)
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and not needs_plain(x)  # compilers go no further
        and ((x.requires_grad and torch.is_grad_enabled()) or x.numel() >= NUMBERS_WITHOUT_GRADIENT)
        and type(x) in (Tensor, nn.Parameter)
        and x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > 0
        # Late, as it takes longest: at batch 1 a pooling is not much longer.
        and [tuple_of(size, 2) for size in windows] == [(2, 2), (2, 2), (0, 0), (1, 1)]
        and min(x.shape[2:]) >= 2
        and native.is_available()
    )


def _described(shape: Sequence[int]) -> native.MaxPool:
    images, channels, height, width = shape
    numbers = images * channels * height * width
    threads = max(1, min(torch.get_num_threads(), numbers // NUMBERS_OF_A_THREAD))
    return native.MaxPool(images, height, width, channels, threads)


def _spread(grad: Tensor, places: Tensor, shape: Sequence[int]) -> Tensor:
    """The gradient of the input by ordinary differentiable operations."""
    parts = torch.stack([grad * (places == n) for n in range(4)], -1).unflatten(-1, (2, 2))
    whole = parts.transpose(-3, -2).flatten(-2).flatten(-3, -2)
    return F.pad(whole, (0, shape[3] % 2, 0, shape[2] % 2))


class _MaxPool(torch.autograd.Function):
    """Nothing but the places of the maxima is kept, a byte each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
        y = torch.empty(shape, memory_format=torch.channels_last)
        places = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        native.run("quern_max_pool_forward", _described(x.shape), x, y, places)
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad,), (places,) = grads, ctx.saved_tensors
        if needs_gradients_by_autograd(grad):
            return _spread(grad, places, ctx.shape)
        grad_x = torch.empty(ctx.shape, memory_format=torch.channels_last)
        grad = grad.contiguous(memory_format=torch.channels_last)
        native.run("quern_max_pool_backward", _described(ctx.shape), grad, places, grad_x)
        return grad_x


def split_max_pool2d(
    x: Float[Tensor, "..."],
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Float[Tensor, "..."]:
    """``torch.nn.functional.max_pool2d``: of each window and each channel of ``(batch, channels, height, width)`` the
    maximum."""
    stride = kernel_size if stride is None else stride
    if not ceil_mode and can_pool(x, kernel_size, stride, padding, dilation):
        return _MaxPool.apply(x)  # pyright: ignore[reportReturnType]
    return F.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)  # pyright: ignore[reportArgumentType]
