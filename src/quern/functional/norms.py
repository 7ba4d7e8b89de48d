"""Quaternion normalisation: the mean is a quaternion, the spread one real number or a 4x4 covariance."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from quern.functional.autograd import gradients_of, needs_gradients_by_autograd, needs_plain
from quern.functional.native import batch_norm as native_batch_norm
from quern.functional.shapes import in_layout_of, split


def per_channel(v: Tensor, x: Tensor) -> Tensor:
    """A ``(4*C,)`` vector shaped to broadcast against ``x`` of shape ``(batch, 4*C, *space)``."""
    return v.view(-1, *[1] * (x.dim() - 2))


def moving(running: Tensor, batch: Tensor, momentum: float) -> None:
    running.mul_(1 - momentum).add_(batch.detach().to(running.dtype), alpha=momentum)


def follow_batch(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor, samples: int, momentum: float
) -> None:
    """Let running statistics follow those of a batch; the variance in its unbiased form."""
    moving(running_mean, mean, momentum)
    moving(running_var, var * (samples / (samples - 1)), momentum)


def at_least_single(x: Tensor) -> Tensor:
    """Statistics of half precision numbers are taken in single precision."""
    return x if x.dtype == torch.float64 else x.float()


def samples(x: Tensor) -> int:
    """How many values of each neuron are in ``x``."""
    return x.numel() // max(1, x.shape[1])


def check_samples(x: Tensor, n: int) -> None:
    """ValueError if the batch, of which ``x`` may be a part, has one value per neuron."""
    if n == 1:
        raise ValueError(f"training needs more than one value per neuron, but the input's shape is {tuple(x.shape)}.")


def batch_norm(
    x: Float[Tensor, "batch channels *space"],
    running_mean: Float[Tensor, "4 n"] | None,
    running_var: Float[Tensor, " n"] | None,
    weight: Float[Tensor, " n"] | None = None,
    bias: Float[Tensor, "4 n"] | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Float[Tensor, "batch channels *space"]:
    r"""Quaternion batch normalisation :math:`\gamma (h - \mu) / \sqrt{\sigma^2 + \varepsilon} + \beta` per neuron.

    :math:`\mu` is a quaternion and :math:`\sigma^2 = E\,|h - \mu|^2` one real number, both over batch and space, so the
    neuron is scaled as one thing and its direction in the four components is kept. With ``training`` the batch gives
    them and the running values follow (the variance in its unbiased form, as in torch).
    """
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm needs running statistics where it does not take them from the batch.")
        return affine(x, running_mean, running_var, weight, bias, eps)
    return _train_batch_norm(x, running_mean, running_var, weight, bias, None, momentum, eps, relu=False)


def batch_norm_and_relu(
    x: Float[Tensor, "batch channels *space"],
    running_mean: Float[Tensor, "4 n"] | None,
    running_var: Float[Tensor, " n"] | None,
    weight: Float[Tensor, " n"] | None,
    bias: Float[Tensor, "4 n"] | None,
    added: Float[Tensor, "batch channels *space"] | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    relu: bool,
) -> Float[Tensor, "batch channels *space"]:
    """:func:`batch_norm` with what is ``added`` to it, through a ReLU if so asked: in training all in one pass where
    the kernels can be had, so that what is between is never in memory."""
    if training and x.numel() and _can_be_one_pass(x, weight, bias, added):
        return _train_batch_norm(x, running_mean, running_var, weight, bias, added, momentum, eps, relu=relu)
    y = batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    y = y if added is None else y + added
    return F.relu(y) if relu else y


def _can_be_one_pass(x: Tensor, weight: Tensor | None, bias: Tensor | None, added: Tensor | None) -> bool:
    return (
        not needs_plain(x, weight, bias, added)  # compilers go no further
        and native_batch_norm.can_take(x, weight, bias)
        and (added is None or (native_batch_norm.is_plain(added) and added.shape == x.shape))
    )


def _train_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    added: Tensor | None,
    momentum: float,
    eps: float,
    *,
    relu: bool,
) -> Tensor:
    """By the statistics of the batch, which the running values follow. ``added`` and ``relu`` are for the kernels."""
    n = samples(x)
    check_samples(x, n)
    if n == 0:
        return x.clone()
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or needs_plain(x, weight, bias):
        y, mean, var = batch_norm_plain(x, weight, bias, eps)
    else:
        y, mean, var = _BatchNorm.apply(x, weight, bias, added, eps, relu)  # pyright: ignore[reportGeneralTypeIssues]
    if running_mean is not None and running_var is not None:
        follow_batch(running_mean, running_var, mean, var, n, momentum)
    return y


def affine(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The normalisation with given statistics: a real one whose channels of one neuron share variance and scale."""
    # Not repeat(): for a few numbers cat is five times as fast.
    scale = None if weight is None else torch.cat([weight] * len(mean))
    shift = None if bias is None else bias.flatten()
    return F.batch_norm(x, mean.flatten(), torch.cat([var] * len(mean)), scale, shift, False, 0.0, eps)


