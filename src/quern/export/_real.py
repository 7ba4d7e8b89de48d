"""The network without quaternions: every layer as the real layer of ``torch.nn`` that computes the same."""

import copy
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer

from quern import functional as F
from quern import nn as qnn
from quern.compact import warn_dead
from quern.compact.folding import NOTHING, fold_graph, hooked
from quern.errors import ExportError
from quern.export import _plain
from quern.functional.products import block_weight
from quern.functional.shapes import same_padding, weight_layout
from quern.graph import Example, Tracer, check_traceable, inputs_of, trace_for
from quern.liveness import liveness
from quern.nn.bases import QBatchNorm, QConvolution, QMaxPool, QRecurrent

__all__ = ["to_real"]


def to_real(model: nn.Module, example: Example | None = None) -> fx.GraphModule:
    """A new network of plain ``torch.nn`` layers and torch operations that computes the same as ``model.eval()``.

    Batch normalisation is folded into the layer next to it where that is exact, dropout is gone, and submodules keep
    their names. Running it, or reading it from a file of ``torch.save``, needs no quern. Inputs are taken to have a
    batch axis, and what stands between a linear layer and a one-dimensional normalisation to be ``(batch, features)``.
    Optional inputs are left out, but for those that ``example``, an input or a tuple of several as in
    :func:`quern.compact.compact`, has. A network whose output does not depend on its input any more is a warning.
    """
    real = real_form(model, None if example is None else len(inputs_of(model, example)))
    if liveness(model).dead:
        warn_dead()
    return real


@torch.no_grad()
def real_form(model: nn.Module, count: int | None = None) -> fx.GraphModule:
    """What :func:`to_real` returns, for calls with the first ``count`` inputs."""
    check_traceable(model)
    folded = copy.deepcopy(model).eval()
    alone = Tracer().is_leaf_module(folded, "")
    root, graph = _one_layer(folded, count) if alone else (folded, trace_for(folded, count)[0])
    fold_graph(root, graph)
    writer = _Writer(set(dict(root.named_modules())))
    for node in graph.nodes:
        writer.write(node, root)
    real = fx.GraphModule(writer.root, writer.graph)
    fold_graph(real, real.graph)  # what a real layer can take and a quaternion one cannot
    real.delete_all_unused_submodules()
    real.recompile()
    return real.eval()


def _one_layer(layer: nn.Module, count: int | None) -> tuple[nn.Module, fx.Graph]:
    """A network of one layer, called with ``count`` inputs, by default what it must be given."""
    graph = fx.Graph()
    parameters = list(inspect.signature(layer.forward).parameters.values())
    given = [p for p in parameters if p.default is p.empty] if count is None else parameters[:count]
    args = [graph.placeholder(p.name) for p in given]
    graph.output(graph.call_module("0", tuple(args)))
    return nn.Sequential(layer), graph


