"""Images of the user's own: an npz file, or a folder with a folder per class."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from quern._files import printable
from quern.data._images import Images, ImageSet, images_of, means_and_deviations, split
from quern.data._npz import read_npz
from quern.data._pictures import read_pictures
from quern.data._registry import names as registered
from quern.data._sources import sums
from quern.errors import DataError

log = logging.getLogger("quern.data")

NPZ_ARRAYS = ("images", "labels", "test_images", "test_labels")


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
    name = printable(path.name if path.stem in registered() else path.stem)  # a set of one's own is none of those
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
    return _from_parts(f"{name}/" if name in registered() else name, everything, test, names, sums(arrays))


def _from_parts(
    name: str, everything: Images, test: Images | None, classes: tuple[str, ...], sums: dict[str, str]
) -> ImageSet:
    if len(everything) < 20:
        raise DataError(f"{name} has {len(everything)} images, too few to train, validate and test with.")
    rest, test = split(everything, round(0.15 * len(everything))) if test is None else (everything, test)
    train, val = split(rest, max(1, len(rest) // 10))
    mean, std = means_and_deviations(train, 255)
    return ImageSet(name, train, val, test, classes, mean, std, sums=sums)


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
    return images_of(pixels, labels)


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
