from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F
from quern.functional.shapes import quaternions


def _check(norm: nn.Module, input: Tensor, channels: int, space: tuple[int, ...]) -> None:
    if input.dim() - 2 not in space or input.shape[1] != channels:
        axes = " or ".join(str(s + 2) for s in space)
        raise ValueError(
            f"{type(norm).__name__} takes (batch, {channels}, ...) with {axes} axes, "
            f"but the input's shape is {tuple(input.shape)}."
        )


def _share_of_batch(norm: "QBatchNorm | QWhiteningBatchNorm2d") -> float:
    """Count the batch in, and say how much of it enters the running statistics."""
    if not (norm.training and norm.track_running_stats):
        return 0.0
    norm.num_batches_tracked.add_(1)
    return 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum


class QBatchNorm(nn.Module):
    """Abstract: ``space`` says with how many spatial axes an input may come."""

    space: tuple[int, ...]
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        fixed_scale: bool = False,
    ) -> None:
        super().__init__()
        n = quaternions(num_features, "num_features")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats, self.fixed_scale = affine, track_running_stats, fixed_scale
        scale = nn.Parameter(torch.empty(n, device=device, dtype=dtype)) if affine and not fixed_scale else None
        self.register_parameter("weight", scale)
        shift = nn.Parameter(torch.empty(4, n, device=device, dtype=dtype)) if affine and bias else None
        self.register_parameter("bias", shift)
        tracked = track_running_stats
        self.register_buffer("running_mean", torch.empty(4, n, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", torch.empty(n, device=device, dtype=dtype) if tracked else None)
        count = torch.zeros((), dtype=torch.long, device=device)
        self.register_buffer("num_batches_tracked", count if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "batch channels *space"]) -> Float[Tensor, "batch channels *space"]:
        _check(self, input, self.num_features, self.space)
        share = _share_of_batch(self)
        from_batch = self.training or self.running_mean is None
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, from_batch, share, self.eps
        )

    def extra_repr(self) -> str:
        fixed = ", fixed_scale=True" if self.fixed_scale else ""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}{fixed}"
        )


class QBatchNorm1d(QBatchNorm):
    r"""Quaternion batch normalisation :math:`\gamma (h - \mu)/\sqrt{\sigma^2 + \varepsilon} + \beta` of
    ``(batch, num_features)`` or ``(batch, num_features, length)``.

    Per neuron a quaternion mean and **one** real variance :math:`\sigma^2 = E|h-\mu|^2` over batch and space. The real
    :math:`\gamma` is ``weight (n,)``, the quaternion :math:`\beta` is ``bias (4, n)``, n = num_features/4. A neuron is
    scaled, and with :math:`\gamma = 0` made constant, as one thing. ``fixed_scale`` leaves :math:`\gamma` out,
    ``bias=False`` leaves :math:`\beta` out. The other arguments are those of torch.
    """

    space = (0, 1)


class QBatchNorm2d(QBatchNorm):
    """Quaternion batch normalisation of images ``(batch, num_features, height, width)``; see :class:`QBatchNorm1d`."""

    space = (2,)


class QBatchNorm3d(QBatchNorm):
    """Quaternion batch normalisation of volumes ``(batch, num_features, d, h, w)``; see :class:`QBatchNorm1d`."""

    space = (3,)


class QWhiteningBatchNorm2d(nn.Module):
    r"""Batch normalisation that makes the covariance of a neuron's four components the identity.

    :math:`\Gamma L^{-1}(h - \mu) + \beta` with :math:`L L^\top = \mathrm{Cov}(h) + \varepsilon I`; :math:`\Gamma` is
    ``weight (4, 4, n)``, initially the identity, :math:`\beta` is ``bias (4, n)``. Arguments as in torch's BatchNorm2d.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_cov: Tensor | None
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        n = quaternions(num_features, "num_features")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        scale = nn.Parameter(torch.empty(4, 4, n, device=device, dtype=dtype)) if affine else None
        self.register_parameter("weight", scale)
        shift = nn.Parameter(torch.empty(4, n, device=device, dtype=dtype)) if affine and bias else None
        self.register_parameter("bias", shift)
        tracked = track_running_stats
        self.register_buffer("running_mean", torch.empty(4, n, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("running_cov", torch.empty(4, 4, n, device=device, dtype=dtype) if tracked else None)
        count = torch.zeros((), dtype=torch.long, device=device)
        self.register_buffer("num_batches_tracked", count if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        if self.running_mean is not None and self.running_cov is not None:
            self.running_mean.zero_()
            _identities_(self.running_cov)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        if self.weight is not None:
            _identities_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "batch channels h w"]) -> Float[Tensor, "batch channels h w"]:
        _check(self, input, self.num_features, (2,))
        share = _share_of_batch(self)
        from_batch = self.training or self.running_mean is None
        return F.whiten(input, self.running_mean, self.running_cov, self.weight, self.bias, from_batch, share, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


@torch.no_grad()
def _identities_(t: Tensor) -> None:
    t.copy_(torch.eye(4, dtype=t.dtype, device=t.device).unsqueeze(-1).expand_as(t))


class QLayerNorm(nn.Module):
    r"""Quaternion layer normalisation of the last axes; the last one carries the quaternions.

    As :class:`QBatchNorm1d`, with mean and variance over one sample's ``normalized_shape`` (real sizes). ``weight`` is
    :math:`\gamma` with one real number a quaternion, ``bias`` is :math:`\beta` with a leading axis of 4.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if not shape:
            raise ValueError("normalized_shape must name at least the axis of the quaternions.")
        neurons = (*shape[:-1], quaternions(shape[-1], "the last entry of normalized_shape"))
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        scale = nn.Parameter(torch.empty(neurons, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", scale)
        has_shift = elementwise_affine and bias
        shift = nn.Parameter(torch.empty(4, *neurons, device=device, dtype=dtype)) if has_shift else None
        self.register_parameter("bias", shift)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
