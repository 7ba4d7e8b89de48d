"""For networks that a test writes out: neurons that die, sizes that are left."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.compact import Plan, compact, plan
from tests.networks.comparing import difference, outputs, tensors_of
from tests.networks.parts import F64, Wired, random_values


def kill(layer: Any, rows: tuple[int, ...] = (), columns: tuple[int, ...] = (), bias: bool = True) -> None:
    """Weights of neurons (``rows``), with their biases or without, or of inputs (``columns``) to zero."""
    layer.weight.data[:, list(rows)] = 0
    layer.weight.data[:, :, list(columns)] = 0
    if bias and layer.bias is not None:
        layer.bias.data[:, list(rows)] = 0


def smaller(model: nn.Module, *inputs: Tensor, **options: Any) -> tuple[Any, Plan]:
    """The compacted network and its plan, after it gave the same outputs for all inputs; the first is the example."""
    found = plan(model, inputs[0], **options)
    small = compact(model, found)
    model = copy.deepcopy(model).eval()
    for x in inputs:
        wanted = outputs(model, (x,))
        assert wanted is not None
        assert difference(wanted, tensors_of(copy.deepcopy(small).eval()(x.clone()))) <= 1e-10
    return small, found


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def widths(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Quaternions in and out of every linear layer and convolution."""
    kinds = (qnn.QLinear, qnn.QConv1d, qnn.QConv2d, qnn.QConvTranspose2d)
    return {
        name: (m.weight.shape[2] * getattr(m, "groups", 1), m.weight.shape[1])
        for name, m in model.named_modules()
        if isinstance(m, kinds)
    }


def two(a: nn.Module, b: nn.Module, between: Callable[..., Any] = lambda m, x: x, **more: Any) -> Any:
    return random_values(Wired(lambda m, x: m.b(between(m, m.a(x))), a=a, b=b, **more))
