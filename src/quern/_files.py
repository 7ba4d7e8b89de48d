"""Files that are either there and whole, or not there; and paths as text that can be shown."""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path


class NotRegularError(OSError):
    """A path that leads to something else than a regular file."""

    @property
    def kind(self) -> str:
        """What it is: "a folder", or "not a regular file"."""
        return str(self.strerror).removeprefix("it is ")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; renamed to ``path`` if all went well, removed if not.

    The file's bytes reach the disk before the rename, so that not even a power cut leaves half a file under the name.
    A symlink stays: the file it stands for is replaced. A file that was there keeps its permissions. Whatever else is
    there, such as a device, is left alone: OSError, as in :func:`check_target`.
    """
    target, mode = _target(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask() if mode is None else mode)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder`` to write to; renamed to ``folder`` if all went well, removed if not. OSError
    as in :func:`check_new_folder`."""
    check_new_folder(folder)
    target = Path(os.path.realpath(folder))
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        if target.exists():
            target.rmdir()
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new_folder(folder: Path) -> None:
    """OSError unless ``folder`` is an empty folder, or a new name in a folder that is there; to be asked before there
    is anything to lose."""
    target = Path(os.path.realpath(folder))
    if target.is_dir():
        if any(target.iterdir()):
            raise OSError(errno.ENOTEMPTY, "it is a folder with something in it", str(folder))
    elif os.path.lexists(folder):
        raise OSError(errno.ENOTDIR, "it is no folder", str(folder))
    elif not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", str(folder))


def check_target(path: Path) -> None:
    """OSError unless ``path`` is a regular file, a symlink to one, or a new name in a folder that is there; to be asked
    before there is anything to lose."""
    _target(path)


def _target(path: Path) -> tuple[Path, int | None]:
    """The file that writing to ``path`` replaces, and its permissions if it is there."""
    target = Path(os.path.realpath(path))
    try:
        # By way of the link, not of its text: what /dev/stdout leads to may have no name.
        status = os.stat(path)
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", str(path)) from None
        return target, None
    _check_regular(status, path)
    if not (target.exists() and os.path.samestat(status, target.stat())):
        raise OSError(errno.EINVAL, "it is not a file with a name", str(path))
    return target, stat.S_IMODE(status.st_mode)


def _check_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotRegularError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, "it is not a regular file", str(path))


def open_regular(path: Path) -> BufferedReader:
    """The regular file ``path``, open to be read; :class:`NotRegularError` if it is anything else, such as a pipe, for
    which opening would wait for ever."""
    _check_regular(os.stat(path), path)  # before it is opened: opening a device may do something
    # It may have become a pipe meanwhile.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check_regular(os.fstat(handle), path)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def path_or_content(path: Path) -> str | bytes:
    """For libraries that take no path that is not UTF-8: the path, or where it is such a one the bytes of the file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return path.read_bytes()
    return str(path)


_STARTS = (
    (b"\x80\x02\x8a\x0a", "a file of torch.save"),  # as it was before torch 1.6
    (b"\x93NUMPY", "an .npy file of numpy"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip archive"),
)
_FIRST_IN_ZIP = (  # the first name in an archive
    (r"/data\.pkl$", "a file of torch.save"),
    (r"\.npy$", "an .npz file of numpy"),
    (r"/(archive_format|data/weights/.*|models/.*)$", "a file of torch.export"),
)


def foreign_kind(path: Path) -> str | None:
    """What a file is by its first bytes, if it is of a known kind that no file of quern is."""
    try:
        with open_regular(path) as file:
            start = file.read(512)
    except OSError:
        return None
    if not start or (start[8:9] == b"{" and not any(start[5:8])):  # safetensors, a header of less than 2**40 bytes
        return None
    if start.startswith(b"PK\x03\x04"):
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")].decode("utf-8", "replace")
        return next((kind for pattern, kind in _FIRST_IN_ZIP if re.search(pattern, name)), "a zip archive")
    for begin, kind in _STARTS:
        if start.startswith(begin):
            return kind
    if start[0] == 0x80 and 2 <= start[1] <= 5:
        return "a pickle file"
    if re.match(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]", start):  # the version, and the next field
        return "an ONNX file"
    if not re.search(rb"[^\t\n\r -~\x80-\xff]", start) and "\ufffd" not in start[:-4].decode("utf-8", "replace"):
        return "Python code" if path.suffix == ".py" else "a text file"
    return None


def printable(text: object) -> str:
    """``text`` with whatever is no character, such as the bytes of a path that is not UTF-8, written as ``\\xff``: a
    terminal, a page and a record can take it."""
    escaped = re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", str(text))
    return escaped.encode("utf-8", "backslashreplace").decode()


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
        match = re.fullmatch(r"\.(.+)\.[^.]+\.tmp", path.name)
        if match and match[1] in names and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)
