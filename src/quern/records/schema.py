"""What our own files hold, checked against annotations: bytes of bounded size, JSON, values of the right kind.

A kind is a dataclass, a ``TypedDict``, or what their fields are annotated with: ``int``, ``float``, ``str``, ``bool``,
``Literal``, ``X | None``, ``list``, ``tuple``, ``dict``, and classes with a ``from_plain``. Numbers are finite, and
texts fit on a line of a terminal, unless the annotation says ``ANY``. Keys that nobody asks for are ignored. A whole
number may stand for a float, but not the other way round.
"""

import json
import math
import numbers
import os
import tomllib
import types
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, TypeVar

from quern._files import NotRegularError, open_regular
from quern.errors import QuernError, RecordError
from quern.records._checking import (
    ANY,
    Between,
    Count,
    Measured,
    Milliseconds,
    OneOf,
    Positive,
    Seconds,
    Share,
    Text,
    check,
    short,
    to_plain,
    visible,
)

__all__ = ["ANY", "Between", "Count", "Measured", "Milliseconds", "OneOf", "Positive", "Seconds", "Share", "Text"]
__all__ += ["Wrong", "check", "checked", "opened", "parse", "plain", "read", "read_lines", "short", "to_plain"]
__all__ += ["visible"]

LARGEST = 64 << 20  # bytes of a file
_NESTING = 32
T = TypeVar("T")


class Wrong(Exception):
    """What is wrong with a file: the sentence without its subject, which is the path, and without its full stop."""


@contextmanager
def opened(path: Path, what: str) -> Iterator[tuple[BufferedIOBase, int]]:
    """A regular file and its size; :class:`Wrong` if the path leads to anything else."""
    try:
        file = open_regular(path)
    except NotRegularError as reason:
        raise Wrong(f"is {reason.kind}, but should be {what}") from reason
    with file:
        yield file, os.fstat(file.fileno()).st_size


def parse(text: bytes | str, nan: bool = False) -> Any:
    """The value of JSON ``text``; ValueError if a key stands twice, for deep nesting, and for numbers that are not
    finite unless ``nan``."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            raise ValueError("a key stands twice in one table")
        return table

    def constant(name: str) -> float:
        if not nan:
            raise ValueError(f"{name} is no number of JSON")
        return float(name)

    try:
        text = text.decode() if isinstance(text, bytes) else text
        return plain(json.loads(text, object_pairs_hook=once, parse_constant=constant), nan=nan)
    except RecursionError as reason:
        raise ValueError("it is nested too deeply") from reason


def plain(value: Any, depth: int = 0, nan: bool = False) -> Any:
    """A copy of ``value`` in the types that come back from JSON as they were; ValueError if there is none."""
    if depth > _NESTING:
        raise ValueError(f"it is nested more than {_NESTING} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value.encode("utf-8", "surrogateescape")  # a path need not be UTF-8; any other half of a pair is no text
        return str(value)
    if isinstance(value, numbers.Integral) and -(1 << 63) <= int(value) < 1 << 64:  # seeds have 64 bits
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) and (nan or math.isfinite(value)):
        return float(value)
    if isinstance(value, list | tuple):
        return [plain(v, depth + 1, nan) for v in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {plain(key): plain(v, depth + 1, nan) for key, v in value.items()}
    if isinstance(value, dict):
        raise ValueError("a key in it is not a text")
    raise ValueError(f"{short(value)} ({type(value).__name__}) is not JSON")


def read(
    path: Path, kind: type[T] | types.GenericAlias, what: str, remedy: str = "make it again", toml: bool = False
) -> T:
    """The content of a JSON file, or a TOML one, as a ``kind``; one sentence if it is not ``what`` it should be."""
    with _sentences(path, what, remedy):
        text = _bytes(path, what)
        return check(_toml(text) if toml else parse(text, nan=True), kind)


def _toml(text: bytes) -> Any:
    try:
        return plain(tomllib.loads(text.decode()), nan=True)
    except RecursionError as reason:
        raise ValueError("it is nested too deeply") from reason


def read_lines(path: Path, kind: type[T] | types.GenericAlias, what: str, remedy: str = "make it again") -> list[T]:
    """The same for a file that has one JSON value a line."""
    with _sentences(path, what, remedy):
        lines = _bytes(path, what).splitlines()
        return [check(parse(line, nan=True), kind, f"line {n}") for n, line in enumerate(lines, 1)]


def _bytes(path: Path, what: str) -> bytes:
    with opened(path, what) as (file, _):
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Wrong(f"is larger than {LARGEST >> 20} MB, but should be {what}")
    return content


@contextmanager
def _sentences(path: Path, what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise RecordError(f"{path} is not there: {path.parent} does not hold {what}.") from None
    except Wrong as reason:
        raise RecordError(f"{path} {reason}.") from reason
    except ValueError as reason:
        raise RecordError(f"{path} does not hold {what} ({visible(str(reason))}): {remedy}.") from reason
    except OSError as reason:
        raise RecordError(f"{path} cannot be read: {reason.strerror or reason}.") from reason


def checked(path: Path | None, value: Any, kind: type[T] | types.GenericAlias, what: str) -> T:
    """A part of a file as a ``kind``; one sentence, about the file if there is one, if it is not ``what`` it should
    be."""
    try:
        return check(value, kind)
    except (ValueError, QuernError) as reason:
        if path is None and isinstance(reason, QuernError):
            raise
        wrong = str(reason).rstrip(".")
        raise RecordError(f"{path or 'this'} does not hold {what} ({wrong}): make it again.") from reason
