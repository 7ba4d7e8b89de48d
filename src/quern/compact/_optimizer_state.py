"""The optimizer of a network that was made smaller: groups, and the state of each parameter."""

from typing import Any

import torch
from torch import Tensor, nn

from quern.errors import CompactionError
from quern.graph.spec import Select


def narrow_optimizer(
    optimizer: torch.optim.Optimizer, old: dict[str, nn.Parameter], model: nn.Module, selected: dict[str, Select]
) -> None:
    """Make ``optimizer`` that of ``model``: groups, and the state of each parameter."""
    new = dict(model.named_parameters())
    swap = {id(p): name for name, p in old.items()}
    state = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            name = swap.get(id(p))
            if name is None or p not in optimizer.state:
                continue
            entry = optimizer.state[p]
            state[name] = {key: _narrow_state(value, p, new[name], selected.get(name)) for key, value in entry.items()}
    for group in optimizer.param_groups:
        names = [swap.get(id(p)) for p in group["params"]]
        added = [n for n in new if n not in old and any(p is _sibling(n, old) for p in group["params"])]
        group["params"] = [p if n is None else new[n] for n, p in zip(names, group["params"], strict=True)]
        group["params"] += [new[n] for n in added]
    for p in old.values():
        optimizer.state.pop(p, None)
    for name, entry in state.items():
        optimizer.state[new[name]] = entry
    if hasattr(optimizer, "replace_parameters"):
        renamed = {id(p): new[name] for name, p in old.items()}
        optimizer.replace_parameters(renamed, model, selected)  # pyright: ignore


def check_state(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    """A sentence, before anything is changed, if the optimizer is another network's, or if a state is not of the shape
    of its parameter."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if parameters and not any(id(p) in held for p in parameters.values()):
        raise CompactionError("the optimizer holds none of the network's parameters: give the one that trains it.")
    for p in parameters.values():
        for value in optimizer.state.get(p, {}).values():
            if isinstance(value, Tensor) and value.dim() and value.shape not in (p.shape, p.shape[1:]):
                raise CompactionError(
                    f"the optimizer keeps a state of shape {tuple(value.shape)}, which cannot be narrowed."
                )


def _sibling(name: str, old: dict[str, nn.Parameter]) -> nn.Parameter | None:
    """The weight of the layer to which compaction added a bias."""
    return old.get(f"{name.rpartition('.')[0]}.weight".removeprefix("."))


def _narrow_state(value: Any, p: nn.Parameter, new: nn.Parameter, select: Select | None) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0 or select is None:
        return value.clone() if isinstance(value, Tensor) else value
    if value.shape == p.shape:
        return torch.empty_like(new.detach(), memory_format=torch.preserve_format).copy_(select(value))
    like = torch.empty_like(new.detach()[0], memory_format=torch.preserve_format)
    return like.copy_(select(value.unsqueeze(0)).squeeze(0))  # one number for all components of a quaternion
