"""A file of tensors with JSON in its header and a checksum over all of it, read by someone who trusts none of it.

A file is 8 bytes with the length of the header, the header in JSON, and the tensors one after the other, as safetensors
writes it. The header says where each tensor lies; quern's own JSON is a text in it, beside the checksum. Networks
(:mod:`quern.io`) and checkpoints (:mod:`quern.train.checkpoint`) are such files.

The checksum is the SHA-256 of the whole file, with zeros in the place of the checksum itself. Where the tensors take
more than ``PIECE`` bytes and the header says ``pieces``, the SHA-256 of each piece of that many bytes stands for the
piece: so all cores compute it.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quern.io._checksum import Checksum
from quern.records.schema import Wrong, parse, short

__all__ = [
    "CHANNELS",
    "HEADER_BYTES",
    "PIECE",
    "TYPES",
    "WHOLE",
    "Head",
    "check_whole",
    "damaged",
    "file_size",
    "head_of",
]
__all__ += ["json_of", "kinds_of", "read_head", "read_tensors", "spread", "write_tensors"]

HEADER_BYTES = 8 << 20
CHANNELS = 1 << 20  # in all the plans of a file
_AXES = 32
PIECE = 2 << 20
_BLOCK = 1 << 20  # bytes that are read, written and looked at while they are in the processor's cache

TYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# By the bytes of a number: whole numbers of as many, to look at its bits.
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


Kind = tuple[torch.dtype, tuple[int, ...]]  # the type and the shape of a tensor


def damaged(what: str) -> Wrong:
    return Wrong(f"is not a file of quern, or is damaged: {what}")


@dataclass(frozen=True)
class Head:
    """The checked header. ``raw`` are its bytes with their length before them; ``own`` is quern's part of it;
    ``in_pieces`` says of which kind the checksum is; ``tensors`` are types and shapes by name, in the order in which
    they lie in the file."""

    raw: bytes
    own: Any
    sha256: str
    in_pieces: bool
    tensors: dict[str, Kind]


def read_head(file: BufferedIOBase, size: int, read_own: Callable[[str | None], Any], most: int = HEADER_BYTES) -> Head:
    """The header of a file of ``size`` bytes, which is at most ``most`` long. ``read_own`` checks quern's own text in
    it, which is None if there is none."""
    start = file.read(8)
    if len(start) < 8:
        raise damaged("it is empty" if not start else "it ends within its first 8 bytes")
    length = int.from_bytes(start, "little")
    if length > min(size - 8, most):
        raise damaged(f"it claims a header of {length:,} bytes in a file of {size:,}")
    text = file.read(length)
    if len(text) < length:
        raise damaged("it ends within its header")
    table = json_of(text)
    if not isinstance(table, dict) or text[:1] != b"{":
        raise damaged("its header is not a table")
    metadata = table.pop("__metadata__", None)
    own_text = metadata.get("quern") if isinstance(metadata, dict) else None
    own = read_own(own_text if isinstance(own_text, str) else None)
    assert isinstance(metadata, dict)
    sha256 = metadata.get("sha256")
    if not (isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256)):
        raise damaged("it has no checksum")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise damaged("its metadata are not texts")
    if metadata.get("pieces") not in (None, str(PIECE)):
        raise damaged("its checksum is of a kind that is not known here")
    return Head(start + text, own, sha256, "pieces" in metadata, _tensors(table, size - 8 - length))


def json_of(text: bytes | str, nan: bool = False) -> Any:
    """The value of a JSON text in a header; see :func:`quern.records.schema.parse`."""
    try:
        return parse(text, nan)
    except ValueError as reason:
        raise damaged(f"its header is not JSON as it should be ({short(reason)})") from reason


def spread(value: Any) -> int:
    """How many numbers the ranges in a value stand for: the text 0-2000000000 is short, but the list of them is not."""
    if isinstance(value, str):
        return sum(max(0, int(last) - int(first) + 1) for first, last in re.findall(r"(\d{1,18})-(\d{1,18})", value))
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(spread, inside))


def _tensors(table: dict[str, Any], size: int) -> dict[str, Kind]:
    """The types and shapes of the tensors, if they fill the ``size`` bytes after the header without gap or overlap."""
    places: list[tuple[int, int, str]] = []
    kinds: dict[str, Kind] = {}
    for name, entry in table.items():
        match entry:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
                len(entry) == 3
                and type(begin) is type(end) is int
                and kind in TYPES
                and len(shape) <= _AXES
                and all(type(n) is int and n >= 0 for n in shape)
                and 0 <= begin <= end <= size
                and math.prod(shape) * TYPES[kind].itemsize == end - begin
            ):
                places.append((begin, end, name))
                kinds[name] = TYPES[kind], tuple(shape)
            case _:
                raise damaged(f"its header is wrong about the tensor {short(name)}")
    end = 0
    for begin, next_end, _ in sorted(places):
        if begin != end:
            raise damaged("its tensors overlap, or leave gaps")
        end = next_end
    if end != size:
        raise damaged(f"its tensors take {end:,} bytes, but it holds {size:,}")
    return {name: kinds[name] for _, _, name in sorted(places)}


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """The parts of ``tensor``, in the order of its elements, of about ``_BLOCK`` bytes: views of it."""
    if tensor.is_contiguous():
        yield from tensor.view(-1).split(_BLOCK // tensor.element_size()) if tensor.numel() else ()
        return
    # Not the first axis alone: that of quaternions has four entries.
    joined = tensor.dim() > 1 and tensor.stride(0) == tensor.shape[1] * tensor.stride(1)
    rows = tensor.flatten(0, 1) if joined else tensor
    yield from rows.split(max(1, _BLOCK // (rows[0].numel() * rows.element_size())))


def _array(block: Tensor) -> Any:
    """``block`` as an array of numpy, whose copies are fast for any strides and leave the other cores to the checksum.
    As whole numbers, because numpy does not know every type."""
    return block.view(WHOLE[block.element_size()]).numpy()


def _bytes(block: Tensor) -> memoryview:
    return memoryview(_array(block)).cast("B")


def _is_finite(block: Tensor) -> bool:
    if not block.is_floating_point():
        return True
    # Numpy knows no bfloat16 and no 8 bits; all their values are in float32.
    known = block.dtype in (torch.float16, torch.float32, torch.float64)
    return bool(np.isfinite((block if known else block.float()).numpy()).all())


def check_whole(head: Head, file: BufferedIOBase) -> None:
    """:class:`Wrong` unless the checksum is that of the whole file, with zeros in the place of the checksum itself;
    ``file`` is at the end of ``head``."""
    with _checksum(head) as checksum:
        while part := file.read(_BLOCK):
            checksum.add(memoryview(part))
        _compare(head, checksum)


def _checksum(head: Head) -> Checksum:
    mark = _mark(head.sha256)
    if head.raw.count(mark) != 1:
        raise damaged("its checksum is not where it should be")
    return Checksum(head.raw.replace(mark, _mark("0" * 64)), _size_of(head.tensors), PIECE, head.in_pieces)


def _compare(head: Head, checksum: Checksum) -> None:
    if checksum.hexdigest() != head.sha256:
        raise damaged("its checksum is wrong, so it was changed after it was saved")


def read_tensors(
    head: Head, file: BufferedIOBase, like: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a file and the names of those with NaN or infinity; ``file`` is at the end of ``head``.

    :class:`Wrong` unless the checksum is right (see :func:`check_whole`). All is read once; besides the tensors a few
    blocks of memory are taken. Each tensor has the memory layout of that of its name in ``like``, if there is one.
    """
    tensors, spoilt = {}, []
    with _checksum(head) as checksum:
        for name, (dtype, shape) in head.tensors.items():
            tensors[name] = _empty(dtype, shape, None if like is None else like.get(name))
            finite = True
            for block in _blocks(tensors[name]):
                plain = block if block.is_contiguous() else torch.empty(block.shape, dtype=dtype)
                _fill(_bytes(plain), file)
                checksum.add(_bytes(plain))
                if plain is not block:
                    np.copyto(_array(block), _array(plain))
                finite = finite and _is_finite(plain)
            if not finite:
                spoilt.append(name)
        if file.read(1):
            raise damaged("it was changed while it was read")
        _compare(head, checksum)
    return tensors, spoilt


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _empty(dtype: torch.dtype, shape: tuple[int, ...], like: Tensor | None) -> Tensor:
    """Not by empty_like, which forgets the layout where an axis has size 1."""
    if math.prod(n or 1 for n in shape) >= 1 << 60:
        raise damaged("it has a tensor without numbers of a shape that cannot be")
    if like is not None:
        span = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
        if span == like.numel():  # dense
            return torch.empty_strided(shape, like.stride(), dtype=dtype)
    return torch.empty(shape, dtype=dtype)


