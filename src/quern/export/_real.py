"""The network without quaternions: every layer as the real layer of ``torch.nn`` that computes the same."""

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer

from quern.compact import is_dead, warn_dead
from quern.compact.folding import fold_graph
from quern.errors import ExportError
from quern.graph import Example, check_traceable, inputs_of
from quern.graph.operations import operation
from quern.graph.paths import is_cut
from quern.graph.spec import hooked, own_spec
from quern.graph.trace import traced

__all__ = ["to_real"]


def to_real(model: nn.Module, example: Example | None = None) -> fx.GraphModule:
    """A new network of plain ``torch.nn`` layers and torch operations that computes the same as ``model.eval()``.

    Batch normalisation is folded into the layer next to it where that is exact, dropout is gone, and submodules keep
    their names. Running it, or reading it from a file of ``torch.save``, needs no quern. Inputs are taken to have a
    batch axis, and what stands between a linear layer and a one-dimensional normalisation to be ``(batch, features)``.
    Optional inputs are left out, but for those that ``example``, an input or a tuple of several as in
    :func:`quern.compact.compact`, has. A network whose output does not depend on its input any more is a warning;
    without an example only if a layer that everything goes through has nothing but zeros.
    """
    real = real_form(model, None if example is None else len(inputs_of(model, example)))
    if is_cut(model) if example is None else is_dead(model, example):
        warn_dead()
    return real


@torch.no_grad()
def real_form(model: nn.Module, count: int | None = None, *, packing: bool = False) -> fx.GraphModule:
    """What :func:`to_real` returns, for calls with the first ``count`` inputs. For ``packing``, layers that the runtime
    knows as they are stay."""
    check_traceable(model)
    root, graph, _ = traced(copy.deepcopy(model).eval(), count)
    fold_graph(root, graph)
    writer = _Writer(set(dict(root.named_modules())), packing)
    for node in graph.nodes:
        writer.write(node, root)
    real = fx.GraphModule(writer.root, writer.graph)
    fold_graph(real, real.graph)  # what a real layer can take and a quaternion one cannot
    real.delete_all_unused_submodules()
    real.recompile()
    return real.eval()


class _Writer:
    """A graph of torch operations in the making, and the modules and tensors it uses by name."""

    def __init__(self, taken: set[str], packing: bool = False) -> None:
        self.graph, self.root = fx.Graph(), dict[str, Any]()
        self.tracer = GraphAppendingTracer(self.graph)
        self.values: dict[fx.Node, Any] = {}
        self.taken, self.packing = taken, packing

    def record(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.tracer.create_proxy(op, target, args, kwargs)

    def call(self, name: str, module: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> Any:
        """The module, made at its first use, called on recorded values."""
        if name not in self.root:
            self.root[name] = module().eval()
        return self.record("call_module", name, args, kwargs)

    def tensor(self, name: str, value: Tensor | None) -> Any:
        if value is None:
            return None
        self.root[name] = nn.Parameter(value.detach().clone())
        return self.record("get_attr", name, (), {})

    def beside(self, name: str, what: str) -> str:
        """A name that no module has for something more that a layer needs."""
        name = f"{name}_{what}"
        while name in self.taken:
            name += "_"
        return name

    def write(self, node: fx.Node, source: nn.Module) -> None:
        args, kwargs = map_arg((node.args, node.kwargs), self.values.__getitem__)
        name = str(node.target)
        if node.op == "call_module":
            self.values[node] = self.layer(name, source.get_submodule(name), *args, **kwargs)
        elif node.op == "get_attr":
            self.root[name] = _attribute(source, name)
            self.values[node] = self.record("get_attr", name, (), {})
        elif node.op == "call_function":
            self.values[node] = self.function(node, args, kwargs)
        else:
            self.values[node] = self.record(node.op, node.target, args, kwargs)

    def function(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target: Any = node.target
        if target is operator.getitem and isinstance(args[0], tuple):  # a layer that returns several values
            return args[0][args[1]]
        real = operation(target).real
        if real is not None:
            return real(*args, **kwargs)
        if _is_quern(getattr(target, "__module__", None)):
            raise ExportError(
                f"{node.name} calls quern's function {target.__name__}, which has no real form: use a layer."
            )
        return self.record("call_function", target, args, kwargs)

    def layer(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if hooked(module):
            raise ExportError(f"{name} ({type(module).__name__}) has forward hooks, which cannot be followed.")
        spec = own_spec(module)
        if spec is not None and not (self.packing and spec.packs):
            return spec.to_real(self, name, module, *args, **kwargs)
        if spec is not None:
            return self.call(name, lambda: module, *args, **kwargs)
        if own := next((m for m in module.modules() if _is_quern(type(m).__module__)), None):
            raise ExportError(f"{name} ({type(own).__name__}) has no real form that quern knows.")
        return self.call(name, lambda: module, *args, **kwargs)


def _is_quern(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "quern"


def _attribute(source: nn.Module, name: str) -> Any:
    path, _, last = name.rpartition(".")
    return getattr(source.get_submodule(path), last)
