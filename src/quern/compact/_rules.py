"""What every operation does to the units of a value.

The network is traced with torch.fx and run once, in eval mode, on an example; each operation is followed as it runs, so
shapes and constants need not be guessed.
"""

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from quern import functional as F
from quern import nn as qnn
from quern.compact._facts import Facts, Value
from quern.compact._narrow import sizes
from quern.compact._sequences import attention, recurrent
from quern.errors import CompactionError
from quern.graph import (
    APART_FUNCTIONS,
    APART_METHODS,
    APART_MODULES,
    JOINING,
    JOINING_METHODS,
    POOL_FUNCTIONS,
    POOLS,
    QUATERNION_POOLS,
    REAL_CONVOLUTIONS,
    REDUCING_METHODS,
    REDUCTIONS,
    SIZE_METHODS,
    Tracer,
    pads_with_zeros,
    trace,
)
from quern.nn._conv import _QConvolution
from quern.nn._norm import _QBatchNorm
from quern.nn._recurrent import _QRecurrent

_APART_IN_PLACE = {torch.relu_, torch.tanh_, torch.sigmoid_, "relu_", "tanh_", "sigmoid_"}
_PRODUCTS = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_VIEWS = {"view", "reshape", torch.reshape}
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_AVERAGE_FUNCTIONS = {TF.avg_pool1d, TF.avg_pool2d, TF.avg_pool3d}
_TRANSPOSITIONS = {torch.permute, torch.transpose, torch.movedim, torch.swapaxes, "permute", "transpose"}
_TRANSPOSITIONS |= {"movedim", "swapaxes", "mT", "t"}


def nonzero(t: Tensor) -> Tensor:
    return (t.detach() != 0).cpu()


def _traced(model: nn.Module, inputs: Sequence[Any]) -> tuple[nn.Module, fx.Graph]:
    """The graph of ``model`` (or of a Sequential around it, if it is a single layer) for so many inputs."""
    root = nn.Sequential(model) if Tracer().is_leaf_module(model, "") else model
    parameters = list(inspect.signature(root.forward).parameters.values())
    if len(inputs) > len(parameters) and not any(p.kind == p.VAR_POSITIONAL for p in parameters):
        raise CompactionError(f"the example has {len(inputs)} inputs, but the network takes {len(parameters)}.")
    # An optional input that is not given is None, or whatever its default is, not something to trace.
    rest = {p.name: p.default for p in parameters[len(inputs) :] if p.default is not p.empty}
    return root, trace(root, rest or None)


def read(model: nn.Module, inputs: Sequence[Any], keep_unknown: bool) -> tuple[Facts, list[Value], Any]:
    """Follow ``model`` on ``inputs``: the facts, the values that are outputs, and the outputs themselves."""
    root, graph = _traced(model, inputs)
    reader = _Reader(root, keep_unknown, model is not root)
    outputs, result = reader.follow(graph, inputs)
    return reader.facts, outputs, result


def _values(args: Any) -> list[Value]:
    found: list[Value] = []
    map_aggregate(args, lambda a: found.append(a) if isinstance(a, Value) else None)
    return found


