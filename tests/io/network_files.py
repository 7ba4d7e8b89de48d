"""Networks to save, files in memory, and what it means that two are the same."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import FileError
from quern.io._load import read_network
from quern.io._save import head_of_network
from quern.io._structure import state_of
from quern.io._wrong import sentences
from quern.io.tensorfile import write_tensors

IMAGES = {"shape": [1, 8, 8], "mean": [0.3], "std": [0.4], "classes": ["no", "yes", "é"]}


class Block(nn.Module):
    """A network of the user's own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = qnn.QConv2d(1, width, 3, padding=1, input_parts="r")
        self.body = nn.Sequential(qnn.QConv2d(width, width, 3, padding=1), qnn.QBatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, 3)
        self.register_buffer("seen", torch.tensor([1, 2, 3]))

    def forward(self, input: Tensor) -> Tensor:
        x = self.stem(input)
        return self.head((x + self.body(x)).mean((2, 3)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.again = self.first

    def forward(self, input: Tensor) -> Tensor:
        return self.last(self.first(input))


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


def same(one: nn.Module, other: nn.Module, strides: bool = True) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert list(a) == list(b)
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape), name
        assert torch.equal(bits(a[name]), bits(b[name])), name
        assert not strides or a[name].stride() == b[name].stride(), name
    assert [p.requires_grad for p in one.parameters()] == [p.requires_grad for p in other.parameters()]


def scramble(model: nn.Module) -> nn.Module:
    """Other values than those a network is built with."""
    with torch.no_grad():
        for value in model.state_dict().values():
            value.copy_(torch.rand(value.shape) + 0.5 if value.is_floating_point() else torch.tensor(7))
    return model


def kill_(model: nn.Module) -> nn.Module:
    """Every second neuron of the convolutions and normalisations becomes zero, or a constant."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, qnn.QConv2d):
                layer.weight[:, ::2] = 0
            elif isinstance(layer, nn.Conv2d | qnn.QBatchNorm2d | nn.BatchNorm2d) and layer.weight is not None:
                layer.weight[::2] = 0
    return model


def content_of(model: nn.Module, **more: Any) -> bytes:
    state, file = state_of(model), BytesIO()
    write_tensors(file, head_of_network(model, state, more.get("metrics", {}), more.get("images")), state)
    return file.getvalue()


def read(content: bytes, model: nn.Module | None = None) -> nn.Module:
    with sentences(Path("net"), "read"):
        return read_network(BytesIO(content), len(content), model)[0]


def refused(content: bytes, model: nn.Module | None = None) -> str:
    with pytest.raises(FileError) as caught:
        read(content, model)
    return one_sentence(caught.value, "net")


def one_sentence(error: FileError, path: object) -> str:
    sentence = str(error)
    assert sentence.startswith(f"{path} "), sentence
    assert sentence.endswith("."), sentence
    assert "\n" not in sentence
    assert len(sentence) < 600
    return sentence
