"""A few digits, and small networks that learn something of them in a second."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from quern import nn as qnn
from quern.data import Images, ImageSet, digits


def few_digits(train: int = 160) -> ImageSet:
    """That many images to train with, and 100 to validate with."""
    whole = digits()
    part = Images(whole.train.pixels[:train], whole.train.labels[:train])
    return dataclasses.replace(whole, train=part, val=Images(whole.val.pixels[:100], whole.val.labels[:100]))


def tensors(images: Images) -> TensorDataset:
    """Images of four channels, which :class:`Own` takes."""
    return TensorDataset(images.pixels.repeat(1, 4, 1, 1) / 16 - 0.5, images.labels)


def digit_loaders() -> tuple[Any, ...]:
    """Five batches to train with, one to validate and one to test with."""
    images = few_digits()
    train, val = tensors(images.train), tensors(images.val)
    test = TensorDataset(*(t[:50] for t in tensors(images.test).tensors))
    return DataLoader(train, 32, shuffle=True), DataLoader(val, 100), DataLoader(test, 50)


class Own(nn.Module):
    """A residual network that quern does not know, with a real-valued end."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.first, self.second = (qnn.QConv2d(n, 16, 3, padding=1, bias=False) for n in (4, 16, 16))
        self.norms = nn.ModuleList([qnn.QBatchNorm2d(16) if norm else nn.Identity() for _ in range(3)])
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.stem(x)))
        y = torch.relu(self.norms[1](self.first(x)))
        x = torch.relu(x + self.norms[2](self.second(y)))
        return self.head(x.mean((2, 3)))


def shallow(inputs: int = 64, hidden: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Flatten(), qnn.QLinear(inputs, hidden, bias=False), qnn.QBatchNorm1d(hidden), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Flatten(), qnn.QLinear(64, 32, bias=False), qnn.QBatchNorm1d(32), nn.ReLU())
    return nn.Sequential(
        *layers, nn.Dropout(0.1), qnn.QLinear(32, 16, bias=False), qnn.QBatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)
    )


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def same(a: nn.Module, b: nn.Module) -> None:
    torch.testing.assert_close(dict(a.state_dict()), dict(b.state_dict()), rtol=0, atol=0)


@contextmanager
def few_milestones(count: int = 3) -> Iterator[None]:
    """Each milestone of a steering takes as long as hundreds of steps of networks as small as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quern.train._loop.MILESTONES", count)
        patch.setattr("quern.train._loop.STEPS_BETWEEN", 1)
        yield
