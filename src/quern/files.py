"""Files that are either there and whole, or not there."""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["claimed", "replacing", "sweep", "write_text"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; renamed to ``path`` if all went well, removed if not.

    The file's bytes reach the disk before the rename, so that not even a power cut leaves half a file under the name.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether the folder is this process's for the time being: False if another one has claimed it. The claim ends with
    its process, however that ends. Where there are no locks, everybody's claim holds."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows, or a folder that may be written to but not read
        yield True
        return
    ours = True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        ours = False
    except OSError:  # a file system without locks
        pass
    try:
        yield ours
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile has the handle, too
        os.close(handle)


def sweep(folder: Path, names: Iterable[str]) -> None:
    """Remove what :func:`replacing` left of files of these names when its process was killed. The caller has claimed
    the folder: what somebody is writing just now looks the same."""
    names = set(names)
    for path in folder.glob(".*.tmp"):
        found = re.fullmatch(r"\.(.+)\.[^.]+\.tmp", path.name)
        if found and found[1] in names and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)
