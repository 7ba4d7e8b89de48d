"""Images in memory, split into those to train on, to choose by and to report."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from quern.errors import DataError


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels ``(n, channels, height, width)`` as bytes, and a class number for each image."""

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, " n"]

    def __post_init__(self) -> None:
        pixels, labels = self.pixels, self.labels
        if pixels.dtype != torch.uint8 or pixels.dim() != 4:
            raise DataError(
                f"the pixels must be bytes (uint8) of shape (images, channels, height, width), but are "
                f"{_kind(pixels)} of shape {tuple(pixels.shape)}."
            )
        if labels.is_floating_point() or labels.shape != pixels.shape[:1]:
            raise DataError(
                f"there must be a class number for each of {len(pixels)} images, but the labels are {_kind(labels)} "
                f"of shape {tuple(labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images to train on, to choose by (``val``) and to report (``test``, to be looked at once, at the end).

    ``top`` is the value of a white pixel; ``mean`` and ``std`` are per channel, for pixels in 0..1. ``sums`` are the
    SHA-256 of the arrays the set was made of.
    """

    name: str
    train: Images
    val: Images
    test: Images
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    top: int = 255
    sums: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train.pixels.shape
        return channels, height, width

    def about(self) -> dict[str, Any]:
        """What a network trained on these images takes and gives, as plain JSON."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "mean": list(self.mean),
            "std": list(self.std),
            "top": self.top,
            "classes": list(self.classes),
        }

    def normalize(self, pixels: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """``(pixels / top - mean) / std`` in float32, channels last."""
        mean, std = (torch.tensor(v, device=pixels.device).view(1, -1, 1, 1) for v in (self.mean, self.std))
        x = pixels.to(torch.float32, memory_format=torch.channels_last)
        return x.mul_(1 / (self.top * std)).sub_(mean / std)


def images_of(pixels: np.ndarray, labels: np.ndarray) -> Images:
    # A copy, because arrays from files may be read-only, and torch tensors are not.
    return Images(torch.from_numpy(np.array(pixels, np.uint8)), torch.from_numpy(np.array(labels, np.int64)))


def _kind(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def split(images: Images, count: int) -> tuple[Images, Images]:
    """The rest, and ``count`` images drawn at random: the same ones every time, on every machine."""
    # RandomState is the one generator of numpy whose numbers never change with the version.
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(images)))
    taken, rest = order[:count].sort().values, order[count:].sort().values
    return (Images(images.pixels[rest], images.labels[rest]), Images(images.pixels[taken], images.labels[taken]))


def means_and_deviations(images: Images, top: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel, for pixels in 0..1."""
    values = torch.arange(256, dtype=torch.float64) / top
    means, stds = [], []
    for channel in images.pixels.unbind(1):  # by counting: floats of a large set would take eight times its memory
        shares = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (shares * values).sum()
        means.append(round(float(mean), 4))
        stds.append(max(1e-3, round(float((shares * (values - mean) ** 2).sum().sqrt()), 4)))
    return tuple(means), tuple(stds)
