"""A packed network before it is written: buffers, and operations on them in order."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from quern.runtime import format as qrn

Dtype = Literal["F32", "I8", "U8", "I32"]
BYTES = {"F32": 4, "I8": 1, "U8": 1, "I32": 4, "F16": 2}


@dataclass(eq=False)
class Buffer:
    """``count`` numbers in the arena or, with ``numbers``, in the blob."""

    count: int
    dtype: Dtype = "F32"
    numbers: np.ndarray | None = None

    @property
    def bytes(self) -> int:
        return self.count * BYTES[self.dtype]


@dataclass(frozen=True)
class Place:
    """A buffer from one of its numbers on."""

    buffer: Buffer
    offset: int = 0


@dataclass
class Weights:
    """The weights of a product: ``values (components, outputs, taps)``, with places in the blob once they are written.

    ``dtype`` is how they are stored; ``pairs`` in an int8 product. ``scales`` are what a unit of a sum is worth.
    """

    name: str
    values: np.ndarray
    bias: np.ndarray
    dtype: Literal["F32", "F16", "I8"] = "F32"
    pairs: bool = False
    scales: np.ndarray | None = None


@dataclass(eq=False)
class Operation:
    """``code`` and ``fields`` are named as in ``quern_rt.h``; a field that is missing is 0."""

    code: str
    fields: dict[str, Any]
    _writes: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._writes = ("Y", "H", "C") if self.code == "RECURRENT" else ("Y",)

    def places(self, names: tuple[str, ...] | None = None) -> Iterator[tuple[str, Place]]:
        for name, value in self.fields.items():
            if isinstance(value, Place) and (names is None or name in names):
                yield name, value

    @property
    def writes(self) -> list[Buffer]:
        return [place.buffer for _, place in self.places(self._writes)]

    @property
    def reads(self) -> list[Buffer]:
        """What it looks at, in the arena; a sum or a part of a copy also needs what was there before."""
        read = [place.buffer for name, place in self.places() if name not in self._writes or name in ("H", "C")]
        if self.code == "NEST" and self.partial:
            read += self.writes
        return [buffer for buffer in read if buffer.numbers is None]

    @property
    def partial(self) -> bool:
        """Whether it leaves something of its result as it was."""
        whole = math.prod(self.fields["SIZES"]) == self.fields["Y"].buffer.count
        return (
            self.fields["KIND"] not in (qrn.NEST_COPY, qrn.NEST_ADD, qrn.NEST_SUB, qrn.NEST_MUL, qrn.NEST_DIV)
            or not whole
        )

    def replace(self, old: Buffer, new: Buffer) -> None:
        for name, place in list(self.places()):
            if place.buffer is old:
                self.fields[name] = Place(new, place.offset)


Strides = tuple[int, ...]


def nest(
    kind: str,
    y: Place,
    sizes: tuple[int, ...],
    sy: Strides,
    a: Place,
    sa: Strides,
    b: Place | None = None,
    sb: Strides | None = None,
) -> Operation:
    """A loop over axes, with those joined that can be; at most five are left."""
    axes = [(n, s, p, q) for n, s, p, q in zip(sizes, sy, sa, sb or (0,) * len(sizes), strict=True) if n != 1]
    joined: list[tuple[int, ...]] = []
    for n, *strides in axes:
        if joined and all(outer == n * inner for outer, inner in zip(joined[-1][1:], strides, strict=True)):
            joined[-1] = (joined[-1][0] * n, *strides)
        else:
            joined.append((n, *strides))
    if len(joined) > qrn.AXES:
        raise ValueError("more than five axes")
    rows: list[tuple[int, ...]] = [(1, 0, 0, 0)] * (qrn.AXES - len(joined)) + joined
    columns = list(zip(*rows, strict=True))
    fields: dict[str, Any] = {
        "KIND": getattr(qrn, f"NEST_{kind}"),
        "DTYPE": getattr(qrn, y.buffer.dtype),
        "A": a,
        "B": b,
        "Y": y,
    }
    fields |= {"SIZES": columns[0], "STRIDES_Y": columns[1], "STRIDES_A": columns[2], "STRIDES_B": columns[3]}
    return Operation("NEST", fields)
