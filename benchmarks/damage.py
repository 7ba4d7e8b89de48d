"""How files are damaged: by chance, or by somebody who means harm."""

import hashlib
import io
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import load

from quern.io.tensorfile import head_of, kinds_of, write_tensors

ODD: list[Any] = [None, True, False, -1, 0, 1, 3, 2**31, 2**53, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e-320]
ODD += [1e308, -1e308, float("nan"), float("inf"), "", "x", "x" * 3000, "\x1b[31mred", "\r\n", "\0", "\ud800", "é"]
ODD += ["../../etc/passwd", "nan", "0-2000000000", [], {}, [[]], [None], {"": None}, {"epoch": []}]


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Flipped, lost, doubled or foreign bytes."""
    data = bytearray(content)
    place = chance.randrange(max(1, len(data)))
    how = chance.choice(["flip", "flip", "flip", "cut", "cut", "lose", "double", "insert", "zeros", "whole"])
    if how == "flip":
        for _ in range(chance.choice([1, 1, 1, 5])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del data[place:]
    elif how == "lose":
        del data[place : place + chance.choice([1, 8, 100])]
    elif how == "double":
        data[place:place] = data[place : place + 50]
    elif how == "insert":
        data[place:place] = chance.choice([b"\xff", b"\x00", b"}", b"]", b'"', b",", b"\n", chance.randbytes(20)])
    elif how == "zeros":
        data[place : place + 64] = bytes(64)
    else:
        whole = [b"", b"{}", b"[]", b"null", b"3", b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000]
        return chance.choice([*whole, b"\xff\xfe" + content, b"\xef\xbb\xbf" + content, content * 2])
    return bytes(data)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with a key in it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield value, key
        yield from places(item)


def damaged_value(value: Any, chance: random.Random) -> Any:
    """A JSON value with some of it missing, exchanged or of another kind."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.choice([1, 1, 1, 2])):
        all_places = list(places(value))
        if not all_places:
            return chance.choice(ODD)
        container, key = chance.choice(all_places)
        other, elsewhere = chance.choice(all_places)
        item = container[key]
        how = chance.choice(["odd", "odd", "odd", "missing", "swap", "text", "scale", "wrap", "deep", "more"])
        if how == "odd":
            container[key] = chance.choice(ODD)
        elif how == "missing":
            del container[key]
        elif how == "swap":
            container[key] = json.loads(json.dumps(other[elsewhere]))
        elif how == "text":
            container[key] = str(item)
        elif how == "scale" and isinstance(item, int | float) and not isinstance(item, bool):
            container[key] = item * chance.choice([-1, 2, 10, 1e6, 1e30]) + chance.choice([0, 1])
        elif how == "deep":
            for _ in range(chance.choice([20, 40, 200])):
                item = [item]
            container[key] = item
        elif how == "more" and isinstance(item, list):
            container[key] = item * 2 + [chance.choice(ODD)]
        elif isinstance(container, dict):
            container[f"{key}{chance.choice(['', '2', ' '])}"] = [item]
    return value


def damaged_json(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return damaged_bytes(content, chance)
    text = json.dumps(damaged_value(json.loads(content), chance))
    if chance.random() < 0.05:  # a number that no machine has, and a key twice
        text = re.sub(r"\d+", "9" * chance.choice([400, 5000]), text, count=1)
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    return text.encode()


def damaged_lines(content: bytes, chance: random.Random) -> bytes:
    """A file with a JSON value a line."""
    lines = content.splitlines()
    n = chance.randrange(len(lines))
    how = chance.random()
    if how < 0.3:
        return damaged_bytes(content, chance)
    if how < 0.7:
        lines[n] = json.dumps(damaged_value(json.loads(lines[n]), chance)).encode()
    elif how < 0.8:
        del lines[n]
    elif how < 0.9:
        lines.insert(n, chance.choice(lines))
    else:
        return b"\n".join(lines)[: -chance.randrange(1, 60)]
    return b"".join(line + b"\n" for line in lines)


def damaged_toml(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        return damaged_bytes(content, chance)
    odd = ["0", "-1", "nan", "inf", "1e999", "'x'", "true", "[]", "{}", "1979-05-27", "9" * 500, "[" * 3000]
    swapped = [(r"= [\d.]+", f"= {chance.choice(odd)}"), (r"\[\w+\.", "[other."), (r"\n\w+ =", "\nother =")]
    pattern, new = chance.choice(swapped)
    match = chance.choice(list(re.finditer(pattern, content.decode())))
    return (content.decode()[: match.start()] + new + content.decode()[match.end() :]).encode()


def damaged_tensors(content: bytes, chance: random.Random) -> bytes:
    """A checkpoint or a network: as any file, or by someone who then puts a right checksum."""
    if chance.random() < 0.5:
        return damaged_bytes(content, chance)
    if chance.random() < 0.1:
        return resealed(damaged_bytes(content, chance))
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    state, tensors = json.loads(header["__metadata__"]["quern"]), load(content)
    names = list(tensors)
    how = chance.choice(["state", "state", "state", "drop", "swap", "rename", "shape", "type", "values", "add"])
    name, other = chance.choice(names), chance.choice(names)
    if how == "state":
        state = damaged_value(state, chance)
    elif how == "drop":
        del tensors[name]
    elif how == "swap":
        tensors[name], tensors[other] = tensors[other].clone(), tensors[name].clone()
    elif how == "rename":
        new = chance.choice(
            [f"{name}.x", "optimizer.999.exp_avg", "optimizer.x.step", "frozen.nothing", "model.nothing"]
        )
        tensors[new] = tensors.pop(name)
    elif how == "shape":
        shapes = [(-1,), (1, -1), (*tensors[name].shape, 1)]
        tensors[name] = tensors[name].reshape(chance.choice(shapes)) if tensors[name].numel() else torch.zeros(3)
    elif how == "type":
        tensors[name] = tensors[name].to(chance.choice([torch.float64, torch.float16, torch.int64, torch.bool]))
    elif how == "values":
        odd = [0, 1, -1, 1e30, float("nan"), float("inf")] if tensors[name].is_floating_point() else [0, 1]
        tensors[name] = torch.full_like(tensors[name], chance.choice(odd))
    else:
        tensors[chance.choice(["model.more", "optimizer.0.more", "frozen.more", "x"])] = torch.zeros(2, 2)
    file = io.BytesIO()
    write_tensors(file, head_of(kinds_of(tensors), json.dumps(state)), tensors)
    return file.getvalue()


def resealed(content: bytes) -> bytes:
    """``content`` with a right checksum, if it has a place for one."""
    if (match := re.search(rb'"sha256":"([0-9a-f]{64})"', content)) is None:
        return content
    start, stop = match.span(1)
    digest = hashlib.sha256(content[:start] + b"0" * 64 + content[stop:]).hexdigest()
    return content[:start] + digest.encode() + content[stop:]
