"""Make a network with zeros physically smaller, with the same outputs.

    small = compact(model, example_input)             # a new network of the same classes
    todo = plan(model, example_input); print(todo)    # what there is to remove
    small = compact(model, todo, optimizer)           # in the middle of training

Every value in the network is followed channel by channel: a channel is *constant* if no live input reaches it, and
*needed* if some output depends on it. Layers are narrowed to what is needed and not constant. A constant that enters a
layer becomes part of its bias; next to zero padding it becomes the weight of one more input channel that carries 1,
which is right at the borders for images of any size. Channels that are added to each other stay or go together. Eval
mode is what stays the same; :mod:`quern.graph` reads networks.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from quern._size import size_of
from quern.compact._census import Census, Counted
from quern.compact._optimizer_state import check_state, narrow_optimizer
from quern.compact._plan import DEAD, Plan
from quern.compact.folding import fold
from quern.errors import CompactionError, DeadNetworkWarning, NotFiniteWarning
from quern.graph import Example, Kept, LayerPlan, check_traceable, inputs_of, mapped, spec_of
from quern.graph.listing import neuron_components, zero_
from quern.graph.precision import floating, in_float64, largest, widened
from quern.graph.reader import Memory, layer_plan, read, remembering
from quern.graph.spec import Select, hooked
from quern.graph.values import dead, evaluating
from quern.models import Recipe, recipe_of, set_recipe

__all__ = ["Census", "Counted", "Kept", "LayerPlan", "Plan", "census", "compact", "compact_", "fold", "is_dead", "plan"]

_LARGE = 1 << 20  # parameters: from here on running the network, not reading it, is what takes the time of a plan
NOT_FINITE = "what the network gives for the example is not finite everywhere, so look for NaN or inf in its weights"


@torch.inference_mode(False)
@torch.no_grad()
def plan(model: nn.Module, example_input: Example, tol: float = 0.0, *, keep_unknown: bool = False) -> Plan:
    """What can be removed from ``model`` without changing its outputs; weights up to ``tol`` count as zero.

    ``example_input`` is an input of the network, or a tuple of several; the result holds for any size of image and
    batch, and for other numbers where inputs are numbers. Optional inputs that are no numbers, and that the example
    leaves out, are taken to be left out always. An operation without a rule is an error that names it; with
    ``keep_unknown`` all channels that it takes are kept. The plan is tried on the example before it is returned. If the
    network is dead, or not finite on the example, the plan says so: in ``dead``, in ``notes`` and when it is printed.
    """
    if not (tol >= 0 and math.isfinite(tol)):
        raise ValueError(f"tol is {tol}, but it must be a finite number that is not negative.")
    check_traceable(model)  # before it runs, which would compile what torch.compile made
    network = copy.deepcopy(model).eval()
    zero_(network, tol)
    inputs, types = inputs_of(network, example_input), floating(network)
    if any(t.numel() == 0 for t in _tensors(inputs)):
        raise CompactionError("the example input is empty: what is constant is read off it.")
    # Two networks are judged: a copy in float64, where a mistake stands out from rounding, and the network itself,
    # which may be too coarse for that. What they give now, before anything is removed, is what they must give then.
    wanted, memory = None, {}
    with remembering(network) as own_memory:
        own = _try(network, inputs)
    half = any(torch.finfo(dtype).bits < 32 for dtype in types)
    if own is not None and not half and size_of(network).parameters > _LARGE:
        unchanged = _nothing_to_remove(network, inputs, own, own_memory, keep_unknown, tol)
        if unchanged is not None:
            return unchanged
    wide, wide_inputs = in_float64(network, types), mapped(inputs, widened)
    if wide is not None and (own is not None or half):  # not every machine computes everything in 16 bits
        with remembering(wide) as memory:
            wanted = _try(wide, wide_inputs)
    if wide is None or wanted is None:  # its forward insists on a type, or does not take the example
        wide, wide_inputs, wanted, own, memory = network, inputs, own, None, own_memory
    facts, outputs, traced = read(wide, mapped(wide_inputs, Tensor.clone), keep_unknown, largest(network), memory)
    kept = facts.settle()
    layers = {}
    for record in facts.records.values():
        layer = layer_plan(record, kept)
        if layer.changes:
            layers[record.name] = layer
    if wanted is None:
        wanted = _tensors(wide(*mapped(wide_inputs, Tensor.clone)))
    notes = list(facts.notes)
    if not all(bool(t.isfinite().all()) for t in (*wanted, *(own or ()))):
        notes.append(NOT_FINITE)
    before = size_of(network)
    removal = Plan(layers, tol, before, before, dead(outputs), tuple(dict.fromkeys(notes)))
    if not hooked(network) and not _close(  # torch.fx does not see those
        wanted, _tensors(traced), facts.coarsest, facts.largest
    ):
        raise CompactionError(
            "what torch.fx sees of the network does not give its outputs: write y = y + x in place of y += x, and "
            "leave out branches that depend on values."
        )
    if not layers:  # what would be tried is what was tried
        return removal
    if not _close(wanted, _smaller(wide, removal, wide_inputs), facts.coarsest, facts.largest):
        why = "this is a mistake of quern, or the network does not give the same output for the same input"
        why = NOT_FINITE if NOT_FINITE in notes else why
        raise CompactionError(f"the smaller network does not give the same outputs on the example: {why}.")
    removal = replace(removal, after=size_of(wide))
    if own is not None:
        small = _smaller(network, removal, inputs)
        coarsest = max((torch.finfo(dtype).eps for dtype in types), default=facts.coarsest)
        noise = [_noise(a, b) for a, b in zip(own, wanted, strict=True)]
        if not _close(own, small, coarsest, facts.largest, noise):
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in types)
            raise CompactionError(
                f"the smaller network, but not a copy of it in float64, gives other outputs than before: its numbers "
                f"are too coarse ({names}), so compact it in float32 and change the type then."
            )
    return removal


def _nothing_to_remove(
    network: nn.Module, inputs: tuple[Any, ...], outputs: list[Tensor], memory: Memory, keep_unknown: bool, tol: float
) -> Plan | None:
    """The plan of a network that keeps all it has, found without a copy in float64; None if something may go, or if the
    network is to be looked at more closely."""
    try:
        facts, values, traced = read(network, mapped(inputs, Tensor.clone), keep_unknown, largest(network), memory)
    except CompactionError:
        return None
    kept = facts.settle()
    if any(layer_plan(record, kept).changes for record in facts.records.values()):
        return None
    if not all(bool(t.isfinite().all()) for t in outputs) or not _close(
        outputs, _tensors(traced), facts.coarsest, facts.largest
    ):
        return None
    size = size_of(network)
    return Plan({}, tol, size, size, dead(values), tuple(dict.fromkeys(facts.notes)))


@torch.inference_mode(False)
@torch.no_grad()
def is_dead(model: nn.Module, example_input: Example) -> bool:
    """Whether the output of ``model`` no longer depends on its input. False where the network cannot be followed."""
    try:
        network = copy.deepcopy(model).eval()
        _, outputs, _ = read(network, mapped(inputs_of(network, example_input), Tensor.clone), keep_unknown=True)
    except Exception:  # whatever a network of somebody's own does; nothing is known then
        return False
    return dead(outputs)


@torch.inference_mode(False)
@torch.no_grad()
def census(model: nn.Module, example_input: Example) -> Census | None:
    """What :func:`plan` would leave of ``model``, to be counted again and again while its weights change and its shapes
    do not. None where there is no such count: the network cannot be read, or does what only a plan can follow."""
    try:
        with evaluating(model):
            inputs = mapped(inputs_of(model, example_input), Tensor.clone)
            facts, outputs, _ = read(model, inputs, False, largest(model))
    except CompactionError:
        return None
    count = Census(facts, outputs, size_of(model), neuron_components(model))
    return count if count.repeatable else None


def warn_dead() -> None:
    """Say that the network at hand is dead, to whoever called the function that calls this."""
    warnings.warn(f"{DEAD}; train it with a weaker penalty, or remove less.", DeadNetworkWarning, stacklevel=3)


def compact(
    model: nn.Module, how: Plan | Example, optimizer: torch.optim.Optimizer | None = None, *, keep_unknown: bool = False
) -> nn.Module:
    """A new, smaller network with the outputs of ``model``, by a plan or by an example input to make one from.

    The network keeps its module classes, names and mode; ``model`` is left as it is. With an ``optimizer`` of
    ``model``'s parameters, it is the optimizer of the new network afterwards, its state narrowed like the parameters.
    From an example input, an operation without a rule is an error unless ``keep_unknown``, as in :func:`plan`; and a
    network that is dead, or whose outputs are not finite, is a warning. A plan says so itself.
    """
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        if isinstance(optimizer, Tensor):
            raise CompactionError(
                "the third argument is an optimizer, but a tensor was given: several inputs are one tuple, (x, y)."
            )
        raise CompactionError(
            f"the third argument is an optimizer, but {optimizer!r} was given: for a tolerance, compact by a plan, "
            "plan(model, example, tol)."
        )
    if keep_unknown and isinstance(how, Plan):
        raise CompactionError("keep_unknown is for making a plan, and this one is made: give it to plan.")
    made = how if isinstance(how, Plan) else plan(model, how, keep_unknown=keep_unknown)
    if made is not how:
        if made.dead:
            warn_dead()
        if NOT_FINITE in made.notes:
            warnings.warn(f"{NOT_FINITE}.", NotFiniteWarning, stacklevel=2)
    small = copy.deepcopy(model)
    old = dict(model.named_parameters())
    _apply(small, made, old, optimizer)
    return small


def compact_(model: nn.Module, plan: Plan, optimizer: torch.optim.Optimizer | None = None) -> None:
    """As :func:`compact`, in place: the layers of ``model`` get new, smaller parameters."""
    _apply(model, plan, dict(model.named_parameters()), optimizer)


def _apply(model: nn.Module, plan: Plan, old: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
    layers = _layers(model, plan)
    if optimizer is not None:
        check_state(optimizer, {name: p for name, p in old.items() if name.rpartition(".")[0] in layers})
    selected = _narrow_layers(model, plan, layers)
    _write_down(model, plan)
    if optimizer is not None:
        narrow_optimizer(optimizer, old, model, selected)


def _layers(model: nn.Module, plan: Plan) -> dict[str, nn.Module]:
    """The layers of ``model`` that the plan changes; an error unless it fits all of them."""
    layers: dict[str, nn.Module] = {}
    for name, planned in plan.layers.items():
        try:
            layers[name] = model.get_submodule(name)
        except AttributeError:
            raise CompactionError(f"the plan is for a network with a layer {name!r}, which this one has not.") from None
        spec_of(layers[name]).check(name, layers[name], planned)
    return layers


def _narrow_layers(model: nn.Module, plan: Plan, layers: dict[str, nn.Module]) -> dict[str, Select]:
    """Make the layers of ``model`` smaller; what becomes of each parameter, by its name."""
    zero_(model, plan.tol)
    selected: dict[str, Select] = {}
    for name, layer in layers.items():
        chosen = spec_of(layer).narrow(layer, plan.layers[name])
        selected |= {f"{name}.{key}".removeprefix("."): select for key, select in chosen.items()}
    return selected


def _write_down(model: nn.Module, plan: Plan) -> None:
    """Files keep the structure alone; the numbers are in their tensors."""
    source = recipe_of(model)
    steps, before = last_plan(source)
    plan = plan.structure() if before is None else before.then(plan.structure())
    set_recipe(model, Recipe(source.builder, source.arguments, (*steps, {"compact": plan.to_dict()})))


def last_plan(source: Recipe) -> tuple[tuple[dict[str, Any], ...], Plan | None]:
    """The steps done to a network, and the plan that was the last of them, if it was one: the next is joined to it."""
    steps = source.steps
    if steps and "compact" in steps[-1]:
        return steps[:-1], Plan.from_dict(steps[-1]["compact"])
    return steps, None


def _tensors(result: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    map_aggregate(result, lambda a: tensors.append(a) if isinstance(a, Tensor) else None)
    return tensors


def _try(network: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor] | None:
    """The outputs, or None if the network does not run."""
    try:
        return _tensors(network(*mapped(inputs, Tensor.clone)))
    except Exception:  # of the user's own forward; reading the network says what it is
        return None


def _smaller(network: nn.Module, plan: Plan, inputs: tuple[Any, ...]) -> list[Tensor]:
    """What ``network`` gives after it was made smaller in place."""
    _narrow_layers(network, plan, _layers(network, plan))
    try:
        return _tensors(network(*mapped(inputs, Tensor.clone)))
    except (RuntimeError, ValueError, TypeError, IndexError) as reason:
        why = str(reason).splitlines()[0].rstrip(".")
        raise CompactionError(
            f"the network does not run with fewer channels, which its forward counts on: {why}."
        ) from reason


def _noise(own: Tensor, exact: Tensor) -> float:
    """How far an output is from what it would be without rounding."""
    if not own.is_floating_point():
        return 0.0
    gap = (own.cpu().double() - exact.cpu().double()).abs()
    return float(gap[gap.isfinite()].max()) if gap.isfinite().any() else 0.0


def _close(
    wanted: Sequence[Tensor],
    given: Sequence[Tensor],
    coarsest: float,
    largest: float,
    noise: Sequence[float] | None = None,
) -> bool:
    """Whether outputs are the same up to rounding, and not finite in the same places.

    ``coarsest`` is the rounding of the coarsest type they were computed in, ``largest`` the largest number on the way:
    where large numbers cancel, what is left is as wrong as they were. ``noise`` is how wrong ``wanted`` itself is.
    """
    relative = 1e-8 if coarsest < 1e-12 else max(1e-3, 16 * coarsest)
    absolute = min(1e3 * coarsest, relative) * largest
    if len(wanted) != len(given):
        return False
    for a, b, own in zip(wanted, given, noise or [0.0] * len(wanted), strict=True):
        if a.shape != b.shape:
            return False
        if not a.is_floating_point():
            continue
        a, b = a.cpu().double(), b.cpu().double()
        finite = a.isfinite()
        if not torch.allclose(a[~finite], b[~finite], equal_nan=True):
            return False
        scale = float(a[finite].abs().max()) if finite.any() else 0.0
        if not ((a - b)[finite].abs() <= relative * scale + absolute + 10 * own).all():
            return False
    return True
