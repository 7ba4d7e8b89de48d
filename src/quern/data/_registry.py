"""The data sets that have a name: those that come with quern, and those that a user registers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quern.data._archives import BadFile
from quern.data._cifar10 import CIFAR10
from quern.data._mnist import MNIST
from quern.data._sources import Progress, Source, cache_file, obtain, read_cache
from quern.errors import DataError

if TYPE_CHECKING:
    from quern.data._images import ImageSet


def _digits() -> "ImageSet":
    from quern.data._digits import digits

    return digits()


# Those that are fetched and checked, and those that are made by a function.
SOURCES: dict[str, Source] = {source.name: source for source in (MNIST, CIFAR10)}
LOADERS: dict[str, "Callable[[], ImageSet]"] = {"digits": _digits}


def names() -> tuple[str, ...]:
    return (*SOURCES, *LOADERS)


def register(name: str, load: "Callable[[], ImageSet] | Source") -> None:
    """Let ``quern.data.load(name)`` give the set that ``load()`` makes, or one that is fetched from a :class:`Source`.

    It is then trained on by its name, as those that come with quern are.
    """
    if name in names():
        raise DataError(f"there is a data set {name} already: take another name.")
    if isinstance(load, Source):
        SOURCES[name] = replace(load, name=name)
    else:
        LOADERS[name] = load


def fetch(name: str, data_dir: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Make sure that a known set is in the cache, and return its file."""
    obtain(_fetched(name), data_dir, progress)
    path = cache_file(name)
    if not path.exists():
        raise DataError(f"{name} was found, but {path} cannot be written: set QUERN_DATA to another folder.")
    return path


def verify(name: str) -> str | None:
    """None if the cached set has the published SHA-256 sums, else a sentence that says what is wrong."""
    source = _fetched(name)
    try:
        read_cache(source)
    except FileNotFoundError:
        return f"{name} is not in the cache; fetch it with: quern data fetch {name}"
    except BadFile as reason:
        return f"{reason}; fetch it anew with: quern data fetch {name}"
    return None


def _fetched(name: str) -> Source:
    if name not in SOURCES:
        raise DataError(f"{name} is not a set that is fetched: give one of {', '.join(SOURCES)}.")
    return SOURCES[name]
