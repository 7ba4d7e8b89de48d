"""What a checkpoint holds, and whether it is of this training, down to the last tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import torch
from torch import Tensor, nn

from quern.io.tensorfile import CHANNELS, spread
from quern.optim import ProximalAdam, ProximalSGD
from quern.records import ACCURACY, Course, Epoch, Judged, Metric
from quern.records.schema import Between, Count, Positive, Seconds, Share, short
from quern.records.text import in_epochs
from quern.train._settings import Settings


@dataclass(frozen=True)
class Best(Judged):
    """The best epoch so far."""

    epoch: Count
    val_accuracy: Share | None = None
    val_metric: float | None = None


class PathState(TypedDict):
    """The path that keeps the network alive under a proximal optimizer."""

    groups: dict[str, list[Count]] | None
    held: bool


@dataclass
class State:
    """All that a training is besides its tensors, as it goes on. ``epoch`` and ``step`` are the next ones to do;
    ``loss``, ``seconds`` and ``images`` are of this epoch so far; ``plan`` is what was removed from the network;
    ``strength``, ``steered`` and ``enough`` are where the steering of λ is. The optimizer has ``costs`` and a ``path``;
    ``moved`` are the numbers of the parameters that it has a state for. ``metric`` is what epochs are judged by,
    ``averaged`` how many steps the mean of the weights is of."""

    settings: Course
    processes: Count
    epoch: Count
    step: Count
    loss: float
    seconds: Seconds
    images: Annotated[float, Between(0.0, 1e15)]
    history: list[Epoch]
    best: Best | None
    plan: dict[str, Any] | None
    strength: Annotated[float, Between(0.0, 1e300)]
    steered: dict[str, Any]
    enough: bool
    costs: dict[str, Positive]
    path: PathState | None
    moved: list[Count]
    metric: Metric = ACCURACY
    averaged: Count = 0

    @staticmethod
    def at_first(settings: Course, processes: int, metric: Metric) -> "State":
        return State(settings, processes, 0, 0, 0.0, 0.0, 0.0, [], None, None, 0.0, {}, False, {}, None, [], metric)


def check_place(state: State, settings: Settings, steps: int) -> None:
    """ValueError unless the state is one that a training with these settings, of ``steps`` an epoch, can be in."""
    wrong = next((sentence for holds, sentence in _rules(state, settings, steps) if not holds), None)
    if wrong:
        raise ValueError(wrong)


def _rules(state: State, settings: Settings, steps: int) -> Iterator[tuple[bool, str]]:
    epoch, step, history, best = state.epoch, state.step, state.history, state.best
    yield epoch <= settings.total, f"epoch {epoch} of {settings.total}"
    yield step <= (steps if epoch < settings.total else 0), f"step {step} of {steps} in epoch {epoch + 1}"
    yield len(history) == epoch, f"{len(history)} lines of history for {in_epochs(epoch)}"
    wanted = [(n + 1, settings.phase(n)[0]) for n in range(len(history))]
    yield [(line.epoch, line.phase) for line in history] == wanted, "lines of history of other epochs"
    yield (best is None) == (epoch == 0), "a best epoch without any, or none"
    yield best is None or 1 <= best.epoch <= epoch, "a best epoch that was not yet"
    yield best is None or (best.val_accuracy is None) != state.metric.percent, "a best epoch of another metric"
    yield not step or (state.seconds > 0 and state.images > 0), "steps that took no time"
    yield spread(state.plan) <= CHANNELS, f"plans of more than {CHANNELS:,} channels"


def check_network(tensors: dict[str, Tensor], network: nn.Module) -> None:
    """ValueError unless the tensors are just those of the network."""
    state = network.state_dict()
    for name in (*state, *tensors):
        if name not in tensors or name not in state:
            raise ValueError(f"{short(name)} is {'missing' if name in state else 'not one of its tensors'}")
    for name, value in state.items():
        _check_tensor(name, tensors[name], value.shape, value.dtype)
        if not torch.isfinite(tensors[name]).all():  # such weights are not saved
            raise ValueError(f"{short(name)} is not finite")


def check_frozen(masks: dict[str, Tensor], network: nn.Module) -> None:
    """ValueError unless the masks are of parameters of the network."""
    parameters = dict(network.named_parameters())
    for name, mask in masks.items():
        if name not in parameters:
            raise ValueError(f"there is no parameter {short(name)} to hold zeros in")
        _check_tensor(f"the mask of {name}", mask, parameters[name].shape, torch.bool)


def _check_tensor(name: str, value: Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
    if value.shape != shape or value.dtype != dtype:
        given, wanted = f"{value.dtype} {tuple(value.shape)}", f"{dtype} {tuple(shape)}"
        raise ValueError(f"{short(name)} is {given}, but should be {wanted}")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by ``number of the parameter.name``."""
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def moved(optimizer: torch.optim.Optimizer) -> list[int]:
    """The numbers of the parameters that have a state."""
    return sorted(optimizer.state_dict()["state"])


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: list[int]) -> None:
    """The reverse of :func:`optimizer_tensors` for the parameters ``numbers``; ValueError unless each has all of its
    state. Settings such as the learning rate are left as they are."""
    parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for number in numbers:
        if number >= len(parameters):
            raise ValueError(f"there is no parameter {number} to move")
        state[number] = {}
        for name, like in _wanted(optimizer, parameters[number]).items():
            key = f"{number}.{name}"
            if key not in tensors:
                raise ValueError(f"the optimizer's {key} is missing")
            _check_tensor(f"the optimizer's {key}", tensors[key], like.shape, like.dtype)
            # Files know no memory layouts; a step is slow where they differ.
            state[number][name] = torch.empty_like(like, memory_format=torch.preserve_format).copy_(tensors[key])
            if name == "step" and not 1 <= (count := float(tensors[key])) < 1e15:
                raise ValueError(f"the optimizer's {key} is {count:g}")
    if extra := tensors.keys() - {f"{number}.{name}" for number, values in state.items() for name in values}:
        raise ValueError(f"the optimizer keeps no {short(min(extra))}")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _wanted(optimizer: torch.optim.Optimizer, p: nn.Parameter) -> dict[str, Tensor]:
    """What the optimizers of a training keep of a parameter, by tensors of that kind."""
    like = p.detach()
    if isinstance(optimizer, ProximalSGD):
        return {"momentum_buffer": like}
    shared = isinstance(optimizer, ProximalAdam) and id(p) in optimizer._shared
    return {"step": torch.zeros(()), "exp_avg": like, "exp_avg_sq": like[0] if shared else like}