def batch_norm_plain(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, mean ``(4, n)`` and variance ``(n,)`` by ordinary differentiable operations."""
    dtype, x = x.dtype, at_least_single(x)
    spread, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
    mean, var = mean.view(4, -1), spread.view(4, -1).sum(0)
    scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    y = torch.addcmul(per_channel(shift.flatten(), x), x, per_channel(scale.repeat(4), x))
    return y.to(dtype), mean, var


class _BatchNorm(torch.autograd.Function):
    r"""The same in two passes each way: by kernels in C, or where those cannot be had by torch's own for real channels.

    With :math:`s = \gamma/\sqrt{\sigma^2+\varepsilon}` and means over the n values of a neuron, the gradient of x is
    :math:`s\,(g - \bar g - (x - \mu)\, \overline{\langle g, x - \mu\rangle} / (\sigma^2+\varepsilon))` with the inner
    product over the four components.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        added: Tensor | None,
        eps: float,
        relu: bool,
    ) -> Any:
        ctx.native = native_batch_norm.can_take(x, weight, bias)
        if ctx.native:
            mean, var = native_batch_norm.statistics(x)
            y = native_batch_norm.apply(x, weight, bias, added, mean, var, eps, relu)
        else:
            mean, spread = torch.ops.aten.batch_norm_update_stats(x, None, None, 0.0)
            mean, var = mean.view(4, -1), spread.view(4, -1).sum(0)
            y = affine(x, mean, var, weight, bias, eps)
        # Without an addition, where the ReLU gave 0 is told from x.
        ctx.save_for_backward(x, weight, bias, mean, var, y if relu and added is not None else None)
        ctx.eps, ctx.relu = eps, relu
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, bias, mean, var, y = ctx.saved_tensors
        grad, needs_added = grads[0], ctx.needs_input_grad[3]
        if needs_gradients_by_autograd(grad):
            grad = grad if y is None else torch.where(y <= 0, 0, grad)

            def plain(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                normalized = batch_norm_plain(x, weight, bias, ctx.eps)[0]
                return F.relu(normalized) if ctx.relu and y is None else normalized

            own = gradients_of(plain, (x, weight, bias), ctx.needs_input_grad[:3], grad)
            return *own, grad if needs_added else None, None, None
        grad_added = grad
        if ctx.native:
            given, masked = (x, weight, bias, mean, var), ctx.relu and y is None
            along, total, grad_added = native_batch_norm.sums(grad, *given, y, ctx.eps, ctx.relu)
            grad_x = native_batch_norm.gradient(grad_added, *given, along, total, ctx.eps, masked)
        else:
            grad_x, along, total = gradients_by_torch(grad, x, weight, mean, var, ctx.eps)
        grad_weight, grad_bias = along if weight is not None else None, total if bias is not None else None
        return grad_x, grad_weight, grad_bias, grad_added if needs_added else None, None, None


def gradients_by_torch(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    of_all: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, float]] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias. ``of_all`` makes of this part's sums those of the whole batch, and says
    how many values of a neuron that has."""
    inverse, components = torch.rsqrt(var + eps), len(mean)
    scale = inverse if weight is None else inverse * weight
    repeated = None if weight is None else weight.repeat(components)
    # As if the statistics were constants: s g, and the sums of g (x - mu) / sigma and of g over batch and space.
    grad_x, along, total = torch.ops.aten.native_batch_norm_backward(
        grad, x, repeated, mean.flatten(), var.repeat(components), None, None, False, eps, [True, True, True]
    )
    along, total = along.view(components, -1).sum(0), total.view(components, -1)
    all_along, all_total, n = (along, total, x.numel() / x.shape[1]) if of_all is None else of_all(along, total)
    slope = -scale * inverse * all_along / n
    offset = -scale * all_total / n - slope * mean
    grad_x.addcmul_(x, per_channel(slope.repeat(components), x)).add_(per_channel(offset.flatten(), x))
    return grad_x, along, total


def whiten(
    x: Float[Tensor, "batch channels *space"],
    running_mean: Float[Tensor, "4 n"] | None,
    running_cov: Float[Tensor, "4 4 n"] | None,
    weight: Float[Tensor, "4 4 n"] | None = None,
    bias: Float[Tensor, "4 n"] | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    summed: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "batch channels *space"]:
    r"""Whitening batch normalisation :math:`\Gamma L^{-1} (h - \mu) + \beta` with the Cholesky factor
    :math:`L L^\top = \mathrm{Cov}(h) + \varepsilon I` of the 4x4 covariance of a neuron's components.

    Unlike the eigenvectors of the covariance, its Cholesky factor has a finite gradient when eigenvalues coincide.
    ``summed`` sums over the parts of a batch, where x is one of several.
    """
    arguments = (x, running_mean, running_cov, weight, bias, training, momentum, eps, summed)
    if not torch.amp.is_autocast_available(x.device.type):
        return _whiten(*arguments)
    with torch.autocast(x.device.type, enabled=False):  # a covariance in half precision need not be positive
        return _whiten(*arguments)


def _whiten(
    x: Tensor,
    running_mean: Tensor | None,
    running_cov: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    summed: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    h = at_least_single(split(x, 1)).movedim(2, 0).movedim(1, 2).flatten(2)  # (C, 4, batch * space)
    if training:
        n = samples(x)
        if summed is not None:
            n = int(summed(h.new_tensor([n], dtype=torch.float64)))
        check_samples(x, n)
        if n == 0:
            return x.clone()
        total = h.sum(2)
        mean = (total if summed is None else summed(total)) / n
        centred = h - mean.unsqueeze(2)
        squares = centred @ centred.mT
        cov = (squares if summed is None else summed(squares)) / n
        if running_mean is not None and running_cov is not None:
            moving(running_mean, mean.T, momentum)
            moving(running_cov, cov.permute(1, 2, 0) * (n / (n - 1)), momentum)
    else:
        if running_mean is None or running_cov is None:
            raise ValueError("whiten needs running statistics where it does not take them from the batch.")
        centred = h - running_mean.T.unsqueeze(2)
        cov = running_cov.permute(2, 0, 1).to(h.dtype)
    # A covariance known only up to rounding may miss being positive by as much: eps is at least that.
    rounding = 4 * torch.finfo(cov.dtype).eps * cov.diagonal(dim1=1, dim2=2).sum(1).view(-1, 1, 1)
    root = torch.linalg.cholesky(cov + (eps + rounding) * torch.eye(4, dtype=cov.dtype, device=cov.device))
    white = torch.linalg.solve_triangular(root, centred, upper=False)
    if weight is not None:
        white = weight.permute(2, 0, 1).to(h.dtype) @ white
    if bias is not None:
        white = white + bias.T.unsqueeze(2)
    y = white.view(*white.shape[:2], x.shape[0], *x.shape[2:])  # (C, 4, batch, *space)
    return in_layout_of(x, y.movedim(2, 0).movedim(2, 1).flatten(1, 2).to(x.dtype))


def layer_norm(
    x: Float[Tensor, "..."],
    normalized_shape: Sequence[int],
    weight: Float[Tensor, "..."] | None = None,
    bias: Float[Tensor, "4 ..."] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "..."]:
    r"""Layer normalisation :math:`\gamma (h - \mu) / \sqrt{\sigma^2 + \varepsilon} + \beta` over the last axes.

    The very last carries the quaternions: :math:`\mu` is the mean quaternion, :math:`\sigma^2 = E\,|h - \mu|^2`.
    """
    shape = tuple(normalized_shape)
    if tuple(x.shape[x.dim() - len(shape) :]) != shape:
        raise ValueError(f"the last axes of the input must be {shape}, but its shape is {tuple(x.shape)}.")
    h = at_least_single(split(x, -1))
    dims = [d for d in range(-len(shape) - 1, 0) if d != -2]
    spread, mean = torch.var_mean(h, dims, correction=0, keepdim=True)
    y = (h - mean) * torch.rsqrt(spread.sum(-2, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.unsqueeze(-2)
    if bias is not None:
        y = y + bias.movedim(0, -2)
    return y.flatten(-2).to(x.dtype)


def group_norm(
    x: Float[Tensor, "batch channels *space"],
    num_groups: int,
    weight: Float[Tensor, " n"] | None = None,
    bias: Float[Tensor, "4 n"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "batch channels *space"]:
    r"""Group normalisation :math:`\gamma (h - \mu) / \sqrt{\sigma^2 + \varepsilon} + \beta` of groups of channels.

    ``x`` is ``(batch, 4*C, *space)``. Each of ``num_groups`` groups of quaternion channels has, in each sample, one
    mean quaternion :math:`\mu` and one :math:`\sigma^2 = E\,|h - \mu|^2` over its channels and positions.
    """
    h = at_least_single(split(x, 1)).unflatten(2, (num_groups, -1))  # (batch, 4, groups, C/groups, *space)
    dims = list(range(3, h.dim()))
    spread, mean = torch.var_mean(h, dims, correction=0, keepdim=True)
    y = ((h - mean) * torch.rsqrt(spread.sum(1, keepdim=True) + eps)).flatten(2, 3)
    shape = (-1, *[1] * (x.dim() - 2))
    if weight is not None:
        y = y * weight.view(shape)
    if bias is not None:
        y = y + bias.view(4, *shape)
    return in_layout_of(x, y.flatten(1, 2).to(x.dtype))
