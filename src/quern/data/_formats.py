"""From files to arrays: MNIST's idx files, CIFAR-10's binary batches and PNG sprites."""

import gzip
import io
import json
import math
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Arrays = dict[str, Bytes]
Reader = Callable[[str], bytes]  # the content of a file by its name; FileNotFoundError if there is none

_IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MNIST_FILES = tuple(_IDX.values())


# What an archive may hold for us; the rest of it, however large, is not read.
_KNOWN = re.compile(
    r"(train|t10k)-(images|labels)-idx[13]-ubyte(\.gz)?|(data|test)_batch(_\d)?\.(bin|png)|\w+_lables\.json"
)


class BadFile(Exception):
    """A file that is not what its name says."""


def _idx(content: bytes, name: str) -> Bytes:
    """An idx file of bytes: magic number 0, 0, 8, number of axes; the sizes as big-endian 32 bits; the data."""
    axes = content[3] if len(content) >= 4 and content[:3] == b"\x00\x00\x08" else 0
    start = 4 + 4 * axes
    sizes = tuple(int.from_bytes(content[n : n + 4], "big") for n in range(4, start, 4))
    if not 1 <= axes <= 4 or len(content) != start + math.prod(sizes):
        raise BadFile(f"{name} is no idx file, or is cut short")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def read_mnist(read: Reader) -> Arrays:
    """The four files, as they are or with ``.gz``."""
    found = {}
    for key, name in _IDX.items():
        try:
            content = read(name)
        except FileNotFoundError:
            try:
                content = gzip.decompress(read(f"{name}.gz"))
            except (OSError, EOFError, zlib.error) as reason:
                if isinstance(reason, FileNotFoundError):
                    raise
                raise BadFile(f"{name}.gz is damaged: {reason}") from reason
        array = _idx(content, name)
        found[key] = array[:, None] if array.ndim == 3 else array
    return found


def read_cifar10_binary(read: Reader) -> Arrays:
    """``data_batch_1.bin`` to ``5`` and ``test_batch.bin``: per image one label and 3 planes of 32 x 32."""

    def batch(name: str) -> Bytes:
        content = read(name)
        if not content or len(content) % 3073:
            raise BadFile(f"{name} is no CIFAR-10 batch, or is cut short")
        return np.frombuffer(content, np.uint8).reshape(-1, 3073)

    train = np.concatenate([batch(f"data_batch_{n}.bin") for n in range(1, 6)])
    test = batch("test_batch.bin")
    return {
        "train_images": train[:, 1:].reshape(-1, 3, 32, 32),
        "train_labels": train[:, 0],
        "test_images": test[:, 1:].reshape(-1, 3, 32, 32),
        "test_labels": test[:, 0],
    }


def read_cifar10_sprites(read: Reader) -> Arrays:
    """PNG files in which each row is one image of 1024 RGB pixels, and labels as JSON lists."""
    from PIL import Image, UnidentifiedImageError

    def sprite(name: str) -> Bytes:
        content = read(name)
        try:
            with Image.open(io.BytesIO(content)) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as reason:
            raise BadFile(f"{name} is no PNG file, or is cut short: {reason}") from reason
        if pixels.shape[1] != 1024:
            raise BadFile(f"{name} has {pixels.shape[1]} pixels a row, not 1024")
        return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    def labels(name: str) -> Bytes:
        try:
            return np.array(json.loads(read(name)), np.uint8)
        except (ValueError, TypeError, OverflowError) as reason:
            raise BadFile(f"{name} is no list of labels: {reason}") from reason

    return {
        "train_images": np.concatenate([sprite(f"data_batch_{n}.png") for n in range(1, 6)]),
        "train_labels": labels("train_lables.json"),  # spelt so in the package
        "test_images": sprite("test_batch.png"),
        "test_labels": labels("test_lables.json"),
    }


def in_folder(folder: Path) -> Reader:
    """Read by file name, in the folder or one or two below it."""

    def read(name: str) -> bytes:
        for pattern in (name, f"*/{name}", f"*/*/{name}"):
            for path in sorted(folder.glob(pattern)):
                if path.is_file():  # unpacked archives may have a folder of that name around the file
                    return path.read_bytes()
        raise FileNotFoundError(name)

    return read


def in_archive(path: Path) -> Reader:
    """Read by file name from a tar archive, whatever folders its members are in; nothing is unpacked to disk."""
    try:
        with tarfile.open(path) as archive:
            contents = {
                Path(member.name).name: file.read()
                for member in archive
                if member.isfile()
                and _KNOWN.fullmatch(Path(member.name).name)
                and (file := archive.extractfile(member)) is not None
            }
    except (tarfile.TarError, EOFError, OSError, zlib.error) as reason:
        raise BadFile(f"{path.name} is no tar archive, or is cut short: {reason}") from reason

    def read(name: str) -> bytes:
        if name not in contents:
            raise FileNotFoundError(name)
        return contents[name]

    return read


def first_that_reads(readers: Iterable[Callable[[Reader], Arrays]], read: Reader) -> Arrays:
    """The first format whose files are all there."""
    missing = []
    for decode in readers:
        try:
            return decode(read)
        except FileNotFoundError as reason:
            missing.append(str(reason))
    raise FileNotFoundError(" or ".join(missing))
