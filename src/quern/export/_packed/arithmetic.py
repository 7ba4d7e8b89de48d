"""Operations of the runtime on numbers: copies, sums and products, activations, matrix products."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from quern.errors import ExportError
from quern.export._packed.operations import Buffer, Dtype, Operation, Place, nest
from quern.graph.packing import BATCH, Binary, Packed, in_order, strided
from quern.runtime import format as qrn


class Arithmetic:
    """Operations in order: values, and what is computed number by number or along axes. ``dtype`` is how weights are
    stored that are no int8 products."""

    def __init__(self, dtype: Literal["F32", "F16"]) -> None:
        self.operations: list[Operation] = []
        self.dtype: Literal["F32", "F16"] = dtype

    # ------------------------------------------------------------------------------------------------- values

    def new(self, shape: Sequence[int], batch: int | None = 0, dtype: Dtype = "F32") -> Packed:
        return Packed(Buffer(math.prod(shape), dtype), in_order(shape, batch))

    def add(self, code: str, **fields: Any) -> None:
        self.operations.append(Operation(code, fields))

    def _nest(self, kind: str, y: Packed, a: Packed, b: Packed | None = None) -> None:
        """``a`` and ``b`` have the shape of ``y``, the batch where ``y`` has it."""
        if kind != "COPY" and any(v.buffer.dtype != "F32" for v in (a, b) if v is not None):
            raise ExportError("whole numbers can be looked up in a table, but not computed with.")
        axes = [n for n in range(y.view.dim()) if n != y.batch]

        def strides(v: Packed) -> tuple[int, ...]:
            own = v.view.stride()
            return tuple(0 if v.view.shape[n] == 1 else own[n] for n in axes)

        sizes = tuple(y.view.shape[n] for n in axes)
        for v in (a, b):
            if v is not None and any(v.view.stride(n) == BATCH for n in axes):
                raise ExportError(
                    "an operation mixes the samples of a batch, but a packed network takes one at a time."
                )
        places = [None if v is None else Place(v.buffer, int(v.view.storage_offset())) for v in (y, a, b)]
        assert places[0] is not None
        assert places[1] is not None
        try:
            operation = nest(
                kind, places[0], sizes, strides(y), places[1], strides(a), places[2], None if b is None else strides(b)
            )
        except ValueError:
            raise ExportError("an operation on more than five axes cannot be packed.") from None
        self.operations.append(operation)

    def constant(self, numbers: Tensor) -> Packed:
        array = numbers.detach().cpu()
        whole = not array.is_floating_point()
        kept = array.to(torch.int32 if whole else torch.float32).contiguous().numpy()
        view = in_order(tuple(numbers.shape), None)
        return Packed(Buffer(kept.size, "I32" if whole else "F32", kept.reshape(-1)), view)

    def input(self, shape: Sequence[int], dtype: Dtype) -> Packed:
        return self.new(shape, 0, dtype)

    def contiguous(self, x: Packed, batch: int | None = 0) -> Packed:
        if x.batch is None:
            batch = None
        view = x.view
        if x.batch is not None and batch is not None and x.batch != batch:
            view = view.movedim(x.batch, batch)
        moved = Packed(x.buffer, view)
        fresh = in_order(moved.shape, batch)
        plain = x.buffer.numbers is None and view.storage_offset() == 0 and x.buffer.count == moved.count
        if plain and all(a == b or n == 1 for a, b, n in zip(view.stride(), fresh.stride(), view.shape, strict=True)):
            return Packed(x.buffer, fresh)
        made = self.new(moved.shape, batch, x.buffer.dtype)
        self._nest("COPY", made, moved)
        return made

    def fill(self, shape: Sequence[int], number: float) -> Packed:
        """NaN for what will be written before it is read."""
        made = self.new(shape)
        if number == number:
            one = self.constant(torch.tensor(number))
            self._nest("COPY", made, Packed(one.buffer, strided(made.view.shape, (0,) * made.view.dim())))
        return made

    def copy(self, x: Packed, to: Packed) -> None:
        to.buffer.dtype = x.buffer.dtype  # of a joined value: that of its parts
        self._nest("COPY", to, x.moved(lambda t: t.expand(to.view.shape)) if x.view.shape != to.view.shape else x)

    def _in_memory_order(self, x: Packed) -> Packed:
        """``x`` if it has all numbers of its buffer once each, in any order; else a copy."""
        steps = sorted((s, n) for s, n in zip(x.strides, x.shape, strict=True) if n != 1)
        expected = 1
        for stride, size in steps:
            if stride != expected:
                return self.contiguous(x, x.batch)
            expected *= size
        whole = x.buffer.numbers is None and expected == x.buffer.count and x.view.storage_offset() == 0
        return x if whole else self.contiguous(x, x.batch)

    # --------------------------------------------------------------------------------------------- number by number

    def unary(self, kind: str, x: Packed, a: float = 0.0, b: float = 0.0) -> Packed:
        if x.buffer.dtype != "F32":
            raise ExportError("whole numbers can be looked up in a table, but not computed with.")
        x = self._in_memory_order(x)
        made = Packed(Buffer(x.buffer.count), x.view)
        fields = {"KIND": getattr(qrn, kind), "X": Place(x.buffer), "Y": Place(made.buffer), "COUNT": x.buffer.count}
        self.add("UNARY", **fields, A=float(a), B=float(b))
        return made

    def binary(self, kind: Binary, a: Packed, b: Packed) -> Packed:
        number = next((v for v in (b, a) if v.buffer.numbers is not None and v.buffer.count == 1), None)
        other = a if number is b else b
        if number is not None and other.batch is not None and (kind in ("ADD", "MUL") or number is b):
            value = float(number.buffer.numbers[0])
            scale, shift = {"ADD": (1.0, value), "SUB": (1.0, -value), "MUL": (value, 0.0)}.get(
                kind, (1 / value if value else math.inf, 0.0)
            )
            if other.view.dim() >= number.view.dim():
                return self.unary("AFFINE", other, scale, shift)
        sides = [v.view for v in (a, b)]
        try:
            shape = torch.broadcast_shapes(*(v.shape for v in sides))
        except RuntimeError as reason:
            raise ExportError(
                f"values of shapes {tuple(sides[0].shape)} and {tuple(sides[1].shape)} cannot be joined."
            ) from reason
        a, b = (Packed(v.buffer, v.view.expand(shape)) for v in (a, b))
        batch = next((v.batch for v in (a, b) if v.batch is not None), None)
        made = self.new([n for k, n in enumerate(shape) if k != batch], batch)
        self._nest(kind, made, a, b)
        return made

    def reduce(self, kind: Literal["SUM", "MAX", "MIN"], x: Packed, dims: Sequence[int], keepdim: bool) -> Packed:
        if x.batch in dims:
            raise ExportError("an operation sums up the samples of a batch, but a packed network takes one at a time.")
        kept = [1 if n in dims else size for n, size in enumerate(x.view.shape)]
        made = self.new([n for k, n in enumerate(kept) if k != x.batch], x.batch)
        wide = Packed(made.buffer, made.view.expand(x.view.shape))
        if kind == "SUM":
            zero = self.constant(torch.zeros(()))
            self._nest("COPY", made, Packed(zero.buffer, strided(made.view.shape, (0,) * made.view.dim())))
        else:
            first = x.view
            for n in dims:
                first = first.narrow(n, 0, 1)
            self._nest("COPY", made, Packed(x.buffer, first))
        self._nest(kind, wide, x)
        if keepdim:
            return made
        return made.moved(lambda t: strided(*_without(t, dims)))

    def matmul(self, a: Packed, b: Packed) -> Packed:
        """Over all leading axes."""
        if min(a.view.dim(), b.view.dim()) < 2:
            raise ExportError("a product of matrices and vectors cannot be packed: give the vector another axis.")
        *left, m, k = a.view.shape
        *right, _, n = b.view.shape
        lead = torch.broadcast_shapes(tuple(left), tuple(right))
        wide_a = Packed(a.buffer, a.view.expand(*lead, m, k).unsqueeze(-1).expand(*lead, m, k, n))
        wide_b = Packed(b.buffer, b.view.expand(*lead, k, n).unsqueeze(-3).expand(*lead, m, k, n))
        batch = next((v.batch for v in (wide_a, wide_b) if v.batch is not None), None)
        made = self.new([size for at, size in enumerate((*lead, m, n)) if at != batch], batch)
        zero = self.constant(torch.zeros(()))
        self._nest("COPY", made, Packed(zero.buffer, strided(made.view.shape, (0,) * made.view.dim())))
        wide = Packed(made.buffer, made.view.unsqueeze(-2).expand(*lead, m, k, n))
        self._nest("PRODUCT", wide, wide_a, wide_b)
        return made

    def argmax(self, x: Packed, dim: int, keepdim: bool) -> Packed:
        x = self.contiguous(x)
        at = (dim % x.view.dim()) - 1
        if at < 0:
            raise ExportError("argmax over the batch cannot be packed.")
        shape = x.shape
        kept = (*shape[:at], *([1] if keepdim else []), *shape[at + 1 :])
        made = self.new(kept, 0, "I32")
        sizes = {"OUTER": math.prod(shape[:at]), "COUNT": shape[at], "INNER": math.prod(shape[at + 1 :])}
        self.add("ARGMAX", X=Place(x.buffer), Y=Place(made.buffer), **sizes)
        return made


def _without(t: Tensor, dims: Sequence[int]) -> tuple[list[int], list[int]]:
    left = [n for n in range(t.dim()) if n not in dims]
    return [t.shape[n] for n in left], [t.stride(n) for n in left]
