"""How large a network would be if it were compacted now, without doing it.

A plan takes a network apart and tries what comes of that. But which channels go depends on little more than where
weights are zero. So a network is read once, and counted again whenever some of its weights became zero or came back: no
more than masks are computed. Nothing is tried, so who acts on a count makes a plan, and compares.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quern.compact._plan import Plan
from quern.graph import spec_of
from quern.graph.facts import Facts
from quern.graph.reader import layer_plan
from quern.graph.units import Record
from quern.graph.values import Value, dead
from quern.records import Size


@dataclass(frozen=True, kw_only=True)
class Counted(Size):
    """What would be left, and of each layer the numbers in its weight (or weights, with that of a constant), by
    name."""

    weights: dict[str, int]


@dataclass(frozen=True)
class _Layer:
    """``wide`` is how many inputs and outputs there are to choose from, 0 where there is no choice. ``sides`` are the
    numbers of both among the sides of all layers, with how many of the layer's channels are one unit there.
    ``parameters`` and ``weights`` are counts in terms of inputs and outputs, without and with constants to take in:
    a, b, c, d for a ins outs + b ins + c outs + d."""

    record: Record
    wide: tuple[int, ...]
    sides: tuple[tuple[int, int] | None, ...]
    neurons: int
    parameters: tuple[tuple[int, int, int, int], ...]
    weights: tuple[tuple[int, int, int, int], ...]


class Census:
    """Counts what would be left of a network, which keeps its shapes, as often as its weights change.

    ``facts`` and ``outputs`` are what was read of the network itself, not of a copy, and ``before`` is its size, in
    which neurons are of so many ``components``. Where ``repeatable`` is False there is something in it that has no such
    count.
    """

    def __init__(self, facts: Facts, outputs: Sequence[Value], before: Size, components: int) -> None:
        self._facts, self._outputs, self._before = facts, outputs, before
        self._kept = torch.empty(0)
        self._counted: Counted | None = None
        self._changed: list[Record] = []
        records = list(facts.records.values())
        self.repeatable = facts.repeatable and all(
            spec_of(r.layer).shapes(r.layer, 1, 1, False) is not None for r in records
        )
        self._layers: list[_Layer] = []
        ids: list[Tensor] = []
        for record in records if self.repeatable else ():
            spec = spec_of(record.layer)
            sides: list[tuple[int, int] | None] = []
            for units, wide in zip((record.inputs, record.outputs), spec.sizes(record.layer), strict=True):
                sides.append(None if units is None or wide is None else (len(ids), wide // len(units)))
                ids += [] if units is None or wide is None else [units]
            wide = tuple(0 if side is None else n or 0 for side, n in zip(sides, spec.sizes(record.layer), strict=True))
            neurons = spec.neurons(record.layer) if spec.components == components else 0
            counts = (tuple(_terms(record, more, part) for more in (False, True)) for part in (None, "weights"))
            self._layers.append(_Layer(record, wide, tuple(sides), neurons, *counts))
        self._ids = torch.cat(ids) if ids else torch.empty(0, dtype=torch.long)
        self._sides = torch.tensor([n for n, units in enumerate(ids) for _ in units], dtype=torch.long)
        self._others = before.parameters - sum(
            p.numel() for layer in self._layers for p in layer.record.layer.parameters(recurse=False)
        )

    @torch.no_grad()
    def count(self) -> Counted | None:
        """What would be left, or None if the network is dead."""
        assert self.repeatable
        self._facts.again(self._outputs)
        self._kept, self._counted = self._facts.settle(), None
        if dead(self._outputs):
            return None
        units = torch.zeros(len(self._layers) * 2, dtype=torch.long)
        left = units.index_add_(0, self._sides, self._kept[self._ids].long()).tolist()
        parameters, neurons, weights = self._others, self._before.neurons, {}
        self._changed = []
        for layer in self._layers:
            ins, outs = (0 if side is None else left[side[0]] * side[1] for side in layer.sides)
            more = self._takes_constants(layer.record)
            if more or (ins, outs) != layer.wide:
                self._changed.append(layer.record)
            parameters += _sum(layer.parameters[more], ins, outs)
            weights[layer.record.name] = _sum(layer.weights[more], ins, outs)
            neurons += outs - layer.neurons if layer.neurons else 0
        self._counted = Counted(neurons=neurons, parameters=parameters, macs=None, bytes=None, weights=weights)
        return self._counted

    def _takes_constants(self, record: Record) -> bool:
        """Whether the layer gets a bias, or the weight of a constant, that may not have been there."""
        if record.edges is None or record.inputs is None or record.calls[0].full:
            return False
        value = record.calls[0]
        chosen = record.absorbed()
        return bool(chosen.any()) and bool((chosen & (value.pushing | self._kept[record.inputs])).any())

    @torch.no_grad()
    def plan(self) -> Plan:
        """The plan for what was counted last, untried: good for sizes, not for making a network smaller."""
        assert self._counted is not None
        return Plan(
            {record.name: layer_plan(record, self._kept) for record in self._changed},
            before=self._before,
            after=replace(self._before, neurons=self._counted.neurons, parameters=self._counted.parameters),
            notes=tuple(dict.fromkeys(self._facts.notes)),
        )


def _terms(record: Record, constants: bool, part: str | None) -> tuple[int, int, int, int]:
    """The numbers in a layer's parameters, or in its weights alone, in terms of its inputs and outputs."""
    buffers = dict(record.layer.named_buffers(recurse=False))

    def count(ins: int, outs: int) -> int:
        shapes = spec_of(record.layer).shapes(record.layer, ins, outs, constants) or {}
        chosen = ("weight", "constant") if part else [name for name in shapes if name not in buffers]
        return sum(math.prod(shapes[name]) for name in chosen if name in shapes)

    none, first, second, both = count(0, 0), count(1, 0), count(0, 1), count(1, 1)
    return both - first - second + none, first - none, second - none, none


def _sum(terms: tuple[int, int, int, int], ins: int, outs: int) -> int:
    a, b, c, d = terms
    return a * ins * outs + b * ins + c * outs + d
