"""Exact zeros that stay zero while a network heals: while what is left of it is fine-tuned."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from quern.graph import batch_norms, check_module, quaternion_weights, spec_of
from quern.graph.listing import neuron_components
from quern.optim._dead_neurons import DeadNeurons
from quern.penalties import NeuronTarget


class FrozenZeros:
    """What :func:`freeze_zeros` returns: ``remove()`` lets the zeros move again, as does leaving a ``with`` block."""

    def __init__(
        self, kept: dict[str, tuple[nn.Parameter, Tensor]], still: Sequence[tuple[nn.Parameter, Tensor]]
    ) -> None:
        self._kept = kept
        self._still = [(p, mask, p.detach().clone()) for p, mask in still]
        held = [*kept.values(), *still]
        self._ids = {id(parameter) for parameter, _ in held}
        self._handles: list[Any] = [p.register_hook(mask.mul) for p, mask in held if p.requires_grad]
        # Momentum moves weights whose gradient is zero, so they are put back after every step of any torch optimizer.
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            for parameter, mask in self._kept.values():
                parameter.mul_(mask)
            for parameter, mask, value in self._still:
                parameter.copy_(torch.where(mask, parameter, value))

    @property
    def zeros(self) -> int:
        """How many numbers are held at zero."""
        return sum(int((mask == 0).sum()) for _, mask in self._kept.values())

    def state_dict(self) -> dict[str, Tensor]:
        """What is free to move, by parameter; everything is where a parameter is not named."""
        return {name: mask.bool() for name, (_, mask) in self._kept.items()}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> "FrozenZeros":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@torch.no_grad()
def freeze_zeros(model: nn.Module, state: dict[str, Tensor] | None = None) -> FrozenZeros:
    """Keep every exact zero of ``model`` at zero, under any optimizer of torch, until ``remove()``.

    Held are the zero components of quaternion weights, γ = 0 of batch normalisations, and β = 0 where γ = 0 too; in a
    network of real numbers, neurons of which all numbers are zero. Other biases may be zero without having been
    removed, and stay free. Where a neuron without weights ends in a batch normalisation, its bias and γ are held as
    they are: they have no effect while training, and steps made of rounding errors would show in eval mode. Gradients
    of what is held are zero.
    ``state`` is an earlier ``state_dict()``, to hold the same zeros as then. Copies of ``model`` are not held.
    """
    check_module(model)
    parameters = dict(model.named_parameters())
    if state is None:
        free = {name: weight != 0 for name, weight in quaternion_weights(model).items()}
        for name, norm in batch_norms(model).items():
            prefix = f"{name}." if name else ""
            assert norm.weight is not None
            free[f"{prefix}weight"] = norm.weight != 0
            if norm.bias is not None:
                gone = (norm.weight == 0) & (norm.bias.view(-1, len(norm.weight)) == 0).all(0)
                free[f"{prefix}bias"] = (~gone).expand_as(norm.bias)
        free |= _real_neurons(model)
        state = {name: mask for name, mask in free.items() if not mask.all()}
    kept = {}
    for name, mask in state.items():
        parameter = parameters[name]
        layout = torch.empty_like(parameter, memory_format=torch.preserve_format, requires_grad=False)
        kept[name] = (parameter, layout.copy_(mask))
    return FrozenZeros(kept, DeadNeurons(model).masks())


def _real_neurons(model: nn.Module) -> dict[str, Tensor]:
    """Where the parameters of a network without quaternions belong to neurons that are not zero."""
    free: dict[str, Tensor] = {}
    for name, layer in model.named_modules() if neuron_components(model) == 1 else ():
        axes = spec_of(layer).neuron_axes(layer)
        own = {key: p for key, p in layer.named_parameters(recurse=False) if key in axes}
        if own:
            target = NeuronTarget(tuple(own), tuple(own.values()), (), tuple(axes[key] for key in own))
            some = target.strengths() > 0
            if not some.all():
                free |= {f"{name}.{key}".lstrip("."): mask for key, mask in zip(own, target.spread(some), strict=True)}
    return free
