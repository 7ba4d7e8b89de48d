"""Networks on microcontrollers: flash, memory and instructions for one image, on emulated boards.

    python -m benchmarks.mcu [--json FILE]

Each network is exported as ``quern export --mcu`` does and built by the folder's own Makefile for a Cortex-M4F (hard
floating point, DSP instructions) and a Cortex-M3 (neither). Flash is the whole program: network, runtime, start-up code
and one image. qemu runs 20 test images: int8 must be what it is here to the bit, float32 within 1e-5 and of the same
class. It counts instructions, not cycles: a board takes more of these, by its flash and memory. The stack is painted,
and looked at after each run. ``--json`` keeps the rows; docs/runtime.md has them as a table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.export import emulator

from quern import data, export, io
from quern._files import write_text
from quern.bench.machine import commit

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "runs" / "demo" / "small" / "model.safetensors"
NETWORKS = (
    ("digits, compacted (make demo)", DEMO, "digits"),
    ("MNIST, compacted (mnist-1500)", ROOT / "results" / "mnist-1500" / "small.safetensors", "mnist"),
    ("CIFAR-10, compacted (cifar10-43)", ROOT / "results" / "cifar10-43" / "small.safetensors", "cifar10"),
)
IMAGES, CALIBRATION = 20, 512
# Image classification of MLPerf Tiny as it was published, not measured here.
REFERENCE = {"what": "CIFAR-10, ResNet-8 (MLPerf Tiny's reference, as published)", "dtype": "int8", "network": 98_496}
REFERENCE |= {"arena": 100 * 1024, "accuracy": 0.85}


def measured(program: Path, content: bytes, images: np.ndarray, folder: Path) -> emulator.Found:
    return emulator.run(program, [(content, [images])], folder)[0]


def rows_of(what: str, path: Path, dataset: str) -> list[dict[str, Any]]:
    """Both types of numbers on both chips; on the M4 also for size, and int8 without its instructions."""
    images = data.load(dataset)
    pixels = export.Pixels(tuple(images.mean), tuple(images.std), top=images.top)
    chosen = torch.randperm(len(images.train), generator=torch.Generator().manual_seed(0))[:CALIBRATION]
    given, rows = images.test.pixels[:IMAGES].numpy(), []
    for dtype in ("float32", "int8"):
        with tempfile.TemporaryDirectory(prefix="quern-") as name:
            folder = Path(name)
            typical = images.train.pixels[chosen]
            made = export.to_mcu(
                io.load(path), folder / "device", typical, images.test.pixels[0], dtype=dtype, pixels=pixels
            )
            content = bytes(made.network._content)
            scores = made.network(images.test.pixels.numpy())
            accuracy = float((scores.argmax(1) == images.test.labels.numpy()).mean())
            for chip in emulator.BOARDS:
                row: dict[str, Any] = {"what": what, "chip": chip, "dtype": dtype, "accuracy": accuracy}
                row |= {"network": len(content), "image": given[0].nbytes, "data": dataset}
                variants = {"": "-O2", "small_": "-Os"} | ({"plain_": "-U__ARM_FEATURE_DSP"} if dtype == "int8" else {})
                for prefix, flag in variants.items():
                    if prefix == "plain_" and chip == "m3":  # it has no others
                        continue
                    emulator.said(["make", "-s", "-B", f"{chip}.elf", f"MORE={flag}"], made.folder)
                    program = emulator.build(chip, folder, flag, parts=made.folder)
                    found = measured(program, content, given, folder)
                    check(scores[:IMAGES], found.outputs[0], exact=dtype == "int8")
                    row[f"{prefix}flash"] = emulator.flash(made.folder / f"{chip}.elf")
                    row[f"{prefix}instructions"] = found.instructions
                    if not prefix:
                        row |= {"arena": found.arena, "stack": found.stack, "check_stack": found.check_stack}
                rows.append(row)
                print(line(row), flush=True)
    return rows


def check(wanted: np.ndarray, found: np.ndarray, exact: bool) -> None:
    """AssertionError unless the board computes what this computer does."""
    if exact:
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))
    np.testing.assert_array_equal(found.argmax(1), wanted.argmax(1))


CHIPS = {"m4": "M4F", "m3": "M3"}


def line(row: dict[str, Any]) -> str:
    """A row of the table in the documentation."""
    cells = [row["what"], row["dtype"], CHIPS.get(row.get("chip", ""), "—"), f"{100 * row['accuracy']:.1f} %"]
    cells += [f"{row['network']:,}", f"{row['flash']:,}" if "flash" in row else "—", f"{row['arena']:,}"]
    cells += [f"{row['stack']:,}", f"{row['instructions'] / 1e6:.2f} million"] if "stack" in row else ["—", "—"]
    return f"| {' | '.join(cells)} |"


def table(rows: list[dict[str, Any]]) -> str:
    """As it stands in docs/runtime.md."""
    heads = (
        "network",
        "numbers",
        "Cortex",
        "right",
        "its bytes",
        "flash, whole program",
        "arena",
        "stack",
        "instructions",
    )
    rule = "|---|---|---|" + "---:|" * (len(heads) - 3)
    return "\n".join((f"| {' | '.join(heads)} |", rule, *map(line, rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not emulator.is_here():
        print("*** NO gcc-arm-none-eabi OR qemu-system-arm: NOTHING WAS MEASURED; install them by hand. ***")
        return
    source = commit()
    if not DEMO.exists():
        compress = [sys.executable, "-m", "quern", "compress", "--max-params", "1000", "--threads", "1"]
        subprocess.run([*compress, "--out", str(DEMO.parents[1])], check=True)
    rows = []
    for what, path, dataset in NETWORKS:
        if dataset != "digits" and not data.cache_file(dataset).exists():
            print(f"*** {dataset} IS NOT HERE, SO {what} WAS LEFT OUT: quern data fetch {dataset} ***")
            continue
        rows += rows_of(what, path, dataset)
    rows.append(dict(REFERENCE))
    print(line(rows[-1]))
    if options.json:
        versions = {"gcc": "arm-none-eabi-gcc", "qemu": "qemu-system-arm"}
        tools = {name: emulator.said([tool, "--version"], ROOT).splitlines()[0] for name, tool in versions.items()}
        settings = {"images": IMAGES, "calibration": CALIBRATION, "boards": emulator.BOARDS}
        record = {"tools": tools, "commit": source, "seed": 0, "settings": settings, "rows": rows}
        write_text(Path(options.json), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
