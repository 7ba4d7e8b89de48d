"""What a batch normalisation takes away again is held still while the rest trains.

The bias of a layer right in front of one has no effect while training, and a gradient of zero but for rounding. Adam
makes steps of length lr out of such noise: the running mean lags behind the bias, and no two ways to add up the same
numbers end with the same network.

A neuron whose weights are all zero puts out its bias, and a batch normalisation takes that away again. So the gradients
of the bias, and of the γ behind it, are noise too. The running variance goes to zero, and in eval mode the neuron puts
out γ (b - μ)/√ε in place of nothing.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from quern.graph import spec_of
from quern.graph.paths import has_bias, norms_behind


def _without_weights(layer: Any) -> Tensor | None:
    """Which neurons ``(out,)`` of a layer have no weight but zero; None if there are none, or if nobody knows."""
    spec = spec_of(layer)
    axes = spec.neuron_axes(layer)
    if spec.components != 4 and "weight" not in axes:
        return None
    axis, _ = axes.get("weight", (1, 1))
    numbers = [layer.weight.detach().movedim(axis, 0)]
    if getattr(layer, "constant", None) is not None:  # which differs at the borders
        numbers.append(layer.constant.detach().movedim(1, 0))
    none = numbers[0].flatten(1)[:, 0] == 0  # one number of each tells that most have some
    for rows in numbers:
        if none.any():
            none[none.clone()] = (rows[none] == 0).flatten(1).all(1)
    return none if none.any() else None


class DeadNeurons:
    """What belongs to the dead neurons of ``model`` that end in a batch normalisation, and has no effect: the bias of
    the layer, and the scale γ of the normalisation. An optimizer also holds every bias right in front of
    normalisations that take their statistics from the batch.

    In a network that cannot be traced, every quaternion layer counts as ending in a normalisation if there is any: a
    bias that is not trained does less harm than an eval mode that lies.
    """

    def __init__(self, model: nn.Module) -> None:
        modules: dict[str, Any] = dict(model.named_modules())
        normed = any(spec_of(layer).normalises for layer in modules.values())
        behind = norms_behind(model, has_bias) if normed else {}
        if behind is None:
            behind = {name: () for name, layer in modules.items() if has_bias(layer)}
        counts: dict[str, int] = {}
        for names in behind.values():
            counts |= {name: counts.get(name, 0) + 1 for name in names}
        # A normalisation behind several layers has scales that belong to none of them alone.
        self._pairs = [
            (modules[name], [modules[norm] for norm in names if counts[norm] == 1]) for name, names in behind.items()
        ]

        directly = (norms_behind(model, has_bias, directly=True) if normed else None) or {}
        owners = Counter(id(p) for layer in modules.values() for p in layer.parameters(recurse=False))
        self._idle: list[tuple[Any, list[Any]]] = [
            (bias, [modules[norm] for norm in norms])
            for name, norms in directly.items()
            if owners[id(bias := modules[name].bias)] == 1
        ]

    def _parameters(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Every parameter that is to be held, and where, shaped to broadcast against it."""
        for layer, norms in self._pairs:
            if (dead := _without_weights(layer)) is None:
                continue
            if isinstance(layer.bias, nn.Parameter):
                yield layer.bias, dead
            for norm in norms:
                scale = norm.weight
                if isinstance(scale, nn.Parameter) and scale.shape[-1] == len(dead):
                    yield scale, dead
                elif isinstance(scale, nn.Parameter) and scale.shape[-1] == 4 * len(dead):  # a real normalisation
                    yield scale, dead.repeat(4)

    def values(self) -> list[tuple[nn.Parameter, Tensor]]:
        """What may have to be put back: a copy of every bias and scale in question."""
        held = [p for layer, norms in self._pairs for p in (layer.bias, *(norm.weight for norm in norms))]
        held += [bias for bias, _ in self._idle]
        return [(p, p.detach().clone()) for p in held if isinstance(p, nn.Parameter)]

    def masks(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Where each parameter is free to move; those that are free everywhere are left out."""
        return [(p, (~dead).expand_as(p)) for p, dead in self._parameters()]

    @torch.no_grad()
    def put_back_(self, values: list[tuple[nn.Parameter, Tensor]]) -> None:
        """Undo what a step did to them, ``values`` being those from before it."""
        before = {id(p): value for p, value in values}
        for bias, norms in self._idle:
            if id(bias) in before and all(norm.training for norm in norms):
                bias.copy_(before[id(bias)])
        for p, dead in self._parameters():
            p.copy_(torch.where(dead, before[id(p)], p))
