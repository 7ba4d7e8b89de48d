"""Values checked against annotations, and the reverse: dataclasses as the plain values of JSON."""

import dataclasses
import json
import math
import re
import types
from dataclasses import dataclass
from functools import cache
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

from quern.errors import QuernError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # ends a line, or begins what a terminal obeys
T = TypeVar("T")


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


def short(text: object) -> str:
    """Text from a file on one line, of bearable length, without anything that a terminal would act on."""
    line = ascii(" ".join(str(text).split()))[1:-1]
    return line if len(line) <= 160 else f"{line[:157]}..."


def visible(text: str) -> str:
    """All of a text on one line, with escapes for what a terminal would act on."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


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
    checked = _simple(value, kind, where, anything=True) if ANY in rules else _check(value, kind, where)
    for rule in rules:
        if isinstance(rule, Between) and not rule.least <= checked <= rule.most:
            raise _wrong(value, str(rule), where)
        if isinstance(rule, OneOf) and checked not in rule.choices:
            raise _wrong(value, " or ".join(rule.choices), where)
    return checked


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


def _key(field: "dataclasses.Field[Any]") -> str:
    return field.metadata.get("key", field.name)  # where it is no name of Python, such as lambda


@cache
def _fields(kind: Any) -> dict[str, tuple[str, Any, bool]]:
    """By the name of every field: its key, its annotation, and whether it must be there."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {name: (name, hint, name in kind.__required_keys__) for name, hint in hints.items()}
    nothing = dataclasses.MISSING
    return {
        field.name: (_key(field), hints[field.name], field.default is nothing and field.default_factory is nothing)
        for field in dataclasses.fields(kind)
    }


def _object(value: Any, kind: Any, where: str) -> Any:
    if (build := getattr(kind, "from_plain", None)) is not None:
        return _built(build, (value,), {}, where)
    _container(value, dict, where)
    parts = {}
    for name, (key, hint, needed) in _fields(kind).items():
        if key in value:
            parts[name] = _check(value[key], hint, _inside(where, key))
        elif needed:
            raise ValueError(f"{_inside(where, key)} is missing")
    return parts if is_typeddict(kind) else _built(kind, (), parts, where)


def _built(build: Any, values: tuple[Any, ...], named: dict[str, Any], where: str) -> Any:
    """What a class refuses in its own words, with the place it stands at."""
    try:
        return build(*values, **named)
    except (ValueError, QuernError) as reason:
        if not where:
            raise
        raise ValueError(f"{where}: {str(reason).rstrip('.')}") from reason


def to_plain(value: Any) -> Any:
    """The reverse of :func:`check`: dataclasses as tables by the keys of their fields, tuples as lists. A field that
    is None because nobody gave it, as where older files lack it, is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if (own := getattr(value, "to_plain", None)) is not None:
            return own()
        return {
            _key(field): to_plain(part)
            for field in dataclasses.fields(value)
            if (part := getattr(value, field.name)) is not None or field.default is not None
        }
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    return value
