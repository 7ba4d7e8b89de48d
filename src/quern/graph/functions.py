"""What functions and methods do to the units of a value: sums, products, views, reductions."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from quern import functional as F
from quern.errors import NoRuleError
from quern.graph.facts import Facts
from quern.graph.operations import operation
from quern.graph.values import Number, Value

_KINDS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def values_of(args: Any) -> list[Value]:
    values: list[Value] = []
    map_aggregate(args, lambda a: values.append(a) if isinstance(a, Value) else None)
    return values


def numbers_of(args: Any) -> list[Number]:
    numbers: list[Number] = []
    map_aggregate(args, lambda a: numbers.append(a) if isinstance(a, Number) else None)
    return numbers


def unknown(result: Any, number: Number = Number()) -> Any:  # noqa: B008, it is frozen
    """Values that are not followed, in the structure of a result; ``number`` for what is no tensor. None for what says
    what kind of tensor there is, which changes no more than rounding."""
    if isinstance(result, Tensor):
        return Value()
    if isinstance(result, (tuple, list)):
        return tuple(unknown(part, number) for part in result)
    if isinstance(result, dict):
        return {key: unknown(part, number) for key, part in result.items()}
    return None if result is None or isinstance(result, _KINDS) else number


def _has_tensors(result: Any) -> bool:
    tensors: list[Tensor] = []
    map_aggregate(result, lambda a: tensors.append(a) if isinstance(a, Tensor) else None)
    return bool(tensors)


def option(given: Any, place: int, name: str, default: Any) -> Any:
    args, kwargs = given
    return kwargs.get(name, args[place] if len(args) > place else default)


class FunctionRules:
    """What becomes of the units of values in functions and methods. ``keep_unknown`` says what becomes of an operation
    without a rule. Specs of layers use the same rules where a layer does what a function does."""

    def __init__(self, facts: Facts, keep_unknown: bool) -> None:
        self.facts, self.keep_unknown = facts, keep_unknown

    def opaque(self, name: str, values: Sequence[Value], result: Any) -> Any:
        """No rule: an error, or on request all that it takes is kept."""
        if any(v.followed for v in values):
            if not self.keep_unknown:
                raise NoRuleError(name)
            self.facts.notes.append(f"{name} has no rule, so all channels that it takes are kept")
        return self.whole(values, result)

    def whole(self, values: Sequence[Value], result: Any) -> Any:
        """An operation that needs all of its input."""
        self.facts.whole(*values)
        return unknown(result)

    def count(self, numbers: Sequence[Number]) -> None:
        """Somebody computes with these numbers: what they count must stay as many."""
        self.facts.whole(*(value for number in numbers for value in number.counts))

    def function(self, node: fx.Node, facts: Any, given: Any, out: Any) -> Any:
        target: Any = node.target
        values, numbers = values_of(facts), numbers_of(facts)
        args, kwargs = given
        title = f"{node.name} ({getattr(target, '__name__', target)})"
        plain = target is operator.getitem and isinstance(args[1], (int, slice)) and not numbers_of(facts[0][1])
        if plain and isinstance(facts[0][0], tuple):  # one of several results, or some sizes of a shape
            return facts[0][0][args[1]]
        if not _has_tensors(out):
            return self._number(title, target, facts, given, out)
        if operation(target).kind == "view" and len(values) == 1:
            sizes = facts[0][1:] or (facts[1].get("shape"),)
            return self._view(title, sizes, values[0], option(given, 0, "input", None), out)
        self.count(numbers)
        if not values:
            return unknown(out)
        if target is getattr and args[1] == "mT":
            target, given, args = torch.transpose, ((args[0], -2, -1), {}), (args[0], -2, -1)
        does = operation(target)
        if does.kind == "join":
            known, given = (
                [option(side, n, name, None) for n, name in enumerate(("input", "other"))] for side in (facts, given)
            )
            adds = torch.add if does.adds else None
            return self._join(title, does.multiplies, known, given, out, varies=bool(numbers), again=adds)
        if does.kind == "cat":
            return self.whole(values, out) if numbers else self._cat(title, target is F.cat, facts, given, out)
        if does.kind == "whole":
            return self.whole(values, out)
        if len(values) > 1 or not isinstance(out, Tensor):
            return self.opaque(title, values, out)
        (value,), x = values, args[0] if args else next(iter(kwargs.values()))
        if not isinstance(x, Tensor):
            return self.opaque(title, values, out)
        if does.kind == "apart":
            live = torch.ones_like(value.live) if numbers else None  # the slope of an activation, say

            def again(constant: Tensor) -> Tensor:
                call = getattr(Tensor, target) if isinstance(target, str) else target
                return call(constant.clone(), *args[1:], **{k: v for k, v in kwargs.items() if v is not x})

            return self.facts.through(title, value, out, live=live, heard=live, again=again)
        if does.kind == "pool":
            return self.pool(title, value, out, does.space, does.weighs_padding)
        if does.kind == "index":  # a constant is one wherever it is looked at
            return self._indexed(title, value, x, args[1], out)
        if does.kind in ("unknown", "view", "size"):
            return self.opaque(title, values, out)
        if numbers:
            return self.whole(values, out)  # the number may name an axis
        if does.kind == "modulus":
            return self.modulus(title, value, x, out, option(given, 1, "dim", 1))
        if does.kind == "flatten":
            start, end = option(given, 1, "start_dim", 0), option(given, 2, "end_dim", -1)
            return self.flatten(title, value, x, out, start, end)
        if does.kind == "reduce":
            kind = target if isinstance(target, str) else target.__name__
            return self._reduced(title, kind, value, x, out, option(given, 1, "dim", None))
        assert does.kind == "move"
        return self._moved(title, target, value, x, given, out)

    def _number(self, title: str, target: Any, facts: Any, given: Any, out: Any) -> Any:
        """What is no tensor: sizes, what is computed from them, and numbers that depend on values."""
        values, numbers = values_of(facts), numbers_of(facts)
        if not values:
            counting = [number for number in numbers if number.counts]
            proportional = operation(target).proportional and len(counting) == 1 and counting[0].proportional
            counts = dict.fromkeys(value for number in counting for value in number.counts)
            return unknown(out, Number(tuple(counts), proportional))
        value, args = values[0], given[0]
        asks = target is getattr or operation(target).kind == "size"
        if not asks or not isinstance(args[0], Tensor):
            return self.opaque(title, values, out)
        own = (value,) if value.followed else ()
        asked = args[1] if target is getattr else target
        if asked in ("ndim", "dim"):
            return Number()
        if asked == "numel":
            return Number(own, proportional=True)
        axes = [Number(own if n == value.axis else (), n == value.axis, n) for n in range(args[0].dim())]
        if target is len:
            return axes[0]
        if asked == "shape" or (asked == "size" and isinstance(out, tuple)):
            return tuple(axes)
        dim = option(given, 1, "dim", None)
        return axes[dim] if asked == "size" and not numbers else unknown(out, Number(own))

    def _join(
        self,
        title: str,
        product: bool,
        facts: Sequence[Any],
        given: Sequence[Any],
        out: Tensor,
        *,
        varies: bool,
        again: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> Value:
        """An addition or product of two tensors, or of a tensor and a number; ``varies`` if a number that is no
        constant takes part."""
        pairs = [(v, t) for v, t in zip(facts, given, strict=True) if isinstance(v, Value)]
        known = [(v, t) for v, t in pairs if v.followed]
        if not known:
            return Value()
        if len(pairs) == 1 and not varies:
            return self.facts.through(title, known[0][0], out, again=None)
        first = known[0][0]
        assert first.ids is not None
        from_right = first.dims - first.axis
        size = first.parts * len(first.ids)
        alike = [
            v
            for v, _ in known
            if (v.dims - v.axis, v.parts, len(v.live)) == (from_right, first.parts, size // first.parts)
        ]
        if len(alike) < len(known):
            return self.whole([v for v, _ in known], out)
        others = [t for v, t in pairs if not v.followed]
        if any(t.dim() >= from_right and t.shape[-from_right] != 1 for t in others):
            # A tensor that cannot be narrowed has a channel for each.
            self.facts.whole(*alike)
            self.facts.notes.append(
                f"{title} takes a tensor of its own with a number per channel, so all channels are kept"
            )
        # What is not followed may differ from place to place, and a number from call to call.
        unknown = [Value() for _ in range(len(others) + varies)]
        return self.facts.joined(title, [*alike, *unknown], out, product, again)

    def _cat(self, title: str, quaternion: bool, facts: Any, given: Any, out: Tensor) -> Any:
        values, tensors = option(facts, 0, "tensors", ()), option(given, 0, "tensors", ())
        dim = option(given, 1, "dim", 1 if quaternion else 0) % out.dim()
        parts = 4 if quaternion else 1
        if not all(isinstance(v, Value) for v in values):
            return self.opaque(title, values_of(values), out)
        fits = [v.followed and v.axis == dim and v.parts == parts for v in values]
        if not any(fits) or (not quaternion and not all(fits)):
            return self.whole(values, out)  # torch.cat of quaternions would be cut across
        joined = [self.facts.followed(v, t, dim, parts) for v, t in zip(values, tensors, strict=True)]
        ids = [v.ids for v in joined if v.ids is not None]
        live, heard = torch.cat([v.live for v in joined]), torch.cat([v.heard for v in joined])
        result = self.facts.value(out, torch.cat(ids), dim, parts, live, title, heard)

        def back() -> None:
            for v, needed in zip(joined, result.needed.split([len(part) for part in ids]), strict=True):
                v.need(needed)

        self.facts.backward.append(back)
        return result

    def pool(self, title: str, value: Value, out: Tensor, space: Sequence[int], weighs_padding: bool) -> Value:
        if value.followed and value.dims - value.axis - 1 not in space:
            return self.whole([value], out)  # the units themselves are pooled
        live = value.live | value.pushing if weighs_padding and value.followed else None
        return self.facts.through(title, value, out, live=live)

    def modulus(self, title: str, value: Value, x: Tensor, out: Tensor, dim: int) -> Value:
        if not value.followed:
            return value
        if value.parts != 4 or value.axis != dim % x.dim():
            return self.whole([value], out)
        return self.facts.through(title, value, out, parts=1, again=lambda q: q.norm(dim=1, keepdim=True))

    def flatten(self, title: str, value: Value, x: Tensor, out: Tensor, start: int, end: int) -> Value:
        start, end = start % x.dim(), end % x.dim()
        if not value.followed or value.axis < start:
            return self.facts.through(title, value, out)
        if value.axis > end:
            return self.facts.through(title, value, out, axis=value.axis - (end - start))
        if value.axis > start:  # other axes come first: units would be cut across
            return self.whole([value], out)
        spread = out.shape[start] // x.shape[start]
        return self.facts.through(title, value, out, spread=spread)

    def _view(self, title: str, sizes: Any, value: Value, x: Tensor, out: Tensor) -> Value:
        """A view that leaves the units' axis as it is, or joins it with axes behind it.

        That has to be so for every input, not only for the example, and has to stay so when channels go. So the units'
        axis gets the size -1, or one in proportion to the units; and what is in front of it, and behind it, has the
        sizes of the same axes of some tensor. What is asked of the units' axis itself leaves one side open.
        """
        sizes = sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes
        if not value.followed:
            self.count(numbers_of(sizes))
            return value
        before, size = x.shape[: value.axis].numel(), x.shape[value.axis]
        for axis, wanted in enumerate(sizes if len(sizes) == out.dim() else ()):
            spread, rest = divmod(out.shape[axis], size)
            source = value if isinstance(wanted, int) and wanted == -1 else self._counted(wanted, value)
            if rest or not spread or out.shape[:axis].numel() != before or source is None:
                continue
            counted = _axis(wanted) is not None
            in_front = axis == value.axis and all(_axis(n) == place for place, n in enumerate(sizes[:axis]))
            behind = all(
                n == 1 or _axis(n) == x.dim() - place for place, n in enumerate(reversed(sizes[axis + 1 :]), 1)
            )
            last = axis == out.dim() - 1 and value.axis == x.dim() - 1
            if (in_front and (counted or behind)) or (last and counted):
                self.count(numbers_of([n for n in sizes if n is not wanted]))
                assert value.ids is not None
                assert source.ids is not None
                self.facts.tie(source.ids, value.ids)  # so that as many go
                return self.facts.through(title, value, out, axis=axis, spread=spread)
        self.count(numbers_of(sizes))
        return self.whole([value], out)

    def _counted(self, wanted: Any, value: Value) -> Value | None:
        """The value whose units a size that a view asks for is in proportion to, if it has as many as ``value``."""
        if not isinstance(wanted, Number) or not wanted.proportional or len(wanted.counts) != 1:
            return None
        return wanted.counts[0] if len(wanted.counts[0].live) == len(value.live) else None

    def _reduced(self, title: str, kind: str, value: Value, x: Tensor, out: Tensor, dim: Any) -> Value:
        axes = [] if dim is None else [d % x.dim() for d in (dim if isinstance(dim, (tuple, list)) else [dim])]
        if not value.followed or not axes or value.axis in axes:
            return self.whole([value], out)
        axis = value.axis - (0 if out.dim() == x.dim() else sum(d < value.axis for d in axes))
        live = value.live | value.pushing if kind == "sum" else None  # a sum grows with the size of the image
        return self.facts.through(title, value, out, axis=axis, live=live)

    def _moved(self, title: str, target: Any, value: Value, x: Tensor, given: Any, out: Tensor) -> Value:
        """Axes in another order, or new axes of size 1: where the units went is seen on a tensor of numbered axes."""
        if not value.followed:
            return value
        sizes = [1] * x.dim()
        sizes[value.axis] = 2  # a size that no other axis has
        args, kwargs = given
        probe = torch.empty(sizes, device="meta")
        moved = (
            getattr(probe, target)(*args[1:], **kwargs)
            if isinstance(target, str)
            else target(probe, *args[1:], **kwargs)
        )
        axis = list(moved.shape).index(2)
        if target in ("squeeze", torch.squeeze):
            dim = option(given, 1, "dim", ())
            dims = {d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)}
            # Without an axis, or if that is not 1, it depends on the sizes. The last channel would be squeezed away.
            if not dims or value.axis in dims or out.dim() != x.dim() - len(dims):
                return self.whole([value], out)
        return self.facts.through(title, value, out, axis=axis)

    def _indexed(self, title: str, value: Value, x: Tensor, index: Any, out: Tensor) -> Value:
        """``x[:, -1]``, ``x[:, :, None]``: the units' own axis must be taken whole."""
        if not value.followed:
            return value
        items = list(index) if isinstance(index, tuple) else [index]
        plain = (item is None or item is Ellipsis or isinstance(item, (int, slice)) for item in items)
        if not all(plain) or any(isinstance(item, bool) for item in items):
            return self.opaque(title, [value], out)
        taken = sum(isinstance(item, (int, slice)) for item in items)
        if Ellipsis in items:
            place = items.index(Ellipsis)
            items[place : place + 1] = [slice(None)] * (x.dim() - taken)
        else:
            items += [slice(None)] * (x.dim() - taken)
        axis = position = 0
        for item in items:
            if item is None:
                axis += 1
                continue
            if position == value.axis:
                if item != slice(None):
                    return self.whole([value], out)
                return self.facts.through(title, value, out, axis=axis)
            axis += 0 if isinstance(item, int) else 1
            position += 1
        raise AssertionError("every axis was counted")


def _axis(size: Any) -> int | None:
    """Which axis of a tensor this is the size of."""
    return size.axis if isinstance(size, Number) else None
