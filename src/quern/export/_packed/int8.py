"""Packed networks in 8 bits: ranges of activations from samples, weights of each neuron on a scale of its own.

A number x of an activation is stored as a whole number q from -128 to 127 with ``x = scale * (q - zero)``; 0 is stored
exactly, so borders of zeros are. Sums of products are whole numbers of 32 bits and are brought to the scale of the next
activation by whole numbers alone. What the runtime has no 8-bit form of is computed in float32 between the two.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quern.errors import ExportError
from quern.export._packed import blob
from quern.export._packed.operations import Buffer, Operation, Place, Weights
from quern.runtime import PackedNetwork
from quern.runtime import format as qrn

_AT_ONCE = 48  # activations looked at in one run
_BATCH = 32
_PRODUCTS = ("CONV", "LINEAR")


@dataclass(frozen=True)
class Range:
    """How an activation is stored."""

    scale: float
    zero: int

    @staticmethod
    def of(low: float, high: float) -> "Range":
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return Range(scale, round(-128 - low / scale))

    def stored(self, numbers: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(numbers / self.scale) + self.zero, -128, 127).astype(np.int8)

    def numbers(self, stored: np.ndarray) -> np.ndarray:
        return (stored.astype(np.float64) - self.zero) * self.scale

    def limit(self, number: float) -> int:
        """The stored number next to a limit, which may be infinite."""
        return int(np.clip(round(np.clip(number / self.scale, -512, 512)) + self.zero, -128, 127))


def quantized(
    operations: list[Operation], inputs: Sequence[blob.Tensor], outputs: Sequence[Buffer], samples: Sequence[np.ndarray]
) -> list[Operation]:
    """The operations in 8 bits where there is such a form, with ranges that activations have for ``samples``."""
    bytes_of = _Bytes(operations, set(outputs), _extremes(operations, inputs, samples))
    return list(bytes_of.rewritten())


def _extremes(
    operations: list[Operation], inputs: Sequence[blob.Tensor], samples: Sequence[np.ndarray]
) -> dict[Buffer, tuple[float, float]]:
    """The smallest and the largest number of every activation."""
    buffers = list(dict.fromkeys(b for op in operations for b in (*op.reads, *op.writes) if b.dtype == "F32"))
    extremes: dict[Buffer, tuple[float, float]] = {}
    for start in range(0, len(buffers), _AT_ONCE):
        some = buffers[start : start + _AT_ONCE]
        content, _ = blob.write(operations, inputs, [blob.Tensor(buffer, (buffer.count,)) for buffer in some])
        network = PackedNetwork(content)
        for first in range(0, len(samples[0]), _BATCH):
            results = network(*(s[first : first + _BATCH] for s in samples))
            for buffer, values in zip(some, results if isinstance(results, tuple) else (results,), strict=True):
                low, high = extremes.get(buffer, (math.inf, -math.inf))
                extremes[buffer] = min(low, float(values.min())), max(high, float(values.max()))
    return extremes


class _Bytes:
    """Which activations are stored in bytes, and how."""

    def __init__(
        self, operations: list[Operation], outputs: set[Buffer], extremes: dict[Buffer, tuple[float, float]]
    ) -> None:
        self.operations, self.outputs = operations, outputs
        self.writers: dict[Buffer, list[Operation]] = {}
        self.readers: dict[Buffer, list[Operation]] = {}
        for operation in operations:
            for buffer in operation.writes:
                self.writers.setdefault(buffer, []).append(operation)
            for buffer in set(operation.reads):
                self.readers.setdefault(buffer, []).append(operation)
        self.whole = {buffer for buffer in self.writers if self._wanted(buffer) and self._can_be(buffer)}
        self.ranges = self._ranges(extremes)
        self.as_bytes: dict[Buffer, Buffer] = {}
        self.as_floats: dict[Buffer, Buffer] = {}

    # -------------------------------------------------------------------------------------------------- which

    def _wanted(self, buffer: Buffer) -> bool:
        """Whether somebody takes it in bytes."""
        for reader in self.readers.get(buffer, ()):
            if reader.code in _PRODUCTS:
                if _fits(reader):
                    return True
            elif _has_form(reader) and any(out is not buffer and self._wanted(out) for out in reader.writes):
                return True
        return False

    def _can_be(self, buffer: Buffer) -> bool:
        """Whether all that write it can write bytes."""
        if buffer in self.outputs or buffer not in self.writers or not self._wanted(buffer):
            return False
        return all(self._writes_bytes(writer, buffer) for writer in self.writers[buffer])

    def _writes_bytes(self, operation: Operation, out: Buffer) -> bool:
        if operation.code in _PRODUCTS:
            return _fits(operation)
        if operation.code == "PIXELS":
            return True
        if not _has_form(operation) or _is_mean(operation):
            return False
        return all(self._can_be(buffer) for buffer in set(operation.reads) - {out})

    def _ranges(self, extremes: dict[Buffer, tuple[float, float]]) -> dict[Buffer, Range]:
        """What is copied or pooled keeps its scale, so all of it has one."""
        group = {buffer: buffer for buffer in extremes}

        def root(buffer: Buffer) -> Buffer:
            while group[buffer] is not buffer:
                buffer = group[buffer]
            return buffer

        for operation in self.operations:
            if operation.code == "POOL" or (operation.code == "NEST" and operation.fields["KIND"] == qrn.NEST_COPY):
                source, made = operation.fields["X" if operation.code == "POOL" else "A"].buffer, operation.writes[0]
                if source in self.whole and made in self.whole:
                    group[root(source)] = root(made)
        limits: dict[Buffer, tuple[float, float]] = {}
        for buffer, (low, high) in extremes.items():
            known = limits.get(root(buffer), (0.0, 0.0))
            limits[root(buffer)] = min(known[0], low), max(known[1], high)
        return {buffer: Range.of(*limits[root(buffer)]) for buffer in extremes}

    # ------------------------------------------------------------------------------------------------ rewritten

    def rewritten(self) -> Iterator[Operation]:
        for operation in self.operations:
            takes = self._takes_bytes(operation)
            for name, place in list(operation.places()):
                buffer = place.buffer
                if buffer in operation.writes or buffer.numbers is not None:
                    continue
                if takes and buffer not in self.whole and buffer.dtype == "F32":
                    yield from self._to_bytes(buffer)
                    operation.fields[name] = Place(self.as_bytes[buffer], place.offset)
                elif not takes and buffer in self.whole:
                    yield from self._to_floats(buffer)
                    operation.fields[name] = Place(self.as_floats[buffer], place.offset)
            yield self._in_bytes(operation) if takes or operation.code == "PIXELS" else self._weights_alone(operation)
        for buffer in self.whole:
            buffer.dtype = "I8"

    def _takes_bytes(self, operation: Operation) -> bool:
        if operation.code in _PRODUCTS:
            return _fits(operation)
        if _is_mean(operation):
            return operation.fields["X"].buffer in self.whole
        return _has_form(operation) and operation.code != "PIXELS" and all(b in self.whole for b in operation.writes)

    def _to_bytes(self, buffer: Buffer) -> Iterator[Operation]:
        if buffer not in self.as_bytes:
            made = self.as_bytes[buffer] = Buffer(buffer.count, "I8")
            self.ranges[made] = self.ranges[buffer]
            yield self._conversion("QUANTIZE", buffer, made)

    def _to_floats(self, buffer: Buffer) -> Iterator[Operation]:
        if buffer not in self.as_floats:
            self.as_floats[buffer] = Buffer(buffer.count)
            yield self._conversion("DEQUANTIZE", buffer, self.as_floats[buffer])

    def _conversion(self, code: str, source: Buffer, made: Buffer) -> Operation:
        stored = self.ranges[source]
        fields = {
            "X": Place(source),
            "Y": Place(made),
            "COUNT": source.count,
            "SCALE": stored.scale,
            "ZERO": stored.zero,
        }
        return Operation(code, fields)

    def _in_bytes(self, operation: Operation) -> Operation:
        fields = operation.fields
        if operation.code in _PRODUCTS:
            return self._product(operation)
        made = self.ranges.get(fields["Y"].buffer)
        if operation.code == "POOL":
            source = self.ranges[fields["X"].buffer]
            return Operation("POOL", fields | {"DTYPE": qrn.I8, "ZERO": source.zero, "SCALE": source.scale})
        assert made is not None
        if operation.code == "PIXELS":
            if fields["Y"].buffer not in self.whole:
                return operation
            raw = np.arange(256.0)[None] * fields["SCALES"].astype(np.float64)[:, None] - fields["SHIFTS"][:, None]
            return _table(operation, made.stored(raw), fields["CHANNELS"], fields["COUNT"])
        if operation.code == "UNARY":
            source = self.ranges[fields["X"].buffer]
            numbers = source.numbers(np.arange(256).astype(np.uint8).view(np.int8))
            return _table(operation, made.stored(_activated(fields, numbers))[None], 1, fields["COUNT"])
        if fields["KIND"] == qrn.NEST_COPY:
            taken = fields["A"]
            if taken.buffer.numbers is not None:  # a border
                numbers = made.stored(taken.buffer.numbers.astype(np.float64))
                taken = Place(Buffer(taken.buffer.count, "I8", numbers), taken.offset)
            return Operation("NEST", fields | {"DTYPE": qrn.I8, "A": taken})
        return self._sum(operation, made)

    def _sum(self, operation: Operation, made: Range) -> Operation:
        fields = operation.fields
        a, b = (self.ranges[fields[name].buffer] for name in "AB")
        shift = 22 - max(math.ceil(math.log2(max(a.scale, b.scale) / made.scale)), -30)
        factors = {f"{name}_MULTIPLIER": round(r.scale / made.scale * 2**shift) for name, r in (("A", a), ("B", b))}
        zeros = {"A_ZERO": a.zero, "B_ZERO": b.zero, "Y_ZERO": made.zero, "LOW": -128, "HIGH": 127}
        places = {name: fields[name] for name in "ABY"}
        return Operation("ADD_I8", places | factors | zeros | {"COUNT": math.prod(fields["SIZES"]), "SHIFT": shift})

    def _product(self, operation: Operation) -> Operation:
        fields, weights = operation.fields, operation.fields["WEIGHTS"]
        source, out = self.ranges[fields["X"].buffer], fields["Y"].buffer
        constant = fields.get("CONSTANT")
        scale = np.abs(weights.values).max((0, 2)) / 127
        least = np.abs(weights.bias).max(0) / 2**28  # sums have 32 bits
        if constant is not None:
            least = np.maximum(least, np.abs(constant).max((1, 2, 3)) / 2**18)
        scale = np.maximum(scale, least / source.scale)
        scale[scale == 0] = 1e-30  # of a neuron that is always zero
        values = np.rint(weights.values / scale[None, :, None])
        if values.shape[0] == 1 and not _alone(operation):
            values = _paired(values, _area(operation))
        worth = source.scale * scale
        in_bytes = out in self.whole
        bias = np.rint(weights.bias / worth)
        stored = Weights(weights.name, values, bias, "I8", True, None if in_bytes else worth)
        quant: tuple[Any, ...] = (source.zero, 0, 0, 0, None, None)
        if in_bytes:
            made = self.ranges[out]
            low, high = {qrn.RELU: (0.0, math.inf), qrn.CLAMP: (fields["A"], fields["B"])}.get(
                fields["ACTIVATION"], (-math.inf, math.inf)
            )
            factors = [_factor(one / made.scale, weights.name) for one in worth]
            multipliers = np.array([multiplier for multiplier, _ in factors], np.int32)
            shifts = np.array([shift for _, shift in factors], np.uint8)
            quant = (source.zero, made.zero, made.limit(low), made.limit(high), multipliers, shifts)
        new = {"X_DTYPE": qrn.I8, "Y_DTYPE": qrn.I8 if in_bytes else qrn.F32, "QUANT": quant, "WEIGHTS": stored}
        if constant is not None:
            new["CONSTANT"] = np.rint(constant / worth[:, None, None, None]).astype(np.int32)
        return Operation(operation.code, fields | new)

    def _weights_alone(self, operation: Operation) -> Operation:
        """Weights in bytes, with sums in float32: recurrent layers and tables."""
        fields = operation.fields
        if operation.code == "RECURRENT":
            weights = fields["WEIGHTS"]
            scale = np.abs(weights.values).max((0, 2)) / 127
            scale[scale == 0] = 1.0
            values = np.rint(weights.values / scale[None, :, None])
            stored = Weights(weights.name, values, weights.bias, "I8", False, scale)
            return Operation("RECURRENT", fields | {"WEIGHTS": stored})
        if operation.code == "EMBED":
            scale = np.abs(fields["TABLE"]).max(1).astype(np.float64) / 127
            scale[scale == 0] = 1.0
            table = np.rint(fields["TABLE"] / scale[:, None]).astype(np.int8)
            return Operation("EMBED", fields | {"TABLE": table, "DTYPE": qrn.I8, "SCALES": scale.astype(np.float32)})
        return operation


def _fits(operation: Operation) -> bool:
    """Whether the sums of a product in bytes have 32 bits."""
    return operation.fields["WEIGHTS"].values.shape[2] <= qrn.MAX_TAPS_I8


def _is_mean(operation: Operation) -> bool:
    return operation.code == "POOL" and operation.fields["KIND"] == qrn.POOL_MEAN


def _has_form(operation: Operation) -> bool:
    """Whether the runtime has an operation in bytes for it, products aside."""
    fields = operation.fields
    if operation.code == "POOL":
        return fields["KIND"] != qrn.POOL_MODULUS
    if operation.code == "NEST":
        if fields["KIND"] == qrn.NEST_COPY:
            return fields["DTYPE"] == qrn.F32
        plain = fields["STRIDES_A"] == fields["STRIDES_B"] == fields["STRIDES_Y"] == (0, 0, 0, 0, 1)
        same = all(fields[name].buffer.numbers is None and not fields[name].offset for name in "AB" if fields[name])
        return fields["KIND"] == qrn.NEST_ADD and plain and same
    return operation.code in ("UNARY", "PIXELS")


def _area(operation: Operation) -> int:
    return math.prod(operation.fields["KERNEL"]) if operation.code == "CONV" else 1


def _alone(operation: Operation) -> bool:
    """Whether each number of the result is made of one channel, so that there is none to make a pair with."""
    return operation.code == "CONV" and operation.fields["CHANNELS"] == operation.fields["GROUPS"]


def _paired(values: np.ndarray, area: int) -> np.ndarray:
    """``(1, outputs, channels * area)`` to ``(2, outputs, pairs * area)``: two channels to a unit."""
    _, outputs, taps = values.shape
    channels = values.reshape(outputs, taps // area, area)
    if channels.shape[1] % 2:
        channels = np.concatenate([channels, np.zeros((outputs, 1, area))], 1)
    return np.moveaxis(channels.reshape(outputs, -1, 2, area), 2, 0).reshape(2, outputs, -1)


def _factor(number: float, name: str) -> tuple[int, int]:
    """``number`` as ``multiplier / 2**(31 + shift)``, with 31 bits."""
    fraction, exponent = math.frexp(number)
    multiplier, shift = round(fraction * 2**31), -exponent
    if multiplier == 2**31:
        multiplier, shift = 2**30, shift - 1
    if shift < 0:
        raise ExportError(f"{name} gives numbers next to nothing for the example, so int8 has no scale for it.")
    return (multiplier, shift) if shift <= 30 else (0, 0)


def _table(operation: Operation, table: np.ndarray, channels: int, count: int) -> Operation:
    places = {name: operation.fields[name] for name in "XY"}
    return Operation("TABLE", places | {"CHANNELS": channels, "COUNT": count, "TABLE": table.view(np.uint8)})


def _activated(fields: dict[str, Any], numbers: np.ndarray) -> np.ndarray:
    """An activation, as the runtime itself computes it."""
    x, y = Buffer(len(numbers)), Buffer(len(numbers))
    operation = Operation("UNARY", fields | {"X": Place(x), "Y": Place(y), "COUNT": len(numbers)})
    shape = (len(numbers),)
    content, _ = blob.write([operation], [blob.Tensor(x, shape)], [blob.Tensor(y, shape)])
    result = PackedNetwork(content)(numbers[None].astype(np.float32))[0]
    return torch.nan_to_num(torch.from_numpy(result.astype(np.float64))).numpy()
