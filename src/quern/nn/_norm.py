from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F
from quern.functional import synchronized
from quern.functional.norms import batch_norm_and_relu, follow_batch
from quern.functional.shapes import quaternions


class _RunningNorm(nn.Module):
    """Abstract: what the batch normalisations share: scale, shift, running statistics.

    ``space`` says with how many spatial axes an input may come, ``per_neuron`` the shape of a neuron's scale and spread
    (a number, or a 4x4 matrix), ``spread`` the name of the buffer of the latter. While training, a ``synchronized``
    layer takes its statistics from the batches of all processes.
    """

    space: tuple[int, ...]
    per_neuron: tuple[int, ...]
    spread: str
    normalize: Callable[..., Tensor]
    normalize_together: Callable[..., Tensor]
    synchronized = False
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
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

        def empty(*shape: int) -> Tensor:
            return torch.empty(*shape, n, device=device, dtype=dtype)

        scale = nn.Parameter(empty(*self.per_neuron)) if affine and not fixed_scale else None
        self.register_parameter("weight", scale)
        self.register_parameter("bias", nn.Parameter(empty(4)) if affine and bias else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", empty(4) if tracked else None)
        self.register_buffer(self.spread, empty(*self.per_neuron) if tracked else None)
        count = torch.zeros((), dtype=torch.long, device=device)
        self.register_buffer("num_batches_tracked", count if tracked else None)
        self.reset_parameters()

    @torch.no_grad()
    def _ones_(self, t: Tensor) -> None:
        """The scale or the spread of every neuron becomes 1, or the identity."""
        one = torch.eye(4, dtype=t.dtype, device=t.device) if self.per_neuron else t.new_ones(())
        t.copy_(one.unsqueeze(-1).expand_as(t))

    def reset_running_stats(self) -> None:
        if self.running_mean is not None:
            self.running_mean.zero_()
            self._ones_(getattr(self, self.spread))
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        if self.weight is not None:
            self._ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _share_of_batch(self) -> float:
        """Count the batch in, and say how much of it enters the running statistics."""
        if not (self.training and self.track_running_stats):
            return 0.0
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _check(self, input: Tensor) -> None:
        if input.dim() - 2 not in self.space or input.shape[1] != self.num_features:
            axes = " or ".join(str(s + 2) for s in self.space)
            raise ValueError(
                f"{type(self).__name__} takes (batch, {self.num_features}, ...) with {axes} axes, "
                f"but the input's shape is {tuple(input.shape)}."
            )

    def forward(self, input: Float[Tensor, "batch channels *space"]) -> Float[Tensor, "batch channels *space"]:
        self._check(input)
        statistics = self.running_mean, getattr(self, self.spread)
        share, from_batch = self._share_of_batch(), self.training or self.running_mean is None
        if self.synchronized and self.training and synchronized.together():
            return self.normalize_together(input, *statistics, self.weight, self.bias, share, self.eps)
        return self.normalize(input, *statistics, self.weight, self.bias, from_batch, share, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}{', fixed_scale=True' if self.fixed_scale else ''}"
        )


class QBatchNorm(_RunningNorm):
    """Abstract: ``space`` says with how many spatial axes an input may come."""

    per_neuron = ()
    spread = "running_var"
    normalize = staticmethod(F.batch_norm)
    normalize_together = staticmethod(synchronized.batch_norm)
    running_var: Tensor | None

    def joins_processes(self) -> bool:
        """Whether the statistics are those of all processes that train together."""
        return self.synchronized and self.training and synchronized.together()

    def follow(self, mean: Float[Tensor, "4 n"], var: Float[Tensor, " n"], samples: int) -> None:
        """Let the running statistics follow those of a batch, of so many values of a neuron."""
        share = self._share_of_batch()
        if self.running_mean is not None and self.running_var is not None:
            follow_batch(self.running_mean, self.running_var, mean, var, samples, share)

    def forward_and_add(
        self,
        input: Float[Tensor, "batch channels *space"],
        added: Float[Tensor, "batch channels *space"] | None,
        relu: bool,
    ) -> Float[Tensor, "batch channels *space"]:
        """The layer's output, plus what is ``added``, through a ReLU if so asked: see :class:`quern.nn.Sequential`."""
        if self.joins_processes():
            y = self.forward(input)
            y = y if added is None else y + added
            return torch.relu(y) if relu else y
        self._check(input)
        share, from_batch = self._share_of_batch(), self.training or self.running_mean is None
        given = input, self.running_mean, self.running_var, self.weight, self.bias, added
        return batch_norm_and_relu(*given, from_batch, share, self.eps, relu=relu)


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


class QWhiteningBatchNorm2d(_RunningNorm):
    r"""Batch normalisation that makes the covariance of a neuron's four components the identity.

    :math:`\Gamma L^{-1}(h - \mu) + \beta` with :math:`L L^\top = \mathrm{Cov}(h) + \varepsilon I`; :math:`\Gamma` is
    ``weight (4, 4, n)``, initially the identity, :math:`\beta` is ``bias (4, n)``. Arguments as in
    :class:`QBatchNorm1d`.
    """

    space = (2,)
    per_neuron = (4, 4)
    spread = "running_cov"
    normalize = staticmethod(F.whiten)
    normalize_together = staticmethod(synchronized.whiten)
    running_cov: Tensor | None


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


class QGroupNorm(nn.Module):
    r"""Quaternion group normalisation of ``(batch, 4*C, *space)``.

    As :class:`QBatchNorm2d`, with mean and variance over one sample's positions and one group of its quaternion
    channels, of which ``num_groups`` groups are made. ``num_channels`` counts real channels; ``weight (C,)`` is
    :math:`\gamma`, ``bias (4, C)`` is :math:`\beta`.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        n = quaternions(num_channels, "num_channels")
        if num_groups < 1 or n % num_groups:
            raise ValueError(
                f"num_groups={num_groups} must divide the {n} quaternion channels of num_channels={num_channels}."
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        for name, shape in (("weight", (n,)), ("bias", (4, n))):
            own = nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if affine else None
            self.register_parameter(name, own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "batch channels *space"]) -> Float[Tensor, "batch channels *space"]:
        if input.dim() < 2 or input.shape[1] != self.num_channels:
            wanted, shape = self.num_channels, tuple(input.shape)
            raise ValueError(f"axis 1 of the input must have size {wanted}, but its shape is {shape}.")
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
