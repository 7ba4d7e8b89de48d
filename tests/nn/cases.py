"""One entry per layer and way of using it. An entry inherits every law of test_laws.py.

``real`` is a slow version of the layer that shares nothing with quern: numpy loops for products, torch.nn for what is a
real operation on the block weights. It takes the layer and its inputs, so that it can be used for finite differences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quern import nn as qnn
from tests import oracle

F64 = torch.float64


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[..., nn.Module]  # make(device=..., dtype=...)
    inputs: tuple[tuple[int, ...] | Tensor, ...]  # shapes of float inputs, or the input itself
    real: Callable[..., Any]
    training: bool = False  # whether the oracle describes training rather than eval

    def build(self, dtype: torch.dtype = F64) -> nn.Module:
        """The layer with random parameters and statistics, none of them at a special value."""
        torch.manual_seed(1)
        layer = self.make(device="cpu", dtype=dtype)
        with torch.no_grad():
            for p in layer.parameters():
                p.copy_(torch.randn_like(p) / 2)
            for name, b in layer.named_buffers():
                if name.endswith("running_mean"):
                    b.copy_(torch.randn_like(b))
                elif name.endswith("running_cov"):
                    root = torch.randn(b.shape[2], 4, 4, dtype=b.dtype) / 4 + torch.eye(4, dtype=b.dtype)
                    b.copy_((root @ root.mT).permute(1, 2, 0))
                elif name.endswith("running_var"):
                    b.copy_(torch.rand_like(b) + 0.5)
        return layer.train(self.training)

    def draw(self, dtype: torch.dtype = F64) -> list[Tensor]:
        generator = torch.Generator().manual_seed(2)
        return [
            i if isinstance(i, Tensor) else torch.randn(i, dtype=F64, generator=generator).to(dtype)
            for i in self.inputs
        ]


def array(t: Tensor) -> np.ndarray:
    return t.detach().numpy()


def like(values: np.ndarray, t: Tensor) -> Tensor:
    return torch.from_numpy(values).to(t.dtype)


def real_linear(layer: Any, x: Tensor) -> Tensor:
    full = oracle.fill_parts(array(x), layer.input_parts, -1)
    bias = None if layer.bias is None else array(layer.bias)
    y = oracle.linear(full.reshape(-1, full.shape[-1]), array(layer.weight), bias)
    return like(y.reshape(*x.shape[:-1], -1), x)


def real_conv(layer: Any, x: Tensor) -> Tensor:
    batched = x.dim() == layer.space + 2
    full = oracle.fill_parts(array(x if batched else x.unsqueeze(0)), layer.input_parts, 1)
    if layer.padding == "same":
        total = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    elif layer.padding == "valid":
        pads = [(0, 0)] * layer.space
    else:
        pads = [(p, p) for p in layer.padding]
    mode = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[layer.padding_mode]
    bias = None if layer.bias is None else array(layer.bias)
    y = oracle.conv(full, array(layer.weight), bias, layer.stride, pads, layer.dilation, layer.groups, mode)
    return like(y if batched else y[0], x)


def real_split_conv(layer: Any, x: Tensor) -> Tensor:
    """Component by component and channel by channel: a convolution of one channel with one filter."""
    batched = x if x.dim() == 4 else x.unsqueeze(0)
    if layer.padding_mode != "zeros":
        vertical, horizontal = layer.padding
        batched = nn.functional.pad(batched, (horizontal, horizontal, vertical, vertical), mode=layer.padding_mode)
    filters = layer.weight.reshape(-1, 1, 1, *layer.kernel_size)
    shifts = [None] * len(filters) if layer.bias is None else layer.bias.reshape(-1, 1)
    padding = layer.padding if layer.padding_mode == "zeros" else 0  # a word is torch's own
    channels = [
        nn.functional.conv2d(channel.unsqueeze(1), one, shift, layer.stride, padding, layer.dilation)
        for channel, one, shift in zip(batched.unbind(1), filters, shifts, strict=True)
    ]
    return torch.cat(channels, 1).reshape(*x.shape[:-2], *channels[0].shape[2:])


def real_conv_transpose(layer: Any, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else array(layer.bias)
    weight, g = array(layer.weight), layer
    y = oracle.conv_transpose(array(x), weight, bias, g.stride, g.padding, g.output_padding, g.dilation, g.groups)
    return like(y, x)


def real_batch_norm(layer: Any, x: Tensor) -> Tensor:
    q = oracle.channels_apart(array(x), 1)  # (4, batch, C, *space)
    axes = (1, *range(3, q.ndim))
    if layer.training or layer.running_mean is None:
        mean = q.mean(axes, keepdims=True)
        var = (np.abs(q - mean) ** 2).sum(0, keepdims=True).mean(axes, keepdims=True)
    else:
        shape = (1, -1, *[1] * (q.ndim - 3))
        mean = array(layer.running_mean).reshape(4, *shape)
        var = array(layer.running_var).reshape(1, *shape)
    y = (q - mean) / np.sqrt(var + layer.eps)
    shape = (1, -1, *[1] * (q.ndim - 3))
    if layer.weight is not None:
        y = y * array(layer.weight).reshape(1, *shape)
    if layer.bias is not None:
        y = y + array(layer.bias).reshape(4, *shape)
    return like(oracle.channels_joined(y, 1), x)


def real_whitening(layer: Any, x: Tensor) -> Tensor:
    q = oracle.channels_apart(array(x), 1)
    y = np.empty_like(q)
    for c in range(q.shape[2]):
        h = q[:, :, c].reshape(4, -1)
        if layer.training:
            h, cov = h - h.mean(1, keepdims=True), np.cov(h, bias=True)
        else:
            h, cov = h - array(layer.running_mean)[:, c, None], array(layer.running_cov)[:, :, c]
        white = np.linalg.inv(np.linalg.cholesky(cov + layer.eps * np.eye(4))) @ h
        white = white if layer.weight is None else array(layer.weight)[:, :, c] @ white
        white = white + array(layer.bias)[:, c, None]
        y[:, :, c] = white.reshape(q[:, :, c].shape)
    return like(oracle.channels_joined(y, 1), x)


def real_layer_norm(layer: Any, x: Tensor) -> Tensor:
    q = oracle.channels_apart(array(x), -1)
    axes = tuple(range(q.ndim - len(layer.normalized_shape), q.ndim))
    h = q - q.mean(axes, keepdims=True)
    y = h / np.sqrt((h**2).sum(0, keepdims=True).mean(axes, keepdims=True) + layer.eps)
    if layer.weight is not None:
        y = y * array(layer.weight)
    if layer.bias is not None:
        y = y + array(layer.bias).reshape(4, *[1] * (y.ndim - layer.bias.dim()), *layer.bias.shape[1:])
    return like(oracle.channels_joined(y, -1), x)


def real_group_norm(layer: Any, x: Tensor) -> Tensor:
    q = oracle.channels_apart(array(x), 1)
    y = np.empty_like(q)
    size = q.shape[2] // layer.num_groups
    for sample in range(q.shape[1]):
        for group in range(layer.num_groups):
            part = (slice(None), sample, slice(group * size, group * size + size))
            h = q[part] - q[part].reshape(4, -1).mean(1).reshape(4, *[1] * (q.ndim - 2))
            y[part] = h / np.sqrt((h**2).sum(0).mean() + layer.eps)
    shape = (-1, *[1] * (q.ndim - 3))
    if layer.weight is not None:
        y = y * array(layer.weight).reshape(shape)
    if layer.bias is not None:
        y = y + array(layer.bias).reshape(4, 1, *shape)
    return like(oracle.channels_joined(y, 1), x)


def real_max_pool(layer: Any, x: Tensor) -> Tensor:
    """Non-overlapping or overlapping windows without padding, by loops."""
    q = oracle.channels_apart(array(x), 1)
    space = q.shape[3:]
    k, s = layer.kernel_size, layer.stride
    size = [(n - k) // s + 1 for n in space]
    y = np.empty((*q.shape[:3], *size))
    for place in np.ndindex(*size):
        window = q[(..., *(slice(p * s, p * s + k) for p in place))].reshape(*q.shape[:3], -1)
        best = (window**2).sum(0).argmax(-1)
        y[(..., *place)] = np.take_along_axis(window, best[None, :, :, None], -1)[..., 0]
    return like(oracle.channels_joined(y, 1), x)


def real_split_max_pool(layer: Any, x: Tensor) -> Tensor:
    """Windows of 2x2 without padding, by loops."""
    numbers = array(x)
    y = np.empty((*numbers.shape[:2], *(n // 2 for n in numbers.shape[2:])))
    for row, column in np.ndindex(*y.shape[2:]):
        y[:, :, row, column] = numbers[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].max((2, 3))
    return like(y, x)


def real_mod_relu(layer: Any, x: Tensor) -> Tensor:
    q = oracle.channels_apart(array(x), layer.dim)
    size = np.sqrt((q**2).sum(0))
    bias = np.moveaxis(array(layer.bias).reshape(-1, *[1] * (x.dim() - 1)), 0, layer.dim)
    return like(oracle.channels_joined(q * np.maximum(size + bias, 0) / size, layer.dim), x)


def real_modulus(layer: Any, x: Tensor) -> Tensor:
    return like(np.sqrt((oracle.channels_apart(array(x), layer.dim) ** 2).sum(0)), x)


def real_embedding(layer: Any, indices: Tensor) -> Tensor:
    table = array(layer.weight).transpose(1, 0, 2).reshape(layer.num_embeddings, -1)
    return like(table[array(indices)], layer.weight)


def real_recurrent(layer: Any, x: Tensor, *states: Tensor) -> Any:
    """torch's cell by cell on the block weights, one direction and layer at a time; direction-wise joins by hand."""
    cell_type = {"QRNN": nn.RNNCell, "QLSTM": nn.LSTMCell, "QGRU": nn.GRUCell}[type(layer).__name__]
    h = layer.hidden_size
    steps = x.transpose(0, 1) if layer.batch_first else x
    directions = 2 if layer.bidirectional else 1
    finals: list[Any] = []
    with torch.no_grad():
        for n in range(layer.num_layers):
            outs = []
            for d in range(directions):
                suffix = f"l{n}" + ("_reverse" if d else "")
                extra = {"nonlinearity": layer.nonlinearity} if cell_type is nn.RNNCell else {}
                cell: Any = cell_type(steps.shape[-1], h, layer.bias, dtype=x.dtype, **extra)
                for kind in ("ih", "hh"):
                    w = array(getattr(layer, f"weight_{kind}_{suffix}"))
                    gates = np.split(w, layer.gates, 1)
                    getattr(cell, f"weight_{kind}").copy_(torch.from_numpy(np.concatenate([*map(oracle.block, gates)])))
                    if layer.bias:
                        b = np.split(array(getattr(layer, f"bias_{kind}_{suffix}")), layer.gates, 1)
                        getattr(cell, f"bias_{kind}").copy_(
                            torch.from_numpy(np.concatenate([g.reshape(-1) for g in b]))
                        )
                index = n * directions + d
                state: Any = [s[index] for s in states] or [x.new_zeros(steps.shape[1], h)] * (
                    2 if layer.gates == 4 else 1
                )
                state = tuple(state) if layer.gates == 4 else state[0]
                seen = [None] * len(steps)
                for t in reversed(range(len(steps))) if d else range(len(steps)):
                    state = cell(steps[t], state)
                    seen[t] = state[0] if layer.gates == 4 else state
                outs.append(torch.stack(seen))  # pyright: ignore
                finals.append(state if layer.gates == 4 else (state,))
            parts = [torch.from_numpy(oracle.channels_apart(array(o), -1)) for o in outs]
            steps = torch.from_numpy(oracle.channels_joined(np.concatenate([p.numpy() for p in parts], -1), -1))
    last = [torch.stack([f[i] for f in finals]) for i in range(len(finals[0]))]
    output = steps.transpose(0, 1) if layer.batch_first else steps
    return output, (last[0], last[1]) if layer.gates == 4 else last[0]