def _fill(block: memoryview, file: BufferedIOBase) -> None:
    while block:
        count = file.readinto(block)
        if not count:
            raise damaged("it was changed while it was read")
        block = block[count:]


def kinds_of(tensors: Mapping[str, Tensor]) -> dict[str, Kind]:
    return {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def head_of(kinds: Mapping[str, Kind], text: str) -> bytes:
    """The header of a file of tensors of these types and shapes with quern's own ``text`` in it, and its length before
    it; zeros in the place of the checksum. ValueError if a name is no text."""
    pieces = {"pieces": str(PIECE)} if _size_of(kinds) > PIECE else {}
    table: dict[str, Any] = {"__metadata__": {"sha256": "0" * 64, **pieces, "quern": text}}
    names = {dtype: name for name, dtype in TYPES.items()}
    end = 0
    for name in _order(kinds):
        dtype, shape = kinds[name]
        begin, end = end, end + _size(dtype, shape)
        table[name] = {"dtype": names[dtype], "shape": shape, "data_offsets": [begin, end]}
    content = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)  # tensors begin at a multiple of 8 bytes
    return len(content).to_bytes(8, "little") + content


def file_size(kinds: Mapping[str, Kind], text: str) -> int:
    """How many bytes the file has that :func:`head_of` is the header of."""
    return len(head_of(kinds, text)) + _size_of(kinds)


