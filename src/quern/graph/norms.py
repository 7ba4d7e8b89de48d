"""Which layers end in batch normalisations, which take away what is constant."""

from torch import fx, nn

from quern.errors import TraceError
from quern.graph.operations import operation
from quern.graph.spec import spec_of
from quern.graph.trace import Tracer, trace


def has_rows(layer: nn.Module) -> bool:
    """Whether each neuron of a quaternion layer has a row of ``weight (4, out, in, ...)`` and of ``bias (4, out)``."""
    spec = spec_of(layer)
    return spec.components == 4 and spec.neurons(layer) > 0 and "bias" in spec.shifts(layer)


def norms_behind(model: nn.Module) -> dict[str, tuple[str, ...]] | None:
    """By the name of each quaternion layer whose outputs all end in batch normalisations: the names of those.

    On the way there a constant stays the same constant at every place: activations and pooling, no dropout, no sums
    with other values. None if the network cannot be traced.
    """
    root = nn.Sequential(model) if Tracer().is_leaf_module(model, "") else model
    try:
        graph = trace(root)
    except TraceError:
        return None
    ends: dict[str, set[str] | None] = {}
    for node in graph.nodes:
        if node.op == "call_module" and has_rows(root.get_submodule(str(node.target))):
            norms, known = _ends(root, node), ends.get(str(node.target), set())
            ends[str(node.target)] = None if norms is None or known is None else norms | known
    names = {layer: name for name, layer in model.named_modules()}  # as the model itself has them

    def own(name: str) -> str:
        return names[root.get_submodule(name)]

    return {own(layer): tuple(sorted(map(own, norms))) for layer, norms in ends.items() if norms}


def _ends(root: nn.Module, node: fx.Node) -> set[str] | None:
    """The batch normalisations that all uses of a value end in; None if one ends elsewhere."""
    ends: set[str] = set()
    for user in node.users:
        layer = root.get_submodule(str(user.target)) if user.op == "call_module" else None
        if layer is not None and spec_of(layer).normalises:
            ends.add(str(user.target))
            continue
        keeps = operation(user.target).keeps_constants if layer is None else spec_of(layer).keeps_constants(layer)
        beyond = _ends(root, user) if keeps and len(user.all_input_nodes) == 1 else None
        if beyond is None:
            return None
        ends |= beyond
    return ends
