"""What operations do to values: which channels of their results are constant, and which of their inputs are needed."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern.errors import CompactionError
from quern.graph.units import Units
from quern.graph.values import Again, Value, magnitude, of_layer


def _the_same(constant: Tensor) -> Tensor:
    return constant


def _shift(layer: Any, parts: int, units: int) -> Tensor:
    """What a layer gives ``(units, parts)`` where its weights have no effect."""
    return torch.zeros(units, parts) if layer.bias is None else layer.bias.detach().cpu().reshape(parts, units).T


class Facts(Units):
    """The units and values of a whole network, as its operations make them."""

    def __init__(self, largest_constant: float = math.inf) -> None:
        """``largest_constant`` is the largest number that the parameters of the network can hold."""
        super().__init__()
        self.largest_constant = largest_constant
        self.forward: list[Callable[[], None]] = []  # by which values are found again when weights have changed
        self._repeatable = True
        self.notes: list[str] = []
        # Of all that was computed: how coarse its type was, and how large it was. Rounding errors are in proportion.
        self.coarsest, self.largest = 0.0, 0.0

    def measure(self, tensor: Tensor) -> None:
        """Take note of how coarse and how large the numbers are that the network computes with."""
        if tensor.is_floating_point() and tensor.numel():
            self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps)
            self.largest = max(self.largest, magnitude(tensor))

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
        versions, some, full = [-1], live, False  # of its parameters; which outputs look at any input; whether all do
        # Where a constant does not differ from place to place, so much of it gives the first output.
        # Other padding than by zeros takes no more than there is.
        kernel, dilation, padding = (getattr(layer, name, ()) for name in ("kernel_size", "dilation", "padding"))
        padding = [0] * len(kernel) if isinstance(padding, str) else padding
        space = [max(1 + (k - 1) * d, p + 1) for k, d, p in zip(kernel, dilation, padding, strict=True)]
        again = of_layer(layer, value, parts, space)

        def forward() -> None:
            nonlocal edges, versions, some, full
            now = [p._version for p in layer._parameters.values() if p is not None]
            if now != versions:
                edges, versions = edges_of(), now
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
