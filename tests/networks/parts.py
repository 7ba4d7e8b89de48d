"""Networks whose forward is a function, what a drawn network comes with, random values and random zeros."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn

F64 = torch.float64


Inputs = tuple[Any, ...]  # tensors, and numbers


class Wired(nn.Module):
    """Layers (or parameters) by name, and a forward that is written as a function of them."""

    def __init__(self, wiring: Callable[..., Any], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.wiring = wiring
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x)


class Numbered(Wired):
    """The same with a number for an input."""

    def forward(self, x: Tensor, k: float) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.wiring(self, x, k)


@dataclass
class Drawn:
    model: nn.Module
    inputs: list[Inputs]


@torch.no_grad()
def random_values(model: nn.Module) -> nn.Module:
    """Every number random and none at a special value: biases, scales, shifts and statistics too."""
    for p in model.parameters():
        rows = p.numel() // max(p.shape[:2].numel(), 1) if p.dim() > 2 else 1
        p.copy_(torch.randn_like(p) / math.sqrt(max(rows, 1)))
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(torch.randn_like(b) / 2)
        elif name.endswith("running_var"):
            b.copy_(torch.rand_like(b) + 0.5)
        elif name.endswith("running_cov"):
            root = torch.randn(b.shape[2], 4, 4, dtype=b.dtype) / 4 + torch.eye(4, dtype=b.dtype)
            b.copy_((root @ root.mT + torch.eye(4, dtype=b.dtype) / 4).permute(1, 2, 0))
    return model.double().eval()


GATES: dict[type[nn.Module], int] = {
    nn.RNN: 1,
    nn.LSTM: 4,
    nn.GRU: 3,
    qnn.QRNN: 1,
    qnn.QLSTM: 4,
    qnn.QGRU: 3,
}


def _mask(shape: Sequence[int], keep: float) -> Tensor:
    return (torch.rand(*shape) < keep).double()


NORMS = (qnn.QBatchNorm1d, qnn.QBatchNorm2d, qnn.QBatchNorm3d, qnn.QWhiteningBatchNorm2d, qnn.QLayerNorm)


NORMS = (*NORMS, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def random_zeros(model: nn.Module, rng: random.Random) -> nn.Module:
    """Single numbers, quaternions, rows, columns, scales and biases become zero, in each layer in some other way."""
    for layer in model.modules():
        if isinstance(layer, NORMS):
            if layer.weight is not None:
                off = _mask(layer.weight.shape[-1:], rng.choice((0.5, 0.8, 0.8, 1.0)))
                layer.weight.mul_(off)
                if layer.bias is not None and rng.random() < 0.5:
                    layer.bias.mul_(off)
            if layer.bias is not None and rng.random() < 0.3:
                layer.bias.mul_(_mask(layer.bias.shape[-1:], 0.5))
            continue
        quaternion = type(layer).__module__.startswith("quern.nn")
        for name, p in layer.named_parameters(recurse=False):
            if "bias" in name:
                p.mul_(_mask(p.shape[-1:], rng.choice((0.0, 0.5, 1.0))))
            elif "weight" in name and p.dim() > 1:
                _zero_weight(p if quaternion else p.unsqueeze(0), GATES.get(type(layer), 1), rng)
    return model


def _zero_weight(w: Tensor, gates: int, rng: random.Random) -> None:
    """``w`` is (components, out, in, *kernel); of a recurrent layer, ``out`` are gates."""
    w = w.unflatten(1, (gates, -1))
    ones = [1] * (w.dim() - 4)
    if rng.random() < 0.01:
        w.zero_()
    if rng.random() < 0.3:
        w.mul_(_mask(w.shape, rng.choice((0.3, 0.7))))
    if rng.random() < 0.4:
        w.mul_(_mask((1, 1, *w.shape[2:4], *ones), rng.choice((0.4, 0.7, 0.9))))
    if rng.random() < 0.6:
        w.mul_(_mask((w.shape[2], 1, *ones), rng.choice((0.6, 0.8))))
    if rng.random() < 0.5:
        w.mul_(_mask((w.shape[3], *ones), rng.choice((0.6, 0.8))))