class _Writer:
    """A graph of torch operations in the making, and the modules and tensors it uses by name."""

    def __init__(self, taken: set[str]) -> None:
        self.graph, self.root = fx.Graph(), dict[str, Any]()
        self.tracer = GraphAppendingTracer(self.graph)
        self.values: dict[fx.Node, Any] = {}
        self.taken = taken

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
            self.values[node] = self.module(name, source.get_submodule(name), args, kwargs)
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
        if target in _FUNCTIONS:
            return _FUNCTIONS[target](*args, **kwargs)
        if _is_quern(getattr(target, "__module__", None)):
            raise ExportError(
                f"{node.name} calls quern's function {target.__name__}, which has no real form: use a layer."
            )
        return self.record("call_function", target, args, kwargs)

    def module(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if hooked(module):
            raise ExportError(f"{name} ({type(module).__name__}) has forward hooks, which cannot be followed.")
        if type(module) in NOTHING:
            return args[0] if args else next(iter(kwargs.values()))
        twin = _TWINS.get(type(module))
        if twin is not None:
            return twin(self, name, module, *args, **kwargs)
        if own := next((m for m in module.modules() if _is_quern(type(m).__module__)), None):
            raise ExportError(f"{name} ({type(own).__name__}) has no real form that quern knows.")
        return self.call(name, lambda: module, *args, **kwargs)


def _is_quern(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "quern"


def _attribute(source: nn.Module, name: str) -> Any:
    path, _, last = name.rpartition(".")
    return getattr(source.get_submodule(path), last)


def _build(kind: Callable[..., Any], *sizes: int, weight: Tensor, bias: Tensor | None, **options: Any) -> nn.Module:
    """A real layer with these parameters, and no time or random numbers spent on others."""
    layer = kind(*sizes, bias=bias is not None, device="meta", dtype=weight.dtype, **options)
    layer.weight = nn.Parameter(weight.detach().clone())  # clone keeps the memory layout
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


# ------------------------------------------------------------------------------------------------- layer by layer


def _linear(w: _Writer, name: str, layer: qnn.QLinear, input: Any) -> Any:
    def build() -> nn.Module:
        weight = block_weight(layer.weight, layer.input_parts)
        bias = None if layer.bias is None else layer.bias.flatten()
        return _build(nn.Linear, layer.in_features, layer.out_features, weight=weight, bias=bias)

    return w.call(name, build, input)


_CONVOLUTIONS: dict[type[QConvolution], Any] = {
    qnn.QConv1d: nn.Conv1d,
    qnn.QConv2d: nn.Conv2d,
    qnn.QConv3d: nn.Conv3d,
    qnn.QConvTranspose1d: nn.ConvTranspose1d,
    qnn.QConvTranspose2d: nn.ConvTranspose2d,
    qnn.QConvTranspose3d: nn.ConvTranspose3d,
}


def _convolution(w: _Writer, name: str, layer: QConvolution, input: Any, output_size: Any = None) -> Any:
    kind, groups = _CONVOLUTIONS[type(layer)], layer.groups
    options = {name: getattr(layer, name) for name in ("kernel_size", "stride", "dilation", "padding_mode", "padding")}
    beyond: list[int] = []
    if layer.transposed:
        options["output_padding"] = layer.output_padding
    elif layer.padding == "same" and layer.padding_mode == "zeros":
        # In numbers, because torch warns where the two sides of the word differ.
        sides = same_padding(layer.kernel_size, layer.dilation)
        options["padding"] = tuple(near for near, _ in sides)
        if any(far > near for near, far in sides):
            beyond = [more for near, far in reversed(sides) for more in (0, far - near)]
    more = {} if output_size is None else {"output_size": output_size}
    layout = weight_layout(layer.weight) or torch.contiguous_format

    def build() -> nn.Module:
        weight = block_weight(layer.weight, layer.input_parts, groups, layer.transposed, layout)
        bias = None if layer.bias is None else layer.bias.unflatten(1, (groups, -1)).transpose(0, 1).flatten()
        return _build(kind, layer.in_channels, layer.out_channels, weight=weight, bias=bias, groups=groups, **options)

    def build_constant() -> nn.Module:
        assert layer.constant is not None
        weight = block_weight(layer.constant, "r", 1, layer.transposed, layout)
        return _build(kind, 1, layer.out_channels, weight=weight, bias=None, **options)

    x = TF.pad(input, beyond) if beyond else input
    if groups == 1:
        y = w.call(name, build, x, **more)
    else:  # a real grouped convolution wants the channels of a group side by side
        x = _plain.swap_channel_order(x, layer.space, len(layer.input_parts), groups)
        y = _plain.swap_channel_order(w.call(name, build, x, **more), layer.space, groups, 4)
    if layer.constant is None:
        return y
    sizes = [input.shape[axis] for axis in range(-layer.space, 0)]
    ones = input.new_ones((1, 1, *sizes))
    ones = TF.pad(ones, beyond) if beyond else ones
    return y + w.call(w.beside(name, "constant"), build_constant, ones, **more)


_NORMS: dict[type[nn.Module], Any] = {
    qnn.QBatchNorm1d: nn.BatchNorm1d,
    qnn.QBatchNorm2d: nn.BatchNorm2d,
    qnn.QBatchNorm3d: nn.BatchNorm3d,
}


def _batch_norm(w: _Writer, name: str, layer: QBatchNorm, input: Any) -> Any:
    mean, var = layer.running_mean, layer.running_var
    if mean is None or var is None:
        raise ExportError(_no_statistics(name, layer))

    def build() -> nn.Module:
        affine = layer.weight is not None or layer.bias is not None
        norm = _NORMS[type(layer)](layer.num_features, layer.eps, affine=affine, device="meta")
        if affine:
            scale = torch.ones_like(var) if layer.weight is None else layer.weight
            shift = torch.zeros_like(mean) if layer.bias is None else layer.bias
            norm.weight, norm.bias = nn.Parameter(scale.repeat(4)), nn.Parameter(shift.flatten().clone())
        norm.running_mean, norm.running_var = mean.flatten().clone(), var.repeat(4)
        norm.num_batches_tracked = layer.num_batches_tracked.clone()
        return norm

    return w.call(name, build, input)


def _no_statistics(name: str, layer: nn.Module) -> str:
    return f"{name} ({type(layer).__name__}) keeps no running statistics, so what it computes depends on the batch."


def _whitening(w: _Writer, name: str, layer: qnn.QWhiteningBatchNorm2d, input: Any) -> Any:
    """A 1x1 convolution with a diagonal in each of its 4x4 blocks."""
    if layer.running_mean is None or layer.running_cov is None:
        raise ExportError(_no_statistics(name, layer))
    n, like = layer.num_features // 4, layer.running_mean

    def build() -> nn.Module:
        # What it makes of zero is the shift; what a 1 in one component adds to that, a column of the matrix.
        units = TF.pad(torch.eye(4).to(like), (0, 0, 1, 0)).repeat_interleave(n, 1)
        shift, *columns = layer(units.view(5, 4 * n, 1, 1)).flatten(1)
        blocks = torch.stack(columns).sub(shift).view(4, 4, n).transpose(0, 1)  # (to, from, n)
        weight = torch.diag_embed(blocks).transpose(1, 2).reshape(4 * n, 4 * n, 1, 1)
        return _build(nn.Conv2d, 4 * n, 4 * n, weight=weight, bias=shift, kernel_size=1)

    return w.call(name, build, input)


def _layer_norm(w: _Writer, name: str, layer: qnn.QLayerNorm, input: Any) -> Any:
    weight, bias = w.tensor(f"{name}.weight", layer.weight), w.tensor(f"{name}.bias", layer.bias)
    return _plain.layer_norm(input, layer.normalized_shape, weight, bias, layer.eps)


def _max_pool(w: _Writer, name: str, layer: QMaxPool, input: Any) -> Any:  # noqa: ARG001
    y, indices = _plain.max_pool(
        input, layer.space, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode
    )
    return (y, indices) if layer.return_indices else y


def _mod_relu(w: _Writer, name: str, layer: qnn.QModReLU, input: Any) -> Any:
    return _plain.mod_relu(input, w.tensor(f"{name}.bias", layer.bias), layer.dim)


def _modulus(w: _Writer, name: str, layer: qnn.Modulus, input: Any) -> Any:  # noqa: ARG001
    return _plain.modulus(input, layer.dim)


def _embedding(w: _Writer, name: str, layer: qnn.QEmbedding, input: Any) -> Any:
    def build() -> nn.Module:
        table = layer.weight.transpose(0, 1).flatten(1)
        if layer.max_norm is not None:  # the layer shortens long rows when it meets them
            length = torch.linalg.vector_norm(table, layer.norm_type, dim=1, keepdim=True)
            table = table * torch.where(length > layer.max_norm, layer.max_norm / length, 1)
        return nn.Embedding.from_pretrained(table.clone(), freeze=False, padding_idx=layer.padding_idx)

    return w.call(name, build, input)


def _average(input: Any, space: int) -> Any:
    """Over all positions. Of channels_last values torch's own pooling would be exported as a gathering of strides."""
    return input.mean(tuple(range(-space, 0)), keepdim=True)


def _average_pool(w: _Writer, name: str, layer: Any, input: Any) -> Any:
    space = _AVERAGES[type(layer)]
    if layer.output_size in (1, (1,) * space):
        return _average(input, space)
    return w.call(name, lambda: layer, input)


_AVERAGES: dict[type[nn.Module], int] = {nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3}


_RECURRENT: dict[type[QRecurrent], Any] = {qnn.QRNN: nn.RNN, qnn.QLSTM: nn.LSTM, qnn.QGRU: nn.GRU}


def _recurrent(w: _Writer, name: str, layer: QRecurrent, input: Any, hx: Any = None) -> Any:
    def build() -> nn.Module:
        options: dict[str, Any] = {"nonlinearity": layer.nonlinearity} if isinstance(layer, qnn.QRNN) else {}
        names = ("num_layers", "bias", "batch_first", "bidirectional")
        options |= {name: getattr(layer, name) for name in names}
        dtype = layer.weight_ih_l0.dtype
        real = _RECURRENT[type(layer)](layer.input_size, layer.hidden_size, dtype=dtype, device="meta", **options)
        for own in layer._names:
            setattr(real, own, nn.Parameter(layer._real(own).detach().clone()))
        return real

    found = w.call(name, build, input) if hx is None else w.call(name, build, input, hx)
    output = found[0]
    if layer.bidirectional:  # torch joins the directions as they are
        output = output.unflatten(-1, (2, 4, -1)).transpose(-3, -2).flatten(-3)
    return output, found[1]


def _attention(
    w: _Writer,
    name: str,
    layer: qnn.QMultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # noqa: ARG001, a hint about the mask
) -> Any:
    """With a batch, and without masks except one that belongs to the network: of others the type is not known."""
    mask = None
    if attn_mask is not None:
        mask = w.root.get(attn_mask.node.target) if attn_mask.node.op == "get_attr" else None
    if key_padding_mask is not None or (attn_mask is not None and mask is None):
        raise ExportError(f"{name} ({type(layer).__name__}) is called with a mask that is computed or an input.")
    if not layer.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    k = _linear(w, f"{name}.k_proj", layer.k_proj, key)
    v = _linear(w, f"{name}.v_proj", layer.v_proj, value)
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=layer.q_proj.weight.dtype).to(mask.device).masked_fill(mask, -math.inf)
        extra = (layer.bias_k is not None) + layer.add_zero_attn
        shape = (1, 1) if mask.dim() == 2 else (-1, layer.num_heads)
        mask = TF.pad(mask.to(layer.q_proj.weight.dtype), (0, extra)).view(*shape, *mask.shape[-2:-1], -1)
        mask = w.tensor(f"{name}.mask", mask)
    if layer.bias_k is not None and layer.bias_v is not None:
        more = [
            (w.tensor(f"{name}.bias_{n}", t.flatten()), x)
            for n, t, x in (("k", layer.bias_k, k), ("v", layer.bias_v, v))
        ]
        k, v = (torch.cat([x, one.expand(x.shape[0], 1, -1)], 1) for one, x in more)
    if layer.add_zero_attn:
        k, v = (TF.pad(x, (0, 0, 0, 1)) for x in (k, v))
    q = _linear(w, f"{name}.q_proj", layer.q_proj, query)
    q, k, v = (_plain.heads(x, layer.num_heads) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(layer.embed_dim // layer.num_heads)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    output = _linear(w, f"{name}.out_proj", layer.out_proj, _plain.joined(weights @ v))
    if not layer.batch_first:
        output = output.transpose(0, 1)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any) -> Any:  # noqa: ARG001
    if training and p:
        raise ExportError(
            "the network drops quaternions at random, training or not, so it is no function of its input."
        )
    return x


_TWINS: dict[type[nn.Module], Callable[..., Any]] = {
    qnn.QLinear: _linear,
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_NORMS, _batch_norm),
    qnn.QWhiteningBatchNorm2d: _whitening,
    qnn.QLayerNorm: _layer_norm,
    **dict.fromkeys((qnn.QMaxPool1d, qnn.QMaxPool2d, qnn.QMaxPool3d), _max_pool),
    qnn.QModReLU: _mod_relu,
    qnn.Modulus: _modulus,
    **dict.fromkeys(_AVERAGES, _average_pool),
    qnn.QEmbedding: _embedding,
    **dict.fromkeys(_RECURRENT, _recurrent),
    qnn.QMultiheadAttention: _attention,
}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.cat: _plain.cat,
    F.dropout: _dropout,
    F.encode_gray: _plain.encode_gray,
    F.encode_rgb: _plain.encode_rgb,
    F.layer_norm: _plain.layer_norm,
    F.mod_relu: _plain.mod_relu,
    F.modulus: _plain.modulus,
}
