"""Make a network with zeros physically smaller, with the same outputs.

    small = compact(model, example_input)             # a new network of the same classes
    found = plan(model, example_input); print(found)  # what there is to remove
    small = compact(model, found, optimizer)          # in the middle of training

Every value in the network is followed channel by channel: a channel is *constant* if no live input reaches it, and
*needed* if some output depends on it. Layers are narrowed to what is needed and not constant. A constant that enters a
layer becomes part of its bias; next to zero padding it becomes the weight of one more input channel that carries 1,
which is right at the borders for images of any size. Channels that are added to each other stay or go together. Eval
mode is what stays the same; :mod:`quern.compact._rules` has the rules.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from quern import nn as qnn
from quern.algebra import UNITS
from quern.compact import _narrow
from quern.compact._facts import Record
from quern.compact._plan import Kept, LayerPlan, Plan
from quern.compact._rules import read
from quern.errors import CompactionError
from quern.graph import REAL_CONVOLUTIONS, WITH_NEURONS
from quern.nn._norm import _QBatchNorm
from quern.nn._recurrent import _QRecurrent
from quern.origin import Origin, origin, set_origin

__all__ = ["Kept", "LayerPlan", "Plan", "compact", "compact_", "plan"]

Example = Tensor | tuple[Any, ...]


@torch.inference_mode(False)
@torch.no_grad()
def plan(model: nn.Module, example_input: Example, tol: float = 0.0, *, keep_unknown: bool = False) -> Plan:
    """What can be removed from ``model`` without changing its outputs; weights up to ``tol`` count as zero.

    ``example_input`` is an input of the network, or a tuple of several; the result holds for any size of image. An
    operation without a rule is an error that names it; with ``keep_unknown`` all channels that it takes are kept. The
    plan is tried on the example before it is returned.
    """
    if not (tol >= 0 and math.isfinite(tol)):
        raise ValueError(f"tol is {tol}, but it must be a finite number that is not negative.")
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    network = copy.deepcopy(model).eval()
    _flush_(network, tol)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    inputs = tuple(a.detach().to(device) if isinstance(a, Tensor) else a for a in inputs)
    if any(isinstance(a, Tensor) and a.numel() == 0 for a in inputs):
        raise CompactionError("the example input is empty: what is constant is read off it.")
    facts, outputs, traced = read(network, [_copied(a) for a in inputs], keep_unknown)
    kept = facts.settle()
    layers = {}
    for record in facts.records.values():
        layer = _layer_plan(record, kept)
        if layer.changes:
            layers[record.name] = layer
    followed = [v for v in outputs if v.followed]
    dead = bool(followed) and len(followed) == len(outputs) and not any(bool(v.live.any()) for v in followed)
    found = Plan(layers, tol, dead=dead, notes=tuple(dict.fromkeys(facts.notes)))
    before, result = _counts(network), network(*[_copied(a) for a in inputs])
    if not (network._forward_hooks or network._forward_pre_hooks):  # torch.fx does not see those
        _compare(
            *(traced, result, "what torch.fx sees of the network does not give its outputs"),
            "write y = y + x in place of y += x, and leave out branches that depend on values.",
        )
    compact_(network, found)
    try:
        small = network(*[_copied(a) for a in inputs])
    except (RuntimeError, ValueError, TypeError, IndexError) as reason:
        said = str(reason).splitlines()[0].rstrip(".")
        raise CompactionError(
            f"the network does not run with fewer channels, which its forward counts on: {said}."
        ) from reason
    _compare(
        *(result, small),
        "the smaller network does not give the same outputs on the example",
        "this is a mistake of quern, or the network does not give the same output for the same input.",
    )
    after = _counts(network)
    return replace(found, parameters=(before[0], after[0]), neurons=(before[1], after[1]))


def compact(model: nn.Module, how: Plan | Example, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
    """A new, smaller network with the outputs of ``model``, by a plan or by an example input to make one from.

    The network keeps its module classes, names and mode; ``model`` is left as it is. With an ``optimizer`` of
    ``model``'s parameters, it is the optimizer of the new network afterwards, its state narrowed like the parameters.
    """
    found = how if isinstance(how, Plan) else plan(model, how)
    small = copy.deepcopy(model)
    old = dict(model.named_parameters())
    _apply(small, found, old, optimizer)
    return small


def compact_(model: nn.Module, found: Plan, optimizer: torch.optim.Optimizer | None = None) -> None:
    """As :func:`compact`, in place: the layers of ``model`` get new, smaller parameters."""
    _apply(model, found, dict(model.named_parameters()), optimizer)


def _apply(
    model: nn.Module, found: Plan, old: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer | None
) -> None:
    layers: dict[str, nn.Module] = {}
    for name, layer_plan in found.layers.items():
        try:
            layers[name] = model.get_submodule(name)
        except AttributeError:
            raise CompactionError(f"the plan is for a network with a layer {name!r}, which this one has not.") from None
        _narrow.check(name, layers[name], layer_plan)
    if optimizer is not None:
        _check_state(optimizer, {name: p for name, p in old.items() if name.rpartition(".")[0] in layers})
    _flush_(model, found.tol)
    selected: dict[str, _narrow.Select] = {}
    for name, layer in layers.items():
        chosen = _narrow.narrow_(layer, found.layers[name])
        selected |= {f"{name}.{key}".removeprefix("."): select for key, select in chosen.items()}
    _write_down(model, found)
    if optimizer is not None:
        _narrow_optimizer(optimizer, old, model, selected)


def _write_down(model: nn.Module, found: Plan) -> None:
    """Files keep the structure alone; the numbers are in their tensors."""
    source = origin(model)
    steps, found = list(source.steps), found.structure()
    if steps and "compact" in steps[-1]:
        found = Plan.from_dict(steps.pop()["compact"]).then(found)
    set_origin(model, Origin(source.builder, source.arguments, (*steps, {"compact": found.to_dict()})))


def _copied(a: Any) -> Any:
    """A network may change its input in place."""
    return a.clone() if isinstance(a, Tensor) else a


def _layer_plan(record: Record, kept: Tensor) -> LayerPlan:
    layer, value = record.layer, record.calls[0] if record.calls else None
    parts = _input_parts(record)
    inputs = outputs = None
    if record.inputs is not None:
        mask = kept[record.inputs].repeat(parts)
        inputs = Kept(len(mask), tuple(mask.nonzero().flatten().tolist()))
    if record.outputs is not None:
        inside = kept[record.outputs]
        outputs = Kept(len(inside), tuple(inside.nonzero().flatten().tolist()))
    constants: list[tuple[int, tuple[float, ...]]] = []
    if value is not None and record.inputs is not None:
        # A constant zero matters too if its channel stays: nobody says that it will still carry zero.
        chosen = record.absorbed() & (value.pushing | kept[record.inputs])
        width = len(record.inputs)
        for n in chosen.nonzero().flatten().tolist():
            numbers = [float(x) for x in value.constant[n]]
            if isinstance(layer, WITH_NEURONS):
                constants.append((n, _narrow.quaternion(numbers, getattr(layer, "input_parts", UNITS))))
            else:
                constants += [(n + part * width, (x,)) for part, x in enumerate(numbers)]
    still = {k: tuple(units.nonzero().flatten().tolist()) for k, units in record.still.items()}
    still = {k: units for k, units in still.items() if units and _stays(units, outputs)}
    return LayerPlan(type(layer).__name__, inputs, outputs, tuple(sorted(constants)), still)


def _stays(units: Sequence[int], outputs: Kept | None) -> bool:
    return outputs is not None and bool(set(units) & set(outputs.indices))


def _input_parts(record: Record) -> int:
    """How many of the layer's own channels a unit of its input is: four where a real layer takes quaternions."""
    have = _narrow.sizes(record.layer)[0]
    return 1 if have is None or record.inputs is None else have // len(record.inputs)


