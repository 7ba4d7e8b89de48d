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


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(4, n)`` and variance ``(n,)``."""
    norm, scratch = _described(x, 0.0, relu=False)
    mean, var = torch.empty(4, x.shape[1] // 4), torch.empty(x.shape[1] // 4)
    native.run("quern_batch_norm_statistics", norm, x, mean, var, scratch)
    return mean, var


def apply(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    added: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    relu: bool,
) -> Tensor:
    """The output, from the statistics."""
    norm, scratch = _described(x, eps, relu)
    y = torch.empty_like(x)
    scale, shift = (None if t is None else t.contiguous() for t in (weight, bias))
    added = None if added is None else _laid_out_as(x, added)
    native.run("quern_batch_norm_apply", norm, x, scale, shift, added, mean, var, y, scratch)
    return y


def sums(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    y: Tensor | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of weight ``(n,)`` and bias ``(4, n)``; and that of the output as laid out for :func:`gradient`,
    which is that of what was added. ``y`` is the output, if there was an addition and a ReLU: it is masked then."""
    norm, scratch = _described(x, eps, relu)
    along, total = torch.empty_like(var), torch.empty_like(mean)
    grad = _laid_out_as(x, grad)
    masked = None if y is None else torch.empty_like(x)
    scale, shift = (None if t is None else t.contiguous() for t in (weight, bias))
    native.run("quern_batch_norm_sums", norm, x, y, grad, scale, shift, mean, var, masked, along, total, scratch)
    return along, total, grad if masked is None else masked


def gradient(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    along: Tensor,
    total: Tensor,
    eps: float,
    relu: bool,
) -> Tensor:
    """The gradient of the input, from those of output, weight and bias. With ``relu`` that of the output is masked
    here."""
    norm, scratch = _described(x, eps, relu)
    grad_x = torch.empty_like(x)
    scale, shift = (None if t is None else t.contiguous() for t in (weight, bias))
    native.run("quern_batch_norm_gradient", norm, x, grad, scale, shift, mean, var, along, total, grad_x, scratch)
    return grad_x


def _laid_out_as(x: Tensor, t: Tensor) -> Tensor:
    return t if t.stride() == x.stride() else torch.empty_like(x).copy_(t)
