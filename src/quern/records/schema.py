"""What our own files hold, checked against annotations: bytes of bounded size, JSON, values of the right kind.

A kind is a dataclass, a ``TypedDict``, or what their fields are annotated with: ``int``, ``float``, ``str``, ``bool``,
``Literal``, ``X | None``, ``list``, ``tuple``, ``dict``, and classes with a ``from_plain``. Numbers are finite, and
texts fit on a line of a terminal, unless the annotation says ``ANY``. Keys that nobody asks for are ignored. A whole
number may stand for a float, but not the other way round.
"""

import dataclasses
import json
import math
import numbers
import os
import re
import tomllib
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BufferedIOBase
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from quern._files import NotRegularError, open_regular
from quern.errors import QuernError, RecordError

__all__ = ["ANY", "Between", "Count", "Measured", "Milliseconds", "OneOf", "Positive", "Seconds", "Share", "Text"]
__all__ += ["Wrong", "check", "checked", "opened", "parse", "plain", "read", "read_lines", "short", "visible"]

LARGEST = 64 << 20  # bytes of a file
_NESTING = 32
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # ends a line, or begins what a terminal obeys
T = TypeVar("T")


class Wrong(Exception):
    """What is wrong with a file: the sentence without its subject, which is the path, and without its full stop."""


@dataclass(frozen=True)
class Between:
    """The numbers from ``least`` to ``most``."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class OneOf:
    """Some texts; a ``Literal`` whose choices are written down elsewhere."""

    choices: tuple[str, ...]


ANY = object()  # in an annotation: numbers that are not finite, or characters that a terminal would act on, are fine

Count = Annotated[int, Between(0.0, 1e15)]
Share = Annotated[float, Between(0.0, 1.0)]
Seconds = Annotated[float, Between(0.0, 1e12)]
Milliseconds = Annotated[float, Between(1e-9, 1e12)]
Positive = Annotated[float, Between(1e-300, 1e300)]
Measured = Annotated[float, ANY]  # what may overflow while training
Text = Annotated[str, ANY]  # a path or a command; show it by `visible`


def short(said: object) -> str:
    """Text from a file on one line, of bearable length, without anything that a terminal would act on."""
    line = ascii(" ".join(str(said).split()))[1:-1]
    return line if len(line) <= 160 else f"{line[:157]}..."


def visible(text: str) -> str:
    """All of a text on one line, with escapes for what a terminal would act on."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


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
        found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise Wrong(f"is larger than {LARGEST >> 20} MB, but should be {what}")
    return found


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
        said = str(reason).rstrip(".")
        raise RecordError(f"{path or 'this'} does not hold {what} ({said}): make it again.") from reason


def check(value: Any, kind: type[T] | types.GenericAlias, where: str = "") -> T:
    """``value``, as it came from JSON, as a ``kind``; ValueError with the place in it that is wrong."""
    return _check(value, kind, where)


def _check(value: Any, kind: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        return _annotated(value, inner[0], inner[1:], where)
    if origin is NotRequired:
        return _check(value, inner[0], where)
    if origin in (Union, types.UnionType):
        return _union(value, inner, where)
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in inner):
            raise _wrong(value, " or ".join(map(str, inner)), where)
        return value
    if kind in _SIMPLE:
        return _simple(value, kind, where)
    if origin in (list, tuple):
        _container(value, list, where)
        return origin(_check(one, inner[0], f"{where}[{n}]") for n, one in enumerate(value))
    if origin is dict:
        _container(value, dict, where)
        return {
            _check(key, inner[0], f"a key of {where or 'it'}"): _check(one, inner[1], _inside(where, key))
            for key, one in value.items()
        }
    return _object(value, kind, where)


_SIMPLE = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", types.NoneType: "nothing"}
_CONTAINERS = {list: "a list", dict: "a table"}


def _wrong(value: Any, wanted: str, where: str) -> ValueError:
    shown = next((name for container, name in _CONTAINERS.items() if isinstance(value, container)), None)
    text = json.dumps(value)  # has no signs that a terminal would act on
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return ValueError(f"{where or 'it'} is {shown or text}, but should be {wanted}")


def _container(value: Any, container: type, where: str) -> None:
    if not isinstance(value, container):
        raise _wrong(value, _CONTAINERS[container], where)


def _inside(where: str, key: str) -> str:
    return f"{where}.{short(key)}".removeprefix(".")


def _simple(value: Any, kind: type, where: str, anything: bool = False) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise _wrong(value, _SIMPLE[kind], where)
    if isinstance(value, float) and not anything and not math.isfinite(value):
        raise _wrong(value, "a finite number", where)
    if isinstance(value, str) and ("\0" in value if anything else _CONTROL.search(value)):
        raise _wrong(value, "a text that can be printed", where)
    return value


def _annotated(value: Any, kind: Any, rules: tuple[Any, ...], where: str) -> Any:
    found = _simple(value, kind, where, anything=True) if ANY in rules else _check(value, kind, where)
    for rule in rules:
        if isinstance(rule, Between) and not rule.least <= found <= rule.most:
            raise _wrong(value, str(rule), where)
        if isinstance(rule, OneOf) and found not in rule.choices:
            raise _wrong(value, " or ".join(rule.choices), where)
    return found


def _union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    reasons = []
    for kind in kinds:
        try:
            return _check(value, kind, where)
        except ValueError as reason:
            reasons.append((type(value) is kind, reason))
    raise max(reasons, key=lambda pair: pair[0])[1]  # what it should be if it is of that kind at all


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The annotation of every key, and whether it must be there."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {name: (hint, name in kind.__required_keys__) for name, hint in hints.items()}
    nothing = dataclasses.MISSING
    return {
        one.name: (hints[one.name], one.default is nothing and one.default_factory is nothing)
        for one in dataclasses.fields(kind)
    }


def _object(value: Any, kind: Any, where: str) -> Any:
    if (build := getattr(kind, "from_plain", None)) is not None:
        return _built(build, (value,), {}, where)
    _container(value, dict, where)
    found = {}
    for name, (hint, needed) in _fields(kind).items():
        if name in value:
            found[name] = _check(value[name], hint, _inside(where, name))
        elif needed:
            raise ValueError(f"{_inside(where, name)} is missing")
    return found if is_typeddict(kind) else _built(kind, (), found, where)


def _built(build: Any, values: tuple[Any, ...], named: dict[str, Any], where: str) -> Any:
    """What a class refuses in its own words, with the place it stands at."""
    try:
        return build(*values, **named)
    except (ValueError, QuernError) as reason:
        if not where:
            raise
        raise ValueError(f"{where}: {str(reason).rstrip('.')}") from reason
