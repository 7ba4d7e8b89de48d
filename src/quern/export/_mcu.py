"""Networks for microcontrollers: a folder in C that builds by itself."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
from torch import Tensor, nn

from quern._files import making
from quern.errors import ExportError
from quern.export._packed import PackedDtype, PackedReport, to_packed
from quern.export._program import Pixels, sentence
from quern.graph import Example
from quern.runtime import PackedNetwork
from quern.runtime import format as qrn

__all__ = ["McuReport", "to_mcu"]

_RUNTIME = ("quern_rt.c", "quern_rt.h")
_AS_THEY_ARE = ("main.c", "board.h", "host.c", "cortex-m.c", "cortex-m.ld", "Makefile")
_TYPES = {np.dtype(np.uint8): "uint8_t", np.dtype(np.float32): "float"}


@dataclass(frozen=True)
class McuReport:
    """A folder that was written: what is to be said of the packed network in it, the network, and the class that it
    gives to the image."""

    folder: Path
    packed: PackedReport
    network: PackedNetwork
    image_class: int


def to_mcu(
    model: nn.Module,
    folder: Path | str,
    example: Example,
    image: Tensor,
    *,
    dtype: PackedDtype = "float32",
    pixels: Pixels | None = None,
) -> McuReport:
    """Write ``model`` as a folder for a microcontroller: the C runtime, the network as a constant for the flash, a
    ``main`` that classifies ``image``, a Makefile, a README.

    ``example``, ``dtype`` and ``pixels`` are those of :func:`to_packed`, which packs and checks the network. ``image``
    is one input, as the network takes it (raw with ``pixels``), without the batch. The folder must be new or empty; it
    is there whole, or not at all.
    """
    folder = Path(folder)
    with sentence(folder), making(folder) as temporary:
        blob = temporary / "network.qrn"
        report = to_packed(model, blob, example, dtype=dtype, pixels=pixels)
        content = blob.read_bytes()
        blob.unlink()
        network = PackedNetwork(content)
        takes, gives = network.inputs[0], network.outputs[0]
        one = len(network.inputs) == len(network.outputs) == len(gives.shape) == 1
        if not one or gives.dtype != np.float32 or takes.dtype not in _TYPES:
            raise ExportError("main.c is for networks that give one row of scores for one input of numbers or bytes.")
        array = np.ascontiguousarray(image.numpy())
        best = int(network(array[None])[0].argmax())
        numbers = {"network": len(content), "arena": network.device_arena, "classes": gives.shape[0], "class": best}
        for name, text in _network_files(content, array, numbers, dtype).items():
            (temporary / name).write_text(text, encoding="utf-8")
        for name in _RUNTIME:
            (temporary / name).write_bytes(files("quern.runtime").joinpath(name).read_bytes())
        templates = files("quern.export").joinpath("mcu")
        for name in _AS_THEY_ARE:
            (temporary / name).write_bytes(templates.joinpath(name).read_bytes())
        blanks = {name: f"{number:,}" for name, number in numbers.items()} | {"dtype": dtype, "stack": f"{qrn.STACK:,}"}
        blanks |= {"ram": f"{network.ram:,}", "takes": f"{takes.dtype} {takes.shape}"}
        readme = Template(templates.joinpath("README.md").read_text(encoding="utf-8")).substitute(blanks)
        (temporary / "README.md").write_text(readme, encoding="utf-8")
    return McuReport(folder, replace(report, path=folder), network, best)


def _network_files(content: bytes, image: np.ndarray, numbers: dict[str, int], dtype: str) -> dict[str, str]:
    words = struct.unpack(f"<{len(content) // 4}I", content)
    kind = _TYPES[image.dtype]
    pixels = map(str if kind == "uint8_t" else _c_float, image.flatten().tolist())
    return {
        "network.h": f"""/* A packed network in {dtype}, and an image that it takes. Written by quern export. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdint.h>

enum {{ NETWORK_BYTES = {len(content)}, NETWORK_ARENA = {numbers["arena"]}, NETWORK_CLASSES = {numbers["classes"]} }};
extern const uint32_t network[NETWORK_BYTES / 4];

enum {{ IMAGE_CLASS = {numbers["class"]} }}; /* what the network said of the image when it was exported */
extern const {kind} image[{image.size}];

#endif
""",
        "network.c": f"""/* Written by quern export. */
#include "network.h"

const {kind} image[{image.size}] = {{
{_lines(pixels, 16 if kind == "uint8_t" else 6)}}};

const uint32_t network[NETWORK_BYTES / 4] = {{
{_lines((f"0x{word:08x}" for word in words), 8)}}};
""",
        "network.mk": f"""# What the network has, a bit for each (quern_rt.h): the runtime is built with these alone.
OPERATIONS = 0x{_mask(operations(words)):x}
ACTIVATIONS = 0x{_mask(activations(words)):x}
""",
    }


def _each(words: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """The code and the arguments of each operation of a packed network."""
    place = qrn.HEADER_WORDS + (words[qrn.HEADER_INPUTS] + words[qrn.HEADER_OUTPUTS]) * (3 + qrn.AXES)
    for _ in range(words[qrn.HEADER_OPS]):
        yield words[place], words[place + 2 :]
        place += 2 + words[place + 1]


def operations(words: Sequence[int]) -> set[int]:
    """The codes of a packed network's operations, and the kinds of its products."""
    types = {qrn.OP_CONV: qrn.CONV_X_DTYPE, qrn.OP_LINEAR: qrn.LINEAR_X_DTYPE}
    codes = set()
    for code, arguments in _each(words):
        codes.add(code)
        if code in types:
            codes.add(qrn.PRODUCTS_I8 if arguments[types[code]] == qrn.I8 else qrn.PRODUCTS_F32)
        elif code == qrn.OP_RECURRENT:
            codes.add(qrn.PRODUCTS_F32)
    return codes


def activations(words: Sequence[int]) -> set[int]:
    """The activations of a packed network, behind products or alone."""
    kinds = {qrn.OP_CONV: qrn.CONV_ACTIVATION, qrn.OP_LINEAR: qrn.LINEAR_ACTIVATION, qrn.OP_UNARY: qrn.UNARY_KIND}
    return {arguments[kinds[code]] for code, arguments in _each(words) if code in kinds}


def _mask(bits: Iterable[int]) -> int:
    return sum(1 << bit for bit in bits)


def _c_float(x: float) -> str:
    """A float, exactly."""
    text = f"{x:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _lines(numbers: Iterable[str], each: int) -> str:
    cells = list(numbers)
    return "".join(f"    {', '.join(cells[n : n + each])},\n" for n in range(0, len(cells), each))
