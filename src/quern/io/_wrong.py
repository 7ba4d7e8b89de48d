"""One sentence for whatever is wrong with a file."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

from quern.errors import FileError


class Wrong(Exception):
    """What is wrong with a file: the sentence without its subject, which is the path, and without its full stop."""


def damaged(what: str) -> Wrong:
    return Wrong(f"is not a file of quern, or is damaged: {what}")


def short(said: object) -> str:
    """Text from a file on one line, of bearable length, without anything that a terminal would act on."""
    line = ascii(" ".join(str(said).split()))[1:-1]
    return line if len(line) <= 160 else f"{line[:157]}..."


@contextmanager
def sentences(path: Path, done: str) -> Iterator[None]:
    """Whatever is wrong with a file becomes one FileError."""
    try:
        yield
    except Wrong as reason:
        raise FileError(f"{path} {reason}.") from reason
    except OSError as reason:
        if done == "read" and isinstance(reason, FileNotFoundError):
            raise FileError(f"{path} is not there.") from reason
        raise FileError(f"{path} could not be {done}: {reason.strerror or reason}.") from reason
    except MemoryError as reason:
        raise FileError(f"{path} could not be {done}: the memory does not suffice.") from reason


@contextmanager
def opened(path: Path) -> Iterator[tuple[BufferedIOBase, int]]:
    mode = path.stat().st_mode  # before it is opened: opening a pipe would wait for ever
    if stat.S_ISDIR(mode):
        raise Wrong("is a folder, but should be the file of a network")
    if not stat.S_ISREG(mode):
        raise Wrong("is not a regular file, but should be the file of a network")
    with path.open("rb") as file:
        yield file, os.fstat(file.fileno()).st_size
