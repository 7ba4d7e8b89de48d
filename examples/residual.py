"""Make a network of your own small: a residual one with a real-valued head, and your own loaders.

Run it with ``python examples/residual.py``. It takes about a minute on two cores, and prints the table.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quern
from quern import nn as qnn
from quern.data import Images, digits


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = qnn.QConv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = qnn.QBatchNorm2d(channels)
        self.conv2 = qnn.QConv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = qnn.QBatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


class Residual(nn.Module):
    """Gray images to class scores; all neurons are quaternions but those of the head."""

    def __init__(self, channels: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = qnn.QConv2d(1, channels, 3, padding=1, input_parts="r", bias=False)
        self.norm = qnn.QBatchNorm2d(channels)
        self.blocks = nn.Sequential(Block(channels), nn.MaxPool2d(2), Block(channels))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


def loader(images: Images, shuffle: bool = False) -> DataLoader:
    return DataLoader(TensorDataset(digits().normalize(images.pixels), images.labels), 64, shuffle)


def main(epochs: int = 12, grind: int = 12, heal: int = 24) -> quern.pipeline.Compressed:
    torch.manual_seed(0)
    data = digits()
    compressed = quern.compress(
        Residual(),
        loader(data.train, shuffle=True),
        loader(data.val),
        loader(data.test),
        max_params=2000,
        epochs=epochs,
        grind=grind,
        heal=heal,
        lr=5e-3,
        tell=print,
    )
    print(compressed)
    return compressed


if __name__ == "__main__":
    main()
