"""Packed networks as bytes: weights dense or sparse, places in the arena, and the blob of ``quern_rt.h``."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quern.errors import ExportError
from quern.export._packed.operations import BYTES, Buffer, Operation, Place, Weights
from quern.runtime import format as qrn

_ALIGNMENT = 16  # of buffers in the arena


@dataclass(frozen=True)
class StoredLayer:
    """How the weights of a layer are stored: ``stored`` of ``total`` units, which are quaternions, or real numbers of a
    real layer; in ``bytes``, with biases and what says where the units belong."""

    name: str
    stored: int
    total: int
    sparse: bool
    bytes: int


class _Content:
    """The part of a blob behind the operations; the same bytes are written once."""

    def __init__(self, start: int) -> None:
        self.data, self.start, self.known = bytearray(), start, dict[tuple[bytes, int], int]()

    def add(self, array: np.ndarray) -> int:
        """The address of the numbers."""
        raw, size = np.ascontiguousarray(array).tobytes(), array.dtype.itemsize
        if (raw, size) not in self.known:
            self.data += bytes(-len(self.data) % size)
            self.known[raw, size] = qrn.IN_BLOB + self.start + len(self.data)
            self.data += raw
        return self.known[raw, size]


def arena_places(
    operations: Sequence[Operation], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> tuple[dict[Buffer, int], int]:
    """Where each buffer lies, so that no two that are needed at the same time share a byte, large ones first; and how
    many bytes that takes."""
    first: dict[Buffer, int] = dict.fromkeys(inputs, -1)
    last: dict[Buffer, int] = dict.fromkeys((*inputs, *outputs), len(operations))
    for buffer in inputs:
        last[buffer] = -1 if buffer not in outputs else len(operations)
    for n, operation in enumerate(operations):
        for buffer in (*operation.writes, *operation.reads):
            first.setdefault(buffer, n)
            if last.get(buffer, -2) < n:
                last[buffer] = n
    places: dict[Buffer, int] = {}
    for buffer in sorted(first, key=lambda b: (-b.bytes, first[b])):
        taken = sorted(
            (places[other], places[other] + other.bytes)
            for other in places
            if first[other] <= last[buffer] and first[buffer] <= last[other]
        )
        here = 0
        for start, end in taken:
            if here + buffer.bytes <= start:
                break
            here = max(here, end + -end % _ALIGNMENT)
        places[buffer] = here
    size = max((places[buffer] + buffer.bytes for buffer in places), default=0)
    return places, size + -size % 4


def _units(weights: Weights) -> np.ndarray:
    """``(outputs, taps, numbers of a unit)`` as they are stored."""
    values = np.moveaxis(weights.values, 0, -1)
    if weights.dtype == "I8":
        return values.astype(np.int8)
    if weights.dtype == "F16":
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        if not np.isfinite(halves).all():
            raise ExportError(
                f"a weight of {weights.name} is too large for float16 (65,504 at most): pack it as float32."
            )
        return halves
    return values.astype(np.float32)


def _gaps(there: np.ndarray) -> bytes:
    """How many zero units stand before each unit of an output that is there; see ``quern_rt.h``."""
    gaps, before = bytearray(), -1
    for place in np.flatnonzero(there):
        gap = int(place) - before - 1
        gaps += b"\xff" * (gap // 255)
        gaps.append(gap % 255)
        before = int(place)
    return bytes(gaps)


def _write_weights(weights: Weights, content: _Content) -> tuple[list[int], StoredLayer]:
    units = _units(weights)
    there = (units != 0).any(-1)
    outputs, taps = there.shape
    gaps = [_gaps(row) for row in there]
    size = units.shape[-1] * units.dtype.itemsize
    sparse_bytes = int(there.sum()) * size + sum(map(len, gaps)) + 8 * (outputs + 1)
    sparse = sparse_bytes < outputs * taps * size  # the rule: whichever is smaller
    before = len(content.data)
    words = [0] * qrn.W_WORDS
    words[qrn.W_COMPONENTS] = weights.values.shape[0] if not weights.pairs or weights.values.shape[0] == 4 else 1
    words[qrn.W_DTYPE], words[qrn.W_OUTPUTS], words[qrn.W_TAPS] = getattr(qrn, weights.dtype), outputs, taps
    words[qrn.W_VALUES] = content.add(units[there] if sparse else units)
    words[qrn.W_STARTS] = words[qrn.W_GAPS] = words[qrn.W_GAP_STARTS] = qrn.NONE
    if sparse:
        counts, lengths = there.sum(1), np.array([len(row) for row in gaps])
        for word, numbers in ((qrn.W_STARTS, counts), (qrn.W_GAP_STARTS, lengths)):
            words[word] = content.add(np.concatenate([[0], np.cumsum(numbers)]).astype(np.uint32))
        words[qrn.W_GAPS] = content.add(np.frombuffer(b"".join(gaps), np.uint8))
    words[qrn.W_BIAS] = content.add(weights.bias.astype(np.int32 if weights.pairs else np.float32))
    words[qrn.W_SCALES] = qrn.NONE if weights.scales is None else content.add(weights.scales.astype(np.float32))
    stored = int(there.sum()) if sparse else outputs * taps
    return words, StoredLayer(weights.name, stored, outputs * taps, sparse, len(content.data) - before)


def _words(operation: Operation, places: dict[Buffer, int], content: _Content) -> tuple[list[int], list[StoredLayer]]:
    code = operation.code
    prefix = {"DEQUANTIZE": "QUANTIZE", "ADD_I8": "ADD"}.get(code, code)
    words, layers = [0] * getattr(qrn, f"{prefix}_WORDS"), list[StoredLayer]()

    def put(at: int, value: Any) -> None:
        if value is None:
            words[at] = qrn.NONE
        elif isinstance(value, Place):
            buffer = value.buffer
            if buffer.numbers is not None:
                words[at] = content.add(buffer.numbers) + value.offset * BYTES[buffer.dtype]
            else:
                words[at] = places[buffer] + value.offset * BYTES[buffer.dtype]
        elif isinstance(value, Weights):
            words[at : at + qrn.W_WORDS], layer = _write_weights(value, content)
            layers.append(layer)
        elif isinstance(value, np.ndarray):
            words[at] = content.add(value)
        elif isinstance(value, (tuple, list)):
            for n, one in enumerate(value):
                put(at + n, one)
        elif isinstance(value, float):
            words[at] = struct.unpack("<I", struct.pack("<f", value))[0]
        else:
            words[at] = int(value)

    for name, value in operation.fields.items():
        put(getattr(qrn, f"{prefix}_{name}"), value)
    return words, layers


@dataclass(frozen=True)
class Tensor:
    """An input or output: its buffer and its shape without the batch."""

    buffer: Buffer
    shape: tuple[int, ...]


def write(
    operations: Sequence[Operation], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[bytes, list[StoredLayer]]:
    """The blob, and how each layer is stored in it."""
    places, size = arena_places(operations, [t.buffer for t in inputs], [t.buffer for t in outputs])
    sizes = {
        op.code: getattr(qrn, f"{ {'DEQUANTIZE': 'QUANTIZE', 'ADD_I8': 'ADD'}.get(op.code, op.code) }_WORDS")
        for op in operations
    }
    count = (
        qrn.HEADER_WORDS + (len(inputs) + len(outputs)) * (3 + qrn.AXES) + sum(2 + sizes[op.code] for op in operations)
    )
    content, layers, body = _Content(4 * count), list[StoredLayer](), list[int]()
    for tensor in (*inputs, *outputs):
        axes = [*tensor.shape, *[1] * (qrn.AXES - len(tensor.shape))]
        body += [getattr(qrn, tensor.buffer.dtype), len(tensor.shape), *axes, places[tensor.buffer]]
    for operation in operations:
        words, stored = _words(operation, places, content)
        body += [getattr(qrn, f"OP_{operation.code}"), len(words), *words]
        layers += stored
    content.data += bytes(-len(content.data) % 4)
    header = [
        qrn.MAGIC,
        4 * count + len(content.data),
        0,
        qrn.VERSION,
        size,
        len(inputs),
        len(outputs),
        len(operations),
    ]
    blob = bytearray(struct.pack(f"<{count}I", *(word & 0xFFFFFFFF for word in (*header, *body))) + content.data)
    struct.pack_into("<I", blob, 4 * qrn.HEADER_CRC, zlib.crc32(blob[4 * qrn.HEADER_VERSION :]))
    return bytes(blob), layers
