"""The last path from a network's input to its output, which no penalty may take.

A penalty that is too strong takes everything, in a few steps, and a network whose output no longer depends on its input
has no gradient that would bring it back. So a few groups (quaternions of a weight, scales γ) are known that would keep
the output depending on the input if all others were zero: the strongest by the penalty's own measure. As long as none
of them is zero the network lives, which is cheap to look at after every step. Where one of them is lost, others are
looked for, and where there are none, it is put back.

Whether the network lives is what :mod:`quern.graph` reads off an example: the input of the network's first call after
the optimizer was made. Until there was one, or where the network cannot be read, no layer may lose all it has.
"""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quern.errors import QuernError
from quern.graph.facts import Facts
from quern.graph.reader import Reader
from quern.graph.spec import Watcher
from quern.graph.trace import mapped, traced
from quern.graph.values import Value, dead, evaluating
from quern.penalties import Target

_MOST = 1e12  # steps, in which a penalty does all it can
_CLOSE = 1.05  # how closely the strongest groups are told from the others
_FACTOR = 8  # by which the search for them goes on until there are too few

Ahead = Callable[[float], AbstractContextManager[None]]


@dataclass(frozen=True)
class Values:
    """Groups of a target: their places as an index of each parameter, and in a row; their numbers before a step."""

    target: Target
    index: tuple[Any, ...]
    flat: list[Tensor]
    numbers: list[Tensor]


def _groups(target: Target) -> Tensor:
    """Which groups of a target are not zero: ``(out, in, ...)``, or ``(n,)`` for γ."""
    first = target.parameters[0].detach()
    return (first != 0).any(0) if first.dim() > 1 else first != 0


def _places(target: Target, numbers: Sequence[int]) -> tuple[Tensor, ...]:
    """Groups by their numbers, as indices of the last axes of each parameter of a target."""
    shape = target.parameters[0].shape
    return torch.unravel_index(torch.tensor(numbers, dtype=torch.long), shape[1:] if len(shape) > 1 else shape)


