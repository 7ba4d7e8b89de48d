"""Batch normalisation while training, with an addition and a ReLU behind it, two passes over the numbers each way:
batch_norm.c."""

import torch
from torch import Tensor, nn

from quern.functional import native

LINE = 64  # numbers of a line at least
PIECES = 16  # more than threads, and each long enough
NUMBERS_OF_A_THREAD = 1 << 15  # fewer are done before another thread has begun


def is_plain(t: Tensor) -> bool:
    """Whether this is an ordinary tensor of float32 on the CPU."""
    return type(t) in (Tensor, nn.Parameter) and t.dtype == torch.float32 and t.device.type == "cpu"


def can_take(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernels are here, and ``x`` has its channels side by side."""
    return (
        native.is_available()
        and all(t is None or is_plain(t) for t in (x, weight, bias))
        and (
            (x.dim() == 2 and x.is_contiguous())
            or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
            or (x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d))
        )
    )


def _described(x: Tensor, eps: float, relu: bool) -> tuple[native.BatchNorm, Tensor]:
    """The normalisation for C, and scratch memory for a pass."""
    channels = x.shape[1]
    rows = x.numel() // channels
    side = min(rows, -(-LINE // channels))
    threads = max(1, min(torch.get_num_threads(), x.numel() // NUMBERS_OF_A_THREAD))
    norm = native.BatchNorm(rows, channels // 4, side, min(PIECES, rows // side), threads, relu, eps)
    return norm, torch.empty(native.ask("quern_batch_norm_scratch", norm) // 8, dtype=torch.float64)


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, added: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, mean ``(4, n)`` and variance ``(n,)``."""
    norm, scratch = _described(x, eps, relu)
    y, mean, var = torch.empty_like(x), torch.empty(4, x.shape[1] // 4), torch.empty(x.shape[1] // 4)
    scale, shift = (None if t is None else t.contiguous() for t in (weight, bias))
    added = None if added is None else _laid_out_as(x, added)
    native.run("quern_batch_norm_forward", norm, x, scale, shift, added, y, mean, var, scratch)
    return y, mean, var


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    y: Tensor | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of input, weight ``(n,)``, bias ``(4, n)`` and of what was added. ``y`` is the output, if there was
    an addition and a ReLU."""
    norm, scratch = _described(x, eps, relu)
    grad_x, along, total = torch.empty_like(x), torch.empty_like(var), torch.empty_like(mean)
    grad = _laid_out_as(x, grad)
    masked = None if y is None else torch.empty_like(x)
    scale, shift = (None if t is None else t.contiguous() for t in (weight, bias))
    results = grad_x, masked, along, total
    native.run("quern_batch_norm_backward", norm, x, y, grad, scale, shift, mean, var, *results, scratch)
    return grad_x, along, total, grad if masked is None else masked


def _laid_out_as(x: Tensor, t: Tensor) -> Tensor:
    return t if t.stride() == x.stride() else torch.empty_like(x).copy_(t)
