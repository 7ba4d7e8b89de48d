"""What is known of the values in a network: which channels are constant, are needed, or stand and fall together.

A *unit* is one channel that is kept or removed as one thing: a quaternion (``parts`` = 4) or, after a readout, a real
number (``parts`` = 1). Every unit has an id. An operation that keeps units apart hands the ids on; an operation that
joins values, such as an addition, ties the ids of corresponding units, because tensors have to keep equal sizes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quern.errors import CompactionError

Again = Callable[[Tensor], Tensor]  # what an operation does to constants (units, parts)


def _the_same(constant: Tensor) -> Tensor:
    return constant


def of_layer(layer: nn.Module, value: "Value", parts: int | None = None, space: Sequence[int] = ()) -> Again:
    """What ``layer`` does, in eval mode, to the constants of ``value``, the last axes of which get the sizes ``space``.
    It gives units of ``parts``, by default of as many as it takes."""
    axis, dims = value.axis, value.dims

    def again(constant: Tensor) -> Tensor:
        sizes = [1] * (dims - len(space)) + list(space)
        sizes[axis] = constant.numel()
        row = constant.T.reshape([-1 if n == axis else 1 for n in range(dims)])
        example = next((p for p in layer.parameters()), row)
        modes = [(module, module.training) for module in layer.modules()]
        try:
            for module, _ in modes:
                module.training = False
            out = layer(row.expand(sizes).to(example).clone())  # which may change it in place
        finally:
            for module, mode in modes:
                module.training = mode
        return out.detach().movedim(axis, 0).flatten(1)[:, 0].cpu().view(parts or value.parts, -1).T

    return again


def _shift(layer: Any, parts: int, units: int) -> Tensor:
    """What a layer gives ``(units, parts)`` where its weights have no effect."""
    return torch.zeros(units, parts) if layer.bias is None else layer.bias.detach().cpu().reshape(parts, units).T


@dataclass(eq=False)
class Value:
    """One tensor of the network. Along ``axis`` it has ``parts`` times as many entries as ``ids``, component-major.

    A unit that is not ``live`` has the same value for every input and at every position, ``constant (units, parts)``.
    A live one that is not ``heard`` differs from place to place, or with the size, but not with what the input is.
    ``needed`` units have to arrive with the value they had; others may be anything, or missing. ``ids`` is None where
    the units are not followed: nothing of such a value is ever removed. Where that is known, ``full`` says that all
    units are live and heard, and ``quiet`` that all the others are zero.
    """

    ids: Tensor | None = None
    axis: int = 0
    dims: int = 0
    parts: int = 1
    live: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    heard: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    constant: Tensor = field(default_factory=lambda: torch.empty(0, 1))
    needed: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    full: bool = False
    quiet: bool = False

    @property
    def followed(self) -> bool:
        return self.ids is not None

    @property
    def pushing(self) -> Tensor:
        """Units that are constant, and not zero."""
        return ~self.live & (self.constant != 0).any(1)

    def need(self, units: Tensor) -> None:
        self.needed |= units

    def need_all(self) -> None:
        self.needed[:] = True


@dataclass(frozen=True, eq=False)
class Number:
    """What is no tensor and no constant of the program either: a size, an input of the network that is a number, or
    whatever was computed from those. It differs from call to call, so what is computed with it is live.

    ``counts`` are the values whose units it counts, so it falls when some of those are removed: ``proportional`` says
    that it falls in proportion. ``axis`` is set if it is the size of that axis of some tensor, and nothing else.
    """

    counts: tuple[Value, ...] = ()
    proportional: bool = False
    axis: int | None = None


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


class Facts:
    """The units of a whole network, and what is to be done on the way back."""

    def __init__(self, largest_constant: float = math.inf) -> None:
        """``largest_constant`` is the largest number that the parameters of the network can hold."""
        self.largest_constant = largest_constant
        self._parent: list[int] = []
        self._pinned: set[int] = set()
        self.backward: list[Callable[[], None]] = []
        self.forward: list[Callable[[], None]] = []  # by which values are found again when weights have changed
        self._repeatable = True
        self._places: _Places | None = None
        self.records: dict[nn.Module, Record] = {}
        self.notes: list[str] = []
        self.values: list[Value] = []
        # Of all that was computed: how coarse its type was, and how large it was. Rounding errors are in proportion.
        self.coarsest, self.largest = 0.0, 0.0

    def measure(self, tensor: Tensor) -> None:
        """Take note of how coarse and how large the numbers are that the network computes with."""
        if tensor.is_floating_point() and tensor.numel():
            self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps)
            self.largest = max(self.largest, magnitude(tensor))

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

    def roots(self, ids: Tensor) -> Tensor:
        return torch.tensor([self._root(unit) for unit in ids.tolist()], dtype=torch.long)

    # ---------------------------------------------------------------------------------------------- values

    def value(
        self, tensor: Tensor, ids: Tensor, axis: int, parts: int, live: Tensor, name: str, heard: Tensor | None = None
    ) -> Value:
        """The value that ``tensor`` is an example of. Its constants are read off the example. What is live is taken to
        be ``heard``, if nothing else is said."""
        dims = tensor.dim()
        units = tensor.detach().movedim(axis, 0).unflatten(0, (parts, len(ids)))
        if not tensor.numel():
            units = units.new_zeros(parts, len(ids), *[1] * (dims - 1))
        first = units[(slice(None), slice(None), *[slice(1)] * (dims - 1))]
        constant = first.reshape(parts, len(ids)).T.cpu().clone()
        heard = live.clone() if heard is None else heard & live
        needed = torch.zeros(len(ids), dtype=torch.bool)
        out = Value(ids, axis % dims, dims, parts, live.clone(), heard, constant, needed)
        out.live |= ~constant.isfinite().all(1)  # nothing can be said of what is not a number
        if tensor.is_floating_point():
            out.live |= (constant.abs() > self.largest_constant).any(1)  # nor could a bias hold it
        if tensor.is_floating_point() and not out.live.all():
            still = (~out.live).nonzero().flatten().to(tensor.device)
            low, high = (units.index_select(1, still) - first.index_select(1, still)).aminmax()
            rounding = 1e3 * torch.finfo(tensor.dtype).eps * (1 + magnitude(tensor))
            if not (-rounding <= float(low) and float(high) <= rounding):
                raise CompactionError(
                    f"{name} was taken to give constants, but does not: this is a mistake of quern, "
                    "or the network does not give the same output for the same input."
                )
        self.values.append(out)
        return out

    def followed(self, value: Value, tensor: Tensor, axis: int, parts: int) -> Value:
        """``value`` seen as units of ``parts`` along ``axis``. Where it is followed differently, or not at all, these
        are units that all stay."""
        axis %= tensor.dim()
        if value.followed and value.axis == axis and value.parts == parts:
            return value
        size, rest = divmod(tensor.shape[axis], parts)
        assert not rest
        self._repeatable &= not value.followed
        self.whole(value)
        ids = self.fresh(size)
        self.pin(ids)
        out = Value(ids, axis, tensor.dim(), parts)
        out.live = torch.ones(size, dtype=torch.bool)
        out.heard = torch.full((size,), not value.followed or bool(value.heard.any()))
        out.constant = torch.zeros(size, parts, dtype=tensor.dtype)
        out.needed = torch.zeros(size, dtype=torch.bool)
        return out

    def whole(self, *values: Value) -> None:
        """All of these values is kept, and used."""
        for value in values:
            if value.ids is not None:
                self.pin(value.ids)
                self.backward.append(value.need_all)

    def through(
        self,
        name: str,
        value: Value,
        tensor: Tensor,
        *,
        axis: int | None = None,
        parts: int | None = None,
        live: Tensor | None = None,
        heard: Tensor | None = None,
        spread: int = 1,
        again: Again | None = _the_same,
    ) -> Value:
        """An operation that keeps units apart, and changes only what is said here. ``spread`` makes so many units in a
        row out of each, which stand or fall together. ``again`` is what it does to constants; None if nobody knows."""
        if value.ids is None:
            return Value()
        self._repeatable &= live is None and heard is None and again is not None
        parts, axis = parts or value.parts, value.axis if axis is None else axis
        live, heard, ids = (
            units.repeat_interleave(spread)
            for units in (
                value.live if live is None else live,
                value.heard if heard is None else heard,
                value.ids,
            )
        )
        out = self.value(tensor, ids, axis, parts, live, name, heard)
        zero = None  # what becomes of constants that are zero

        def forward() -> None:
            nonlocal zero
            units = value.live, value.heard, value.constant
            if spread > 1:
                units = tuple(u.repeat_interleave(spread, 0) for u in units)
            out.live, out.heard, constant = units
            out.full = value.full
            if not value.full and again is not None:
                if value.quiet and zero is None:
                    zero = again(torch.zeros_like(constant))
                self._renew(out, zero if value.quiet and zero is not None else again(constant))

        self.forward.append(forward)
        self.backward.append(lambda: value.need(out.needed.view(-1, spread).any(1)))
        return out

    # --------------------------------------------------------------------------------------------- records

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

    def weighted(
        self,
        name: str,
        layer: nn.Module,
        value: Value,
        tensor: Tensor,
        edges_of: Callable[[], Tensor],
        *,
        axis: int,
        parts: int,
        absorbs: bool,
        uneven: bool = False,
    ) -> Value:
        """A layer with ``edges_of()`` ``(outputs, inputs)``. ``uneven`` if constant inputs make an output that differs
        from place to place (zero padding)."""
        assert value.ids is not None
        edges = edges_of()
        record = self.record(name, layer, value.ids, edges.shape[0])
        record.edges, record.absorbs = edges, absorbs
        record.calls.append(value)
        assert record.outputs is not None

        def reached() -> tuple[Tensor, Tensor]:
            """Which outputs are live, and which are heard."""
            moving = value.live | value.pushing if uneven else value.live
            own = getattr(layer, "constant", None)
            live = (edges & moving).any(1)
            if own is not None:
                live |= (own.detach().cpu() != 0).flatten(2).any(2).any(0)
            return live, (edges & value.heard).any(1)

        live, heard = reached()
        out = self.value(tensor, record.outputs, axis, parts, live, name, heard)
        version, some, full = -1, live, False  # of the weight; which outputs look at any input; whether all do
        # Where a constant does not differ from place to place, so much of it gives the first output.
        sizes = (getattr(layer, "kernel_size", ()), getattr(layer, "dilation", ()))
        again = of_layer(layer, value, parts, [1 + (k - 1) * d for k, d in zip(*sizes, strict=True)])

        def forward() -> None:
            nonlocal edges, version, some, full
            weight: Any = layer.weight
            if weight._version != version:
                edges, version = edges_of(), weight._version
                some = edges.any(1)
                full = bool(some.all())
            record.edges, record.rows = edges, None
            out.full = full and value.full
            if out.full:
                out.live = out.heard = some
                return
            out.live, out.heard = reached()
            # Outputs that are not live look at no live input, nor, where these are uneven, at any but zero.
            if uneven or value.quiet or value.full:
                self._renew(out, _shift(layer, parts, len(some)))
            else:
                self._renew(out, again(value.constant.masked_fill(value.live.unsqueeze(1), 0)))

        def back() -> None:
            record.rows = out.needed | record.rows if record.rows is not None else out.needed.clone()
            value.need((edges & out.needed.unsqueeze(1)).any(0) & ~record.fixed())

        self.forward.append(forward)
        self.backward.append(back)
        return out

    def scaled(
        self, name: str, layer: nn.Module, value: Value, tensor: Tensor, scale_of: Callable[[], Tensor]
    ) -> Value:
        """A normalisation with its own numbers for each unit; where ``scale_of()`` is False the input does not
        matter."""
        assert value.ids is not None
        self.record(name, layer, value.ids, None)
        scale, again = scale_of(), of_layer(layer, value)
        out = self.value(tensor, value.ids, value.axis, value.parts, value.live & scale, name, value.heard)

        def forward() -> None:
            nonlocal scale
            scale = scale_of()
            out.live, out.heard = value.live & scale, value.heard & scale
            out.full = value.full and bool(scale.all())
            if not out.full:
                if not value.full and (scale & ~value.live).any():
                    self._renew(out, again(value.constant.masked_fill(value.live.unsqueeze(1), 0)))
                elif not scale.all():
                    self._renew(out, _shift(layer, value.parts, len(scale)))
                else:
                    out.quiet = True  # nothing is constant

        self.forward.append(forward)
        self.backward.append(lambda: value.need(out.needed & scale))
        return out

    def joined(
        self,
        name: str,
        values: Sequence[Value],
        tensor: Tensor,
        vanishes: bool,
        again: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Value:
        """An operation on corresponding units of ``values`` that have equal axes from the right; ``vanishes`` if a zero
        on one side makes it zero (a product). Values that are not followed are spread over the units. ``again`` is what
        it does to constants; None if nobody knows."""
        known = [v for v in values if v.ids is not None]
        first = known[0]
        assert first.ids is not None
        for v in known:
            assert v.ids is not None
            self.tie(first.ids, v.ids)
        self._repeatable &= again is not None and len(values) == 2

        def reached() -> tuple[Tensor, Tensor]:
            live = torch.full((len(first.live),), len(known) < len(values))
            heard = live.clone()
            for v in known:
                live |= v.live
                heard |= v.heard
            if vanishes:
                for v in known:
                    live &= v.live | v.pushing
            return live, heard

        live, heard = reached()
        axis = tensor.dim() - (first.dims - first.axis)
        out = self.value(tensor, first.ids, axis, first.parts, live, name, heard)

        def forward() -> None:
            if all(v.full for v in values):
                out.live, out.heard, out.full = first.live, first.heard, True
                return
            live, heard = reached()
            out.live, out.heard, out.full = live, heard & live, False
            if again is not None and len(known) == 2:
                self._renew(out, again(first.constant, known[1].constant))

        def back() -> None:
            for v in known:
                v.need(out.needed)

        self.forward.append(forward)
        self.backward.append(back)
        return out

    # ----------------------------------------------------------------------------------------------- again

    @property
    def repeatable(self) -> bool:
        """Whether :meth:`again` can find every value from the weights as they are then, without running the network."""
        return self._repeatable and len(self.forward) == len(self.values)

    def again(self, outputs: Sequence[Value]) -> None:
        """Find all values again, after weights have changed; then they can be settled again."""
        for value in self.values:
            value.needed.zero_()
        for forward in self.forward:
            forward()
        for value in outputs:
            value.need_all()

    def _renew(self, out: Value, constant: Tensor) -> None:
        """The units of ``out`` that are not live are ``constant``."""
        out.constant, out.quiet = constant, not constant.any()
        if not out.quiet:
            if not float(constant.abs().max()) <= self.largest_constant < math.inf:  # False for what is no number
                out.live = out.live | (~constant.isfinite() | (constant.abs() > self.largest_constant)).any(1)
            out.quiet = not out.pushing.any()

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


def dead(outputs: Sequence[Value]) -> bool:
    """Whether none of a network's outputs depends on an input."""
    return bool(outputs) and all(value.followed and not bool(value.heard.any()) for value in outputs)


def magnitude(tensor: Tensor) -> float:
    """The largest absolute value among the numbers that are finite; 0 if there are none."""
    if not tensor.numel():
        return 0.0
    largest = max(abs(float(end)) for end in tensor.detach().aminmax())
    return largest if math.isfinite(largest) else float(tensor.detach().abs().nan_to_num(0.0, 0.0).max())


def _even_out(kept: Tensor, inputs: Tensor, outputs: Tensor) -> None:
    """Keep more units until every group that has any has as many inputs, and outputs, as the fullest."""
    stays = kept[inputs].any(1) | kept[outputs].any(1)
    for units in (inputs[stays], outputs[stays]):
        most = int(kept[units].sum(1).max().clamp(min=1))
        for group in units:
            while int(kept[group].sum()) < most:
                kept[group[~kept[group]][0]] = True
