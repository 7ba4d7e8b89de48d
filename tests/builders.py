"""What the builders of ``quern.models`` take: images, batch normalisation, and arguments for small networks."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from quern import models

COUNTS = {"mnist": 2, "digits": 2, "cifar": 5}  # of the widths of a family that has so many, and no others


def takes(name: str, option: str) -> bool:
    return option in inspect.signature(models.BUILDERS[name]).parameters


def shape_of(name: str) -> tuple[int, int, int]:
    """One image for the network as it is built without arguments."""
    family = name.split("_")[0]
    return {"mnist": (1, 28, 28), "digits": (1, 8, 8)}.get(family, (3, 32, 32))


def images_for(name: str, count: int) -> Tensor:
    return torch.randn(count, *shape_of(name))


def normed(name: str) -> nn.Module:
    """With batch normalisation after each convolution, which some networks have without being asked."""
    return models.BUILDERS[name](**({"norm": "after_conv"} if takes(name, "norm") else {}))


def sized(name: str, width: int) -> dict[str, Any]:
    """Arguments for a network whose convolutions have ``width`` channels or little more."""
    return {"widths": (width,) * COUNTS.get(name.split("_")[0], 2)} if takes(name, "widths") else {"width": width}
