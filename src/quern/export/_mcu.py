"""Networks for microcontrollers: a folder in C that builds by itself."""

import struct
from collections.abc import Iterable
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
        said = {name: f"{number:,}" for name, number in numbers.items()} | {"dtype": dtype, "stack": f"{qrn.STACK:,}"}
        said |= {"ram": f"{network.ram:,}", "takes": f"{takes.dtype} {takes.shape}"}
        readme = Template(templates.joinpath("README.md").read_text(encoding="utf-8")).substitute(said)
        (temporary / "README.md").write_text(readme, encoding="utf-8")
    return McuReport(folder, replace(report, path=folder), network, best)


def _network_files(content: bytes, image: np.ndarray, numbers: dict[str, int], dtype: str) -> dict[str, str]:
    words = struct.unpack(f"<{len(content) // 4}I", content)
    kind = _TYPES[image.dtype]
    pixels = map(str if kind == "uint8_t" else _c_float, image.flatten().tolist())
    names = {code: name for name, code in qrn.NUMBERS.items() if name.startswith("OP_")}
    used = sorted(_operations(words))
    mask = sum(1 << code for code in used)
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
        "network.mk": f"""# The operations of the network, the only ones that the runtime is built with: {
            ", ".join(names[code].removeprefix("OP_").lower() for code in used)
        }.
OPERATIONS = 0x{mask:x}
""",
    }


def _operations(words: tuple[int, ...]) -> set[int]:
    """The codes of a packed network's operations."""
    place = qrn.HEADER_WORDS + (words[qrn.HEADER_INPUTS] + words[qrn.HEADER_OUTPUTS]) * (3 + qrn.AXES)
    codes = set()
    for _ in range(words[qrn.HEADER_OPS]):
        codes.add(words[place])
        place += 2 + words[place + 1]
    return codes


def _c_float(x: float) -> str:
    """A float, exactly."""
    text = f"{x:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _lines(numbers: Iterable[str], each: int) -> str:
    cells = list(numbers)
    return "".join(f"    {', '.join(cells[n : n + each])},\n" for n in range(0, len(cells), each))
