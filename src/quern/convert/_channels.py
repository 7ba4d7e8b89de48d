"""Along which axis each value of a network carries quaternions, and which functions must be rewritten for that.

A function of torch that cuts or joins channels cuts components apart: ``torch.cat`` of two activations gives
``[r i j k r i j k]``. Where a value is seen to carry quaternions along the axis that is cut, the function becomes the
one of :mod:`quern.functional` that does the same to whole quaternions. What cannot be decided is a problem with a name.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from quern import functional as F
from quern.convert._axes import At, Cut, Each, NeedsExample, each_at, view_group
from quern.convert._nodes import is_torchs, name_of
from quern.graph.spec import own_spec

_ALONE = "relu relu_ relu6 gelu silu elu selu celu mish leaky_relu leaky_relu_ hardtanh hardtanh_ hardswish hardsigmoid"
_ALONE += " softplus softsign sigmoid sigmoid_ tanh tanh_ logsigmoid prelu rrelu threshold hardshrink softshrink"
_ALONE += " tanhshrink neg abs exp log log1p sqrt rsqrt pow square reciprocal sin cos erf round floor ceil sign clamp"
_ALONE += " clamp_ clamp_min clamp_max nan_to_num where masked_fill masked_fill_ maximum minimum lerp addcmul add add_"
_ALONE += " iadd sub sub_ isub rsub mul mul_ imul div div_ truediv itruediv multiply true_divide floordiv contiguous"
_ALONE += " clone detach float double half bfloat16 to type type_as dropout dropout1d dropout2d dropout3d alpha_dropout"
_ALONE += (
    " feature_dropout softmax log_softmax normalize batch_norm layer_norm group_norm instance_norm expand expand_as"
)
_ALONE += " interpolate upsample repeat_interleave cumsum avg_pool1d avg_pool2d avg_pool3d local_response_norm"
_ALONE += " max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d lp_pool2d"
_ALONE += " adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d grid_sample mod_relu"
_REDUCE = "mean sum amax amin max min std var norm argmax argmin prod any all logsumexp median vector_norm"
_MOVE = "permute transpose movedim swapaxes swapdims moveaxis t unsqueeze squeeze mT T"
_NUMBERS = "size dim ndim numel shape len dtype device zeros_like ones_like empty_like full_like rand_like randn_like"
_NUMBERS += " new_zeros new_ones new_full new_empty new_tensor is_floating_point stride eq ne lt gt le ge _assert"
_NUMBERS += " bernoulli modulus"


class Channels:
    """One pass over the graph of a network whose layers are quaternion ones already. ``shapes`` has what nodes gave for
    an example, where there is one; ``kept`` are the layers that stay real by request."""

    def __init__(self, root: nn.Module, shapes: dict[fx.Node, Any] | None, kept: set[nn.Module]) -> None:
        self.root, self.shapes, self.kept = root, shapes, kept
        self.at: dict[fx.Node, Any] = {}
        self.rewritten: list[str] = []
        self.problems: list[tuple[str, str]] = []  # (kind, place)
        self.axes: dict[nn.Module, set[At | None]] = {}  # of the inputs of layers whose form depends on that
        rules: dict[str, Callable[[fx.Node], Any]] = {
            **dict.fromkeys(_ALONE.split(), self._alike),
            **dict.fromkeys(_REDUCE.split(), self._reduced),
            **dict.fromkeys(_MOVE.split(), self._moved),
            **dict.fromkeys(_NUMBERS.split(), lambda _: None),
            **dict.fromkeys(("cat", "concat", "concatenate"), self._cat),
            **dict.fromkeys(("chunk", "split", "tensor_split", "unbind"), self._pieces),
            **dict.fromkeys(("view", "reshape", "unflatten"), self._view),
            **dict.fromkeys(("matmul", "bmm"), self._product),
            **dict.fromkeys(
                ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle"), self._shuffled
            ),
            **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), self._weighted),
            **dict.fromkeys(("roll", "flip"), self._rolled),
            **dict.fromkeys(
                ("max_pool1d_with_indices", "max_pool2d_with_indices"), lambda node: Each(self._alike(node))
            ),
            "pad": self._padded,
            "stack": self._stacked,
            "flatten": self._flattened,
            "getitem": self._indexed,
            "repeat": self._repeated,
            "narrow": self._narrowed,
            "scaled_dot_product_attention": lambda node: self._at(self._argument(node, 2, "value")),
        }
        self.rules = rules

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

    # ------------------------------------------------------------------------------------------------- the pass

    def run(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            try:
                self.at[node] = self._node(node)
            except NeedsExample:
                self._problem(node, "functions whose effect depends on shapes: give an input as example=")
            except Cut as reason:
                self._problem(node, str(reason))

    def _problem(self, node: fx.Node, kind: str) -> None:
        self.at[node] = None
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        owner = stack[-1][0] if stack else ""
        self.problems.append((kind, f"{name_of(node)} in {owner or 'forward'}"))

    def _node(self, node: fx.Node) -> Any:
        if node.op == "call_module":
            return self._layer(node, self.root.get_submodule(str(node.target)))
        if node.op not in ("call_function", "call_method"):
            return None
        name = name_of(node)
        given = (node.args, node.kwargs)
        if name == "getitem" and isinstance(node.args[0], fx.Node):
            return self._indexed(node)
        if not self._all(given):
            return None
        rule = self.rules.get(name) if is_torchs(node) else None
        if rule is None:
            raise Cut("functions that are not known to keep quaternions whole")
        return rule(node)

    def _layer(self, node: fx.Node, layer: nn.Module) -> Any:
        values, spec = self._all((node.args, node.kwargs)), own_spec(layer)
        value = values[0] if values else None
        rank = (value.rank if value else None) or self._rank(next(iter(node.all_input_nodes), None))
        if spec is None:
            return None  # a part that is kept whole
        if isinstance(layer, nn.Flatten):
            return None if value is None else self._flatten(node, value, layer.start_dim, layer.end_dim)
        if spec.quaternion_form_along(layer, -1) is not None and layer not in self.kept:
            self.axes.setdefault(layer, set()).add(value)
        axis = spec.quaternion_axis(layer, value.axis if value else None, rank)
        if axis is None:
            return None
        if spec.components == 4:
            kernel = getattr(layer, "kernel_size", None)
            if kernel is not None and isinstance(kernel, tuple):
                rank = len(kernel) + 2 if rank is None else rank
            own = [At.of(axis, v.rank) for v in values]
            if any(v.rank is not None and v != a for v, a in zip(values, own, strict=True)) or any(
                v.rank is None and (v.axis < 0) == (a.axis < 0) and v.axis != a.axis
                for v, a in zip(values, own, strict=True)
            ):
                raise Cut("layers along another axis than that of the channels: name them in keep=")
        out = self._rank(node)
        return spec.carried(layer, At.of(axis, out if out is not None else rank))

    # ------------------------------------------------------------------------------------------------------ rules

    def _alike(self, node: fx.Node) -> At:
        """One of several values, position by position from the right."""
        values = self._all((node.args, node.kwargs))
        rank = self._rank(node)
        if rank is None:
            ranks = {v.rank for v in values}
            if len(values) == 1 or len(set(values)) == 1:
                return values[0]
            rank = None if None in ranks else max(r for r in ranks if r is not None)
        axes = {v.from_right for v in values}
        if len(axes) > 1:
            raise Cut("functions of values whose quaternions stand on different axes")
        return At.of(axes.pop(), rank)

    def _reduced(self, node: fx.Node) -> Any:
        name = name_of(node)
        value = self._at(self._first(node))
        place = 2 if name in ("norm", "vector_norm") else 1
        dim: Any = self._argument(node, place, "dim", "axis")
        if value is None:
            return self._alike(node)
        if isinstance(dim, fx.Node):  # of two tensors
            return self._alike(node)
        if dim is None:
            return None
        dims: list[int] = [dim] if isinstance(dim, int) else list(dim)
        if any(value.is_axis(d) for d in dims):
            return None
        if self._argument(node, place + 1, "keepdim", default=False):
            out = value
        elif value.rank is not None:
            gone = {d % value.rank for d in dims}
            out = At(value.axis - sum(d < value.axis for d in gone), value.rank - len(gone))
        else:  # axes are counted from the same end, and none behind goes
            out = At(value.axis + sum((d > value.axis) if value.axis < 0 else -(d < value.axis) for d in dims))
        return Each(out) if name in ("max", "min", "median") else out

    def _moved(self, node: fx.Node) -> At | None:
        name = name_of(node)
        value = self._at(self._first(node))
        if value is None:
            raise Cut("functions that are not known to keep quaternions whole")
        rest, options = node.args[1:], {k: v for k, v in node.kwargs.items() if k not in ("input", "self")}
        if name in ("mT", "T"):
            rest = ()
        axis, rank = value.whole
        sizes = list(self._shape(self._first(node))) if name == "squeeze" else [1] * rank
        sizes = [1 if size == 1 else 3 for size in sizes] if name == "squeeze" else sizes
        sizes[axis] = 2
        probe = torch.empty(sizes, device="meta")
        moved = getattr(probe, name) if name in ("mT", "T") else getattr(probe, name)(*rest, **options)
        return At(list(moved.shape).index(2), moved.dim())

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

    def _product(self, node: fx.Node) -> At | None:
        """A product of matrices: what is summed over is gone."""
        a, b = (self._at(self._argument(node, n, key)) for n, key in enumerate(("input", "other")))
        out = self._rank(node)
        left = a is not None and a.from_right != -1
        right = b is not None and b.from_right != -2
        if left and right and a is not None and b is not None and a.from_right != b.from_right:
            return None  # channels by channels
        if left and a is not None:
            return At.of(a.from_right, out)
        return At.of(b.from_right, out) if right and b is not None else None

    def _weighted(self, node: fx.Node) -> At | None:
        """A real layer as a function: what is along the axis that it sums over is real afterwards."""
        name = name_of(node)
        value = self._at(self._first(node))
        if value is None:
            raise Cut("functions that are not known to keep quaternions whole")
        summed = -1 if name == "linear" else -int(name[4]) - 1
        return None if value.from_right == summed else value

    def _shuffled(self, node: fx.Node) -> At:
        name = name_of(node)
        value = self._at(self._first(node))
        if value is None or not value.is_axis(1):
            raise Cut("functions that are not known to keep quaternions whole")
        function = getattr(F, name.removeprefix("native_"))
        self._rewrite(node, function, (self._first(node), *node.args[1:], *node.kwargs.values()))
        return value

    def _rolled(self, node: fx.Node) -> At:
        name = name_of(node)
        value = self._at(self._first(node))
        dims = self._argument(node, 2 if name == "roll" else 1, "dims")
        if value is None or dims is None or any(value.is_axis(d) for d in ([dims] if isinstance(dims, int) else dims)):
            raise Cut("channels rolled or flipped")
        return value

    def _padded(self, node: fx.Node) -> At:
        value, sides = self._at(self._first(node)), self._argument(node, 1, "pad")
        if value is None or not isinstance(sides, (tuple, list)):
            raise Cut("functions that are not known to keep quaternions whole")
        if len(sides) >= -2 * value.from_right and any(sides[-2 * value.from_right - 2 :][:2]):
            raise Cut("channels that are padded by a number that is not of whole quaternions")
        return value

    def _stacked(self, node: fx.Node) -> At:
        value = self._all((node.args, node.kwargs))[0]
        axis, rank = value.whole
        dim = self._argument(node, 1, "dim", default=0) % (rank + 1)
        return At(axis + (dim <= axis), rank + 1)

    def _repeated(self, node: fx.Node) -> At:
        value = self._at(self._first(node))
        times = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
        if value is None or times[value.from_right] != 1:
            raise Cut("channels repeated one after another")
        return At.of(value.from_right, len(times))

    def _rewrite(self, node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if node.op == "call_module":
            raise Cut("layers that join axes in front of the channels with them: write x.flatten in forward")
        self.rewritten.append(name_of(node))
        node.op, node.target, node.args, node.kwargs = "call_function", function, args, {}


_NARROW = (("input",), ("dim",), ("start",), ("length",))
