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
from quern.compact._narrow import pads_with_zeros
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
    REAL_CONVOLUTIONS,
    REDUCING_METHODS,
    REDUCTIONS,
    Tracer,
)
from quern.nn._conv import _QConvolution
from quern.nn._norm import _QBatchNorm
from quern.nn._recurrent import _QRecurrent

_PRODUCTS = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_VIEWS = {"view", "reshape", torch.reshape}
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_AVERAGE_FUNCTIONS = {TF.avg_pool1d, TF.avg_pool2d, TF.avg_pool3d}
_TRANSPOSITIONS = {torch.permute, torch.transpose, torch.movedim, torch.swapaxes, "permute", "transpose"}
_TRANSPOSITIONS |= {"movedim", "swapaxes", "mT", "t"}


def nonzero(t: Tensor) -> Tensor:
    return (t.detach() != 0).cpu()


def trace(model: nn.Module, inputs: Sequence[Any]) -> tuple[nn.Module, fx.Graph]:
    """The graph of ``model`` (or of a Sequential around it, if it is a single layer) for so many inputs."""
    tracer = Tracer()
    root = nn.Sequential(model) if tracer.is_leaf_module(model, "") else model
    parameters = list(inspect.signature(root.forward).parameters.values())
    if len(inputs) > len(parameters) and not any(p.kind == p.VAR_POSITIONAL for p in parameters):
        raise CompactionError(f"the example has {len(inputs)} inputs, but the network takes {len(parameters)}.")
    # An optional input that is not given is None, or whatever its default is, not something to trace.
    rest = {p.name: p.default for p in parameters[len(inputs) :] if p.default is not p.empty}
    try:
        return root, tracer.trace(root, rest or None)
    except Exception as reason:  # whatever a user's forward does with a stand-in for a tensor
        said = str(reason).splitlines()[0].rstrip(".") if str(reason) else type(reason).__name__
        raise CompactionError(
            f"the network's forward cannot be traced by torch.fx ({said}): leave out branches that depend on values."
        ) from reason


