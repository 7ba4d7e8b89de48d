"""The structure of a small network with fresh weights: what the one that came from a large network is compared with."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from quern.errors import TrainingError
from quern.train import derived_seed


def check_can_begin_anew(model: nn.Module) -> None:
    """One sentence if some layer does not know how its weights are drawn."""
    for name, layer in model.named_modules():
        if next(layer.parameters(recurse=False), None) is not None and _reset(layer) is None:
            where = f"{name} ({type(layer).__name__})" if name else type(layer).__name__
            raise TrainingError(
                f"{where} has parameters but no reset_parameters(), so the small network cannot be trained from "
                "scratch: write one, or leave that out."
            )


@torch.no_grad()
def fresh(model: nn.Module, seed: int) -> nn.Module:
    """A copy of ``model`` whose weights are drawn anew by its layers' own ``reset_parameters``. The constant channels
    of compaction begin as zeros."""
    model = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "scratch"))
        for parameter in model.parameters():
            parameter.zero_()
        for layer in model.modules():
            if (reset := _reset(layer)) is not None:
                reset()
    return model


def _reset(layer: nn.Module) -> Callable[[], None] | None:
    return getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)  # of torch's attention
