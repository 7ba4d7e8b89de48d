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
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, fx, nn

from quern import functional as F
from quern import nn as qnn
from quern.algebra import UNITS
from quern.errors import FoldingError
from quern.graph import REAL_CONVOLUTIONS, Tracer, check_module, pads_with_zeros, trace
from quern.models import recipe_of, set_recipe
from quern.nn.bases import QBatchNorm, QConvolution

__all__ = ["NOTHING", "fold", "fold_graph", "hooked"]

# By exact type throughout: a subclass may compute anything.
_Q_CONVOLUTIONS = (qnn.QConv1d, qnn.QConv2d, qnn.QConv3d)
_Q_CONVOLUTIONS += (qnn.QConvTranspose1d, qnn.QConvTranspose2d, qnn.QConvTranspose3d)
_CONVOLUTIONS = (*_Q_CONVOLUTIONS, *REAL_CONVOLUTIONS)
_LINEAR = (qnn.QLinear, nn.Linear)
_NORMS: dict[type[nn.Module], int] = {  # with the number of spatial axes
    qnn.QBatchNorm1d: 1,
    qnn.QBatchNorm2d: 2,
    qnn.QBatchNorm3d: 3,
    nn.BatchNorm1d: 1,
    nn.BatchNorm2d: 2,
    nn.BatchNorm3d: 3,
}
# Modules that hand on what they get, when not training.
NOTHING = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(qnn.QDropout, qnn.QDropout2d),
)
_DROPOUTS = (F.dropout, TF.dropout, TF.dropout1d, TF.dropout2d, TF.dropout3d)
_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem)


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