class _Reader:
    """One pass over a graph, node by node: the tensors of the example, and what is known of them."""

    def __init__(self, root: nn.Module, keep_unknown: bool, wrapped: bool) -> None:
        self.root, self.keep_unknown, self.wrapped = root, keep_unknown, wrapped
        self.facts = Facts()
        counts: dict[int, int] = {}
        for module in root.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    counts[id(parameter)] = counts.get(id(parameter), 0) + 1
        self.shared = {key for key, count in counts.items() if count > 1}

    def follow(self, graph: fx.Graph, inputs: Sequence[Any]) -> tuple[list[Value], Any]:
        # A parameter that the network itself looks at has to stay as it is.
        own = [n for n in graph.nodes if n.op == "get_attr"]
        self.shared |= {id(operator.attrgetter(str(n.target))(self.root)) for n in own}
        tensors: dict[fx.Node, Any] = {}
        known: dict[fx.Node, Any] = {}
        waiting = list(inputs)
        for node in graph.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: tensors[n])
            facts = map_arg((node.args, node.kwargs), lambda n: known[n])
            if node.op == "output":
                values = _values(facts)
                for value in values:
                    if value.ids is not None:
                        self.facts.pin(value.ids)
                        value.need_all()
                return values, args[0]
            if node.op == "placeholder":
                tensors[node] = waiting.pop(0) if waiting else (node.args[0] if node.args else None)
                known[node] = _unknown(tensors[node])
                continue
            if node.op == "get_attr":
                tensors[node] = operator.attrgetter(str(node.target))(self.root)
                known[node] = _unknown(tensors[node])
                if isinstance(tensors[node], Tensor) and not tensors[node].dim():
                    known[node] = None  # a number like any in the program
                continue
            versions = {n: tensors[n]._version for n in node.all_input_nodes if isinstance(tensors[n], Tensor)}
            if node.op == "call_module":
                layer = self.root.get_submodule(str(node.target))
                tensors[node] = self._run(node, lambda: layer(*args, **kwargs))  # noqa: B023
                self.users = node.users
                known[node] = self._module(str(node.target), layer, facts, (args, kwargs), tensors[node])
            elif node.op == "call_method":
                tensors[node] = self._run(node, lambda: getattr(args[0], str(node.target))(*args[1:], **kwargs))  # noqa: B023
                known[node] = self._function(node, facts, (args, kwargs), tensors[node])
            else:
                target: Any = node.target
                tensors[node] = self._run(node, lambda: target(*args, **kwargs))  # noqa: B023
                known[node] = self._function(node, facts, (args, kwargs), tensors[node])
            changed = [tensors[n] for n, version in versions.items() if tensors[n]._version != version]
            if changed:
                self._changed_in_place(node, changed, tensors, known, _values(facts))
        raise AssertionError("a graph ends in its output")

    def _changed_in_place(
        self, node: fx.Node, changed: list[Tensor], tensors: dict[fx.Node, Any], known: dict[fx.Node, Any], values: Any
    ) -> None:
        """Whoever looks at what ``node`` changed, or at another view of it, from now on sees the result."""
        places, result = {_storage(t) for t in changed}, tensors[node]
        for n, t in tensors.items():
            if n is node or not isinstance(t, Tensor) or _storage(t) not in places:
                continue
            if isinstance(result, Tensor) and _place(t) == _place(result):
                known[n] = known[node]
            elif any(user not in tensors for user in n.users):
                self.facts.whole(*_values((known[n], known[node])), *values)
                known[n] = _unknown(t)

    def _run(self, node: fx.Node, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as reason:
            said = str(reason).splitlines()[0].rstrip(".")
            raise CompactionError(f"the network does not take the example input: {said} (in {node.name}).") from reason

    # --------------------------------------------------------------------------------------------- unknown

    def _opaque(self, name: str, values: Sequence[Value], result: Any) -> Any:
        """No rule: an error, or on request all that it takes is kept."""
        if any(v.followed for v in values):
            if not self.keep_unknown:
                raise CompactionError(
                    f"there is no rule for {name}: with keep_unknown=True all channels that it takes are kept."
                )
            self.facts.notes.append(f"{name} has no rule, so all channels that it takes are kept")
        return self._whole(values, result)

    def _whole(self, values: Sequence[Value], result: Any) -> Any:
        """An operation that needs all of its input."""
        self.facts.whole(*values)
        return _unknown(result)

    def _plain(self, layer: nn.Module) -> bool:
        """Whether the layer does what its class says: no hooks, no parametrizations, no parameters of others."""
        hooks = any(m._forward_hooks or m._forward_pre_hooks for m in layer.modules())
        shared = any(id(t) in self.shared for t in (*layer.parameters(), *layer.buffers()))
        return not hooks and not shared and not any(map(nn.utils.parametrize.is_parametrized, layer.modules()))

    # --------------------------------------------------------------------------------------------- modules

    def _module(self, name: str, layer: nn.Module, facts: Any, given: Any, out: Any) -> Any:
        name = name.removeprefix("0") if self.wrapped else name
        said = f"{name} ({type(layer).__name__})"
        values = _values(facts)
        if not self._plain(layer):
            self.facts.notes.append(f"{said} has hooks, parametrizations or shared parameters, so it is kept whole")
            return self._whole(values, out)
        tensors: list[Tensor] = []
        map_aggregate(given, lambda a: tensors.append(a) if isinstance(a, Tensor) else None)
        if isinstance(layer, qnn.QMultiheadAttention):
            used = any(user.target is not operator.getitem or user.args[1] != 0 for user in self.users)
            return attention(self.facts, name, layer, facts, given, out, used)
        if isinstance(layer, qnn.QEmbedding):
            return self._embedding(name, layer, values, out)
        if not values:
            return _unknown(out)
        value, x = values[0], tensors[0] if tensors else None
        if isinstance(layer, _QRecurrent):
            value, x = _option(facts, 0, "input", None), _option(given, 0, "input", None)
            if not isinstance(x, Tensor) or not isinstance(value, Value):  # a packed sequence
                return self._opaque(said, values, out)
            states = _values((facts[0][1:], facts[1].get("hx")))
            return recurrent(self.facts, name, layer, value, x, states, out)
        if len(values) > 1 or x is None or (not isinstance(out, Tensor)):
            return self._opaque(said, values, out)
        if isinstance(layer, (qnn.QLinear, nn.Linear)):
            return self._linear(name, layer, value, x, out)
        if isinstance(layer, (_QConvolution, *REAL_CONVOLUTIONS)):
            return self._convolution(name, layer, value, x, out)
        if isinstance(layer, (_QBatchNorm, qnn.QWhiteningBatchNorm2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            return self._batch_norm(name, layer, value, x, out)
        if isinstance(layer, qnn.QLayerNorm):
            return self._layer_norm(name, layer, value, x, out)
        if isinstance(layer, (qnn.QModReLU, nn.PReLU)):
            return self._with_bias(name, layer, value, x, out)
        if isinstance(layer, APART_MODULES):
            return self.facts.through(said, value, out)
        for kind, space in POOLS.items():
            if isinstance(layer, kind):
                if kind in QUATERNION_POOLS and value.parts != 4:
                    return self._whole([value], out)
                weighs = isinstance(layer, _AVERAGES) and _weighs_padding(layer)
                return self._pool(said, value, out, space, weighs)
        if isinstance(layer, qnn.Modulus):
            return self._modulus(said, value, x, out, layer.dim)
        if isinstance(layer, nn.Flatten):
            return self._flatten(said, value, x, out, layer.start_dim, layer.end_dim)
        return self._opaque(said, values, out)

    def _embedding(self, name: str, layer: qnn.QEmbedding, values: Sequence[Value], out: Tensor) -> Value:
        self.facts.whole(*values)
        edges = nonzero(layer.weight).any(0)
        record = self.facts.record(name, layer, None, edges.shape[1])
        assert record.outputs is not None
        if layer.max_norm is not None:  # the length of a row is that of all its columns
            self.facts.pin(record.outputs)
        return self.facts.value(out, record.outputs, -1, 4, edges.any(0), name)

    def _linear(self, name: str, layer: qnn.QLinear | nn.Linear, value: Value, x: Tensor, out: Tensor) -> Value:
        quaternion = isinstance(layer, qnn.QLinear)
        parts = _parts(layer) if quaternion else self._grain(layer, value, x.dim() - 1)
        value = self.facts.followed(value, x, -1, parts)
        edges = nonzero(layer.weight)
        edges = edges.any(0) if quaternion else edges.unflatten(1, (parts, -1)).any(1)
        return self.facts.weighted(name, layer, value, out, edges, axis=-1, parts=4 if quaternion else 1, absorbs=True)

    def _convolution(self, name: str, layer: Any, value: Value, x: Tensor, out: Tensor) -> Value:
        axis = x.dim() - len(layer.kernel_size) - 1
        quaternion = isinstance(layer, _QConvolution)
        parts = _parts(layer) if quaternion else (self._grain(layer, value, axis) if layer.groups == 1 else 1)
        value = self.facts.followed(value, x, axis, parts)
        uneven = pads_with_zeros(layer)
        return self.facts.weighted(
            name,
            layer,
            value,
            out,
            convolution_edges(layer, parts),
            axis=axis,
            parts=4 if quaternion else 1,
            absorbs=quaternion or not uneven,
            uneven=torch.ones(len(value.live), dtype=torch.bool) if uneven else None,
        )

    def _batch_norm(self, name: str, layer: Any, value: Value, x: Tensor, out: Tensor) -> Value:
        quaternion = not isinstance(layer, nn.modules.batchnorm._BatchNorm)
        parts = 4 if quaternion else self._grain(layer, value, 1)
        value = self.facts.followed(value, x, 1, parts)
        n = len(value.live)
        scale = torch.ones(1, n) if layer.weight is None else layer.weight.reshape(-1, n)
        scale = nonzero(scale).any(0)
        return self.facts.scaled(name, layer, value, out, scale)

    def _layer_norm(self, name: str, layer: qnn.QLayerNorm, value: Value, x: Tensor, out: Tensor) -> Value:
        """All channels enter its statistics, so all stay; those with γ = 0 are constant afterwards."""
        value = self.facts.followed(value, x, -1, 4)
        self.facts.whole(value)
        n = len(value.live)
        constant = torch.zeros(n, dtype=torch.bool)
        if layer.weight is not None and layer.weight.dim() == 1:
            constant = ~nonzero(layer.weight)
        assert value.ids is not None
        return self.facts.value(out, value.ids, -1, 4, ~constant, name)

    def _with_bias(self, name: str, layer: qnn.QModReLU | nn.PReLU, value: Value, x: Tensor, out: Tensor) -> Value:
        """An activation with a number for each unit."""
        if isinstance(layer, qnn.QModReLU):
            axis, parts = layer.dim % x.dim(), 4
        elif layer.num_parameters == 1:
            return self.facts.through(name, value, out)
        else:
            axis, parts = 1, self._grain(layer, value, 1)
        value = self.facts.followed(value, x, axis, parts)
        return self.facts.scaled(name, layer, value, out, torch.ones(len(value.live), dtype=torch.bool))

    def _grain(self, layer: nn.Module, value: Value, axis: int) -> int:
        """How many channels of a real layer are one unit: those of its input, or those of an earlier call."""
        record = self.facts.records.get(layer)
        if record is None or record.inputs is None:
            return value.parts if value.followed and value.axis == axis else 1
        return (sizes(layer)[0] or 1) // len(record.inputs)

    # ------------------------------------------------------------------------------------------- functions

    def _function(self, node: fx.Node, facts: Any, given: Any, out: Any) -> Any:
        target: Any = node.target
        values = _values(facts)
        args, kwargs = given
        if target is operator.getitem and isinstance(facts[0][0], tuple):  # one of several results
            return facts[0][0][args[1]] if isinstance(args[1], int) else self._opaque(node.name, values, out)
        said = f"{node.name} ({getattr(target, '__name__', target)})"
        if not values:
            return _unknown(out)
        if not _has_tensors(out):  # sizes, or a number that depends on values
            return None if target is getattr or target in SIZE_METHODS else self._opaque(said, values, out) or Value()
        if target is getattr and args[1] == "mT":
            target, given, args = torch.transpose, ((args[0], -2, -1), {}), (args[0], -2, -1)
        if target is F.cat or target is torch.cat:
            return self._cat(said, target is F.cat, facts, given, out)
        if target in JOINING or target in JOINING_METHODS:
            known, given = (
                [_option(side, n, name, None) for n, name in enumerate(("input", "other"))] for side in (facts, given)
            )
            return self._join(said, target in _PRODUCTS, known, given, out)
        if len(values) > 1 or not isinstance(out, Tensor):
            return self._opaque(said, values, out)
        (value,), x = values, args[0] if args else next(iter(kwargs.values()))
        if not isinstance(x, Tensor):
            return self._opaque(said, values, out)
        if target in APART_FUNCTIONS or target in APART_METHODS or target in _APART_IN_PLACE:
            return self.facts.through(said, value, out)
        if target in POOL_FUNCTIONS or target is TF.interpolate:
            return self._pool(said, value, out, POOL_FUNCTIONS.get(target, (1, 2, 3)), target in _AVERAGE_FUNCTIONS)
        if target is F.modulus:
            return self._modulus(said, value, x, out, _option(given, 1, "dim", 1))
        if target in (torch.flatten, "flatten"):
            start, end = _option(given, 1, "start_dim", 0), _option(given, 2, "end_dim", -1)
            return self._flatten(said, value, x, out, start, end)
        if target in _VIEWS:
            sizes = node.args[1:] or (node.kwargs.get("shape"),)
            return self._view(said, sizes, value, x, out)
        if target in REDUCTIONS or target in REDUCING_METHODS:
            kind = target if isinstance(target, str) else target.__name__
            return self._reduced(said, kind, value, x, out, _option(given, 1, "dim", None))
        if target in _TRANSPOSITIONS or target in ("unsqueeze", "squeeze", torch.unsqueeze, torch.squeeze):
            return self._moved(said, target, value, x, given, out)
        if target is operator.getitem:
            return self._indexed(said, value, x, args[1], out)
        return self._opaque(said, values, out)

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
            return self._whole([v for v, _ in known], out)
        others = [t for v, t in pairs if not v.followed]  # a number that depends on values is one of them
        if any(isinstance(t, Tensor) and t.dim() >= from_right and t.shape[-from_right] != 1 for t in others):
            self.facts.whole(*alike)  # a tensor that cannot be narrowed has a channel for each
        # What is not followed may differ from place to place.
        return self.facts.joined(said, [*alike, *(Value() for _ in others)], out, product)

    def _cat(self, said: str, quaternion: bool, facts: Any, given: Any, out: Tensor) -> Any:
        values, tensors = _option(facts, 0, "tensors", ()), _option(given, 0, "tensors", ())
        dim = _option(given, 1, "dim", 1 if quaternion else 0) % out.dim()
        parts = 4 if quaternion else 1
        if not all(isinstance(v, Value) for v in values):
            return self._opaque(said, _values(values), out)
        fits = [v.followed and v.axis == dim and v.parts == parts for v in values]
        if not any(fits) or (not quaternion and not all(fits)):
            return self._whole(values, out)  # torch.cat of quaternions would be cut across
        found = [self.facts.followed(v, t, dim, parts) for v, t in zip(values, tensors, strict=True)]
        ids = [v.ids for v in found if v.ids is not None]
        result = self.facts.value(out, torch.cat(ids), dim, parts, torch.cat([v.live for v in found]), said)

        def back() -> None:
            for v, needed in zip(found, result.needed.split([len(part) for part in ids]), strict=True):
                v.need(needed)

        self.facts.backward.append(back)
        return result

    def _pool(self, said: str, value: Value, out: Tensor, space: Sequence[int], weighs_padding: bool) -> Value:
        if value.followed and value.dims - value.axis - 1 not in space:
            return self._whole([value], out)  # the units themselves are pooled
        live = value.live | value.pushing if weighs_padding and value.followed else None
        return self.facts.through(said, value, out, live=live)

    def _modulus(self, said: str, value: Value, x: Tensor, out: Tensor, dim: int) -> Value:
        if not value.followed:
            return value
        if value.parts != 4 or value.axis != dim % x.dim():
            return self._whole([value], out)
        return self.facts.through(said, value, out, parts=1)

    def _flatten(self, said: str, value: Value, x: Tensor, out: Tensor, start: int, end: int) -> Value:
        start, end = start % x.dim(), end % x.dim()
        if not value.followed or value.axis < start:
            return self.facts.through(said, value, out)
        if value.axis > end:
            return self.facts.through(said, value, out, axis=value.axis - (end - start))
        if value.axis > start:  # other axes come first: units would be cut across
            return self._whole([value], out)
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
        return self._whole([value], out)

    def _reduced(self, said: str, kind: str, value: Value, x: Tensor, out: Tensor, dim: Any) -> Value:
        axes = [] if dim is None else [d % x.dim() for d in (dim if isinstance(dim, (tuple, list)) else [dim])]
        if not value.followed or not axes or value.axis in axes:
            return self._whole([value], out)
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
                return self._whole([value], out)
            dim = _option(given, 1, "dim", None)
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
            return self._opaque(said, [value], out)
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
                    return self._whole([value], out)
                return self.facts.through(said, value, out, axis=axis)
            axis += 0 if isinstance(item, int) else 1
            position += 1
        raise AssertionError("every axis was counted")


def _unknown(result: Any) -> Any:
    """Values that are not followed, in the structure of a result; None for what is no tensor."""
    if isinstance(result, Tensor):
        return Value()
    if isinstance(result, (tuple, list)):
        return tuple(_unknown(part) for part in result)
    return None


def _has_tensors(result: Any) -> bool:
    return isinstance(result, Tensor) or (isinstance(result, (tuple, list)) and any(map(_has_tensors, result)))


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _place(t: Tensor) -> tuple[Any, ...]:
    return t.data_ptr(), t.shape, t.stride()


def _option(given: Any, place: int, name: str, default: Any) -> Any:
    args, kwargs = given
    return kwargs.get(name, args[place] if len(args) > place else default)


def _parts(layer: Any) -> int:
    """How many real numbers make a unit of the layer's input."""
    return len(layer.input_parts)


def _weighs_padding(layer: Any) -> bool:
    """Whether an average pooling gives another value at the border for a constant."""
    padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
    return (any(padding) and layer.count_include_pad) or getattr(layer, "divisor_override", None) is not None


def convolution_edges(layer: Any, parts: int) -> Tensor:
    """``(outputs, inputs)`` of a convolution, both over all groups: True where a weight is not zero."""
    some = nonzero(layer.weight)
    if isinstance(layer, _QConvolution):
        some = some.any(0)
    elif layer.transposed:  # (in, out/groups, ...)
        some = torch.cat([part.transpose(0, 1) for part in some.chunk(layer.groups)])
    some = torch.block_diag(*some.flatten(2).any(2).chunk(layer.groups)).bool()
    return some if isinstance(layer, _QConvolution) else some.unflatten(1, (parts, -1)).any(1)
