"""A data set by its name, or from files."""

from pathlib import Path

from quern.data._images import ImageSet, images_of, split
from quern.data._own import image_folder, npz
from quern.data._registry import LOADERS, SOURCES, names
from quern.data._sources import Progress, Source, obtain
from quern.errors import DataError, instead_of

VALIDATION = 5000  # of the images of a fetched set


def load(
    source: str | Path,
    data_dir: Path | str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    gray: bool | None = None,
) -> ImageSet:
    """A set by name (``mnist``, ``cifar10``, ``digits``, or one that was registered), or from an ``.npz`` file or a
    folder with a folder per class.

    ``data_dir`` is a folder with the original files of a named set; ``size`` and ``gray`` are for folders of images
    (:func:`image_folder`).
    """
    path, name = Path(source).expanduser(), str(source)
    if name not in names() and path.is_dir():
        return image_folder(path, size, gray)
    if name not in names() and not (path.suffix == ".npz" and path.exists()):
        otherwise = f"give one of {', '.join(names())}, an .npz file, or a folder."
        raise DataError(f"there is no data set {source}: {instead_of(name, names(), otherwise)}")
    if size is not None:
        raise DataError(f"{source} has images of one size; --image-size is for folders of images.")
    if gray is not None:
        raise DataError(f"{source} says itself whether it is gray; --gray and --color are for folders of images.")
    if name in SOURCES:
        return _fetched(SOURCES[name], data_dir, progress)
    return LOADERS[name]() if name in LOADERS else npz(path)


def mnist(data_dir: Path | str | None = None, progress: Progress | None = None) -> ImageSet:
    """60,000 gray images of handwritten digits to train on (5,000 of them for validation), 10,000 to test."""
    return _fetched(SOURCES["mnist"], data_dir, progress)


def cifar10(data_dir: Path | str | None = None, progress: Progress | None = None) -> ImageSet:
    """50,000 colour images of ten classes to train on (5,000 of them for validation), 10,000 to test."""
    return _fetched(SOURCES["cifar10"], data_dir, progress)


def _fetched(source: Source, data_dir: Path | str | None, progress: Progress | None) -> ImageSet:
    arrays = obtain(source, data_dir, progress)
    train, val = split(images_of(arrays["train_images"], arrays["train_labels"]), VALIDATION)
    test = images_of(arrays["test_images"], arrays["test_labels"])
    return ImageSet(source.name, train, val, test, source.classes, source.mean, source.std, sums=source.sums)
