"""The header of a file, read by someone who trusts none of it.

A file is 8 bytes with the length of the header, the header in JSON, and the tensors one after the other. The header
says where each tensor lies; quern's own JSON is a text in it, beside the checksum.
"""

import hashlib
import inspect
import json
import math
import numbers
import re
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO
from typing import Any

import torch

from quern import models
from quern.io._wrong import Wrong, damaged, short

FORMAT = 1

# What a file may ask for. A network is built without memory for its numbers, but still takes time.
HEADER_BYTES = 8 << 20
_NESTING = 32
_STEPS = 32
_CHANNELS = 1 << 20  # in the plans of all steps
_WIDTHS = 32  # of one network
_SIZE = 1 << 16  # a width, a number of classes, channels or pixels

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Head:
    """The checked header. ``raw`` are its bytes with their length before them; ``about`` is quern's JSON; ``tensors``
    are types and shapes by name."""

    raw: bytes
    about: dict[str, Any]
    sha256: str
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]]


def read_head(file: BufferedIOBase, size: int) -> Head:
    start = file.read(8)
    if len(start) < 8:
        raise damaged("it is empty" if not start else "it ends within its first 8 bytes")
    length = int.from_bytes(start, "little")
    if length > min(size - 8, HEADER_BYTES):
        raise damaged(f"it claims a header of {length:,} bytes in a file of {size:,}")
    text = file.read(length)
    if len(text) < length:
        raise damaged("it ends within its header")
    table = _json(text)
    if not isinstance(table, dict) or text[:1] != b"{":
        raise damaged("its header is not a table")
    metadata = table.pop("__metadata__", None)
    if not (isinstance(metadata, dict) and isinstance(metadata.get("quern"), str)):
        raise Wrong("is a file of tensors, but not one that quern.io.save wrote")
    about = _about(metadata["quern"])
    sha256 = metadata.get("sha256")
    if not (isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256)):
        raise damaged("it has no checksum")
    return Head(start + text, about, sha256, _tensors(table, size - 8 - length))


def _json(text: bytes | str) -> Any:
    """The value of ``text``, more strictly than Python reads it: no key twice, no NaN, no infinity, little nesting."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            raise ValueError("a key stands twice in one table")
        return table

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        text = text.decode() if isinstance(text, bytes) else text
        return plain(json.loads(text, object_pairs_hook=once, parse_constant=refuse))
    except RecursionError as reason:
        raise damaged("its header is nested too deeply") from reason
    except ValueError as reason:
        raise damaged(f"its header is not JSON as it should be ({short(reason)})") from reason


def plain(value: Any, depth: int = 0) -> Any:
    """A copy of ``value`` in the types that come back from JSON as they were; ValueError if there is none."""
    if depth > _NESTING:
        raise ValueError(f"it is nested more than {_NESTING} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value.encode()  # half a surrogate pair can be written down in JSON, but nowhere else
        return str(value)
    if isinstance(value, numbers.Integral) and abs(int(value)) < 1 << 63:
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple):
        return [plain(v, depth + 1) for v in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {plain(key): plain(v, depth + 1) for key, v in value.items()}
    if isinstance(value, dict):
        raise ValueError("a key in it is not a text")
    raise ValueError(f"{short(value)} ({type(value).__name__}) is not JSON")


def _about(text: str) -> dict[str, Any]:
    """quern's part of the header, with nothing in it that was not checked."""
    about = _json(text)
    version = about.get("format") if isinstance(about, dict) else None
    if type(version) is not int or version < 1:
        raise Wrong("is a file of tensors, but not one that quern.io.save wrote")
    if version > FORMAT:
        raise Wrong(f"was made by a newer quern (format {version}): update quern to read it")
    kinds = {"builder": str | None, "arguments": dict, "steps": list, "metrics": dict, "images": dict | None}
    for key, kind in (kinds | {"parameters": int}).items():
        if key not in about or not isinstance(about[key], kind):
            raise damaged(f"its header has no {key} of the right kind")
    if len(about["steps"]) > _STEPS or not all(isinstance(step, dict) for step in about["steps"]):
        raise damaged(f"its steps are not at most {_STEPS} tables")
    if _spread(about["steps"]) > _CHANNELS:
        raise damaged(f"its steps name more than {_CHANNELS:,} channels")
    if about["builder"] is not None:
        about["arguments"] = checked_arguments(about["builder"], about["arguments"])
    if about["images"] is not None:
        _check_images(about["images"])
    return {key: about[key] for key in ("format", *kinds, "parameters")}


