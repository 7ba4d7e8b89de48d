"""Layers of classes that were derived from torch's: a normalisation with an activation inside, a convolution that pads
for itself."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from quern.graph.spec import Spec, own_spec, spec_of

INNER = "quaternion"


def known_base(layer: nn.Module) -> tuple[type[nn.Module], Spec] | None:
    """The class that ``layer``'s was derived from, if it has a quaternion form, and its Spec."""
    for kind in type(layer).__mro__[1:]:
        if issubclass(kind, nn.Module) and kind.__module__.startswith("torch.nn") and kind is not nn.Module:
            spec = own_spec(_bare(kind))
            if spec is not None:
                return kind, spec
    return None


def _bare(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(kind)


def subclass_form(layer: nn.Module) -> nn.Module | None:
    """The quaternion form of a layer whose class was derived from a known one: that of the base, where ``forward`` is
    the same, else what ``forward`` does around it. None if the base is not known, ValueError if it cannot be done."""
    base = known_base(layer)
    if base is None:
        return None
    kind, spec = base
    inner = spec.quaternion_form(layer)
    if inner is None:
        return layer if spec.splits and type(layer).forward is kind.forward else None
    same = ("forward", "_conv_forward")
    if all(getattr(type(layer), name, None) is getattr(kind, name, None) for name in same):
        return inner
    try:
        with _as_one_call(kind, layer) as tracer:
            graph = tracer.trace(layer)
    except Exception as reason:
        raise ValueError(f"a subclass of {kind.__name__} whose forward torch.fx cannot follow") from reason
    own = {name for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in spec.functions and _takes_weight(node):
            with graph.inserting_before(node):
                call = graph.call_module(INNER, (node.args[0] if node.args else node.kwargs["input"],))
            node.replace_all_uses_with(call)
            graph.erase_node(node)
            _pad_as(inner, node)
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    left = [n for n in graph.nodes if n.op == "get_attr" and str(n.target) in own]
    if left or not any(n.op == "call_module" and n.target == INNER for n in graph.nodes):
        raise ValueError(f"a subclass of {kind.__name__} that computes with its weight in a way of its own")
    parts: dict[str, Any] = {INNER: inner, **dict(layer.named_children())}
    for node in graph.nodes:
        if node.op == "get_attr":
            parts[str(node.target)] = operator.attrgetter(str(node.target))(layer)
    return fx.GraphModule(parts, graph, type(layer).__name__)


def _takes_weight(node: fx.Node) -> bool:
    return any(n.op == "get_attr" and n.target == "weight" for n in node.all_input_nodes)


def _pad_as(inner: Any, node: fx.Node) -> None:
    """A convolution that its layer calls with other padding than its own, having padded already."""
    if hasattr(inner, "padding") and len(node.args) > 4 and isinstance(node.args[4], (tuple, list, int, str)):
        padding = node.args[4]
        inner.padding = (padding,) * inner.space if isinstance(padding, int) else padding


@contextmanager
def _as_one_call(kind: type[nn.Module], layer: nn.Module) -> Iterator[fx.Tracer]:
    """A tracer for which ``super().forward(x)`` is one call of the quaternion layer."""
    tracer = fx.Tracer()
    original = kind.__dict__.get("forward")
    old: Any = kind.forward

    def forward(self: nn.Module, input: Any, *args: Any, **kwargs: Any) -> Any:
        if self is layer:
            return tracer.create_proxy("call_module", INNER, (input,), {})
        return old(self, input, *args, **kwargs)

    modes = [(m, m.training) for m in layer.modules()]
    layer.eval()
    kind.forward = forward
    try:
        yield tracer
    finally:
        if original is None:
            del kind.forward
        else:
            kind.forward = original
        for module, mode in modes:
            module.training = mode


def is_known(layer: nn.Module) -> bool:
    """Whether a layer is of a kind that has a quaternion form, or acts on each channel alone."""
    spec = spec_of(layer)
    return spec.splits or spec.components == 4