def _size_of(kinds: Mapping[str, Kind]) -> int:
    return sum(_size(*kind) for kind in kinds.values())


def _order(kinds: Mapping[str, Kind]) -> list[str]:
    """As safetensors has it: large types first, so that each number is at a multiple of its size; then by name."""
    return sorted(kinds, key=lambda name: (-kinds[name][0].itemsize, name))


def write_tensors(file: BufferedIOBase, head: bytes, tensors: Mapping[str, Tensor]) -> list[str]:
    """Write ``tensors`` under ``head``, as :func:`head_of` gives it, with the checksum of all of it in its place, and
    return the names of those with NaN or infinity. Nothing of the size of the file is copied in memory."""
    spoilt, kinds = [], kinds_of(tensors)
    size = _size_of(kinds)
    file.write(head)
    with Checksum(head, size, PIECE, size > PIECE) as checksum:
        for name in _order(kinds):
            finite = True
            for block in _blocks(tensors[name].detach().resolve_neg()):
                plain = block.cpu()
                if not plain.is_contiguous():
                    plain = torch.empty(block.shape, dtype=block.dtype)
                    np.copyto(_array(plain), _array(block.cpu()))
                checksum.add(_bytes(plain))
                file.write(_bytes(plain))
                finite = finite and _is_finite(plain)
            if not finite:
                spoilt.append(name)
        digest = checksum.hexdigest()
    file.seek(0)
    file.write(head.replace(_mark("0" * 64), _mark(digest), 1))
    return spoilt


def _mark(sha256: str) -> bytes:
    return f'"sha256":"{sha256}"'.encode()
