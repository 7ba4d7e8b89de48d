"""Sets of images in memory, and how they are made: by name, from a folder, from an npz file."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from quern._files import printable
from quern.data._formats import Arrays
from quern.data._npz import read_npz
from quern.data._pictures import read_pictures
from quern.data._sources import NAMES, SOURCES, Progress, obtain, sums
from quern.errors import DataError, instead_of

__all__ = ["ImageSet", "Images", "cifar10", "digits", "image_folder", "load", "mnist", "npz"]

log = logging.getLogger("quern.data")

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NPZ_ARRAYS = ("images", "labels", "test_images", "test_labels")
DIGITS_SUMS = {
    "images": "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
    "labels": "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
}


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


def load(
    source: str | Path,
    data_dir: Path | str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    gray: bool | None = None,
) -> ImageSet:
    """A set by name (``mnist``, ``cifar10``, ``digits``), or from an ``.npz`` file or a folder with a folder per class.

    ``data_dir`` is a folder with the original files of a named set; ``size`` and ``gray`` are for folders of images
    (:func:`image_folder`).
    """
    path = Path(source).expanduser()
    if str(source) not in NAMES and path.is_dir():
        return image_folder(path, size, gray)
    if str(source) not in NAMES and not (path.suffix == ".npz" and path.exists()):
        otherwise = f"give one of {', '.join(NAMES)}, an .npz file, or a folder."
        raise DataError(f"there is no data set {source}: {instead_of(str(source), NAMES, otherwise)}")
    if size is not None:
        raise DataError(f"{source} has images of one size; --image-size is for folders of images.")
    if gray is not None:
        raise DataError(f"{source} says itself whether it is gray; --gray and --color are for folders of images.")
    if str(source) == "digits":
        return digits()
    if str(source) in SOURCES:
        return (mnist if str(source) == "mnist" else cifar10)(data_dir, progress)
    return npz(path)


def mnist(data_dir: Path | str | None = None, progress: Progress | None = None) -> ImageSet:
    """60,000 gray images of handwritten digits to train on (5,000 of them for validation), 10,000 to test."""
    digits = tuple(str(n) for n in range(10))
    return _known("mnist", obtain("mnist", data_dir, progress), digits, (0.1307,), (0.3081,))


def cifar10(data_dir: Path | str | None = None, progress: Progress | None = None) -> ImageSet:
    """50,000 colour images of ten classes to train on (5,000 of them for validation), 10,000 to test."""
    return _known("cifar10", obtain("cifar10", data_dir, progress), CIFAR10_CLASSES, (0.5,) * 3, (0.5,) * 3)


def digits() -> ImageSet:
    """1,797 gray images of 8 x 8 pixels that come with scikit-learn: 360 to test, 200 for validation."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    arrays = {
        "images": np.asarray(pixels).astype(np.uint8).reshape(-1, 1, 8, 8),
        "labels": np.asarray(labels).astype(np.uint8),
    }
    if sums(arrays) != DIGITS_SUMS:
        raise DataError("scikit-learn's digits are not the ones quern knows: install another version of scikit-learn.")
    everything = _images(arrays["images"], arrays["labels"])
    rest, test = _split(everything, 360)
    train, val = _split(rest, 200)
    mean, std = _spread(train, 16)
    classes = tuple(str(n) for n in range(10))
    return ImageSet("digits", train, val, test, classes, mean, std, top=16, sums=DIGITS_SUMS)


def npz(path: Path | str) -> ImageSet:
    """An npz file with ``images`` (n, h, w), (n, h, w, channels) or (n, channels, h, w) as bytes, and ``labels`` (n,).

    With ``test_images`` and ``test_labels`` these are the test set; without, 15 % of the images are. A tenth of the
    rest is for validation. The channels are the axis of size 1 or 3.
    """
    path = Path(path)
    names, arrays = read_npz(path, NPZ_ARRAYS)
    for key in ("images", "labels"):
        if key not in arrays:
            raise DataError(f"{path} has no array '{key}'; it has {', '.join(names) or 'none'}.")
    if ("test_images" in arrays) != ("test_labels" in arrays):
        raise DataError(f"{path} must have both test_images and test_labels, or neither.")
    everything = _checked(arrays["images"], arrays["labels"], str(path))
    test = _checked(arrays["test_images"], arrays["test_labels"], str(path)) if "test_images" in arrays else None
    count = int(everything.labels.max()) + 1
    if test is not None and (test.pixels.shape[1:] != everything.pixels.shape[1:] or int(test.labels.max()) >= count):
        raise DataError(f"{path}: the test images must have the size and the classes of the training images.")
    name = printable(path.name if path.stem in NAMES else path.stem)  # a set of one's own is none of those
    return _from_parts(name, everything, test, tuple(str(n) for n in range(count)), sums(arrays))


