"""The last path from a network's input to its output, which no penalty may take.

A penalty that is too strong takes everything, in a few steps, and a network whose output no longer depends on its input
has no gradient that would bring it back. So a few groups (quaternions of a weight, scales γ) are known that would keep
the output depending on the input if all others were zero: the strongest by the penalty's own measure. As long as none
of them is zero the network lives, which is cheap to look at after every step. Where one of them is lost, others are
looked for, and where there are none, it is put back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from quern.liveness import liveness
from quern.penalties import Target

__all__ = ["LastPath"]

_MOST = 1e12  # steps, in which a penalty does all it can
_CLOSE = 1.05  # how closely the strongest groups are told from the others
_FACTOR = 8  # by which the search for them goes on until there are too few

Ahead = Callable[[float], AbstractContextManager[None]]
Values = tuple[Target, tuple[Any, ...], list[Tensor]]


def _groups(target: Target) -> Tensor:
    """Which groups of a target are not zero: ``(out, in, ...)``, or ``(n,)`` for γ."""
    first = target.parameters[0].detach()
    return (first != 0).any(0) if first.dim() > 1 else first != 0


def _places(target: Target, numbers: Sequence[int]) -> tuple[Tensor, ...]:
    """Groups by their numbers, as indices of the last axes of each parameter of a target."""
    shape = target.parameters[0].shape
    return torch.unravel_index(torch.tensor(numbers, dtype=torch.long), shape[1:] if len(shape) > 1 else shape)


class LastPath:
    """The groups that keep ``model`` alive, by the name of their parameter and their number in it.

    ``groups`` is None as long as nobody has looked, and empty where there is nothing to keep: the penalty cannot kill
    the network, or it is dead already. ``held`` once groups had to be put back.
    """

    def __init__(self, model: nn.Module, targets: Sequence[Target]) -> None:
        self.model = model
        self.targets = {t.names[0]: t for t in targets if t.zeros}
        self.groups: dict[str, list[int]] | None = None
        self.held = False
        self._indexed: dict[str, list[int]] | None = None
        self._places: list[tuple[Target, tuple[Any, ...]]] = []

    def follow(self, before: "LastPath", selected: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
        """Go on with the path that was found ``before`` the network was made smaller, if all of it is still there:
        ``selected`` has, by name, what became of tensors of the shape of each parameter that changed."""
        self.held = before.held
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
        dead = liveness(self.model).dead
        if dead is None:  # cannot be traced: then no layer may lose all it has
            return all(bool(_groups(target).any()) for target in self.targets.values())
        return not dead

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
            self._places = [(target, (..., *_places(target, numbers))) for target, numbers in kept]
        return [(target, index, [p.detach()[index] for p in target.parameters]) for target, index in self._places]

    @torch.no_grad()
    def put_back_(self, values: Sequence[Values], ahead: Ahead) -> bool:
        """After a step: whether the path was lost, and put back, for the first time."""
        lost = []
        for target, index, before in values:
            now = target.parameters[0][index]
            gone = (now == 0).all(0) if now.dim() > 1 else now == 0
            if gone.any():
                lost.append((target, index, before, gone))
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
            if not liveness(self.model).notes:  # where not all was followed, more groups are safer than few
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

    def restore(self, found: dict[str, Any]) -> None:
        """The reverse of :meth:`to_dict`; ValueError if the path is of another network."""
        for name, numbers in (found["groups"] or {}).items():
            if name not in self.targets:
                raise ValueError(f"{name} is not penalised, so there is no path through it")
            if any(not 0 <= n < _groups(self.targets[name]).numel() for n in numbers):
                raise ValueError(f"the path leads through more of {name} than there is")
        self.groups, self.held = found["groups"], found["held"]
