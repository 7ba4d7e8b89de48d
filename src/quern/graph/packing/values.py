"""A value in a buffer of the runtime, and what makes operations on such values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from quern.errors import ExportError

BATCH = 1 << 40  # the stride of the batch
_EXAMPLES = 2  # its size, so that it is not taken for an axis that can be left out

Binary = Literal["ADD", "SUB", "MUL", "DIV"]


@dataclass(frozen=True)
class Packed:
    """``view`` is a tensor without memory: its shape, strides and offset are those of the value in ``buffer``."""

    buffer: Any
    view: Tensor

    @property
    def batch(self) -> int | None:
        """The axis of the batch; None of a value that is the same for all samples."""
        return next((n for n, stride in enumerate(self.view.stride()) if stride == BATCH), None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Without the batch."""
        return tuple(size for size, stride in zip(self.view.shape, self.view.stride(), strict=True) if stride != BATCH)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(stride for stride in self.view.stride() if stride != BATCH)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def moved(self, move: Callable[[Tensor], Any]) -> Any:
        """The value after an operation that moves axes and numbers, and makes none."""
        made = move(self.view)
        if isinstance(made, (tuple, list)):
            return tuple(self._after(view) for view in made)
        return self._after(made)

    def _after(self, view: Tensor) -> "Packed":
        value = Packed(self.buffer, view)
        whole = value.batch is not None and view.shape[value.batch] == _EXAMPLES
        if self.batch is not None and not whole:
            raise ExportError("it takes some samples of a batch, but a packed network takes one at a time.")
        return value


def strided(shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Tensor:
    """A tensor without memory."""
    return torch.empty_strided(tuple(shape), tuple(strides), device="meta").as_strided(shape, strides, offset)


def in_order(shape: Sequence[int], batch: int | None = 0) -> Tensor:
    """The view of a new buffer ``shape`` with the batch at an axis."""
    strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    sizes = list(shape)
    if batch is not None:
        sizes.insert(batch, _EXAMPLES)
        strides.insert(batch, BATCH)
    return strided(sizes, strides)


@runtime_checkable
class Packer(Protocol):
    """Operations of the runtime in the making. What it returns are values too. ``name`` is that of the layer."""

    def constant(self, numbers: Tensor) -> Packed:
        """Numbers that belong to the network."""
        ...

    def contiguous(self, x: Packed, batch: int = 0) -> Packed:
        """The same numbers in the order of their axes, the batch first."""
        ...

    def fill(self, shape: Sequence[int], number: float) -> Packed: ...

    def copy(self, x: Packed, to: Packed) -> None:
        """Put ``x`` in the place of ``to``, a part of a value that was made by :meth:`fill`."""

    def unary(self, kind: str, x: Packed, a: float = 0.0, b: float = 0.0) -> Packed:
        """``kind`` is a name among the activations of ``quern_rt.h``."""
        ...

    def binary(self, kind: Binary, a: Packed, b: Packed) -> Packed: ...

    def reduce(self, kind: Literal["SUM", "MAX", "MIN"], x: Packed, dims: Sequence[int], keepdim: bool) -> Packed: ...

    def matmul(self, a: Packed, b: Packed) -> Packed: ...

    def argmax(self, x: Packed, dim: int, keepdim: bool) -> Packed: ...

    def pool(self, kind: Literal["MAX", "MEAN", "MODULUS"], x: Packed, **sizes: Any) -> Packed:
        """Over the last two axes of ``(batch, channels, height, width)``: ``out``, ``kernel``, ``stride``, ``padding``,
        ``dilation``, ``divisor`` as ``quern_rt.h`` has them."""
        ...

    def resize(self, x: Packed, out: Sequence[int], scale: Sequence[float], corners: bool) -> Packed: ...

    def conv(
        self,
        name: str,
        x: Packed,
        weight: Tensor,
        bias: Tensor | None,
        constant: Tensor | None,
        *,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        stuffing: Sequence[int],
        groups: int,
        parts: int,
    ) -> Packed:
        """``weight (components, out, in/groups, height, width)`` on ``x (batch, channels, height, width)``; ``padding``
        is top, left, bottom, right; ``parts`` has a bit for each component that the input has."""
        ...

    def linear(self, name: str, x: Packed, weight: Tensor, bias: Tensor | None, parts: int) -> Packed:
        """``weight (components, out, in)`` on the last axis."""
        ...

    def recurrent(
        self,
        name: str,
        kind: str,
        x: Packed,
        weight: Tensor,
        bias: Tensor,
        states: Sequence[Packed | None],
        reverse: bool,
    ) -> tuple[Packed, list[Packed]]:
        """What the gates get from the input, ``(batch, steps, gates)``, and the weight from state to gates, to the
        states of all steps and the last ones; those to begin with are zero where they are None."""
        ...

    def embed(self, name: str, x: Packed, table: Tensor) -> Packed: ...