def real_attention(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
    """batch_first, no masks: head by head."""
    q, k, v = (
        oracle.channels_apart(array(real_linear(p, x)), -1)
        for p, x in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, value))
    )
    d = layer.embed_dim // 4 // layer.num_heads
    heads, weights = [], []
    for head in range(layer.num_heads):
        part = slice(head * d, head * d + d)
        scores = np.einsum("pntc,pnsc->nts", q[..., part], k[..., part]) / np.sqrt(4 * d)
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        weights.append(attention)
        heads.append(np.einsum("nts,pnsc->pntc", attention, v[..., part]))
    joined = like(oracle.channels_joined(np.concatenate(heads, -1), -1), query)
    return real_linear(layer.out_proj, joined), like(np.mean(weights, 0), query)


def real_feed_forward(layer: Any, x: Tensor) -> Tensor:
    return real_linear(layer.linear2, like(np.tanh(array(real_linear(layer.linear1, x))), x))


def real_encoder_layer(layer: Any, x: Tensor) -> Tensor:
    """Without dropout, with tanh between the linear layers."""
    if layer.norm_first:
        y = real_layer_norm(layer.norm1, x)
        x = x + real_attention(layer.self_attn, y, y, y)[0]
        return x + real_feed_forward(layer, real_layer_norm(layer.norm2, x))
    x = real_layer_norm(layer.norm1, x + real_attention(layer.self_attn, x, x, x)[0])
    return real_layer_norm(layer.norm2, x + real_feed_forward(layer, x))


