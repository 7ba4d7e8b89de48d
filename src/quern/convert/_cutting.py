"""Functions that cut, join and view channels, and what they become for whole quaternions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from quern import functional as F
from quern.convert._axes import At, Cut, Each, NeedsExample, each_at, view_group
from quern.convert._nodes import name_of

_NARROW = (("input",), ("dim",), ("start",), ("length",))


class Cutting:
    """Values and where they carry quaternions (``at``), by node, and the rules of functions that may have to be
    rewritten. ``shapes`` has what nodes gave for an example, where there is one."""

    def __init__(self, shapes: dict[fx.Node, Any] | None) -> None:
        self.shapes = shapes
        self.at: dict[fx.Node, Any] = {}
        self.rewritten: list[str] = []

    # --------------------------------------------------------------------------------------------- what is known

    def _at(self, argument: Any) -> At | None:
        value = self.at.get(argument) if isinstance(argument, fx.Node) else None
        return value if isinstance(value, At) else None

    def _all(self, arguments: Any) -> list[At]:
        collected: list[At] = []

        def look(node: fx.Node) -> fx.Node:
            collected.extend(each_at(self.at.get(node)))
            return node

        map_arg(arguments, look)
        return collected

    def _shape(self, node: Any) -> tuple[int, ...]:
        shape = None if self.shapes is None else self.shapes.get(node)
        if not isinstance(shape, tuple):
            raise NeedsExample
        return shape

    def _rank(self, node: Any) -> int | None:
        shape = None if self.shapes is None else self.shapes.get(node)
        return len(shape) if isinstance(shape, torch.Size) else None

    @staticmethod
    def _argument(node: fx.Node, place: int, *names: str, default: Any = None) -> Any:
        for name in names:
            if name in node.kwargs:
                return node.kwargs[name]
        return node.args[place] if len(node.args) > place else default

    def _first(self, node: fx.Node) -> Any:
        return self._argument(node, 0, "input", "self", "x")

    def _rewrite(self, node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if node.op == "call_module":
            raise Cut("layers that join axes in front of the channels with them: write x.flatten in forward")
        self.rewritten.append(name_of(node))
        node.op, node.target, node.args, node.kwargs = "call_function", function, args, {}

    # ------------------------------------------------------------------------------------------------------ rules

    def _cat(self, node: fx.Node) -> At:
        tensors = self._argument(node, 0, "tensors")
        dim = self._argument(node, 1, "dim", "axis", default=0)
        values = [self._at(t) for t in tensors]
        own = next(v for v in values if v is not None)
        if len({v.from_right if len({w.rank for w in values if w}) > 1 else v.axis for v in values if v}) > 1:
            raise Cut("functions of values whose quaternions stand on different axes")
        if not own.is_axis(dim):
            return own
        for tensor, value in zip(tensors, values, strict=True):
            if value is None and self._shape(tensor)[dim] % 4:
                raise Cut("torch.cat of quaternions and of channels that are no multiple of 4")
        self._rewrite(node, F.cat, (tuple(tensors), dim))
        return own

    def _pieces(self, node: fx.Node) -> Each:
        name = name_of(node)
        x = self._first(node)
        value = self._at(x)
        place = 1 if name == "unbind" else 2
        dim = self._argument(node, place, "dim", default=0)
        if value is None:
            raise Cut("functions that are not known to keep quaternions whole")
        if not value.is_axis(dim):
            if name != "unbind":
                return Each(value)
            axis, rank = value.whole
            return Each(At(axis - (dim % rank < axis), rank - 1))
        if name in ("unbind", "tensor_split"):
            raise Cut("functions that cut single channels out of quaternions")
        sizes = self._argument(node, 1, "chunks" if name == "chunk" else "split_size_or_sections", "split_size")
        numbers = [sizes] if isinstance(sizes, int) else list(sizes)
        if name == "split" and any(isinstance(n, int) and n % 4 for n in numbers):
            raise Cut("pieces of channels that are no multiple of 4")
        self._rewrite(node, F.chunk if name == "chunk" else F.split_channels, (x, sizes, dim))
        return Each(value)

    def _indexed(self, node: fx.Node) -> Any:
        source, index = node.args[0], node.args[1]
        value = self.at.get(source) if isinstance(source, fx.Node) else None
        if isinstance(value, Each):
            return value.value if isinstance(index, int) else value
        if isinstance(value, (tuple, list)) and isinstance(index, (int, slice)):
            return value[index]
        if not isinstance(value, At):
            if self._all((index,)):
                raise Cut("functions that are not known to keep quaternions whole")
            return None
        items: list[Any] = list(index) if isinstance(index, tuple) else [index]
        if any(isinstance(item, (Tensor, fx.Node, list)) for item in items):
            if value.is_axis(0) if items and not items[1:] else True:
                raise Cut("channels picked by an index that is a tensor")
            return value
        taken = sum(item is not None and item is not Ellipsis for item in items)
        if Ellipsis in items or value.axis < 0:
            _, rank = value.whole
            place = items.index(Ellipsis) if Ellipsis in items else len(items)
            items[place : place + 1] = [slice(None)] * (rank - taken)
        position = shift = 0
        own: Any = slice(None)
        for item in items:
            if item is None:
                shift += position <= value.axis
                continue
            if position == value.axis:
                own = item
            elif isinstance(item, int):
                shift -= position < value.axis
            position += 1
        ranks = sum(item is None for item in items) - sum(isinstance(item, int) for item in items)
        out = At(value.axis + shift, None if value.rank is None else value.rank + ranks)
        if own == slice(None):
            return out
        if not isinstance(own, slice) or own.step not in (None, 1):
            raise Cut("functions that cut single channels out of quaternions")
        ends = (own.start, own.stop)
        if any(end is not None and not (isinstance(end, int) and end % 4 == 0) for end in ends):
            raise Cut("pieces of channels that are no multiple of 4")
        others = [slice(None) if item is own else item for item in items]
        with node.graph.inserting_before(node):
            cut = node.graph.call_function(F.slice_channels, (source, *ends, value.axis))
        self.at[cut] = value
        node.args = (cut, tuple(others))
        self.rewritten.append(f"{name_of(node)} of channels")
        return out

    def _narrowed(self, node: fx.Node) -> At:
        x, dim, start, length = (self._argument(node, n, *names) for n, names in enumerate(_NARROW))
        value = self._at(x)
        assert value is not None
        if value.is_axis(dim):
            if not (isinstance(start, int) and isinstance(length, int)) or start % 4 or length % 4:
                raise Cut("pieces of channels that are no multiple of 4")
            self._rewrite(node, F.slice_channels, (x, start, start + length, dim))
        return value

    def _flattened(self, node: fx.Node) -> At:
        value = self._at(self._first(node))
        assert value is not None
        start, end = self._argument(node, 1, "start_dim", default=0), self._argument(node, 2, "end_dim", default=-1)
        return self._flatten(node, value, start, end)

    def _flatten(self, node: fx.Node, value: At, start: int, end: int) -> At:
        if value.rank is None and (start, end) == (1, -1) and value.axis == 1:
            return At(1, 2)
        axis, rank = value.whole
        start, end = start % rank, end % rank
        out = rank - (end - start)
        if axis > end or axis < start:
            return At(axis - (end - start if axis > end else 0), out)
        if axis > start:  # what comes before the components must come behind them
            shape = self._shape(node)
            x = node.args[0] if node.args else self._first(node)
            with node.graph.inserting_before(node):
                front = [node.graph.call_method("size", (x, n)) for n in range(start)]
                back = [node.graph.call_method("size", (x, n)) for n in range(end + 1, rank)]
            sizes = [*front, -1 if start == 0 else shape[start], *back]
            self._rewrite(node, F.reshape, (x, tuple(sizes), axis, start))
        return At(start, out)

    def _view(self, node: fx.Node) -> At:
        x = self._first(node)
        value = self._at(x)
        if value is None:
            raise Cut("functions that are not known to keep quaternions whole")
        before, after = self._shape(x), self._shape(node)
        axis, _ = value.whole
        first, last, start, stop = view_group(before, after, axis)
        to = start
        if (last - first, stop - start) != (1, 1):
            divided = [n for n in range(start, stop) if after[n] % 4 == 0]
            if not divided:
                raise Cut("views whose sizes are no multiple of 4")
            to = start if axis == first and stop - start == 1 else divided[-1]
        if (axis == first and stop - start == 1) or after[start:stop] == before[first:last]:
            return At(start + (axis - first if stop - start > 1 else 0), len(after))
        self._rewrite(node, F.reshape, (x, self._wanted(node, x), axis, to))
        return At(to, len(after))

    def _wanted(self, node: fx.Node, x: fx.Node) -> tuple[Any, ...]:
        """The sizes that a view asks for."""
        name = name_of(node)
        if name == "unflatten":
            dim, sizes = self._argument(node, 1, "dim"), self._argument(node, 2, "sizes")
            rank = len(self._shape(x))
            with node.graph.inserting_before(node):
                own = [node.graph.call_method("size", (x, n)) for n in range(rank)]
            return (*own[: dim % rank], *sizes, *own[dim % rank + 1 :])
        sizes: Any = node.kwargs.get("shape", node.args[1:])
        sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list, fx.Node)) else sizes
        if isinstance(sizes, fx.Node):
            raise Cut("views whose sizes are no list of numbers")
        return tuple(sizes)

    def _shuffled(self, node: fx.Node) -> At:
        name = name_of(node)
        value = self._at(self._first(node))
        if value is None or not value.is_axis(1):
            raise Cut("functions that are not known to keep quaternions whole")
        function = getattr(F, name.removeprefix("native_"))
        self._rewrite(node, function, (self._first(node), *node.args[1:], *node.kwargs.values()))
        return value
