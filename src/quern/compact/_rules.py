"""What layers do to the units of a value; :mod:`quern.compact._functions` has everything else.

The network is traced with torch.fx and run once, in eval mode, on an example; each operation is followed as it runs, so
shapes and constants need not be guessed.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from quern import nn as qnn
from quern.compact._facts import Facts, Value, of_layer
from quern.compact._functions import FunctionRules, numbers_of, option, unknown, values_of
from quern.compact._narrow import sizes
from quern.compact._sequences import attention, recurrent
from quern.errors import CompactionError
from quern.graph import (
    APART_MODULES,
    POOLS,
    QUATERNION_POOLS,
    REAL_CONVOLUTIONS,
    Tracer,
    convolution_edges,
    pads_with_zeros,
    trace_for,
)
from quern.nn.bases import QBatchNorm, QConvolution, QRecurrent

_WEIGHTED = (qnn.QLinear, nn.Linear, QConvolution, *REAL_CONVOLUTIONS)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)


def nonzero(t: Tensor) -> Tensor:
    return (t.detach() != 0).cpu()


Memory = dict[nn.Module, list[tuple[Tensor, Tensor]]]


@contextmanager
def remembering(model: nn.Module) -> Iterator[Memory]:
    """What layers of ``model`` with weights take and give while this lasts: none need run again on the same input."""
    memory: Memory = {}

    def remember(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if len(args) == 1 and isinstance(args[0], Tensor) and isinstance(out, Tensor):
            memory.setdefault(layer, []).append((args[0].clone(), out.clone()))

    layers = [layer for layer in model.modules() if isinstance(layer, _WEIGHTED) and not _hooked(layer)]
    hooks = [layer.register_forward_hook(remember) for layer in layers]
    try:
        yield memory
    finally:
        for hook in hooks:
            hook.remove()


def _traced(model: nn.Module, inputs: Sequence[Any]) -> tuple[nn.Module, fx.Graph, list[str]]:
    """The graph of ``model`` (or of a Sequential around it, if it is a single layer) for so many inputs, and notes."""
    root = nn.Sequential(model) if Tracer().is_leaf_module(model, "") else model
    return root, *trace_for(root, len(inputs))


def read(
    model: nn.Module,
    inputs: Sequence[Any],
    keep_unknown: bool,
    largest_constant: float = math.inf,
    memory: Memory | None = None,
) -> tuple[Facts, list[Value], Any]:
    """Follow ``model`` on ``inputs``: the facts, the values that are outputs, and the outputs themselves. ``memory`` is
    of an earlier run."""
    root, graph, notes = _traced(model, inputs)
    reader = _Reader(root, Facts(largest_constant), keep_unknown, model is not root, memory or {})
    reader.facts.notes += notes
    outputs, result = reader.follow(graph, inputs)
    return reader.facts, outputs, result


class _Reader(FunctionRules):
    """One pass over a graph, node by node: the tensors of the example, and what is known of them."""

    def __init__(self, root: nn.Module, facts: Facts, keep_unknown: bool, wrapped: bool, memory: Memory) -> None:
        super().__init__(facts, keep_unknown)
        self.root, self.wrapped, self.memory = root, wrapped, memory
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
                values = values_of(facts)
                self.count(numbers_of(facts))
                for value in values:
                    if value.ids is not None:
                        self.facts.pin(value.ids)
                        value.need_all()
                return values, args[0]
            if node.op == "placeholder":
                tensors[node] = waiting.pop(0) if waiting else (node.args[0] if node.args else None)
                known[node] = unknown(tensors[node])
                continue
            if node.op == "get_attr":
                tensors[node] = operator.attrgetter(str(node.target))(self.root)
                known[node] = unknown(tensors[node])
                if isinstance(tensors[node], Tensor) and not tensors[node].dim():
                    known[node] = None  # a number like any in the program
                continue
            versions = {n: tensors[n]._version for n in node.all_input_nodes if isinstance(tensors[n], Tensor)}
            if node.op == "call_module":
                layer = self.root.get_submodule(str(node.target))
                tensors[node] = self._run(node, lambda: self._called(layer, args, kwargs))  # noqa: B023
                self.users = node.users
                known[node] = self._module(str(node.target), layer, facts, (args, kwargs), tensors[node])
            elif node.op == "call_method":
                tensors[node] = self._run(node, lambda: getattr(args[0], str(node.target))(*args[1:], **kwargs))  # noqa: B023
                known[node] = self.function(node, facts, (args, kwargs), tensors[node])
            else:
                target: Any = node.target
                tensors[node] = self._run(node, lambda: target(*args, **kwargs))  # noqa: B023
                known[node] = self.function(node, facts, (args, kwargs), tensors[node])
            map_aggregate(tensors[node], lambda t: self.facts.measure(t) if isinstance(t, Tensor) else None)
            changed = [tensors[n] for n, version in versions.items() if tensors[n]._version != version]
            if changed:
                self._changed_in_place(node, changed, tensors, known, values_of(facts))
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
                self.facts.whole(*values_of((known[n], known[node])), *values)
                known[n] = unknown(t)

    def _run(self, node: fx.Node, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as reason:
            said = str(reason).splitlines()[0].rstrip(".")
            raise CompactionError(f"the network does not take the example input: {said} (in {node.name}).") from reason

    def _called(self, layer: nn.Module, args: Any, kwargs: Any) -> Any:
        """What ``layer`` gives, from memory if it was just this."""
        for x, out in self.memory.get(layer, ()):
            same = len(args) == 1 and not kwargs and (x.dtype, x.stride()) == (args[0].dtype, args[0].stride())
            if same and torch.equal(x, args[0]):
                return out.clone()
        return layer(*args, **kwargs)

    def _plain(self, layer: nn.Module) -> bool:
        """Whether the layer does what its class says: no hooks, no parametrizations, no parameters of others."""
        return not any(
            _hooked(m)
            or nn.utils.parametrize.is_parametrized(m)
            or any(id(t) in self.shared for t in (*m._parameters.values(), *m._buffers.values()) if t is not None)
            for m in layer.modules()
        )

    # --------------------------------------------------------------------------------------------- modules

    def _module(self, name: str, layer: nn.Module, facts: Any, given: Any, out: Any) -> Any:
        name = name.removeprefix("0") if self.wrapped else name
        said = f"{name} ({type(layer).__name__})"
        values = values_of(facts)
        if not self._plain(layer):
            self.facts.notes.append(f"{said} has hooks, parametrizations or shared parameters, so it is kept whole")
            return self.whole(values, out)
        numbers = numbers_of(facts)
        self.count(numbers)
        if numbers and not getattr(layer, "transposed", False):  # which may be told the size of its output
            self.facts.notes.append(f"{said} is called with a number that is no constant, so it is kept whole")
            return self.whole(values, out)
        tensors: list[Tensor] = []
        map_aggregate(given, lambda a: tensors.append(a) if isinstance(a, Tensor) else None)
        if isinstance(layer, qnn.QMultiheadAttention):
            used = any(user.target is not operator.getitem or user.args[1] != 0 for user in self.users)
            return attention(self.facts, name, layer, facts, given, out, used)
        if isinstance(layer, qnn.QEmbedding):
            return self._embedding(name, layer, values, out)
        if not values:
            return unknown(out)
        value, x = values[0], tensors[0] if tensors else None
        if isinstance(layer, QRecurrent):
            value, x = option(facts, 0, "input", None), option(given, 0, "input", None)
            if not isinstance(x, Tensor) or not isinstance(value, Value):  # a packed sequence
                return self.opaque(said, values, out)
            states = values_of((facts[0][1:], facts[1].get("hx")))
            return recurrent(self.facts, name, layer, value, x, states, out)
        if len(values) > 1 or x is None or (not isinstance(out, Tensor)):
            return self.opaque(said, values, out)
        if isinstance(layer, (qnn.QLinear, nn.Linear)):
            return self._linear(name, layer, value, x, out)
        if isinstance(layer, (QConvolution, *REAL_CONVOLUTIONS)):
            return self._convolution(name, layer, value, x, out)
        if isinstance(layer, (QBatchNorm, qnn.QWhiteningBatchNorm2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            return self._batch_norm(name, layer, value, x, out)
        if isinstance(layer, qnn.QLayerNorm):
            return self._layer_norm(name, layer, value, x, out)
        if isinstance(layer, (qnn.QModReLU, nn.PReLU)):
            return self._with_bias(name, layer, value, x, out)
        if isinstance(layer, APART_MODULES):
            return self.facts.through(said, value, out, again=of_layer(layer, value))
        for kind, space in POOLS.items():
            if isinstance(layer, kind):
                if kind in QUATERNION_POOLS and value.parts != 4:
                    return self.whole([value], out)
                weighs = isinstance(layer, _AVERAGES) and _weighs_padding(layer)
                return self.pool(said, value, out, space, weighs)
        if isinstance(layer, qnn.Modulus):
            return self.modulus(said, value, x, out, layer.dim)
        if isinstance(layer, nn.Flatten):
            return self.flatten(said, value, x, out, layer.start_dim, layer.end_dim)
        return self.opaque(said, values, out)

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

        def edges() -> Tensor:
            some = nonzero(layer.weight)
            return some.any(0) if quaternion else some.unflatten(1, (parts, -1)).any(1)

        return self.facts.weighted(name, layer, value, out, edges, axis=-1, parts=4 if quaternion else 1, absorbs=True)

    def _convolution(self, name: str, layer: Any, value: Value, x: Tensor, out: Tensor) -> Value:
        axis = x.dim() - len(layer.kernel_size) - 1
        quaternion = isinstance(layer, QConvolution)
        parts = _parts(layer) if quaternion else (self._grain(layer, value, axis) if layer.groups == 1 else 1)
        value = self.facts.followed(value, x, axis, parts)
        uneven = pads_with_zeros(layer)

        def edges() -> Tensor:
            some = convolution_edges(layer, nonzero(layer.weight))
            return some if quaternion else some.unflatten(1, (parts, -1)).any(1)

        return self.facts.weighted(
            name,
            layer,
            value,
            out,
            edges,
            axis=axis,
            parts=4 if quaternion else 1,
            absorbs=quaternion or not uneven,
            uneven=uneven,
        )

    def _batch_norm(self, name: str, layer: Any, value: Value, x: Tensor, out: Tensor) -> Value:
        quaternion = not isinstance(layer, nn.modules.batchnorm._BatchNorm)
        parts = 4 if quaternion else self._grain(layer, value, 1)
        value = self.facts.followed(value, x, 1, parts)
        n = len(value.live)

        def scale() -> Tensor:
            return torch.ones(n).bool() if layer.weight is None else nonzero(layer.weight.reshape(-1, n)).any(0)

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
        return self.facts.value(out, value.ids, -1, 4, ~constant, name, value.heard.any().expand(n))

    def _with_bias(self, name: str, layer: qnn.QModReLU | nn.PReLU, value: Value, x: Tensor, out: Tensor) -> Value:
        """An activation with a number for each unit."""
        if isinstance(layer, qnn.QModReLU):
            axis, parts = layer.dim % x.dim(), 4
        elif layer.num_parameters == 1:
            return self.facts.through(name, value, out, again=of_layer(layer, value))
        else:
            axis, parts = 1, self._grain(layer, value, 1)
        value = self.facts.followed(value, x, axis, parts)
        return self.facts.scaled(name, layer, value, out, lambda: torch.ones(len(value.live), dtype=torch.bool))

    def _grain(self, layer: nn.Module, value: Value, axis: int) -> int:
        """How many channels of a real layer are one unit: those of its input, or those of an earlier call."""
        record = self.facts.records.get(layer)
        if record is None or record.inputs is None:
            return value.parts if value.followed and value.axis == axis else 1
        return (sizes(layer)[0] or 1) // len(record.inputs)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _place(t: Tensor) -> tuple[Any, ...]:
    return t.data_ptr(), t.shape, t.stride()


def _parts(layer: Any) -> int:
    """How many real numbers make a unit of the layer's input."""
    return len(layer.input_parts)


def _weighs_padding(layer: Any) -> bool:
    """Whether an average pooling gives another value at the border for a constant."""
    padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
    return (any(padding) and layer.count_include_pad) or getattr(layer, "divisor_override", None) is not None