def real_decoder_layer(layer: Any, x: Tensor, memory: Tensor) -> Tensor:
    if layer.norm_first:
        y = real_layer_norm(layer.norm1, x)
        x = x + real_attention(layer.self_attn, y, y, y)[0]
        x = x + real_attention(layer.multihead_attn, real_layer_norm(layer.norm2, x), memory, memory)[0]
        return x + real_feed_forward(layer, real_layer_norm(layer.norm3, x))
    x = real_layer_norm(layer.norm1, x + real_attention(layer.self_attn, x, x, x)[0])
    x = real_layer_norm(layer.norm2, x + real_attention(layer.multihead_attn, x, memory, memory)[0])
    return real_layer_norm(layer.norm3, x + real_feed_forward(layer, x))


def real_stack(layer: Any, x: Tensor, *memory: Tensor) -> Tensor:
    one = real_decoder_layer if memory else real_encoder_layer
    for part in layer.layers:
        x = one(part, x, *memory)
    return x if layer.norm is None else real_layer_norm(layer.norm, x)


def transformer_stack(
    stack: Callable[..., nn.Module], layer: Callable[..., nn.Module], norm: bool
) -> Callable[..., nn.Module]:
    def build(**factory: Any) -> nn.Module:
        one = layer(8, 2, 12, dropout=0.0, activation=torch.tanh, batch_first=True, **factory)
        return stack(one, 2, qnn.QLayerNorm(8, **factory) if norm else None)

    return build


