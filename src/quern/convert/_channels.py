"""Along which axis each value of a network carries quaternions, and which functions must be rewritten for that.

A function of torch that cuts or joins channels cuts components apart: ``torch.cat`` of two activations gives
``[r i j k r i j k]``. Where a value is seen to carry quaternions along the axis that is cut, the function becomes the
one of :mod:`quern.functional` that does the same to whole quaternions. What cannot be decided is a problem with a name.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from quern.convert._axes import At, Cut, Each, NeedsExample
from quern.convert._cutting import Cutting
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


class Channels(Cutting):
    """One pass over the graph of a network whose layers are quaternion ones already. ``shapes`` has what nodes gave for
    an example, where there is one; ``kept`` are the layers that stay real by request."""

    def __init__(self, root: nn.Module, shapes: dict[fx.Node, Any] | None, kept: set[nn.Module]) -> None:
        super().__init__(shapes)
        self.root, self.kept = root, kept
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