def read(model: nn.Module, inputs: Sequence[Any], keep_unknown: bool) -> tuple[Facts, list[Value], Any]:
    """Follow ``model`` on ``inputs``: the facts, the values that are outputs, and the outputs themselves."""
    root, graph = trace(model, inputs)
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
                continue
            versions = {n: tensors[n]._version for n in node.all_input_nodes if isinstance(tensors[n], Tensor)}
            if node.op == "call_module":
                layer = self.root.get_submodule(str(node.target))
                tensors[node] = self._run(node, lambda: layer(*args, **kwargs))  # noqa: B023
                known[node] = self._module(str(node.target), layer, facts, (args, kwargs), tensors[node])
            else:
                target: Any = getattr(args[0], str(node.target)) if node.op == "call_method" else node.target
                rest = args[1:] if node.op == "call_method" else args
                tensors[node] = self._run(node, lambda: target(*rest, **kwargs))  # noqa: B023
                known[node] = self._function(node, facts, (args, kwargs), tensors[node])
            for n, version in versions.items():
                if tensors[n]._version != version:  # changed in place: whoever looks at it later sees the result
                    known[n] = known[node]
        raise AssertionError("a graph ends in its output")

    def _run(self, node: fx.Node, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RuntimeError, ValueError, TypeError) as reason:
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
        hooks = layer._forward_hooks or layer._forward_pre_hooks
        shared = any(id(p) in self.shared for p in layer.parameters())
        return not hooks and not shared and not nn.utils.parametrize.is_parametrized(layer)

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
            return attention(self.facts, name, layer, facts, given, out)
        if isinstance(layer, qnn.QEmbedding):
            return self._embedding(name, layer, values, out)
        if not values:
            return _unknown(out)
        value, x = values[0], tensors[0] if tensors else None
        if isinstance(layer, _QRecurrent):
            if x is None or not isinstance(out[0], Tensor):  # a packed sequence
                return self._opaque(said, values, out)
            return recurrent(self.facts, name, layer, value, x, values[1:], out)
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
        if any(isinstance(layer, kind) for kind in POOLS):
            return self._pool(said, value, out, _weighs_padding(layer) if isinstance(layer, _AVERAGES) else False)
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
        parts = _parts(layer) if quaternion else (value.parts if value.axis == x.dim() - 1 else 1)
        value = self.facts.followed(value, x, -1, parts)
        edges = nonzero(layer.weight)
        edges = edges.any(0) if quaternion else edges.unflatten(1, (parts, -1)).any(1)
        return self.facts.weighted(name, layer, value, out, edges, axis=-1, parts=4 if quaternion else 1, absorbs=True)

    def _convolution(self, name: str, layer: Any, value: Value, x: Tensor, out: Tensor) -> Value:
        axis = x.dim() - len(layer.kernel_size) - 1
        quaternion = isinstance(layer, _QConvolution)
        parts = _parts(layer) if quaternion else (value.parts if value.axis == axis and layer.groups == 1 else 1)
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
        parts = 4 if quaternion else (value.parts if value.axis == 1 else 1)
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
            axis, parts = 1, value.parts if value.axis == 1 else 1
        value = self.facts.followed(value, x, axis, parts)
        return self.facts.scaled(name, layer, value, out, torch.ones(len(value.live), dtype=torch.bool))

    # ------------------------------------------------------------------------------------------- functions

    def _function(self, node: fx.Node, facts: Any, given: Any, out: Any) -> Any:
        target: Any = node.target
        values = _values(facts)
        args, kwargs = given
        if target is operator.getitem and isinstance(facts[0][0], tuple):  # one of several results
            return facts[0][0][args[1]] if isinstance(args[1], int) else self._opaque(node.name, values, out)
        if not values or not _has_tensors(out):
            return _unknown(out)  # sizes and such
        said = f"{node.name} ({getattr(target, '__name__', target)})"
        if target is F.cat or target is torch.cat:
            return self._cat(said, target is F.cat, facts, given, out)
        if target in JOINING or target in JOINING_METHODS:
            return self._join(said, target in _PRODUCTS, facts[0][:2], args[:2], out)
        if len(values) > 1 or not isinstance(out, Tensor):
            return self._opaque(said, values, out)
        (value,), x = values, args[0] if args else next(iter(kwargs.values()))
        if not isinstance(x, Tensor):
            return self._opaque(said, values, out)
        if target in APART_FUNCTIONS or target in APART_METHODS:
            return self.facts.through(said, value, out)
        if target in POOL_FUNCTIONS or target is TF.interpolate:
            return self._pool(said, value, out, target in _AVERAGE_FUNCTIONS)
        if target is F.modulus:
            return self._modulus(said, value, x, out, _option(given, 1, "dim", 1))
        if target in (torch.flatten, "flatten"):
            start, end = _option(given, 1, "start_dim", 0), _option(given, 2, "end_dim", -1)
            return self._flatten(said, value, x, out, start, end)
        if target in _VIEWS:
            return self._view(said, node, value, x, out)
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
        pairs = [(v, t) for v, t in zip(facts, given, strict=True) if isinstance(t, Tensor) and t.dim()]
        known = [(v, t) for v, t in pairs if isinstance(v, Value) and v.followed]
        if not known:
            return Value()
        if len(pairs) == 1 and len(given) == 2:
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
        others = [t for v, t in pairs if not (isinstance(v, Value) and v.followed)]
        if any(t.dim() >= from_right and t.shape[-from_right] != 1 for t in others):
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

    def _pool(self, said: str, value: Value, out: Tensor, weighs_padding: bool) -> Value:
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

    def _view(self, said: str, node: fx.Node, value: Value, x: Tensor, out: Tensor) -> Value:
        """A view that only joins the units' axis with those behind it, whose size the network does not spell out."""
        if not value.followed:
            return value
        sizes = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
        joins = out.dim() == value.axis + 1 and x.shape[: value.axis] == out.shape[: value.axis]
        # A number in the program, other than -1, stays when channels go.
        adapts = len(sizes) > value.axis and (not isinstance(sizes[value.axis], int) or sizes[value.axis] == -1)
        if not adapts or not (joins or x.shape == out.shape):
            return self._whole([value], out)
        return self.facts.through(said, value, out, spread=out.shape[value.axis] // x.shape[value.axis])

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
        if "squeeze" in said and out.dim() != moved.dim():  # squeeze() without an axis depends on the sizes
            return self._whole([value], out)
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