def _spread(value: Any) -> int:
    """How many numbers the ranges in a value stand for: the text 0-2000000000 is short, but the list of them is not."""
    if isinstance(value, str):
        return sum(max(0, int(last) - int(first) + 1) for first, last in re.findall(r"(\d{1,18})-(\d{1,18})", value))
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_spread, inside))


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _SIZE


def checked_arguments(builder: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, if the builder knows all, each is of the kind of its default, and none is too large."""
    if builder not in models.BUILDERS:
        raise Wrong(f"holds a network {short(builder)}, which this quern cannot build: update quern to read it")
    known = inspect.signature(models.BUILDERS[builder]).parameters
    for name, value in arguments.items():
        default = known[name].default if name in known else None
        if isinstance(default, str):
            fine = isinstance(value, str)
        elif isinstance(default, float):
            fine = type(value) in (int, float) and 0 <= value <= 1
        elif isinstance(default, int):
            fine = _is_size(value)
        else:
            fine = default is not None and isinstance(value, list) and 0 < len(value) <= _WIDTHS
            fine = fine and all(map(_is_size, value))
        if not fine:
            raise damaged(f"{builder} takes no {short(name)} of {short(value)}")
    return {name: float(v) if isinstance(known[name].default, float) else v for name, v in arguments.items()}


def _check_images(images: dict[str, Any]) -> None:
    """What is there of ``name``, ``shape``, ``mean``, ``std``, ``top`` and ``classes`` must be usable."""
    name, top = images.get("name", ""), images.get("top", 255)
    if not isinstance(name, str):
        raise Wrong(f"has images with the name {short(name)}, but it should be a text")
    if type(top) is not int or not 1 <= top <= 255:
        raise Wrong(f"has images with the top {short(top)}, but it should be a whole number from 1 to 255")
    shape, classes = images.get("shape", [1, 1, 1]), images.get("classes", [])
    if not (isinstance(shape, list) and len(shape) == 3 and all(map(_is_size, shape))):
        raise Wrong(f"has images of shape {short(shape)}, but it should be [channels, height, width]")
    for key in ("mean", "std"):
        values = images.get(key, [])
        if not (isinstance(values, list) and all(type(v) in (int, float) for v in values)):
            raise Wrong(f"has images with the {key} {short(values)}, but it should be a list of numbers")
        if key in images and "shape" in images and len(values) != shape[0]:
            raise Wrong(f"has images of {shape[0]} channels, but {len(values)} numbers as their {key}")
        if key == "std" and not all(v > 0 for v in values):
            raise Wrong(f"has images with the std {short(values)}, but it should be positive")
    if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise Wrong(f"has images of the classes {short(classes)}, but they should be a list of names")


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
                and len(shape) <= _NESTING
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


def checksum(head: Head, file: BufferedIOBase) -> str:
    """SHA-256 of the whole file, with zeros in the place of the checksum itself; ``file`` is at the end of ``head``."""
    mark = _mark(head.sha256)
    if head.raw.count(mark) != 1:
        raise damaged("its checksum is not where it should be")
    digest = hashlib.sha256(head.raw.replace(mark, _mark("0" * 64)))
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def sealed(content: bytes) -> bytes:
    """``content``, as safetensors writes it, with its checksum in the header.

    Not by way of safetensors, which puts its metadata in another order each time: equal networks give equal files.
    """
    length = int.from_bytes(content[:8], "little")
    start = b'{"__metadata__":{'
    text = content[8 : 8 + length].rstrip().replace(start, start + _mark("0" * 64) + b",", 1)
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    content = len(text).to_bytes(8, "little") + text + content[8 + length :]
    file = BytesIO(content)
    head = read_head(file, len(content))
    return head.raw.replace(_mark(head.sha256), _mark(checksum(head, file))) + content[len(head.raw) :]


def _mark(sha256: str) -> bytes:
    return f'"sha256":"{sha256}"'.encode()