def _flat(target: Target, numbers: Sequence[int]) -> list[Tensor]:
    """The same groups of each parameter as ``Tensor.take`` wants them, which is quicker: ``(rows, groups)``."""
    places = torch.tensor(numbers, dtype=torch.long)
    groups = _groups(target).numel()
    rows = [p.numel() // groups for p in target.parameters]
    return [places if n == 1 else places + groups * torch.arange(n).unsqueeze(1) for n in rows]


class _FirstCall(Watcher):
    """A hook that keeps the inputs of a network's next call, and leaves. On a copy of the network it only leaves."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.inputs: tuple[Any, ...] | None = None
        self._model = None if model is None else weakref.ref(model)
        if model is not None:
            model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        own = self._model is not None and model is self._model()
        if own and (kwargs or not args or not all(isinstance(a, (Tensor, int, float)) for a in args)):
            return  # for example while it is traced, when there are no tensors
        if own:
            self.inputs = mapped(args, Tensor.detach)
        self._leave(model)

    def _leave(self, model: nn.Module) -> None:
        for key in [key for key, hook in model._forward_pre_hooks.items() if hook is self]:
            del model._forward_pre_hooks[key]
            model._forward_pre_hooks_with_kwargs.pop(key, None)

    def forget(self) -> None:
        """Keep nothing any more."""
        model = None if self._model is None else self._model()
        if model is not None:
            self._leave(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_FirstCall":
        return _FirstCall()

    def __reduce__(self) -> tuple[Any, ...]:
        return _FirstCall, ()


class _Reading:
    """What was read of a network: whether its output depends on its input can be asked again when weights changed."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._model, self._inputs = model, inputs
        self._root, self._graph, self._notes = traced(model, len(inputs))
        self._facts, self._outputs = self._read()

    def _read(self) -> tuple[Facts, list[Value]]:
        with evaluating(self._model):
            reader = Reader(self._root, Facts(), True, self._root is not self._model, {})
            outputs, _ = reader.follow(self._graph, mapped(self._inputs, Tensor.clone))
        return reader.facts, outputs

    @property
    def complete(self) -> bool:
        """Whether everything in the network was followed."""
        return not self._notes and not self._facts.notes

    def dead(self) -> bool:
        if self._facts.repeatable:
            self._facts.again(self._outputs)
        else:
            self._facts, self._outputs = self._read()
        return dead(self._outputs)


class LastPath:
    """The groups that keep ``model`` alive, by the name of their parameter and their number in it.

    ``groups`` is None as long as nobody has looked, and empty where there is nothing to keep: the penalty cannot kill
    the network, or it is dead already. ``held`` once groups had to be put back.
    """

    def __init__(self, model: nn.Module, targets: Sequence[Target]) -> None:
        self.model = model
        self.targets = {t.names[0]: t for t in targets if t.zeros and t.apart}
        self.groups: dict[str, list[int]] | None = None if self.targets else {}
        self.held = False
        self._indexed: dict[str, list[int]] | None = None
        self._places: list[tuple[Target, tuple[Any, ...], list[Tensor]]] = []
        self._first_call = _FirstCall(model) if self.targets else _FirstCall()
        self._reading: _Reading | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first_call": self._first_call.inputs, "_reading": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch(state["_first_call"])

    def _watch(self, inputs: tuple[Any, ...] | None) -> None:
        """Read the network on ``inputs``, or on those of its next call."""
        self._first_call = _FirstCall(self.model) if inputs is None and self.targets else _FirstCall()
        self._first_call.inputs = inputs

    def _read(self) -> _Reading | None:
        """What there is to read; None if there was no call yet, or if the network cannot be followed."""
        inputs = self._first_call.inputs
        if self._reading is None and inputs is not None:
            for some in (mapped(inputs, lambda t: t[:1] if t.dim() else t), inputs):  # one sample tells as much as all
                with suppress(Exception):  # whatever a network of somebody's own does
                    self._reading = _Reading(self.model, some)
                    return self._reading
            self._first_call.inputs = None  # and it is not tried again
        return self._reading

    def follow(self, before: "LastPath", selected: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
        """Go on with the path that was found ``before`` the network was made smaller, if all of it is still there:
        ``selected`` has, by name, what became of tensors of the shape of each parameter that changed."""
        self.held = before.held
        for call in (before._first_call, self._first_call):
            call.forget()
        self._watch(before._first_call.inputs)
        groups: dict[str, list[int]] = {}
        for name, numbers in (before.groups or {}).items():
            groups[name] = numbers
            if numbers and name in selected:
                shape = before.targets[name].parameters[0].shape
                marked = torch.zeros(shape, dtype=torch.bool)
                marked[(..., *_places(before.targets[name], numbers))] = True
                left = selected[name](marked)
                groups[name] = (left[0] if left.dim() > 1 else left).flatten().nonzero().flatten().tolist()
            if len(groups[name]) < len(numbers):
                return
        self.groups = None if before.groups is None else groups

    def alive(self) -> bool:
        reading = self._read()
        if reading is not None:
            with suppress(QuernError):  # with other weights it may be a network that cannot be followed
                return not reading.dead()
        return all(bool(_groups(target).any()) for target in self.targets.values())  # no layer may lose all it has

    def look(self, ahead: Ahead) -> None:
        """Find the groups that are left when all that can go is gone, going ``ahead`` as the penalty would."""

        def lives(steps: float) -> bool:
            with ahead(steps):
                return self.alive()

        if not lives(0.0) or lives(_MOST):
            self.groups = {}
            return
        alive, dead = 0.0, math.inf
        steps = 1.0
        while alive == 0 or dead == math.inf or dead > _CLOSE * alive:
            alive, dead = (steps, dead) if lives(steps) else (alive, steps)
            steps = _FACTOR * alive if dead == math.inf else dead / _FACTOR if alive == 0 else math.sqrt(alive * dead)
            if steps < 1 / _MOST:
                break
        with ahead(alive):
            self.groups = {
                name: _groups(target).flatten().nonzero().flatten().tolist() for name, target in self.targets.items()
            }

    def values(self) -> list[Values]:
        """Where the groups are, and their numbers, to be put back."""
        if self._indexed is not self.groups:  # found once: this is done in every step
            self._indexed = self.groups
            kept = [(self.targets[name], numbers) for name, numbers in (self.groups or {}).items() if numbers]
            self._places = [
                (target, (..., *_places(target, numbers)), _flat(target, numbers)) for target, numbers in kept
            ]
        return [
            Values(target, index, flat, [p.detach().take(at) for p, at in zip(target.parameters, flat, strict=True)])
            for target, index, flat in self._places
        ]

    @torch.no_grad()
    def put_back_(self, values: Sequence[Values], ahead: Ahead) -> bool:
        """After a step: whether the path was lost, and put back, for the first time."""
        numbers = [kept.target.parameters[0].take(kept.flat[0]) for kept in values]
        if not numbers or all(map(Tensor.all, numbers)):  # no component of any group is zero, as nearly always
            return False
        lost = []
        for kept, now in zip(values, numbers, strict=True):
            gone = (now == 0).all(0) if now.dim() > 1 else now == 0
            if gone.any():
                lost.append((kept.target, kept.index, kept.numbers, gone))
        if not lost:
            return False
        if not self.held and self.alive():
            self.look(ahead)
            return False
        first, self.held = not self.held, True
        shrunk = [(t, [p.detach().clone() for p in t.parameters]) for t in self.targets.values()] if first else []
        for target, index, before, gone in lost:
            for p, value in zip(target.parameters, before, strict=True):
                p[index] = torch.where(gone, value, p[index])
        if first:  # from now on no more than it takes
            reading = self._read()
            if reading is not None and reading.complete:  # where not all was followed, more are safer than few
                self._thin_out()
            for target, values_after in shrunk:
                index = (..., *_places(target, (self.groups or {})[target.names[0]]))
                for p, value in zip(target.parameters, values_after, strict=True):
                    value[index] = p[index]
                    p.copy_(value)
        return first

    def _thin_out(self) -> None:
        """Leave only groups without which the network would be dead, the strongest first, target by target."""
        assert self.groups is not None
        whole = {name: [p.detach().clone() for p in self.targets[name].parameters] for name in self.groups}

        def leave(name: str, numbers: Sequence[int]) -> None:
            target = self.targets[name]
            index = (..., *_places(target, numbers))
            for p, value in zip(target.parameters, whole[name], strict=True):
                p.zero_()
                p[index] = value[index]

        def lives_with(name: str, numbers: Sequence[int]) -> bool:
            leave(name, numbers)
            return self.alive()

        for name, numbers in self.groups.items():
            leave(name, numbers)
        thin: dict[str, list[int]] = {}
        for name, numbers in self.groups.items():
            size = whole[name][0].detach()
            strength = (size.square().sum(0) if size.dim() > 1 else size.abs())[_places(self.targets[name], numbers)]
            order = [numbers[n] for n in strength.argsort(descending=True).tolist()]
            kept: list[int] = []
            while not lives_with(name, kept):  # the one that brings it to life is one that it takes
                few, enough = 0, len(order)
                while enough - few > 1:
                    half = (few + enough) // 2
                    few, enough = (few, half) if lives_with(name, [*kept, *order[:half]]) else (half, enough)
                kept.append(order[enough - 1])
                order = order[: enough - 1]
            thin[name] = sorted(kept)
        self.groups = thin

    def to_dict(self) -> dict[str, Any]:
        """Plain values, so that a training that is resumed keeps the same path."""
        return {"groups": self.groups, "held": self.held}

    def restore(self, path: dict[str, Any]) -> None:
        """The reverse of :meth:`to_dict`; ValueError if the path is of another network."""
        for name, numbers in (path["groups"] or {}).items():
            if name not in self.targets:
                raise ValueError(f"{name} is not penalised, so there is no path through it")
            if any(not 0 <= n < _groups(self.targets[name]).numel() for n in numbers):
                raise ValueError(f"the path leads through more of {name} than there is")
        self.groups, self.held = path["groups"], path["held"]