def hooked(module: nn.Module) -> bool:
    """Whether calling ``module`` does more than its ``forward`` says."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def fold_graph(root: nn.Module, graph: fx.Graph, names: Collection[str] | None = None) -> list[str]:
    """Fold what can be folded (and is in ``names``) in ``root``, whose operations ``graph`` has, and take it out of
    both. The names of the folded normalisations are returned, in order.
    """
    modules = dict(root.named_modules(remove_duplicate=False))
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def alone(node: fx.Node, kinds: Collection[type[nn.Module]]) -> bool:
        """Whether the node is the one use there is of a module of these kinds."""
        name = str(node.target)
        return (
            node.op == "call_module"
            and type(modules[name]) in kinds
            and calls[node.target] == 1
            and name not in read
            and not hooked(modules[name])
        )

    done: list[str] = []
    found = True
    while found:
        found = False
        for node in list(graph.nodes):
            name = str(node.target)
            if not alone(node, _NORMS) or (names is not None and name not in names):
                continue
            norm = modules[name]
            if norm.running_mean is None or norm.running_var is None:
                continue
            change = _into_layer_before(node, modules, alone) or _into_layer_after(node, modules, alone)
            if change is None:
                continue
            with torch.no_grad():
                change()
            done.append(name)
            for other in [n for n, module in modules.items() if module is norm]:
                modules[other] = nn.Identity().train(norm.training)
                root.set_submodule(other, modules[other])
            node.replace_all_uses_with(_only_input(node))
            graph.erase_node(node)
            found = True
    return done


Alone = Callable[[fx.Node, Collection[type[nn.Module]]], bool]


@dataclass(frozen=True)
class _Affine:
    """``scale * x + shift`` with one number of float64 for each real channel; ``whole`` if the four components of a
    quaternion have the same scale."""

    scale: Tensor
    shift: Tensor
    whole: bool


def _affine(norm: Any) -> _Affine:
    whole = isinstance(norm, QBatchNorm)
    times = 4 if whole else 1
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    scale = scale.repeat(times)
    shift = -norm.running_mean.double().flatten() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double().flatten()
    return _Affine(scale, shift, whole)


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
        return type(module) in NOTHING and not hooked(module)
    return node.target in _DROPOUTS and _option(node, 2, "training", True) is False


def _flattens(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether everything after the batch becomes one axis."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
    if node.target in (torch.flatten, "flatten"):
        return _option(node, 1, "start_dim", 0) == 1 and _option(node, 2, "end_dim", -1) == -1
    return False


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


def _into_layer_before(node: fx.Node, modules: dict[str, nn.Module], alone: Alone) -> Callable[[], None] | None:
    before, flat = _walk(node, modules, back=True)
    if before is None or not alone(before, (*_CONVOLUTIONS, *_LINEAR)):
        return None
    norm: Any = modules[str(node.target)]
    layer = modules[str(before.target)]
    space = _NORMS[type(norm)]
    if isinstance(layer, _LINEAR):
        channels, fits = layer.out_features, space == 1
    else:
        assert isinstance(layer, (QConvolution, *REAL_CONVOLUTIONS))
        channels, fits = layer.out_channels, space == (1 if flat else len(layer.kernel_size))
    # After flattening, as many features as there were channels means that there was one position.
    if not fits or norm.num_features != channels:
        return None
    affine = _affine(norm)
    if isinstance(layer, (qnn.QLinear, QConvolution)) and not affine.whole:
        return None
    return lambda: _scale_outputs(layer, affine)


def _scale_outputs(layer: Any, affine: _Affine) -> None:
    """``layer`` followed by ``affine``."""
    weight = layer.weight.double()
    if isinstance(layer, (qnn.QLinear, QConvolution)):
        rows = affine.scale[: weight.shape[1]].view(-1, *[1] * (weight.dim() - 2))
        if isinstance(layer, QConvolution) and layer.constant is not None:
            layer.constant = _like(layer.constant, layer.constant.double() * rows)
        weight = weight * rows
    elif isinstance(layer, REAL_CONVOLUTIONS) and layer.transposed:  # (in, out/groups, *kernel)
        grouped = weight.unflatten(0, (layer.groups, -1))
        weight = (grouped * affine.scale.view(layer.groups, 1, -1, *[1] * (weight.dim() - 2))).flatten(0, 1)
    else:
        weight = weight * affine.scale.view(-1, *[1] * (weight.dim() - 1))
    bias = affine.shift
    if layer.bias is not None:
        bias = bias + affine.scale * layer.bias.double().flatten()
    _set(layer, weight, bias)


def _into_layer_after(node: fx.Node, modules: dict[str, nn.Module], alone: Alone) -> Callable[[], None] | None:
    after, flat = _walk(node, modules, back=False)
    if after is None or not alone(after, (*_CONVOLUTIONS, *_LINEAR)) or _only_input(after) is None:
        return None
    norm: Any = modules[str(node.target)]
    layer = modules[str(after.target)]
    space = _NORMS[type(norm)]
    if isinstance(layer, _LINEAR):
        channels = layer.in_features
        fits = channels % norm.num_features == 0 if flat else space == 1 and channels == norm.num_features
    else:
        assert isinstance(layer, (QConvolution, *REAL_CONVOLUTIONS))
        channels = layer.in_channels
        fits = not flat and space == len(layer.kernel_size) and channels == norm.num_features
        fits = fits and not layer.transposed and not pads_with_zeros(layer)
    # The normalisation made a new tensor; without it the layer gets the old one, which nobody may have changed by then.
    if not fits or any(_writes(other, modules) for other in _between(node, after)):
        return None
    affine = _affine(norm)
    if isinstance(layer, (qnn.QLinear, QConvolution)) and not (
        layer.input_parts == UNITS if affine.whole else len(layer.input_parts) == 1
    ):
        return None
    return lambda: _scale_inputs(layer, affine, channels // norm.num_features)


def _scale_inputs(layer: Any, affine: _Affine, times: int) -> None:
    """``affine`` followed by ``layer``, whose input has each channel ``times`` times in a row."""
    weight, scale, shift = layer.weight.double(), *(v.repeat_interleave(times) for v in (affine.scale, affine.shift))
    if isinstance(layer, (qnn.QLinear, QConvolution)):
        scale = scale[: len(scale) // len(layer.input_parts)]
    if isinstance(layer, _LINEAR):
        if isinstance(layer, qnn.QLinear):
            bias = F.linear(shift, weight, input_parts=layer.input_parts)
        else:
            bias = weight @ shift
        weight = weight * scale
    else:  # an input of one kernel's size that is the shift everywhere gives what the shift adds to each output
        groups, kernel = layer.groups, layer.kernel_size
        image = shift.view(1, -1, *[1] * len(kernel)).expand(1, -1, *kernel)
        axis = weight.dim() - len(kernel) - 2
        if isinstance(layer, QConvolution):
            bias = F.conv(image, weight, groups=groups, input_parts=layer.input_parts)
        else:
            convolve = (TF.conv1d, TF.conv2d, TF.conv3d)[len(kernel) - 1]
            bias = convolve(image, weight, groups=groups)
        columns = scale.view(groups, 1, -1, *[1] * len(kernel))
        weight = (weight.unflatten(axis, (groups, -1)) * columns).flatten(axis, axis + 1)
    bias = bias.flatten()
    if layer.bias is not None:
        bias = bias + layer.bias.double().flatten()
    _set(layer, weight, bias)


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
    return node.op == "call_function" and (node.target in _IN_PLACE or name.endswith("_") or flagged)


def _like(old: nn.Parameter, new: Tensor) -> nn.Parameter:
    """``new`` in the type and the memory layout of ``old``."""
    value = torch.empty_like(old).copy_(new)
    return nn.Parameter(value, old.requires_grad)


def _set(layer: Any, weight: Tensor, bias: Tensor) -> None:
    old = layer.weight
    quaternion = isinstance(layer, (qnn.QLinear, QConvolution))
    layer.weight = _like(old, weight)
    shape = (4, -1) if quaternion else (-1,)
    layer.bias = nn.Parameter(bias.view(shape).to(old.dtype), old.requires_grad)
    layer.train(layer.training)  # forgets the expanded weight
