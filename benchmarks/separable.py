"""Two small networks for CIFAR-10, timed against each other: one of depthwise and pointwise layers, one of neither."""

import torch
from torch import Tensor, nn

from quern import nn as qnn


class Block(nn.Module):
    """Depthwise 3x3, batch norm, ReLU, pointwise, batch norm; the input is added where shapes allow."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = qnn.Sequential(
            qnn.QConv2d(before, before, 3, stride, 1, groups=before // 4),
            qnn.QBatchNorm2d(before),
            nn.ReLU(inplace=True),
            qnn.QConv2d(before, width, 1),
            qnn.QBatchNorm2d(width),
        )
        self.is_added = stride == 1 and before == width

    def forward(self, input: Tensor) -> Tensor:
        return self.body.forward_and_add(input, input) if self.is_added else self.body(input)


def _finish(layers: list[nn.Module], width: int) -> nn.Sequential:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), qnn.QLinear(width, 40), qnn.Modulus()]
    return qnn.Sequential(*layers, *head).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def separable() -> nn.Sequential:
    """19,384 parameters, 7.9 million multiply-adds."""
    layers: list[nn.Module] = [qnn.QConv2d(3, 32, 3, padding=1, input_parts="ijk")]
    before = 32
    for n, width in enumerate((64, 64, 64, 96, 96, 96, 96)):
        layers.append(Block(before, width, 2 if n in (0, 3) else 1))
        before = width
    return _finish(layers, before)


def plain() -> nn.Sequential:
    """20,320 parameters, 12.4 million multiply-adds."""
    layers: list[nn.Module] = []
    before, parts = 3, "ijk"
    for n, width in enumerate((32, 48, 48, 48, 48)):
        conv = qnn.QConv2d(before, width, 3, padding=1, input_parts=parts)
        layers += [conv, qnn.QBatchNorm2d(width), nn.ReLU(inplace=True)]
        if n in (0, 2):
            layers.append(nn.MaxPool2d(2))
        before, parts = width, "rijk"
    return _finish(layers, before)
