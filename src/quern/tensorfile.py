"""A file of tensors with JSON in its header and a checksum over all of it, read by someone who trusts none of it.

A file is 8 bytes with the length of the header, the header in JSON, and the tensors one after the other, as safetensors
writes it. The header says where each tensor lies; quern's own JSON is a text in it, beside the checksum. Networks
(:mod:`quern.io`) and checkpoints (:mod:`quern.checkpoint`) are such files.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any

import torch
from safetensors.torch import load as tensors_of
from torch import Tensor

from quern.schema import Wrong, parse, short

__all__ = [
    "CHANNELS",
    "HEADER_BYTES",
    "TYPES",
    "Head",
    "check_whole",
    "damaged",
    "json_of",
    "read_head",
    "read_tensors",
]
__all__ += ["sealed", "sealed_size", "spread"]

HEADER_BYTES = 8 << 20
CHANNELS = 1 << 20  # in all the plans of a file
_AXES = 32

TYPES = {  # as safetensors puts them into a file: the widest first
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


def damaged(what: str) -> Wrong:
    return Wrong(f"is not a file of quern, or is damaged: {what}")


@dataclass(frozen=True)
class Head:
    """The checked header. ``raw`` are its bytes with their length before them; ``about`` is quern's part of it;
    ``tensors`` are types and shapes by name."""

    raw: bytes
    about: Any
    sha256: str
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]]


def read_head(file: BufferedIOBase, size: int, about: Callable[[str | None], Any], most: int = HEADER_BYTES) -> Head:
    """The header of a file of ``size`` bytes, which is at most ``most`` long. ``about`` checks quern's own text in it,
    which is None if there is none."""
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
    said = metadata.get("quern") if isinstance(metadata, dict) else None
    found = about(said if isinstance(said, str) else None)
    assert isinstance(metadata, dict)
    sha256 = metadata.get("sha256")
    if not (isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256)):
        raise damaged("it has no checksum")
    return Head(start + text, found, sha256, _tensors(table, size - 8 - length))


def json_of(text: bytes | str, nan: bool = False) -> Any:
    """The value of a JSON text in a header; see :func:`quern.schema.parse`."""
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


def _tensors(table: dict[str, Any], size: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The types and shapes of the tensors, if they fill the ``size`` bytes after the header without gap or overlap."""
    places: list[tuple[int, int]] = []
    found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
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
                places.append((begin, end))
                found[name] = TYPES[kind], tuple(shape)
            case _:
                raise damaged(f"its header is wrong about the tensor {short(name)}")
    end = 0
    for begin, next_end in sorted(places):
        if begin != end:
            raise damaged("its tensors overlap, or leave gaps")
        end = next_end
    if end != size:
        raise damaged(f"its tensors take {end:,} bytes, but it holds {size:,}")
    return found


def check_whole(head: Head, file: BufferedIOBase) -> None:
    """:class:`Wrong` unless the checksum is that of the whole file, with zeros in the place of the checksum itself;
    ``file`` is at the end of ``head``."""
    mark = _mark(head.sha256)
    if head.raw.count(mark) != 1:
        raise damaged("its checksum is not where it should be")
    digest = hashlib.sha256(head.raw.replace(mark, _mark("0" * 64)))
    while part := file.read(1 << 20):
        digest.update(part)
    if digest.hexdigest() != head.sha256:
        raise damaged("its checksum is wrong, so it was changed after it was saved")


def read_tensors(head: Head, file: BufferedIOBase, size: int) -> dict[str, Tensor]:
    """The tensors of a file that was found whole. Takes twice its memory while it reads."""
    file.seek(0)
    content = file.read(size)
    if len(content) < size or not content.startswith(head.raw):
        raise damaged("it was changed while it was read")
    return tensors_of(content)


def sealed(content: bytes) -> tuple[bytes, memoryview]:
    """``content``, as safetensors writes it, with its checksum in the header: the header, and the tensors as they are.

    Not by way of safetensors, which puts its metadata in another order each time: equal networks give equal files.
    """
    length = int.from_bytes(content[:8], "little")
    start = b'{"__metadata__":{'
    text = content[8 : 8 + length].rstrip().replace(start, start + _mark("0" * 64) + b",", 1)
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    head, rest = len(text).to_bytes(8, "little") + text, memoryview(content)[8 + length :]
    digest = hashlib.sha256(head)
    digest.update(rest)
    return head.replace(_mark("0" * 64), _mark(digest.hexdigest()), 1), rest


def sealed_size(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], text: str) -> int:
    """How many bytes a file of these types and shapes has, with ``text`` (ASCII) as quern's part of its header."""
    kinds = {dtype: (rank, name) for rank, (name, dtype) in enumerate(TYPES.items())}
    place, entries = 0, [f'"__metadata__":{{{_mark("0" * 64).decode()},"quern":{json.dumps(text)}}}']
    for name in sorted(tensors, key=lambda name: (kinds[tensors[name][0]][0], name)):
        dtype, shape = tensors[name]
        end = place + math.prod(shape) * dtype.itemsize
        said = f'"dtype":"{kinds[dtype][1]}","shape":[{",".join(map(str, shape))}],"data_offsets":[{place},{end}]'
        entries.append(f"{json.dumps(name, ensure_ascii=False)}:{{{said}}}")
        place = end
    length = len(f"{{{','.join(entries)}}}".encode())
    return 8 + length + -length % 8 + place


def _mark(sha256: str) -> bytes:
    return f'"sha256":"{sha256}"'.encode()
