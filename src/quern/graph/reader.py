"""The one pass over a network: it is traced with torch.fx and run once, in eval mode, on an example.

Each operation is followed as it runs, so shapes and constants need not be guessed. What a layer does to the units of a
value its Spec says (:mod:`quern.graph.spec`), what a function does :mod:`quern.graph.functions`.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from quern.algebra import UNITS
from quern.errors import CompactionError
from quern.graph.facts import Facts
from quern.graph.functions import FunctionRules, numbers_of, unknown, values_of
from quern.graph.layer_plan import Kept, LayerPlan
from quern.graph.spec import Call, hooked, spec_of
from quern.graph.trace import traced
from quern.graph.units import Record
from quern.graph.values import Value

Memory = dict[nn.Module, list[tuple[Tensor, Tensor]]]


@contextmanager
def remembering(model: nn.Module) -> Iterator[Memory]:
    """What layers of ``model`` with weights take and give while this lasts: none need run again on the same input."""
    memory: Memory = {}

    def remember(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if len(args) == 1 and isinstance(args[0], Tensor) and isinstance(out, Tensor):
            memory.setdefault(layer, []).append((args[0].clone(), out.clone()))

    layers = [layer for layer in model.modules() if spec_of(layer).costly and not hooked(layer)]
    hooks = [layer.register_forward_hook(remember) for layer in layers]
    try:
        yield memory
    finally:
        for hook in hooks:
            hook.remove()


def read(
    model: nn.Module,
    inputs: Sequence[Any],
    keep_unknown: bool,
    largest_constant: float = math.inf,
    memory: Memory | None = None,
) -> tuple[Facts, list[Value], Any]:
    """Follow ``model`` on ``inputs``: the facts, the values that are outputs, and the outputs themselves. ``memory`` is
    of an earlier run."""
    root, graph, notes = traced(model, len(inputs))
    reader = Reader(root, Facts(largest_constant), keep_unknown, model is not root, memory or {})
    reader.facts.notes += notes
    outputs, result = reader.follow(graph, inputs)
    return reader.facts, outputs, result


class Reader(FunctionRules):
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
                name = str(node.target).removeprefix("0") if self.wrapped else str(node.target)
                known[node] = self._module(Call(name, layer, facts, (args, kwargs), tensors[node], node.users))
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
            why = str(reason).splitlines()[0].rstrip(".")
            raise CompactionError(f"the network does not take the example input: {why} (in {node.name}).") from reason

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
            hooked(m)
            or nn.utils.parametrize.is_parametrized(m)
            or any(id(t) in self.shared for t in (*m._parameters.values(), *m._buffers.values()) if t is not None)
            for m in layer.modules()
        )

    def _module(self, call: Call) -> Any:
        if not self._plain(call.layer):
            self.facts.notes.append(
                f"{call.title} has hooks, parametrizations or shared parameters, so it is kept whole"
            )
            return self.whole(call.values, call.out)
        spec, numbers = spec_of(call.layer), numbers_of(call.known)
        self.count(numbers)
        if numbers and not spec.takes_sizes:
            self.facts.notes.append(f"{call.title} is called with a number that is no constant, so it is kept whole")
            return self.whole(call.values, call.out)
        return spec.follow(self, call)


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _place(t: Tensor) -> tuple[Any, ...]:
    return t.data_ptr(), t.shape, t.stride()


# ------------------------------------------------------------------------------------------------ what a layer keeps


def layer_plan(record: Record, kept: Tensor) -> LayerPlan:
    """What is to be removed from a layer if of all units those are ``kept`` that it says, which
    :meth:`~quern.graph.units.Units.settle` returns."""
    layer, value = record.layer, record.calls[0] if record.calls else None
    spec = spec_of(layer)
    inputs = outputs = None
    if record.inputs is not None:
        have = spec.sizes(layer)[0]
        # Where a real layer takes quaternions, four of its own channels are one unit.
        mask = kept[record.inputs].repeat(1 if have is None else have // len(record.inputs))
        inputs = Kept(len(mask), tuple(mask.nonzero().flatten().tolist()))
    if record.outputs is not None:
        inside = kept[record.outputs]
        outputs = Kept(len(inside), tuple(inside.nonzero().flatten().tolist()))
    constants: list[tuple[int, tuple[float, ...]]] = []
    if value is not None and record.inputs is not None:
        # A constant zero matters too if its channel stays: nobody says that it will still carry zero.
        chosen = record.absorbed() & (value.pushing | kept[record.inputs])
        for n in chosen.nonzero().flatten().tolist():
            numbers = [float(x) for x in value.constant[n]]
            if spec.components == 4:
                components = dict(zip(getattr(layer, "input_parts", UNITS), numbers, strict=True))
                constants.append((n, tuple(components.get(part, 0.0) for part in UNITS)))
            else:
                constants += [(n + part * len(record.inputs), (x,)) for part, x in enumerate(numbers)]
    still = {k: tuple(units.nonzero().flatten().tolist()) for k, units in record.still.items()}
    left = set() if outputs is None else set(outputs.indices)
    still = {k: units for k, units in still.items() if left & set(units)}
    return LayerPlan(type(layer).__name__, inputs, outputs, tuple(sorted(constants)), still)
