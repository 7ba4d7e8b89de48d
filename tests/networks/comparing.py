"""Outputs of networks, and how far those of compacted ones are from what they were."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quern.compact import Plan, compact, plan
from tests.networks.parts import F64, Drawn, Inputs


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [t for part in parts if part is not None for t in tensors_of(part)]


def cloned(inputs: Inputs) -> Inputs:
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)


@torch.no_grad()
def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor] | None:
    """What the network gives, or None if images of this size are too small for it."""
    try:
        return tensors_of(model(*cloned(inputs)))
    except (RuntimeError, ValueError):
        return None


def difference(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference of outputs, relative to the largest number in each of ``wanted``."""
    worst = 0.0
    for a, b in zip(wanted, found, strict=True):
        assert a.shape == b.shape
        scale = a.abs().max().item() or 1.0
        worst = max(worst, (a.double() - b.double()).abs().max().item() / scale)
    return worst


@dataclass(frozen=True)
class Measured:
    """The largest differences from the network in float64: of the smaller one, at so many sizes, and, on the example,
    of the smaller one and of the network itself in float32."""

    float64: float
    sizes: int
    float32: float
    masked_float32: float


def measure(drawn: Drawn, found: Plan, small: nn.Module, single: bool = True) -> Measured:
    """Without ``single``, what is said of float32 is 0."""
    worst, sizes, singles = 0.0, 0, []
    for inputs in drawn.inputs:
        wanted = outputs(drawn.model, inputs)
        if wanted is None:
            continue
        sizes += 1
        worst = max(worst, difference(wanted, tensors_of(small(*cloned(inputs)))))
        if single and not singles:  # rounding is much the same at every size
            narrow = copy.deepcopy(drawn.model).float()
            inputs = cast(inputs, torch.float32)
            for one in (compact(narrow, found), narrow):
                got = outputs(one, inputs)
                assert got is not None
                singles.append(difference(wanted, got))
    return Measured(worst, sizes, *(singles or (0.0, 0.0)))


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)


@dataclass(frozen=True)
class Halves:
    """Of a network whose numbers have 16 bits: the largest differences on the example from the same network computed in
    float64. ``compacted`` is the smaller network computed in float64; the others are both networks as they are, or 0
    where torch does not compute in 16 bits."""

    compacted: float
    compacted_as_it_is: float
    as_it_is: float


def measure_halves(drawn: Drawn, dtype: torch.dtype) -> Halves:
    """Plan, compact and compare a network in ``dtype``."""
    model, inputs = copy.deepcopy(drawn.model).to(dtype), cast(drawn.inputs[0], dtype)
    small = compact(model, plan(model, inputs))
    wide = cast(inputs, F64)
    runs = [(copy.deepcopy(one).double(), wide) for one in (model, small)] + [(small, inputs), (model, inputs)]
    wanted, *found = [outputs(network, given) for network, given in runs]
    assert wanted is not None
    return Halves(*(0.0 if one is None else difference(wanted, one) for one in found))


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: t.shape for name, t in model.state_dict().items()}
