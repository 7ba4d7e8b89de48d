"""Nodes of a traced network: what they call, and the shapes of what they give."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate


def name_of(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    if node.target is getattr:
        return str(node.args[1])
    if node.target is operator.matmul:
        return "matmul"
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def is_torchs(node: fx.Node) -> bool:
    """Whether a function is one of torch, of Python's operators or of quern, not a user's own of the same name."""
    if isinstance(node.target, str) or node.target is getattr:
        return True
    module = getattr(node.target, "__module__", None) or "torch"
    return module.split(".")[0] in ("torch", "_operator", "operator", "math", "builtins", "quern")


def shapes_of(root: nn.Module, graph: fx.Graph, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
    """The shapes of what all nodes give for ``inputs``, in its structure."""
    shapes: dict[fx.Node, Any] = {}

    class Shapes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            shapes[n] = map_aggregate(result, lambda t: t.shape if isinstance(t, Tensor) else t)
            return result

    with torch.no_grad():
        runner = Shapes(fx.GraphModule(root, graph))
        runner.extra_traceback = False
        runner.run(*inputs)
    return shapes
