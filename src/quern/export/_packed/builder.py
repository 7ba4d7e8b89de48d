"""Values of a network to operations of the runtime: what ``quern.graph.packing.Packer`` asks for."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from quern.errors import ExportError
from quern.export._packed.operations import Buffer, Dtype, Operation, Place, Weights, nest
from quern.graph.packing import BATCH, Binary, Packed, in_order, strided
from quern.runtime import format as qrn

_NO_QUANT = (0, 0, 0, 0, None, None)
_LIMITS = {qrn.IDENTITY, qrn.RELU, qrn.CLAMP}
_MONOTONE = {qrn.RELU, qrn.CLAMP, qrn.TANH, qrn.SIGMOID, qrn.SELU, qrn.SOFTPLUS, qrn.HARDSIGMOID, qrn.LOGSIGMOID}


def _numbers(t: Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy()


class Builder:
    """Operations in order. ``dtype`` is how weights are stored that are no int8 products."""

    def __init__(self, dtype: Literal["F32", "F16"]) -> None:
        self.operations: list[Operation] = []
        self.dtype: Literal["F32", "F16"] = dtype

    # ------------------------------------------------------------------------------------------------- values

    def _new(self, shape: Sequence[int], batch: int | None = 0, dtype: Dtype = "F32") -> Packed:
        return Packed(Buffer(math.prod(shape), dtype), in_order(shape, batch))

    def _add(self, code: str, **fields: Any) -> None:
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
        return self._new(shape, 0, dtype)

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
        made = self._new(moved.shape, batch, x.buffer.dtype)
        self._nest("COPY", made, moved)
        return made

    def fill(self, shape: Sequence[int], number: float) -> Packed:
        """NaN for what will be written before it is read."""
        made = self._new(shape)
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
        self._add("UNARY", **fields, A=float(a), B=float(b))
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
        made = self._new([n for k, n in enumerate(shape) if k != batch], batch)
        self._nest(kind, made, a, b)
        return made

    def reduce(self, kind: Literal["SUM", "MAX", "MIN"], x: Packed, dims: Sequence[int], keepdim: bool) -> Packed:
        if x.batch in dims:
            raise ExportError("an operation sums up the samples of a batch, but a packed network takes one at a time.")
        kept = [1 if n in dims else size for n, size in enumerate(x.view.shape)]
        made = self._new([n for k, n in enumerate(kept) if k != x.batch], x.batch)
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
        made = self._new([size for at, size in enumerate((*lead, m, n)) if at != batch], batch)
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
        made = self._new(kept, 0, "I32")
        sizes = {"OUTER": math.prod(shape[:at]), "COUNT": shape[at], "INNER": math.prod(shape[at + 1 :])}
        self._add("ARGMAX", X=Place(x.buffer), Y=Place(made.buffer), **sizes)
        return made

    # --------------------------------------------------------------------------------------------------- images

    def _images(self, x: Packed) -> Packed:
        if x.view.dim() != 4 or x.batch is None:
            raise ExportError(
                f"a layer gets {tuple(x.view.shape)}, but can be packed for (batch, channels, height, width) alone."
            )
        return self.contiguous(x)

    def pool(self, kind: Literal["MAX", "MEAN", "MODULUS"], x: Packed, **sizes: Any) -> Packed:
        x = self._images(x)
        channels, height, width = x.shape
        made = self._new((channels, *sizes["out"]))
        fields = {name.upper(): value for name, value in sizes.items()}
        count = channels // 4 if kind == "MODULUS" else channels
        self._add(
            "POOL",
            KIND=getattr(qrn, f"POOL_{kind}"),
            X=Place(x.buffer),
            Y=Place(made.buffer),
            CHANNELS=count,
            HEIGHT=height,
            WIDTH=width,
            DTYPE=qrn.F32,
            **fields,
        )
        return made

    def resize(self, x: Packed, out: Sequence[int], scale: Sequence[float], corners: bool) -> Packed:
        x = self._images(x)
        channels, height, width = x.shape
        made = self._new((channels, *out))
        self._add(
            "RESIZE",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            CHANNELS=channels,
            HEIGHT=height,
            WIDTH=width,
            OUT=tuple(out),
            CORNERS=int(corners),
            SCALE=tuple(map(float, scale)),
        )
        return made

    def pixels(self, x: Packed, scale: Tensor, shift: Tensor) -> Packed:
        channels, *space = x.shape
        made = self._new(x.shape)
        fields = {
            "SCALES": scale.double().numpy().astype(np.float32),
            "SHIFTS": shift.double().numpy().astype(np.float32),
        }
        count = math.prod(space)
        self._add("PIXELS", X=Place(x.buffer), Y=Place(made.buffer), CHANNELS=channels, COUNT=count, **fields)
        return made

    # -------------------------------------------------------------------------------------------------- products

    def _weights(self, name: str, weight: Tensor, bias: Tensor | None) -> Weights:
        components, outputs = weight.shape[:2]
        shift = np.zeros((components, outputs)) if bias is None else _numbers(bias).reshape(components, outputs)
        return Weights(name, _numbers(weight).reshape(components, outputs, -1), shift, self.dtype)

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
        x = self._images(x)
        components, outputs, _, *kernel = weight.shape
        channels, *space = x.shape
        out = []
        for n in range(2):
            size = (space[n] - 1) * stuffing[n] + 1 + padding[n] + padding[2 + n]
            out.append((size - (kernel[n] - 1) * dilation[n] - 1) // stride[n] + 1)
        made = self._new((components * outputs, *out))
        taken = None
        if constant is not None:  # (4, outputs, 1, kernel) to (outputs, 4, kernel)
            taken = np.ascontiguousarray(np.moveaxis(_numbers(constant).squeeze(2), 0, 1)).astype(np.float32)
        self._add(
            "CONV",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            HEIGHT=space[0],
            WIDTH=space[1],
            CHANNELS=channels // parts.bit_count(),
            GROUPS=groups,
            KERNEL=tuple(kernel),
            STRIDE=tuple(stride),
            DILATION=tuple(dilation),
            STUFFING=tuple(stuffing),
            PADDING=tuple(padding),
            PARTS=parts,
            CONSTANT=taken,
            QUANT=_NO_QUANT,
            ACTIVATION=0,
            A=0.0,
            B=0.0,
            POOL=0,
            X_DTYPE=qrn.F32,
            Y_DTYPE=qrn.F32,
            WEIGHTS=self._weights(name, weight, bias),
        )
        return made

    def linear(self, name: str, x: Packed, weight: Tensor, bias: Tensor | None, parts: int) -> Packed:
        if x.batch is None:
            raise ExportError(f"{name} is applied to what does not depend on the input.")
        components, outputs, channels = weight.shape
        batch = x.batch
        x = self.contiguous(x)
        made = self._new((*x.shape[:-1], components * outputs))
        self._add(
            "LINEAR",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            ROWS=math.prod(x.shape[:-1]),
            CHANNELS=channels,
            PARTS=parts,
            X_DTYPE=qrn.F32,
            Y_DTYPE=qrn.F32,
            QUANT=_NO_QUANT,
            ACTIVATION=0,
            A=0.0,
            B=0.0,
            WEIGHTS=self._weights(name, weight, bias),
        )
        return made.moved(lambda t: t.movedim(0, batch))

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
        x = self.contiguous(x)
        components, _, units = weight.shape
        steps = x.shape[0]
        made = self._new((steps, components * units))
        last: list[Packed] = []
        for state in states:
            own = self.fill((components * units,), math.nan if state is not None else 0.0)
            if state is not None:
                self.copy(state, own)
            last.append(own)
        fields: dict[str, Any] = {"C": None} | dict(zip("HC", (Place(state.buffer) for state in last), strict=False))
        self._add(
            "RECURRENT",
            KIND=getattr(qrn, kind),
            X=Place(x.buffer),
            Y=Place(made.buffer),
            STEPS=steps,
            REVERSE=int(reverse),
            WEIGHTS=self._weights(name, weight, bias),
            **fields,
        )
        return made, last

    def embed(self, name: str, x: Packed, table: Tensor) -> Packed:
        if x.buffer.dtype != "I32":
            raise ExportError(f"{name} is a table, which must be given whole numbers.")
        x = self.contiguous(x)
        entries, width = table.shape
        made = self._new((*x.shape, width))
        numbers = _numbers(table).astype(np.float16 if self.dtype == "F16" else np.float32)
        self._add(
            "EMBED",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            ROWS=x.count,
            WIDTH=width,
            ENTRIES=entries,
            DTYPE=getattr(qrn, self.dtype),
            TABLE=numbers,
            SCALES=None,
        )
        return made


def _without(t: Tensor, dims: Sequence[int]) -> tuple[list[int], list[int]]:
    left = [n for n in range(t.dim()) if n not in dims]
    return [t.shape[n] for n in left], [t.stride(n) for n in left]


# ----------------------------------------------------------------------------------------------------- fewer operations


def fused(operations: list[Operation], outputs: Sequence[Buffer], int8: bool) -> list[Operation]:
    """The same with activations and poolings as part of the product before them, without what nobody needs. In
    ``int8``, activations that are more than limits stay alone: they become tables."""
    return _fused(_needed(operations, outputs), set(outputs), _LIMITS if int8 else None)


def in_place(operations: list[Operation], outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> list[Operation]:
    """The same with what is computed number by number in the place of its input, if nobody needs that later."""
    kept = {*inputs, *outputs}
    for n, operation in enumerate(operations):
        if operation.code != "UNARY":
            continue
        x, y = operation.fields["X"].buffer, operation.fields["Y"].buffer
        later = any(x in (*other.reads, *other.writes) for other in operations[n + 1 :])
        if x not in kept and not later and x.numbers is None:
            for other in operations[n:]:
                other.replace(y, x)
            if y in kept:  # an output: the other way round
                for other in operations:
                    other.replace(x, y)
    return operations


def _needed(operations: list[Operation], outputs: Sequence[Buffer]) -> list[Operation]:
    needed, kept = set(outputs), list[Operation]()
    for operation in reversed(operations):
        if any(buffer in needed for buffer in operation.writes):
            needed.update(operation.reads)
            kept.append(operation)
    return kept[::-1]


def _fused(operations: list[Operation], outputs: set[Buffer], activations: set[int] | None) -> list[Operation]:
    readers = Counter(buffer for operation in operations for buffer in set(operation.reads))
    producers: dict[Buffer, Operation] = {}
    kept: list[Operation] = []
    for operation in operations:
        before = producers.get(operation.fields["X"].buffer) if operation.code in ("UNARY", "POOL") else None
        alone = before is not None and readers[operation.fields["X"].buffer] == 1
        if (
            before is not None
            and alone
            and operation.fields["X"].buffer not in outputs
            and _joins(before, operation, activations)
        ):
            before.fields["Y"] = operation.fields["Y"]
            if operation.code == "UNARY":
                before.fields |= {
                    "ACTIVATION": operation.fields["KIND"],
                    "A": operation.fields["A"],
                    "B": operation.fields["B"],
                }
            else:
                before.fields["POOL"] = 1
            producers[before.fields["Y"].buffer] = before
            continue
        kept.append(operation)
        if operation.code in ("CONV", "LINEAR"):
            producers[operation.fields["Y"].buffer] = operation
    return kept


def _joins(product: Operation, operation: Operation, activations: set[int] | None) -> bool:
    if operation.code == "UNARY":
        taken = activations is None or operation.fields["KIND"] in activations
        return taken and product.fields["ACTIVATION"] == qrn.IDENTITY
    fields = operation.fields
    halves = all(fields[name] == (2, 2) for name in ("KERNEL", "STRIDE")) and fields["PADDING"] == (0, 0)
    plain = fields["KIND"] == qrn.POOL_MAX and fields["DILATION"] == (1, 1) and halves
    # The maximum of what was activated is the activated maximum. A row that is too short to be pooled would be lost.
    monotone = product.fields["ACTIVATION"] in {qrn.IDENTITY, *_MONOTONE}
    whole = all(out == size // 2 for out, size in zip(fields["OUT"], (fields["HEIGHT"], fields["WIDTH"]), strict=True))
    return product.code == "CONV" and not product.fields["POOL"] and plain and monotone and whole
