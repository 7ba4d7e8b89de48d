"""What functions and methods do to the units of a value: sums, products, views, reductions."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from quern import functional as F
from quern.compact._facts import Facts, Value
from quern.errors import CompactionError
from quern.graph import (
    APART_FUNCTIONS,
    APART_METHODS,
    JOINING,
    JOINING_METHODS,
    POOL_FUNCTIONS,
    REDUCING_METHODS,
    REDUCTIONS,
    SIZE_METHODS,
)

_APART_IN_PLACE = {torch.relu_, torch.tanh_, torch.sigmoid_, "relu_", "tanh_", "sigmoid_"}
_PRODUCTS = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_VIEWS = {"view", "reshape", torch.reshape}
_AVERAGE_FUNCTIONS = {TF.avg_pool1d, TF.avg_pool2d, TF.avg_pool3d}
_TRANSPOSITIONS = {torch.permute, torch.transpose, torch.movedim, torch.swapaxes, "permute", "transpose"}
_TRANSPOSITIONS |= {"movedim", "swapaxes", "mT", "t"}


def values_of(args: Any) -> list[Value]:
    found: list[Value] = []
    map_aggregate(args, lambda a: found.append(a) if isinstance(a, Value) else None)
    return found


def unknown(result: Any) -> Any:
    """Values that are not followed, in the structure of a result; None for what is no tensor."""
    if isinstance(result, Tensor):
        return Value()
    if isinstance(result, (tuple, list)):
        return tuple(unknown(part) for part in result)
    return None


def _has_tensors(result: Any) -> bool:
    return isinstance(result, Tensor) or (isinstance(result, (tuple, list)) and any(map(_has_tensors, result)))


def option(given: Any, place: int, name: str, default: Any) -> Any:
    args, kwargs = given
    return kwargs.get(name, args[place] if len(args) > place else default)


class FunctionRules:
    """The rules that need no module. ``keep_unknown`` says what becomes of an operation without a rule."""

    def __init__(self, keep_unknown: bool) -> None:
        self.facts, self.keep_unknown = Facts(), keep_unknown

    def opaque(self, name: str, values: Sequence[Value], result: Any) -> Any:
        """No rule: an error, or on request all that it takes is kept."""
        if any(v.followed for v in values):
            if not self.keep_unknown:
                raise CompactionError(
                    f"there is no rule for {name}: with keep_unknown=True all channels that it takes are kept."
                )
            self.facts.notes.append(f"{name} has no rule, so all channels that it takes are kept")
        return self.whole(values, result)

    def whole(self, values: Sequence[Value], result: Any) -> Any:
        """An operation that needs all of its input."""
        self.facts.whole(*values)
        return unknown(result)

    def function(self, node: fx.Node, facts: Any, given: Any, out: Any) -> Any:
        target: Any = node.target
        values = values_of(facts)
        args, kwargs = given
        if target is operator.getitem and isinstance(facts[0][0], tuple):  # one of several results
            return facts[0][0][args[1]] if isinstance(args[1], int) else self.opaque(node.name, values, out)
        said = f"{node.name} ({getattr(target, '__name__', target)})"
        if not values:
            return unknown(out)
        if not _has_tensors(out):  # sizes, or a number that depends on values
            return None if target is getattr or target in SIZE_METHODS else self.opaque(said, values, out) or Value()
        if target is getattr and args[1] == "mT":
            target, given, args = torch.transpose, ((args[0], -2, -1), {}), (args[0], -2, -1)
        if target is F.cat or target is torch.cat:
            return self._cat(said, target is F.cat, facts, given, out)
        if target in JOINING or target in JOINING_METHODS:
            known, given = (
                [option(side, n, name, None) for n, name in enumerate(("input", "other"))] for side in (facts, given)
            )
            return self._join(said, target in _PRODUCTS, known, given, out)
        if len(values) > 1 or not isinstance(out, Tensor):
            return self.opaque(said, values, out)
        (value,), x = values, args[0] if args else next(iter(kwargs.values()))
        if not isinstance(x, Tensor):
            return self.opaque(said, values, out)
        if target in APART_FUNCTIONS or target in APART_METHODS or target in _APART_IN_PLACE:
            return self.facts.through(said, value, out)
        if target in POOL_FUNCTIONS or target is TF.interpolate:
            return self.pool(said, value, out, POOL_FUNCTIONS.get(target, (1, 2, 3)), target in _AVERAGE_FUNCTIONS)
        if target is F.modulus:
            return self.modulus(said, value, x, out, option(given, 1, "dim", 1))
        if target in (torch.flatten, "flatten"):
            start, end = option(given, 1, "start_dim", 0), option(given, 2, "end_dim", -1)
            return self.flatten(said, value, x, out, start, end)
        if target in _VIEWS:
            sizes = node.args[1:] or (node.kwargs.get("shape"),)
            return self._view(said, sizes, value, x, out)
        if target in REDUCTIONS or target in REDUCING_METHODS:
            kind = target if isinstance(target, str) else target.__name__
            return self._reduced(said, kind, value, x, out, option(given, 1, "dim", None))
        if target in _TRANSPOSITIONS or target in ("unsqueeze", "squeeze", torch.unsqueeze, torch.squeeze):
            return self._moved(said, target, value, x, given, out)
        if target is operator.getitem:
            return self._indexed(said, value, x, args[1], out)
        return self.opaque(said, values, out)

    def _join(self, said: str, product: bool, facts: Sequence[Any], given: Sequence[Any], out: Tensor) -> Value:
        """An addition or product of two tensors, or of a tensor and a number."""
        pairs = [(v, t) for v, t in zip(facts, given, strict=True) if isinstance(v, Value)]
        known = [(v, t) for v, t in pairs if v.followed]
        if not known:
            return Value()
        if len(pairs) == 1:
            return self.facts.through(said, known[0][0], out)
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
        others = [t for v, t in pairs if not v.followed]  # a number that depends on values is one of them
        if any(isinstance(t, Tensor) and t.dim() >= from_right and t.shape[-from_right] != 1 for t in others):
            self.facts.whole(*alike)  # a tensor that cannot be narrowed has a channel for each
        # What is not followed may differ from place to place.
        return self.facts.joined(said, [*alike, *(Value() for _ in others)], out, product)

    def _cat(self, said: str, quaternion: bool, facts: Any, given: Any, out: Tensor) -> Any:
        values, tensors = option(facts, 0, "tensors", ()), option(given, 0, "tensors", ())
        dim = option(given, 1, "dim", 1 if quaternion else 0) % out.dim()
        parts = 4 if quaternion else 1
        if not all(isinstance(v, Value) for v in values):
            return self.opaque(said, values_of(values), out)
        fits = [v.followed and v.axis == dim and v.parts == parts for v in values]
        if not any(fits) or (not quaternion and not all(fits)):
            return self.whole(values, out)  # torch.cat of quaternions would be cut across
        found = [self.facts.followed(v, t, dim, parts) for v, t in zip(values, tensors, strict=True)]
        ids = [v.ids for v in found if v.ids is not None]
        result = self.facts.value(out, torch.cat(ids), dim, parts, torch.cat([v.live for v in found]), said)

        def back() -> None:
            for v, needed in zip(found, result.needed.split([len(part) for part in ids]), strict=True):
                v.need(needed)

        self.facts.backward.append(back)
        return result

    def pool(self, said: str, value: Value, out: Tensor, space: Sequence[int], weighs_padding: bool) -> Value:
        if value.followed and value.dims - value.axis - 1 not in space:
            return self.whole([value], out)  # the units themselves are pooled
        live = value.live | value.pushing if weighs_padding and value.followed else None
        return self.facts.through(said, value, out, live=live)

    def modulus(self, said: str, value: Value, x: Tensor, out: Tensor, dim: int) -> Value:
        if not value.followed:
            return value
        if value.parts != 4 or value.axis != dim % x.dim():
            return self.whole([value], out)
        return self.facts.through(said, value, out, parts=1)

    def flatten(self, said: str, value: Value, x: Tensor, out: Tensor, start: int, end: int) -> Value:
        start, end = start % x.dim(), end % x.dim()
        if not value.followed or value.axis < start:
            return self.facts.through(said, value, out)
        if value.axis > end:
            return self.facts.through(said, value, out, axis=value.axis - (end - start))
        if value.axis > start:  # other axes come first: units would be cut across
            return self.whole([value], out)
        spread = out.shape[start] // x.shape[start]
        return self.facts.through(said, value, out, spread=spread)

    def _view(self, said: str, sizes: Any, value: Value, x: Tensor, out: Tensor) -> Value:
        """A view that leaves the units' axis as it is, or joins it with axes behind it, and does not spell its size
        out: a number in the program, other than -1, stays when channels go."""
        if not value.followed:
            return value
        sizes = sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes
        before, size = x.shape[: value.axis].numel(), x.shape[value.axis]
        for axis, wanted in enumerate(sizes if len(sizes) == out.dim() else ()):
            adapts = not isinstance(wanted, int) or wanted == -1
            spread, rest = divmod(out.shape[axis], size)
            if adapts and spread and not rest and out.shape[:axis].numel() == before:
                return self.facts.through(said, value, out, axis=axis, spread=spread)
        return self.whole([value], out)

    def _reduced(self, said: str, kind: str, value: Value, x: Tensor, out: Tensor, dim: Any) -> Value:
        axes = [] if dim is None else [d % x.dim() for d in (dim if isinstance(dim, (tuple, list)) else [dim])]
        if not value.followed or not axes or value.axis in axes:
            return self.whole([value], out)
        axis = value.axis - (0 if out.dim() == x.dim() else sum(d < value.axis for d in axes))
        live = value.live | value.pushing if kind == "sum" else None  # a sum grows with the size of the image
        return self.facts.through(said, value, out, axis=axis, live=live)

    def _moved(self, said: str, target: Any, value: Value, x: Tensor, given: Any, out: Tensor) -> Value:
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
            if out.dim() != moved.dim():  # squeeze() without an axis depends on the sizes
                return self.whole([value], out)
            dim = option(given, 1, "dim", None)
            if value.parts == 1 and (dim is None or dim % x.dim() == value.axis):
                assert value.ids is not None
                self.facts.pin(value.ids)  # the last channel would be squeezed away
        return self.facts.through(said, value, out, axis=axis)

    def _indexed(self, said: str, value: Value, x: Tensor, index: Any, out: Tensor) -> Value:
        """``x[:, -1]``, ``x[:, :, None]``: the units' own axis must be taken whole."""
        if not value.followed:
            return value
        items = list(index) if isinstance(index, tuple) else [index]
        if not all(item is None or item is Ellipsis or isinstance(item, (int, slice)) for item in items):
            return self.opaque(said, [value], out)
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
                return self.facts.through(said, value, out, axis=axis)
            axis += 0 if isinstance(item, int) else 1
            position += 1
        raise AssertionError("every axis was counted")
