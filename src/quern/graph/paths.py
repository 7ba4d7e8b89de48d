"""What can be said of the paths through a network without running it."""

from collections.abc import Callable

from torch import fx, nn

from quern.errors import TraceError
from quern.graph.operations import operation
from quern.graph.spec import spec_of
from quern.graph.trace import Tracer, trace, traced


def has_bias(layer: nn.Module) -> bool:
    """Whether each neuron of a layer has a row of ``weight`` and of ``bias``."""
    return spec_of(layer).neurons(layer) > 0 and "bias" in spec_of(layer).shifts(layer)


def has_rows(layer: nn.Module) -> bool:
    """Whether each neuron of a quaternion layer has a row of ``weight (4, out, in, ...)`` and of ``bias (4, out)``."""
    return spec_of(layer).components == 4 and has_bias(layer)


def norms_behind(
    model: nn.Module, of: Callable[[nn.Module], bool] = has_bias, *, directly: bool = False
) -> dict[str, tuple[str, ...]] | None:
    """By the name of each layer ``of`` a kind whose outputs all end in batch normalisations: the names of those.

    On the way there a constant stays the same constant at every place: activations and pooling, no dropout, no sums
    with other values; or nothing is on the way, ``directly``. None if the network cannot be traced.
    """
    root = nn.Sequential(model) if Tracer().is_leaf_module(model, "") else model
    try:
        graph = trace(root)
    except TraceError:
        return None
    ends: dict[str, set[str] | None] = {}
    for node in graph.nodes:
        if node.op == "call_module" and of(root.get_submodule(str(node.target))):
            norms, known = _ends(root, node, directly), ends.get(str(node.target), set())
            ends[str(node.target)] = None if norms is None or known is None else norms | known
    names = {layer: name for name, layer in model.named_modules()}  # as the model itself has them

    def own(name: str) -> str:
        return names[root.get_submodule(name)]

    return {own(layer): tuple(sorted(map(own, norms))) for layer, norms in ends.items() if norms}


def _ends(root: nn.Module, node: fx.Node, directly: bool) -> set[str] | None:
    """The batch normalisations that all uses of a value end in; None if one ends elsewhere."""
    ends: set[str] = set()
    for user in node.users:
        layer = root.get_submodule(str(user.target)) if user.op == "call_module" else None
        if layer is not None and spec_of(layer).normalises:
            ends.add(str(user.target))
            continue
        keeps = operation(user.target).keeps_constants if layer is None else spec_of(layer).keeps_constants(layer)
        goes_on = keeps and not directly and len(user.all_input_nodes) == 1
        beyond = _ends(root, user, directly) if goes_on else None
        if beyond is None:
            return None
        ends |= beyond
    return ends


def is_cut(model: nn.Module) -> bool:
    """Whether every path from an input to an output leads through a layer whose weights, or scales, are all zero. Then
    the network is dead; one that is not cut may be dead too. False where it cannot be traced."""
    try:
        root, graph, _ = traced(model)
    except TraceError:
        return False
    reached: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        blocked = node.op == "call_module" and len(inputs) == 1 and _blocks(root.get_submodule(str(node.target)))
        if node.op == "placeholder" or (not blocked and not reached.isdisjoint(inputs)):
            reached.add(node)
    return next(reversed(graph.nodes)) not in reached


def _blocks(layer: nn.Module) -> bool:
    spec = spec_of(layer)
    for names in (spec.weights(layer), spec.scales(layer)):
        tensors = [t for t in (getattr(layer, name) for name in names) if t is not None]
        if tensors and not any(bool((t != 0).any()) for t in tensors):
            return getattr(layer, "constant", None) is None
    return False