def transformer_case(name: str, layer: Callable[..., nn.Module], shapes: Any, real: Any, **options: Any) -> Case:
    options = {"dropout": 0.0, "activation": torch.tanh, "batch_first": True, **options}
    return case(name, layer, (8, 2, 12), shapes, real, **options)


def case(name: str, layer: Callable[..., nn.Module], arguments: tuple, shape: Any, real: Any, **options: Any) -> Case:
    flags = {k: options.pop(k) for k in ("training",) if k in options}
    inputs = shape if isinstance(shape, list) else [shape]
    return Case(name, lambda **factory: layer(*arguments, **options, **factory), tuple(inputs), real, **flags)


def bare(layer: Callable[..., nn.Module], *arguments: Any, **options: Any) -> Callable[..., nn.Module]:
    """A layer without parameters, which takes no device and dtype."""
    return lambda device=None, dtype=None: layer(*arguments, **options)


CASES = [
    case("linear", qnn.QLinear, (8, 12), (3, 8), real_linear),
    case("linear_no_bias", qnn.QLinear, (8, 4), (2, 5, 8), real_linear, bias=False),
    case("linear_vector", qnn.QLinear, (8, 4), (8,), real_linear),
    case("linear_gray", qnn.QLinear, (5, 8), (3, 5), real_linear, input_parts="r"),
    case("linear_rgb", qnn.QLinear, (6, 8), (3, 6), real_linear, input_parts="ijk"),
    case("conv1d", qnn.QConv1d, (8, 12, 3), (2, 8, 7), real_conv, padding=1, stride=2),
    case("conv1d_same_even", qnn.QConv1d, (4, 8, 4), (2, 4, 7), real_conv, padding="same"),
    case("conv2d", qnn.QConv2d, (8, 4, 3), (2, 8, 6, 5), real_conv, padding=(1, 0), stride=(1, 2)),
    case("conv2d_unbatched", qnn.QConv2d, (8, 4, 3), (8, 6, 5), real_conv),
    case("conv2d_groups", qnn.QConv2d, (16, 8, 3), (2, 16, 5, 5), real_conv, groups=2, padding=1, dilation=2),
    case("conv2d_depthwise", qnn.QConv2d, (12, 12, 3), (2, 12, 5, 5), real_conv, groups=3, bias=False),
    case("conv2d_rgb", qnn.QConv2d, (3, 8, 3), (2, 3, 6, 6), real_conv, input_parts="ijk", padding="same"),
    case("conv2d_gray", qnn.QConv2d, (1, 8, 3), (2, 1, 6, 6), real_conv, input_parts="r", padding="valid"),
    case("conv2d_parts_groups", qnn.QConv2d, (4, 8, 3), (2, 4, 5, 5), real_conv, input_parts="ik", groups=2),
    case("conv2d_reflect", qnn.QConv2d, (4, 8, 3), (2, 4, 5, 6), real_conv, padding=(1, 2), padding_mode="reflect"),
    case("conv2d_circular", qnn.QConv2d, (4, 8, 2), (2, 4, 5, 5), real_conv, padding="same", padding_mode="circular"),
    case("conv2d_replicate", qnn.QConv2d, (4, 8, 3), (2, 4, 5, 5), real_conv, padding=2, padding_mode="replicate"),
    case("split_conv2d", qnn.SplitConv2d, (12, 3), (2, 12, 6, 5), real_split_conv, padding=(1, 0), stride=(1, 2)),
    case("split_conv2d_unbatched", qnn.SplitConv2d, (8, (1, 3)), (8, 6, 5), real_split_conv, dilation=2, bias=False),
    case("split_conv2d_same", qnn.SplitConv2d, (8, 3), (2, 8, 6, 5), real_split_conv, padding="same"),
    case(
        *("split_conv2d_reflect", qnn.SplitConv2d, (8, 3), (2, 8, 6, 5), real_split_conv),
        padding=1,
        padding_mode="reflect",
    ),
    case("conv2d_wide", qnn.QConv2d, (64, 64, 1), (2, 64, 3, 3), real_conv),
    case("conv3d", qnn.QConv3d, (8, 4, 2), (2, 8, 3, 4, 3), real_conv, padding=(0, 1, 0)),
    case("conv_transpose1d", qnn.QConvTranspose1d, (8, 4, 3), (2, 8, 4), real_conv_transpose, stride=2),
    case(
        "conv_transpose2d",
        qnn.QConvTranspose2d,
        (16, 8, 3),
        (2, 16, 3, 4),
        real_conv_transpose,
        stride=2,
        padding=1,
        output_padding=1,
        groups=2,
        dilation=2,
    ),
    case("conv_transpose3d", qnn.QConvTranspose3d, (4, 8, 2), (1, 4, 2, 3, 2), real_conv_transpose, bias=False),
    case("batch_norm1d", qnn.QBatchNorm1d, (8,), (5, 8), real_batch_norm),
    case("batch_norm1d_length", qnn.QBatchNorm1d, (8,), (3, 8, 4), real_batch_norm, training=True),
    case("batch_norm2d", qnn.QBatchNorm2d, (8,), (3, 8, 2, 3), real_batch_norm),
    case("batch_norm2d_training", qnn.QBatchNorm2d, (8,), (3, 8, 2, 3), real_batch_norm, training=True),
    case("batch_norm2d_plain", qnn.QBatchNorm2d, (8,), (3, 8, 2, 3), real_batch_norm, affine=False),
    case("batch_norm2d_no_shift", qnn.QBatchNorm2d, (8,), (3, 8, 2, 3), real_batch_norm, bias=False),
    case("batch_norm2d_fixed", qnn.QBatchNorm2d, (8,), (3, 8, 2, 3), real_batch_norm, fixed_scale=True),
    case("batch_norm2d_untracked", qnn.QBatchNorm2d, (8,), (3, 8, 2, 3), real_batch_norm, track_running_stats=False),
    case("batch_norm3d", qnn.QBatchNorm3d, (4,), (2, 4, 2, 3, 2), real_batch_norm, training=True),
    case("whitening", qnn.QWhiteningBatchNorm2d, (8,), (3, 8, 3, 4), real_whitening),
    case("whitening_fixed", qnn.QWhiteningBatchNorm2d, (8,), (3, 8, 3, 4), real_whitening, fixed_scale=True),
    case("whitening_training", qnn.QWhiteningBatchNorm2d, (8,), (3, 8, 3, 4), real_whitening, training=True),
    case("layer_norm", qnn.QLayerNorm, (12,), (3, 2, 12), real_layer_norm),
    case("layer_norm_axes", qnn.QLayerNorm, ((3, 8),), (2, 3, 8), real_layer_norm, bias=False),
    case("layer_norm_plain", qnn.QLayerNorm, (8,), (2, 8), real_layer_norm, elementwise_affine=False),
    Case("split_max_pool2d", bare(qnn.SplitMaxPool2d, 2), ((2, 8, 7, 6),), real_split_max_pool),
    Case("max_pool1d", bare(qnn.QMaxPool1d, 2), ((2, 8, 7),), real_max_pool),
    Case("max_pool2d", bare(qnn.QMaxPool2d, 3, 2), ((2, 8, 7, 6),), real_max_pool),
    Case("max_pool3d", bare(qnn.QMaxPool3d, 2), ((2, 4, 4, 2, 5),), real_max_pool),
    case("mod_relu", qnn.QModReLU, (8,), (3, 8, 4), real_mod_relu),
    case("mod_relu_last", qnn.QModReLU, (8,), (3, 5, 8), real_mod_relu, dim=-1),
    Case("modulus", bare(qnn.Modulus), ((3, 8, 2),), real_modulus),
    Case("modulus_last", bare(qnn.Modulus, dim=-1), ((3, 2, 8),), real_modulus),
    Case("dropout_eval", bare(qnn.QDropout, 0.5), ((3, 8),), lambda layer, x: x.clone()),
    Case("dropout2d_eval", bare(qnn.QDropout2d, 0.5), ((3, 8, 2, 2),), lambda layer, x: x.clone()),
    case("embedding", qnn.QEmbedding, (7, 8), torch.tensor([[1, 6, 0], [2, 2, 3]]), real_embedding),
    case("rnn", qnn.QRNN, (8, 12), (4, 3, 8), real_recurrent),
    case("rnn_relu", qnn.QRNN, (8, 12), (4, 3, 8), real_recurrent, nonlinearity="relu", bias=False),
    case("lstm", qnn.QLSTM, (8, 4), (4, 3, 8), real_recurrent, num_layers=2),
    case(
        "lstm_two_ways",
        qnn.QLSTM,
        (8, 8),
        (3, 5, 8),
        real_recurrent,
        num_layers=2,
        bidirectional=True,
        batch_first=True,
    ),
    case("gru", qnn.QGRU, (4, 8), [(4, 3, 4), (4, 3, 8)], real_recurrent, num_layers=2, bidirectional=True),
    case("attention", qnn.QMultiheadAttention, (16, 2), [(2, 3, 16)] * 3, real_attention, batch_first=True),
    case(
        "attention_sizes",
        qnn.QMultiheadAttention,
        (8, 1),
        [(2, 3, 8), (2, 5, 12), (2, 5, 4)],
        real_attention,
        batch_first=True,
        kdim=12,
        vdim=4,
        bias=False,
    ),
    case("group_norm", qnn.QGroupNorm, (2, 16), (3, 16, 2, 2), real_group_norm),
    case("group_norm_one", qnn.QGroupNorm, (1, 8), (3, 8, 5), real_group_norm),
    case("group_norm_plain", qnn.QGroupNorm, (3, 12), (2, 12, 3), real_group_norm, affine=False),
    transformer_case("encoder_layer", qnn.QTransformerEncoderLayer, (2, 3, 8), real_encoder_layer),
    transformer_case("encoder_first", qnn.QTransformerEncoderLayer, (2, 3, 8), real_encoder_layer, norm_first=True),
    transformer_case("decoder_layer", qnn.QTransformerDecoderLayer, [(2, 3, 8), (2, 2, 8)], real_decoder_layer),
    transformer_case(
        "decoder_first", qnn.QTransformerDecoderLayer, [(2, 3, 8), (2, 2, 8)], real_decoder_layer, norm_first=True
    ),
    Case(
        "encoder",
        transformer_stack(qnn.QTransformerEncoder, qnn.QTransformerEncoderLayer, norm=True),
        ((2, 3, 8),),
        real_stack,
    ),
    Case(
        "decoder",
        transformer_stack(qnn.QTransformerDecoder, qnn.QTransformerDecoderLayer, norm=False),
        ((2, 3, 8), (2, 2, 8)),
        real_stack,
    ),
]
