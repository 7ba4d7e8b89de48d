"""Budgets that no network can meet, refused before any training."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from quern.errors import TrainingError
from quern.graph import Example, spec_of
from quern.graph.paths import has_rows
from quern.penalties import NeuronTarget, Penalty
from quern.pipeline._sizes import Packs, planned_size
from quern.records import Budget


@torch.no_grad()
def check_budget(
    budget: Budget,
    model: nn.Module,
    penalty: Penalty,
    example: Example,
    images: dict[str, Any] | None = None,
    packs: Packs | None = None,
) -> None:
    """TrainingError if no network that ``penalty`` makes of ``model`` can meet ``budget`` and still depend on its
    input: one that has a single neuron left in every layer that the penalty reaches. Speed is known only later."""
    smallest = copy.deepcopy(model)
    targets = penalty.weighed(smallest, example).targets(smallest)
    for target in targets:
        if isinstance(target, NeuronTarget):
            target.scale_((torch.arange(target.groups) == 0).to(target.parameters[0].device))
    targets = [target for target in targets if target.zeros and target.apart]
    reached = {id(p) for target in targets for p in target.parameters}
    layers = [layer for layer in smallest.modules() if reached & {id(p) for p in layer.parameters(recurse=False)}]
    if not all(has_rows(layer) or spec_of(layer).gamma for layer in layers):
        return  # of other layers it is not known what they can be reduced to
    for layer in layers:
        for p in layer.parameters(recurse=False):
            (p if p.dim() == 1 else p.transpose(0, 1))[1:] = 0
    least_size = planned_size(smallest, example, replace(budget, min_speedup=None), images, packs)
    if least_size is None:  # one neuron is not enough to live by, so this tells nothing
        return
    for name, limit, least in (
        ("max_neurons", budget.max_neurons, least_size.neurons),
        ("max_params", budget.max_params, least_size.parameters),
        ("max_bytes", budget.max_bytes, least_size.bytes),
        ("max_flash", budget.max_flash, least_size.flash),
        ("max_ram", budget.max_ram, least_size.ram),
    ):
        if limit is not None and least > limit:
            raise TrainingError(
                f"{name} is {limit:,}, but the smallest network that can come of this one has {least:,}, with one "
                "neuron left in each layer: ask for no less, or begin with other layers."
            )
