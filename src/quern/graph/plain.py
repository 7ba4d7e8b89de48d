"""Quaternion operations written with torch's alone, so that they can be recorded into a graph of torch operations.

They compute what the functions of ``quern.functional`` of the same names do. A recorded value does not know how many
axes it has, so axes are counted from the end where the layer counts them so, and nothing asks for a size.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as TF

Value = Any  # a tensor, or its stand-in while a graph is recorded

_POOLS: tuple[Any, ...] = (
    TF.max_pool1d_with_indices,
    TF.max_pool2d_with_indices,
    TF.max_pool3d_with_indices,
)


def _split(x: Value, dim: int) -> tuple[Value, int]:
    """``x`` with size 4 and then C in place of its 4*C quaternions along ``dim``, and where the 4 is."""
    return x.unflatten(dim, (4, -1)), dim if dim >= 0 else dim - 1


def modulus(x: Value, dim: int = 1) -> Value:
    h, at = _split(x, dim)
    return torch.linalg.vector_norm(h, dim=at)


def cat(tensors: Sequence[Value], dim: int = 1) -> Value:
    parts = [_split(t, dim) for t in tensors]
    at = parts[0][1]
    return torch.cat([h for h, _ in parts], at + 1).flatten(at, at + 1)


def encode_gray(x: Value, dim: int = 1) -> Value:
    zeros = torch.zeros_like(x)
    return torch.cat([x, zeros, zeros, zeros], dim)


def encode_rgb(x: Value, dim: int = 1) -> Value:
    return torch.cat([torch.zeros_like(x.chunk(3, dim)[0]), x], dim)


def mod_relu(x: Value, bias: Value, dim: int = 1) -> Value:
    h, at = _split(x, dim)
    size = torch.linalg.vector_norm(h, dim=at, keepdim=True)
    grown = TF.relu(size.movedim(at + 1, -1) + bias).movedim(-1, at + 1)
    return (h / size.masked_fill(size == 0, 1) * grown).flatten(at, at + 1)


def max_pool(
    x: Value,
    space: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
) -> tuple[Value, Value]:
    h, at = _split(x, -space - 1)
    parts = [h.select(at, n) for n in range(4)]
    size = torch.linalg.vector_norm(h, dim=at)  # ONNX has no hypot
    pooled = _POOLS[space - 1](size, kernel_size, stride, padding, dilation, ceil_mode)
    indices = pooled[1]
    picked = [part.flatten(-space).gather(-1, indices.flatten(-space)).view_as(indices) for part in parts]
    return torch.cat(picked, -space - 1), indices


def layer_norm(
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    h, _ = _split(x, -1)
    dims = [d for d in range(-len(normalized_shape) - 1, 0) if d != -2]
    centred = h - h.mean(dims, keepdim=True)
    y = centred * torch.rsqrt((centred * centred).mean(dims, keepdim=True).sum(-2, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.unsqueeze(-2)
    if bias is not None:
        y = y + bias.movedim(0, -2)
    return y.flatten(-2)


def group_norm(x: Value, num_groups: int, channels: int, weight: Value | None, bias: Value | None, eps: float) -> Value:
    """``weight`` and ``bias`` have one number for each of the real ``channels``."""
    h = x.unflatten(1, (4, num_groups, -1)).flatten(3)
    centred = h - h.mean(3, keepdim=True)
    y = centred * torch.rsqrt((centred * centred).mean(3, keepdim=True).sum(1, keepdim=True) + eps)
    y = y.flatten(1).unflatten(1, (channels, -1))
    if weight is not None:
        y = y * weight.unsqueeze(-1)
    if bias is not None:
        y = y + bias.unsqueeze(-1)
    return y.reshape(x.shape)


def swap_channel_order(x: Value, space: int, outer: int, inner: int) -> Value:
    """Channels indexed (outer, inner, rest), before ``space`` axes, become (inner, outer, rest)."""
    last = -space - 1
    return x.unflatten(last, (outer, inner, -1)).transpose(last - 2, last - 1).flatten(last - 2, last)


def heads(x: Value, count: int) -> Value:
    """``(batch, length, 4*n)`` to ``(batch, count, length, 4*n/count)``, whole quaternions to each head."""
    return x.unflatten(-1, (4, count, -1)).permute(0, 3, 1, 2, 4).flatten(3)


def joined(x: Value) -> Value:
    """The other way round."""
    return x.unflatten(-1, (4, -1)).permute(0, 2, 3, 1, 4).flatten(2)