def image_folder(root: Path | str, size: int | None = None, gray: bool | None = None) -> ImageSet:
    """A folder with one folder of PNG or JPEG files per class; or with ``train`` and ``test`` folders of that kind.

    Without a ``test`` folder 15 % of the images are the test set; a tenth of the rest is for validation. Images of
    different sizes need ``size``, to which they are resized, height and width. ``gray`` reads them with one channel,
    ``gray=False`` with three; by default it is one if no pixel of any image has a colour.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder.")
    if size is not None and size < 1:
        raise DataError(f"the image size is {size}, but must be at least 1.")
    parts = {part: root / part for part in ("train", "test") if (root / part).is_dir()}
    if len(parts) == 1:
        raise DataError(f"{root} has a folder {next(iter(parts))} only: it needs both train and test, or neither.")
    top = parts.get("train", root)
    classes = _class_folders(top)
    if len(classes) < 2:
        raise DataError(f"{top} must hold a folder of images for each of at least two classes, but has {len(classes)}.")
    everything = _read_folder(top, classes, size, gray)
    test = None
    if parts:
        if unknown := sorted(set(_class_folders(parts["test"])) - set(classes)):
            raise DataError(f"{parts['test'] / unknown[0]} is a class without training images: it must be in both.")
        test = _read_folder(parts["test"], classes, size, gray)
        if test.pixels.shape[2:] != everything.pixels.shape[2:]:
            raise DataError(f"the images in {root} differ in size between train and test: say --image-size (size=).")
        channels = max(part.pixels.shape[1] for part in (everything, test))
        everything, test = (
            replace(part, pixels=part.pixels.expand(-1, channels, -1, -1)) for part in (everything, test)
        )
    if gray is None:
        one, other = ("gray", "--color (gray=False)"), ("colour", "--gray (gray=True)")
        kind, otherwise = one if everything.pixels.shape[1] == 1 else other
        log.info("%s is read as %s images; %s reads it otherwise.", root, kind, otherwise)
    arrays = {"images": everything.pixels.numpy(), "labels": everything.labels.numpy()}
    if test is not None:
        arrays |= {"test_images": test.pixels.numpy(), "test_labels": test.labels.numpy()}
    name = printable(root.resolve().name)
    names = tuple(map(printable, classes))
    return _from_parts(f"{name}/" if name in NAMES else name, everything, test, names, sums(arrays))


def _known(
    name: str, arrays: Arrays, classes: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> ImageSet:
    train, val = _split(_images(arrays["train_images"], arrays["train_labels"]), 5000)
    test = _images(arrays["test_images"], arrays["test_labels"])
    return ImageSet(name, train, val, test, classes, mean, std, sums=SOURCES[name].sums)


def _from_parts(
    name: str, everything: Images, test: Images | None, classes: tuple[str, ...], sums: dict[str, str]
) -> ImageSet:
    if len(everything) < 20:
        raise DataError(f"{name} has {len(everything)} images, too few to train, validate and test with.")
    rest, test = _split(everything, round(0.15 * len(everything))) if test is None else (everything, test)
    train, val = _split(rest, max(1, len(rest) // 10))
    mean, std = _spread(train, 255)
    return ImageSet(name, train, val, test, classes, mean, std, sums=sums)


def _images(pixels: np.ndarray, labels: np.ndarray) -> Images:
    # A copy, because arrays from files may be read-only, and torch tensors are not.
    return Images(torch.from_numpy(np.array(pixels, np.uint8)), torch.from_numpy(np.array(labels, np.int64)))


def _checked(pixels: np.ndarray, labels: np.ndarray, where: str) -> Images:
    if pixels.dtype != np.uint8:
        raise DataError(f"{where}: images must be bytes (uint8), but are {pixels.dtype}.")
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.ndim == 4 and pixels.shape[1] not in (1, 3) and pixels.shape[3] in (1, 3):
        pixels = pixels.transpose(0, 3, 1, 2)
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
        raise DataError(
            f"{where}: images must be (n, h, w) or have 1 or 3 channels, but their shape is {pixels.shape}."
        )
    if labels.shape != pixels.shape[:1]:
        raise DataError(f"{where}: there are {len(pixels)} images, but the shape of the labels is {labels.shape}.")
    if 0 in pixels.shape:
        raise DataError(f"{where}: there are no images, their shape is {pixels.shape}.")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= 1 << 16:
        raise DataError(f"{where}: labels must be whole numbers from 0 to 65,535.")
    return _images(pixels, labels)


def _kind(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _split(images: Images, count: int) -> tuple[Images, Images]:
    """The rest, and ``count`` images drawn at random: the same ones every time, on every machine."""
    # RandomState is the one generator of numpy whose numbers never change with the version.
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(images)))
    taken, rest = order[:count].sort().values, order[count:].sort().values
    return (
        Images(images.pixels[rest], images.labels[rest]),
        Images(images.pixels[taken], images.labels[taken]),
    )


def _spread(images: Images, top: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel, for pixels in 0..1."""
    values = torch.arange(256, dtype=torch.float64) / top
    means, stds = [], []
    for channel in images.pixels.unbind(1):  # by counting: floats of a large set would take eight times its memory
        shares = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (shares * values).sum()
        means.append(round(float(mean), 4))
        stds.append(max(1e-3, round(float((shares * (values - mean) ** 2).sum().sqrt()), 4)))
    return tuple(means), tuple(stds)


def _class_folders(top: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith(".")))


def _read_folder(top: Path, classes: tuple[str, ...], size: int | None, gray: bool | None) -> Images:
    files, labels = [], []
    for number, name in enumerate(classes):
        mine = sorted(p for p in (top / name).glob("[!.]*") if p.suffix.lower() in (".png", ".jpg", ".jpeg"))
        if not mine:
            raise DataError(f"{top / name} has no PNG or JPEG files.")
        files += mine
        labels += [number] * len(mine)
    return Images(torch.from_numpy(read_pictures(files, size, gray)), torch.tensor(labels))
