"""Files of a data set by their names, from a folder or an archive that may hold anything."""

import gzip
import io
import re
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quern._files import open_regular
from quern.data._limits import ARCHIVE_BYTES, FILE_BYTES, size
from quern.errors import words_of

Bytes = NDArray[np.uint8]
Arrays = dict[str, Bytes]
Reader = Callable[[str], bytes]  # the content of a file by its name; FileNotFoundError if there is none


class BadFile(Exception):
    """A file that is not what its name says."""


def in_folder(folder: Path) -> Reader:
    """Read by file name, in the folder or one or two below it."""

    def read(name: str) -> bytes:
        for pattern in (name, f"*/{name}", f"*/*/{name}"):
            for path in sorted(folder.glob(pattern)):
                if path.is_file():  # unpacked archives may have a folder of that name around the file
                    with open_regular(path) as file:
                        return bounded(file, name)
        raise FileNotFoundError(name)

    return read


def bounded(file: io.BufferedIOBase, name: str) -> bytes:
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


def in_archive(path: Path, names: re.Pattern[str]) -> Reader:
    """Read by file name from a .tar.gz, whatever folders its members are in; nothing is unpacked to disk, and what is
    not called as ``names`` say, however large, is not read."""
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
                if member.isfile() and not member.issparse() and names.fullmatch(name):
                    file = archive.extractfile(member)
                    assert isinstance(file, io.BufferedIOBase)
                    contents[name] = bounded(file, name)
    except BadFile:
        raise
    except Exception as reason:  # tarfile has many ways to say that a header is damaged
        raise BadFile(f"{path.name} is no tar archive, or is cut short: {words_of(reason)}") from reason

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