@torch.no_grad()
def _flush_(model: nn.Module, tol: float) -> None:
    """Weights up to ``tol`` become zero, and so do numbers so small that CPUs take many times longer for them."""
    weighted = (*WITH_NEURONS, nn.Linear, *REAL_CONVOLUTIONS, _QBatchNorm, qnn.QWhiteningBatchNorm2d)
    weighted = (*weighted, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    for layer in model.modules():
        for name, t in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
            if not t.is_floating_point() or t.is_meta:
                continue
            limit = tol if name.startswith("weight") and isinstance(layer, weighted) else 0.0
            small = (t.abs() <= limit) | (t.abs() < torch.finfo(t.dtype).tiny)
            if bool((small & (t != 0)).any()):
                t.masked_fill_(small, 0)


def _counts(model: nn.Module) -> tuple[int, int]:
    """Parameters, and neurons of quaternion layers."""
    neurons = 0
    for layer in model.modules():
        if isinstance(layer, _QRecurrent):
            neurons += layer.num_layers * (2 if layer.bidirectional else 1) * layer.hidden_size // 4
        elif isinstance(layer, WITH_NEURONS):
            neurons += _narrow.sizes(layer)[1] or 0
    return sum(p.numel() for p in model.parameters()), neurons


def _compare(masked: Any, small: Any, what: str, why: str) -> None:
    """A plan that does not give the same outputs on its own example is not handed out."""
    pairs: list[list[Tensor]] = [[], []]
    for found, result in zip(pairs, (masked, small), strict=True):
        map_aggregate(result, lambda t: found.append(t) if isinstance(t, Tensor) else None)  # noqa: B023
    for a, b in zip(*pairs, strict=True):
        if a.is_floating_point() and a.numel():
            finite = a.isfinite()
            scale = a[finite].abs().max() if finite.any() else a.new_zeros(())
            limit = max(1e-3, 1e4 * torch.finfo(a.dtype).eps) if a.dtype != torch.float64 else 1e-8
            if a.shape != b.shape or not ((a - b)[finite].abs() <= limit * (1 + scale)).all():
                raise CompactionError(f"{what}: {why}")


def _narrow_optimizer(
    optimizer: torch.optim.Optimizer,
    old: dict[str, nn.Parameter],
    model: nn.Module,
    selected: dict[str, _narrow.Select],
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
        optimizer.replace_parameters({id(p): new[name] for name, p in old.items()}, model)  # pyright: ignore


def _check_state(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
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


def _narrow_state(value: Any, p: nn.Parameter, new: nn.Parameter, select: _narrow.Select | None) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0 or select is None:
        return value.clone() if isinstance(value, Tensor) else value
    if value.shape == p.shape:
        return torch.empty_like(new.detach(), memory_format=torch.preserve_format).copy_(select(value))
    like = torch.empty_like(new.detach()[0], memory_format=torch.preserve_format)
    return like.copy_(select(value.unsqueeze(0)).squeeze(0))  # one number for all components of a quaternion
