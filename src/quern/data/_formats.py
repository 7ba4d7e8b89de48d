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
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quern._files import open_regular
from quern.data._limits import ARCHIVE_BYTES, FILE_BYTES, LABELS_BYTES, size
from quern.data._pictures import decoded

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
                with gzip.open(io.BytesIO(read(f"{name}.gz"))) as file:
                    content = _bounded(file, f"{name}.gz")
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

    def sprite(name: str) -> Bytes:
        content = read(name)
        try:
            pixels = np.asarray(decoded(io.BytesIO(content)))
        except Exception as reason:  # PIL has many ways to say that a file is damaged
            raise BadFile(f"{name} is no PNG file, or is cut short: {reason}") from reason
        if pixels.shape[1] != 1024:
            raise BadFile(f"{name} has {pixels.shape[1]} pixels a row, not 1024")
        return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    def labels(name: str) -> Bytes:
        content = read(name)
        if len(content) > LABELS_BYTES:
            raise BadFile(f"{name} is no list of labels: it has more than {size(LABELS_BYTES)}")
        try:
            return np.array(json.loads(content), np.uint8)
        except (ValueError, TypeError, OverflowError, RecursionError) as reason:
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
                    with open_regular(path) as file:
                        return _bounded(file, name)
        raise FileNotFoundError(name)

    return read


def _bounded(file: io.BufferedIOBase, name: str) -> bytes:
    """The whole of a file of a known set, unless there is more than any of them has."""
    content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise BadFile(f"{name} has more than {size(FILE_BYTES)}, so it is no file of a known set")
    return content


class _Unpacked:
    """A gzip file as tarfile reads it, up to as many bytes as an archive of a known set unpacks to."""

    def __init__(self, file: io.BufferedIOBase, name: str) -> None:
        self.file, self.name, self.left = file, name, ARCHIVE_BYTES

    def read(self, count: int) -> bytes:
        content = self.file.read(count)
        self.left -= len(content)
        if self.left < 0:
            raise BadFile(f"{self.name} unpacks to more than {size(ARCHIVE_BYTES)}, so it holds no known set")
        return content


def in_archive(path: Path) -> Reader:
    """Read by file name from a .tar.gz, whatever folders its members are in; nothing is unpacked to disk."""
    contents: dict[str, bytes] = {}
    try:
        # As a stream: what the archive says of places in it cannot make tarfile go back, or in circles.
        with (
            open_regular(path) as packed,
            gzip.open(packed) as unpacked,
            tarfile.open(fileobj=cast(Any, _Unpacked(unpacked, path.name)), mode="r|") as archive,
        ):
            for member in archive:
                name = Path(member.name).name
                # A sparse one has holes: next to nothing in the archive may be any number of zeros.
                if member.isfile() and not member.issparse() and _KNOWN.fullmatch(name):
                    file = archive.extractfile(member)
                    assert isinstance(file, io.BufferedIOBase)
                    contents[name] = _bounded(file, name)
    except BadFile:
        raise
    except Exception as reason:  # tarfile has many ways to say that a header is damaged
        said = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
        raise BadFile(f"{path.name} is no tar archive, or is cut short: {said}") from reason

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
