"""Which units stay: those that are needed, and those that stand and fall with them.

A *unit* is one channel that is kept or removed as one thing: a quaternion (``parts`` = 4) or, after a readout, a real
number (``parts`` = 1). Every unit has an id. An operation that keeps units apart hands the ids on; an operation that
joins values, such as an addition, ties the ids of corresponding units, because tensors have to keep equal sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from quern.graph.values import Value


@dataclass(eq=False)
class Record:
    """What is known of one layer, over all its calls. ``edges (outputs, inputs)`` is True where a weight is not
    zero; ``absorbs`` says whether the layer can take constant inputs into itself."""

    name: str
    layer: nn.Module
    inputs: Tensor | None
    outputs: Tensor | None
    edges: Tensor | None = None
    absorbs: bool = False
    calls: list[Value] = field(default_factory=list)
    rows: Tensor | None = None  # which outputs are needed in some call
    still: dict[str, Tensor] = field(default_factory=dict)  # of recurrent layers: hidden units that stay at zero

    def fixed(self) -> Tensor:
        """Inputs that are the same constant in every call, and one the layer can do without."""
        first = self.calls[0]
        same = ~first.live
        for call in self.calls[1:]:
            same &= ~call.live & (call.constant == first.constant).all(1)
        return same if self.absorbs else same & (first.constant == 0).all(1)

    def absorbed(self) -> Tensor:
        """Fixed inputs that some needed output looks at."""
        assert self.edges is not None
        assert self.rows is not None
        return self.fixed() & (self.edges & self.rows.unsqueeze(1)).any(0)


class Units:
    """The units of a whole network, the layers they belong to, and what is to be done on the way back."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._pinned: set[int] = set()
        self._places: _Places | None = None
        self.backward: list[Callable[[], None]] = []
        self.records: dict[nn.Module, Record] = {}
        self.values: list[Value] = []

    # ------------------------------------------------------------------------------------------------- ids

    def fresh(self, count: int) -> Tensor:
        start = len(self._parent)
        self._parent += range(start, start + count)
        return torch.arange(start, start + count)

    def _root(self, unit: int) -> int:
        while self._parent[unit] != unit:
            self._parent[unit] = self._parent[self._parent[unit]]
            unit = self._parent[unit]
        return unit

    def tie(self, first: Tensor, second: Tensor) -> None:
        """Corresponding units are kept together, or not at all."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            self._parent[self._root(a)] = self._root(b)

    def pin(self, ids: Tensor) -> None:
        """These units are kept, whatever becomes of their values."""
        self._pinned.update(ids.tolist())

    def pinned(self, ids: Tensor) -> bool:
        """Whether none of these units may go."""
        held = {self._root(unit) for unit in self._pinned}
        return all(self._root(unit) in held for unit in ids.tolist())

    def roots(self, ids: Tensor) -> Tensor:
        return torch.tensor([self._root(unit) for unit in ids.tolist()], dtype=torch.long)

    def record(self, name: str, layer: nn.Module, inputs: Tensor | None, outputs: Tensor | int | None) -> Record:
        """The record of a layer. Where it is called again, units of both calls are tied."""
        if layer not in self.records:
            outs = self.fresh(outputs) if isinstance(outputs, int) else outputs
            self.records[layer] = Record(name, layer, inputs, outs)
            return self.records[layer]
        record = self.records[layer]
        for old, new in ((record.inputs, inputs), (record.outputs, outputs)):
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                self.tie(old, new)
        return record

    # ---------------------------------------------------------------------------------------------- result

    def settle(self) -> Tensor:
        """Walk back from the outputs, then say of every id whether it is kept.

        A unit is kept if it, or one tied to it, is needed or pinned. No layer loses all its units, and in a grouped
        convolution all groups that stay have as many inputs, and as many outputs, as each other.
        """
        for back in reversed(self.backward):
            back()
        kept = torch.zeros(len(self._parent), dtype=torch.bool)
        if self._places is None:
            self._places = self._placed()
        places = self._places
        if self.values:
            kept[places.of_values[torch.cat([value.needed for value in self.values])]] = True
        kept[places.pinned] = True
        changed = True
        while changed:
            before = int(kept.sum())
            counts = torch.zeros(len(places.firsts)).index_add_(0, places.sides, kept[places.units].float())
            kept[places.firsts[counts == 0]] = True
            for inputs, outputs in places.grouped:
                _even_out(kept, inputs, outputs)
            changed = int(kept.sum()) > before
        return kept[places.roots]

    def _placed(self) -> "_Places":
        roots = self.roots(torch.arange(len(self._parent)))
        records = self.records.values()
        sides = [
            roots[ids] for record in records for ids in (record.inputs, record.outputs) if ids is not None and len(ids)
        ]
        grouped, nothing = [], torch.empty(0, dtype=torch.long)
        for record in records:
            groups = getattr(record.layer, "groups", 1)
            if groups > 1 and record.inputs is not None and record.outputs is not None:
                grouped.append(tuple(roots[ids].view(groups, -1) for ids in (record.inputs, record.outputs)))
        return _Places(
            roots,
            roots[torch.cat([nothing, *(v.ids for v in self.values if v.ids is not None)])],
            roots[torch.tensor(sorted(self._pinned), dtype=torch.long)],
            torch.cat([nothing, *sides]),
            torch.tensor([n for n, ids in enumerate(sides) for _ in ids], dtype=torch.long),
            torch.tensor([int(ids[0]) for ids in sides], dtype=torch.long),
            grouped,
        )


@dataclass(frozen=True, eq=False)
class _Places:
    """Ids as those of what they are tied to: of every unit, of the units of all values in turn, of those that are
    pinned, of the ``units`` on both sides of all layers in turn, with the number of the side they are on and the first
    unit of each side, and of both sides of grouped convolutions, by group."""

    roots: Tensor
    of_values: Tensor
    pinned: Tensor
    units: Tensor
    sides: Tensor
    firsts: Tensor
    grouped: list[tuple[Tensor, Tensor]]


def _even_out(kept: Tensor, inputs: Tensor, outputs: Tensor) -> None:
    """Keep more units until every group that has any has as many inputs, and outputs, as the fullest."""
    stays = kept[inputs].any(1) | kept[outputs].any(1)
    for units in (inputs[stays], outputs[stays]):
        most = int(kept[units].sum(1).max().clamp(min=1))
        for group in units:
            while int(kept[group].sum()) < most:
                kept[group[~kept[group]][0]] = True
