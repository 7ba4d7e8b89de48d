"""Networks in float64, where a mistake stands out from rounding, and the types that they have."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def floating(network: nn.Module) -> list[torch.dtype]:
    """The floating types of a network's tensors."""
    types = {t.dtype for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()}
    return sorted(types, key=str)


def largest(network: nn.Module) -> float:
    """The largest number that all parameters of a network can hold."""
    return min((torch.finfo(dtype).max for dtype in floating(network)), default=math.inf)


def widened(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


def in_float64(network: nn.Module, types: Sequence[torch.dtype]) -> nn.Module | None:
    """A copy; None if that is what it is already, or on a device that has no float64."""
    if all(dtype == torch.float64 for dtype in types):
        return None
    # By numbers that are copied already, deepcopy goes over each of them once.
    tensors = (t for t in (*network.parameters(), *network.buffers()) if type(t) in (Tensor, nn.Parameter))
    numbers = [t for t in tensors if t.is_floating_point() and t.dtype != torch.float64]
    try:
        memo: dict[int, Any] = {}
        for t in numbers:
            wide = widened(t.detach())
            memo[id(t)] = nn.Parameter(wide, t.requires_grad) if isinstance(t, nn.Parameter) else wide
        return copy.deepcopy(network, memo).double()  # for what a module of the user's own adds to it
    except (RuntimeError, TypeError):
        return None
