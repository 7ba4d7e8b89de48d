"""Along which axis a value carries quaternions, and why that cannot be said."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from quern.graph.spec import Spec


@dataclass(frozen=True)
class At:
    """A value with quaternions along ``axis``, which is counted from the front if the number of axes is known."""

    axis: int
    rank: int | None = None

    @classmethod
    def of(cls, axis: int, rank: int | None) -> "At":
        return cls(axis if rank is None else axis % rank, rank)

    def is_axis(self, dim: int) -> bool:
        """Whether ``dim`` is the axis of the quaternions."""
        if self.rank is not None:
            return dim % self.rank == self.axis
        if (dim < 0) != (self.axis < 0):
            raise NeedsExample
        return dim == self.axis

    @property
    def from_right(self) -> int:
        if self.rank is not None:
            return self.axis - self.rank
        if self.axis >= 0:
            raise NeedsExample
        return self.axis

    @property
    def whole(self) -> tuple[int, int]:
        """The axis from the front, and how many there are."""
        if self.rank is None:
            raise NeedsExample
        return self.axis, self.rank


@dataclass(frozen=True)
class Each:
    """Several values that are all alike."""

    value: Any


class NeedsExample(Exception):
    """What a function does depends on how many axes a value has, or how long they are."""


class Cut(Exception):
    """A function does to quaternions what has no counterpart; the text says why."""


def each_at(value: Any) -> Iterator[At]:
    if isinstance(value, At):
        yield value
    elif isinstance(value, Each):
        yield from each_at(value.value)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from each_at(part)


def view_group(before: Sequence[int], after: Sequence[int], axis: int) -> tuple[int, int, int, int]:
    """The axes ``first:last`` that a view of ``before`` as ``after`` makes ``start:stop`` of, where ``axis`` is one of
    the former: the fewest with equally many numbers in front of them, and in them."""
    first = start = 0
    while True:
        last, stop = first + 1, start + 1
        size, new = before[first], after[start] if start < len(after) else 1
        while size != new:
            if size < new:
                size *= before[last]
                last += 1
            else:
                new *= after[stop]
                stop += 1
        if first <= axis < last:
            return first, last, start, min(stop, len(after))
        first, start = last, stop


def form_along(spec: Spec, layer: nn.Module, axes: set[At | None]) -> nn.Module | None:
    """The quaternion form of a layer that is called with quaternions along the same axis each time."""
    values = list(axes)
    if len(values) != 1 or values[0] is None:
        return None
    value = values[0]
    from_back = value.rank is not None and value.axis == value.rank - 1 and value.axis != 1
    return spec.quaternion_form_along(layer, -1 if from_back else value.axis)
