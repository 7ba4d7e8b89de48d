"""How a network is read: the tracer, and which of torch's operations do what to the channels of a value."""

import operator
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, fx, nn

from quern import functional as F
from quern import nn as qnn
from quern.errors import TraceError
from quern.nn._conv import _QConvolution
from quern.nn._norm import _QBatchNorm
from quern.nn._recurrent import _QRecurrent

REAL_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
# Modules and functions that keep channels apart: each output channel depends on the same input channel alone.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, qnn.QDropout, qnn.QDropout2d)
APART_MODULES = (
    *(nn.Identity, *DROPOUTS),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid),
)
QUATERNION_POOLS = {qnn.QMaxPool1d: (1,), qnn.QMaxPool2d: (2,), qnn.QMaxPool3d: (3,)}
POOLS: dict[type[nn.Module], tuple[int, ...]] = {
    **{
        getattr(nn, f"{kind}Pool{n}d"): (n,) for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax") for n in (1, 2, 3)
    },
    **QUATERNION_POOLS,
    nn.Upsample: (1, 2, 3),
}
REAL_NORMS = {nn.BatchNorm1d: (0, 1), nn.BatchNorm2d: (2,), nn.BatchNorm3d: (3,)}
BATCH_NORMS = (*REAL_NORMS, _QBatchNorm, qnn.QWhiteningBatchNorm2d)
WITH_NEURONS = (qnn.QLinear, _QConvolution, qnn.QEmbedding, _QRecurrent)
OF_QUATERNIONS = (_QBatchNorm, qnn.QWhiteningBatchNorm2d, qnn.QModReLU, qnn.Modulus, *QUATERNION_POOLS)
ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "leaky_relu", "relu6", "hardtanh", "softplus")
APART_FUNCTIONS = {
    *(getattr(TF, name) for name in (*ACTIVATIONS, "dropout", "dropout1d", "dropout2d", "dropout3d")),
    *(torch.relu, torch.tanh, torch.sigmoid, operator.neg, torch.neg, F.dropout),
}
POOL_FUNCTIONS = {
    getattr(TF, f"{kind}_pool{n}d"): (n,) for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)
}
APART_METHODS = {"relu", "tanh", "sigmoid", "contiguous", "clone", "detach", "float", "double", "half", "to", "neg"}
JOINING = {operator.add, operator.iadd, operator.sub, operator.mul, operator.imul, operator.truediv}
JOINING |= {torch.add, torch.sub, torch.mul, torch.div}
JOINING_METHODS = {"add", "add_", "sub", "mul", "mul_", "div"}
SIZES = {"shape", "ndim", "dtype", "device"}
SIZE_METHODS = {"size", "dim", "numel"}
REDUCTIONS = {torch.mean, torch.sum, torch.amax, torch.amin}
REDUCING_METHODS = {"mean", "sum", "amax", "amin"}


class Tracer(fx.Tracer):
    """Into the user's own modules, not into layers, nor into the functions of quern."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=tuple(getattr(F, name) for name in F.__all__))
        self._autowrap_search += [F, qnn]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("quern.nn") or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, concrete: dict[str, Any] | None = None) -> fx.Graph:
    """The operations of ``model`` in eval mode, with layers and quern's functions whole. ``concrete`` are inputs that
    are given here, and not followed."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return Tracer().trace(model, concrete)
    except Exception as reason:  # whatever a user's forward does with a stand-in for a tensor
        said = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
        raise TraceError(
            f"the network's forward cannot be traced by torch.fx ({said}): leave out branches that depend on values."
        ) from reason
    finally:
        for module, mode in modes:
            module.training = mode


_GRAPHS: dict[Any, fx.Graph] = {}


def trace_known(model: nn.Module) -> fx.Graph:
    """As :func:`trace`, for whoever only reads the graph. Networks of one structure share it, where it depends on
    nothing else."""
    structure = _structure(model)
    if structure is None:
        return trace(model)
    if structure not in _GRAPHS:
        if len(_GRAPHS) >= 16:
            _GRAPHS.clear()
        _GRAPHS[structure] = trace(model)
    return _GRAPHS[structure]


def _structure(model: nn.Module) -> Any:
    """The names and classes of all modules, and which are the same; None if a module that is traced into is not torch's
    Sequential or quern's own, or does more than its class says: its forward may look at anything."""
    tracer, found, names = Tracer(), [], {}
    for name, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        if not tracer.is_leaf_module(module, name):
            known = kind is nn.Sequential or kind.__module__.startswith("quern.")
            if not known or "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
                return None
        found.append((name, kind, names.setdefault(module, name)))
    return tuple(found)


def convolution_edges(layer: Any, some: Tensor) -> Tensor:
    """``(outputs, inputs)`` of a convolution, both over all groups, where ``some``, of the shape of its weight, is
    True: quaternions, or channels of a real one."""
    if isinstance(layer, _QConvolution):
        some = some.any(0)
    elif layer.transposed:  # (in, out/groups, ...)
        some = torch.cat([part.transpose(0, 1) for part in some.chunk(layer.groups)])
    some = some.flatten(2).any(2)
    return some if layer.groups == 1 else torch.block_diag(*some.chunk(layer.groups)).bool()


def pads_with_zeros(layer: Any) -> bool:
    """Whether a constant input of a convolution gives another value at the border than in the middle."""
    if layer.transposed:  # outputs at the border lack some of the products
        plain = (
            *((k, 1) for k in layer.kernel_size),
            *((s, 1) for s in layer.stride),
            *((p, 0) for p in layer.padding),
        )
        return any(size != trivial for size, trivial in plain) or any(layer.output_padding)
    if layer.padding_mode != "zeros" or layer.padding == "valid":
        return False
    return any(k > 1 for k in layer.kernel_size) if layer.padding == "same" else any(layer.padding)


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
    found: dict[str, set[str] | None] = {}
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(root.get_submodule(str(node.target)), (qnn.QLinear, _QConvolution)):
            norms, known = _ends(root, node), found.get(str(node.target), set())
            found[str(node.target)] = None if norms is None or known is None else norms | known
    names = {layer: name for name, layer in model.named_modules()}  # as the model itself has them

    def own(name: str) -> str:
        return names[root.get_submodule(name)]

    return {own(layer): tuple(sorted(map(own, norms))) for layer, norms in found.items() if norms}


def _ends(root: nn.Module, node: fx.Node) -> set[str] | None:
    """The batch normalisations that all uses of a value end in; None if one ends elsewhere."""
    found: set[str] = set()
    for user in node.users:
        layer = root.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(layer, BATCH_NORMS):
            found.add(str(user.target))
        elif len(user.all_input_nodes) == 1 and (_keeps_constants(layer) if layer is not None else _is_plain(user)):
            beyond = _ends(root, user)
            if beyond is None:
                return None
            found |= beyond
        else:
            return None
    return found


def _keeps_constants(layer: nn.Module) -> bool:
    if isinstance(layer, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)):
        return layer.padding in (0, (0,), (0, 0), (0, 0, 0))
    kept = (*APART_MODULES, *POOLS, nn.Flatten, qnn.QModReLU)
    return isinstance(layer, kept) and not isinstance(layer, DROPOUTS)


def _is_plain(node: fx.Node) -> bool:
    activations = {getattr(TF, name) for name in ACTIVATIONS} | {torch.relu, torch.tanh, torch.sigmoid}
    pools = {target for target in POOL_FUNCTIONS if "avg_pool" not in target.__name__ or "adaptive" in target.__name__}
    return node.target in activations | pools | {torch.flatten, "flatten", "relu", "tanh", "sigmoid", "contiguous"}
