"""Small tasks that are no classification of images: their networks, batches, losses and metrics."""

from typing import Any

import torch
from torch import Tensor, nn

from quern import functional as F
from quern import nn as qnn


def batches(inputs: Any, targets: Any, size: int) -> list[tuple[Any, Any]]:
    """Batches of that size; the last one may have fewer."""
    if isinstance(inputs, dict):
        parts = [
            dict(zip(inputs, one, strict=True)) for one in zip(*(t.split(size) for t in inputs.values()), strict=True)
        ]
    elif isinstance(inputs, tuple):
        parts = list(zip(*(t.split(size) for t in inputs), strict=True))
    else:
        parts = list(inputs.split(size))
    return list(zip(parts, targets.split(size), strict=True))


def mae(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs - targets).abs().mean())


def regression() -> tuple[nn.Module, list[Any], list[Any]]:
    """A rotation of a vector by an angle: two inputs by name, three numbers out."""
    torch.manual_seed(0)
    vectors, angles = torch.randn(230, 3), 2 * torch.rand(230, 1) - 1
    c, s = angles.cos()[:, 0], angles.sin()[:, 0]
    x, y, z = vectors.unbind(1)
    turned = torch.stack([c * x - s * y, s * x + c * y, z], 1)
    inputs = {"angle": angles, "vector": vectors}  # in another order than that of forward
    train = batches({k: t[:160] for k, t in inputs.items()}, turned[:160], 32)
    return Turn(), train, batches({k: t[160:] for k, t in inputs.items()}, turned[160:], 32)


class Turn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = qnn.QLinear(4, 32, bias=False), qnn.QBatchNorm1d(32)
        self.second, self.last = qnn.QLinear(32, 32), nn.Linear(32, 3)

    def forward(self, vector: Tensor, angle: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(torch.cat([angle, vector], 1))))
        return self.last(torch.relu(self.second(x)))


def overlap(outputs: Tensor, targets: Tensor) -> float:
    """Intersection over union of what is above zero, over all pixels."""
    wanted, given = targets > 0.5, outputs > 0
    return float((wanted & given).sum() / (wanted | given).sum().clamp_min(1))


def segmentation() -> tuple[nn.Module, list[Any], list[Any]]:
    """Discs in noise."""
    torch.manual_seed(0)
    middle = 3 + 10 * torch.rand(112, 2, 1, 1)
    rows, columns = torch.arange(16.0)[:, None], torch.arange(16.0)
    discs = ((rows - middle[:, :1]) ** 2 + (columns - middle[:, 1:]) ** 2 < 9).float()
    images = discs + 0.4 * torch.randn(112, 4, 16, 16)
    return UNet(), batches(images[:80], discs[:80], 16), batches(images[80:], discs[80:], 16)


class UNet(nn.Module):
    """One level down and up again, with a way across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(qnn.QConv2d(4, 16, 3, padding=1, bias=False), qnn.QBatchNorm2d(16), nn.ReLU())
        self.deep = nn.Sequential(qnn.QConv2d(16, 32, 3, padding=1, bias=False), qnn.QBatchNorm2d(32), nn.ReLU())
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.join = nn.Sequential(qnn.QConv2d(48, 16, 3, padding=1, bias=False), qnn.QBatchNorm2d(16), nn.ReLU())
        self.last = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = self.down(x)
        y = self.up(self.deep(self.pool(across)))
        return self.last(self.join(F.cat([across, y])))


def sequences() -> tuple[nn.Module, list[Any], list[Any]]:
    """Which of two tokens is there more often, in sequences of different lengths: tokens and a mask, a class number."""
    torch.manual_seed(0)
    tokens, lengths = torch.randint(0, 8, (240, 12)), torch.randint(4, 13, (240,))
    mask = (torch.arange(12) < lengths[:, None]).float()
    classes = (((tokens == 1) * mask).sum(1) > ((tokens == 2) * mask).sum(1)).long()
    inputs = (tokens, mask)
    train = batches(tuple(t[:160] for t in inputs), classes[:160], 32)
    return Counting(), train, batches(tuple(t[160:] for t in inputs), classes[160:], 32)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = qnn.QEmbedding(8, 16)
        self.inner, self.norm = qnn.QLinear(16, 32, bias=False), qnn.QBatchNorm1d(32)
        self.last = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = (self.tokens(tokens) * mask.unsqueeze(-1)).sum(1)
        return self.last(torch.relu(self.norm(self.inner(x))))
