r"""Batch normalisation folded into the layer next to it.

In eval mode a batch normalisation is :math:`s\,x + t` for each channel, with :math:`s = \gamma/\sqrt{\sigma^2 +
\varepsilon}` and :math:`t = \beta - s\,\mu`. After a layer :math:`W x + b` it gives :math:`(sW)\,x + (s b + t)`, before
one :math:`(W s)\,x + (W t + b)`; so it disappears into weight and bias. Before a convolution that is only right where
no zeros are padded. A quaternion layer can take the normalisation whose :math:`s` is the same for the four components
of a neuron, which a quaternion one's is.

The first axis of every value is taken to be the batch, and what stands between a linear layer and a one-dimensional
normalisation of its size to be ``(batch, features)``.
"""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import fx, nn

from quern.errors import FoldingError
from quern.graph import Spec, check_module, trace
from quern.graph.operations import operation
from quern.graph.spec import Affine, hooked, own_spec
from quern.graph.trace import Tracer
from quern.models import recipe_of, set_recipe

__all__ = ["fold", "fold_graph"]

# By the very class throughout: a subclass may compute anything.


def fold(model: nn.Module, names: Collection[str] | None = None) -> nn.Module:
    """A copy of ``model`` in which every batch normalisation that can be is part of the layer before or after it.

    An ``nn.Identity`` stands in the place of each; a layer without a bias gets one. In eval mode the copy computes the
    same as ``model``, up to rounding, where what stands between a linear layer and a one-dimensional normalisation is
    ``(batch, features)``. With ``names`` it is exactly these that are folded, or an error says why not.
    """
    check_module(model)
    folded = copy.deepcopy(model)
    if names is not None and not names:
        return folded
    root = nn.Sequential(folded) if Tracer().is_leaf_module(folded, "") else folded
    done = fold_graph(root, trace(root), names)
    if names is not None and (left := [name for name in names if name not in done]):
        raise FoldingError(f"{', '.join(left)} cannot be folded: no layer that could take it stands next to it.")
    if done:
        set_recipe(folded, recipe_of(model).then({"fold": done}))
    return folded


def fold_graph(root: nn.Module, graph: fx.Graph, names: Collection[str] | None = None) -> list[str]:
    """Fold what can be folded (and is in ``names``) in ``root``, whose operations ``graph`` has, and take it out of
    both. The names of the folded normalisations are returned, in order.
    """
    modules = dict(root.named_modules(remove_duplicate=False))
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def alone(node: fx.Node) -> Spec | None:
        """The Spec of a module of which the node is the one use there is."""
        name = str(node.target)
        if node.op != "call_module" or calls[node.target] != 1 or name in read or hooked(modules[name]):
            return None
        return own_spec(modules[name])

    done: list[str] = []
    folded = True
    while folded:
        folded = False
        for node in list(graph.nodes):
            name, spec = str(node.target), alone(node)
            affine = None if spec is None else spec.affine(modules[name])
            if affine is None or (names is not None and name not in names):
                continue
            change = _into_layer_before(node, affine, modules, alone) or _into_layer_after(node, affine, modules, alone)
            if change is None:
                continue
            with torch.no_grad():
                change()
            done.append(name)
            norm = modules[name]
            for other in [n for n, module in modules.items() if module is norm]:
                modules[other] = nn.Identity().train(norm.training)
                root.set_submodule(other, modules[other])
            node.replace_all_uses_with(_only_input(node))
            graph.erase_node(node)
            folded = True
    return done


Alone = Callable[[fx.Node], Spec | None]


def _only_input(node: fx.Node) -> fx.Node | None:
    """The input of a node that has one and nothing else."""
    given = [*node.args, *node.kwargs.values()]
    return given[0] if len(given) == 1 and isinstance(given[0], fx.Node) else None


def _option(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.kwargs.get(name, node.args[place] if len(node.args) > place else default)


def _passes(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether the value goes on as it is."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        spec = own_spec(module)
        return spec is not None and spec.passes and not hooked(module)
    return operation(node.target).drops and _option(node, 2, "training", True) is False


def _flattens(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether everything after the batch becomes one axis."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        spec = own_spec(module)
        return spec is not None and spec.flattens(module)
    flattens = operation(node.target).kind == "flatten"
    return flattens and _option(node, 1, "start_dim", 0) == 1 and _option(node, 2, "end_dim", -1) == -1


def _walk(node: fx.Node, modules: dict[str, nn.Module], back: bool) -> tuple[fx.Node | None, bool]:
    """The next node that does something, up or down the graph, if nobody else sees the values in between; and whether
    they were flattened on the way."""
    flat = False
    while True:
        if back:
            after, node = node, node.all_input_nodes[0] if len(node.all_input_nodes) == 1 else node
            if after is node or len(node.users) != 1:
                return None, flat
        else:
            if len(node.users) != 1:
                return None, flat
            node = next(iter(node.users))
        if _flattens(node, modules):
            flat = True
        elif not _passes(node, modules):
            return node, flat


def _into_layer_before(
    node: fx.Node, affine: Affine, modules: dict[str, nn.Module], alone: Alone
) -> Callable[[], None] | None:
    before, flat = _walk(node, modules, back=True)
    spec = None if before is None else alone(before)
    return None if before is None or spec is None else spec.followed_by(modules[str(before.target)], affine, flat)


def _into_layer_after(
    node: fx.Node, affine: Affine, modules: dict[str, nn.Module], alone: Alone
) -> Callable[[], None] | None:
    after, flat = _walk(node, modules, back=False)
    spec = None if after is None else alone(after)
    if after is None or spec is None or _only_input(after) is None:
        return None
    # The normalisation made a new tensor; without it the layer gets the old one, which nobody may have changed by then.
    if any(_writes(other, modules) for other in _between(node, after)):
        return None
    return spec.preceded_by(modules[str(after.target)], affine, flat)


def _between(first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _writes(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether the operation may change its input."""
    if _passes(node, modules):
        return False
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_")
    name = getattr(node.target, "__name__", "")
    flagged = any(value is True for value in (*node.args, *node.kwargs.values()))
    return node.op == "call_function" and (operation(node.target).writes or name.endswith("_") or flagged)
