"""Batch normalisation with the statistics of a batch of which several processes hold a part each.

As in torch, the loss is the sum of those of the processes, so a gradient that flows into a statistic of all is the sum
of what flows into it in each process; the gradients of weight and bias are those of the process's own part.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from quern.functional import norms
from quern.functional.autograd import gradients_of, needs_gradients_by_autograd, needs_plain


def together() -> bool:
    """Whether there are other processes to take statistics with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _Sum(torch.autograd.Function):
    """The sum over all processes, in each of them."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:  # noqa: ARG004
        t = t.clone()
        dist.all_reduce(t)
        return t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ARG004
        return _Sum.apply(grads[0])


def _summed(t: Tensor) -> Tensor:
    return _Sum.apply(t.contiguous())  # pyright: ignore[reportReturnType]


def batch_norm(
    x: Float[Tensor, "batch channels *space"],
    running_mean: Float[Tensor, "parts n"] | None,
    running_var: Float[Tensor, " n"] | None,
    weight: Float[Tensor, " n"] | None = None,
    bias: Float[Tensor, "parts n"] | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    components: int = 4,
) -> Float[Tensor, "batch channels *space"]:
    r"""What :func:`quern.functional.batch_norm` makes, while training, of the process's part of the joined batch. With
    one component, what torch's does."""
    options = (weight, bias, eps, components)
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or needs_plain(x, weight, bias):
        y, mean, var, n = _plain(x, *options)
    else:
        n, mean, var = statistics = _statistics(x, components)
        y = _BatchNorm.apply(x, *options, statistics)  # pyright: ignore[reportGeneralTypeIssues]
    if running_mean is not None and running_var is not None and n:
        norms.moving(running_mean, mean, momentum)
        norms.moving(running_var, var * (n / (n - 1)), momentum)
    return y


@torch.no_grad()
def _statistics(x: Tensor, components: int) -> tuple[int, Tensor, Tensor]:
    r"""How many values a neuron has in all processes, its mean ``(components, n)`` and variance ``(n,)``, from those of
    each process: :math:`\sigma^2 = \sum_p n_p\, (\sigma_p^2 + |\mu_p - \mu|^2) / \sum_p n_p`."""
    channels = x.shape[1]
    own = torch.zeros(2 * channels + 1, dtype=torch.float64)
    if x.numel():
        mean, spread = torch.ops.aten.batch_norm_update_stats(x, None, None, 0.0)
        torch.cat((mean, spread, mean.new_tensor([norms.samples(x)])), out=own)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    means, spreads, counts = torch.stack(parts).split((channels, channels, 1), 1)
    norms.check_samples(x, n := int(counts.sum()))
    shares = counts / max(1, n)
    mean = (shares * means).sum(0)
    spread = (shares * (spreads + (means - mean).square())).sum(0)
    return n, mean.view(components, -1).to(x.dtype), spread.view(components, -1).sum(0).to(x.dtype)


def _plain(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, components: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Output, mean, variance and number of values of a neuron by ordinary differentiable operations."""
    dtype, x = x.dtype, norms.at_least_single(x)
    dims = [0, *range(2, x.dim())]
    sums = _summed(torch.cat((x.sum(dims), x.new_tensor([norms.samples(x)]))))
    norms.check_samples(x, n := int(sums[-1].detach()))
    mean = sums[:-1] / max(1, n)
    spread = _summed((x - norms.per_channel(mean, x)).square().sum(dims)) / max(1, n)
    mean, var = mean.view(components, -1), spread.view(components, -1).sum(0)
    scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    y = torch.addcmul(norms.per_channel(shift.flatten(), x), x, norms.per_channel(scale.repeat(components), x))
    return y.to(dtype), mean, var, n


class _BatchNorm(torch.autograd.Function):
    """The same with statistics that are known, and one exchange of sums on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        components: int,
        statistics: tuple[int, Tensor, Tensor],
    ) -> Any:
        ctx.n, mean, var = statistics
        ctx.save_for_backward(x, weight, bias, mean, var)
        ctx.eps, ctx.components = eps, components
        return norms.affine(x, mean, var, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, bias, mean, var = ctx.saved_tensors
        if needs_gradients_by_autograd(grads[0]):

            def plain(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                return _plain(x, weight, bias, ctx.eps, ctx.components)[0]

            return *gradients_of(plain, (x, weight, bias), ctx.needs_input_grad[:3], grads[0]), None, None, None

        def of_all(along: Tensor, total: Tensor) -> tuple[Tensor, Tensor, int]:
            sums = torch.cat((along, total.flatten())).double()
            dist.all_reduce(sums)
            first, rest = sums.to(x.dtype).split((len(along), total.numel()))
            return first, rest.view_as(total), max(1, ctx.n)

        if not x.numel():  # the others wait for its sums
            of_all(along := torch.zeros_like(var), total := torch.zeros_like(mean))
            grad_x = torch.zeros_like(x)
        else:
            grad_x, along, total = norms.gradients_by_torch(grads[0], x, weight, mean, var, ctx.eps, of_all)
        own = along if weight is not None else None, total if bias is not None else None
        return grad_x, *own, None, None, None


def whiten(
    x: Float[Tensor, "batch channels *space"],
    running_mean: Float[Tensor, "4 n"] | None,
    running_cov: Float[Tensor, "4 4 n"] | None,
    weight: Float[Tensor, "4 4 n"] | None = None,
    bias: Float[Tensor, "4 n"] | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Float[Tensor, "batch channels *space"]:
    """What :func:`quern.functional.whiten` makes, while training, of the process's part of the joined batch."""
    return norms.whiten(x, running_mean, running_cov, weight, bias, True, momentum, eps, _summed)
