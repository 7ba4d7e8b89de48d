"""The files of the zoo, made of runs in ``results``: networks in 16 bits, packed ones in int8, and their cards.

    python -m benchmarks.zoo [NAME ...]

A run is the folder of ``quern compress`` (its record.json, and the small network) or of ``quern train`` (config.json,
result.json, and the network); its name is that of the network. Both files of a network are evaluated on all test
images, the packed one on an emulated Cortex-M4F as well, where 20 images must give the same bits as here.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.export import emulator
from torch import nn

from benchmarks import mcu
from quern import data, export, io, runtime, sparsity, zoo
from quern._files import write_text
from quern.bench import time_packed
from quern.bench.machine import cpu
from quern.data import ImageSet
from quern.records.schema import to_plain
from quern.train import evaluate

RUNS = mcu.ROOT / "results" / "zoo"
OTHERS = ("mnist-1500",)  # runs in results/ that are in the zoo, too
OUT = mcu.ROOT / "src" / "quern" / "zoo" / "networks"
MOST_BYTES = 100_000  # of a packed file


@dataclass(frozen=True)
class Origin:
    """How a network was trained, and its file."""

    record: dict[str, Any]
    settings: dict[str, Any]
    network: Path


def origin_of(run: Path) -> Origin:
    """What a run in ``results/zoo`` says of itself."""
    if (run / "record.json").exists():
        record = json.loads((run / "record.json").read_text())
        return Origin(record, record["settings"]["small"], run / "small.safetensors")
    config = json.loads((run / "config.json").read_text())
    return Origin(config, config["settings"], run / "model.safetensors")


@torch.no_grad()
def halved(network: nn.Module) -> nn.Module:
    """The network with its weights and means in 16 bits. Variances, which may be very small, stay as they are."""
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(parameter.half(), requires_grad=parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            if name == "running_mean":
                module.register_buffer(name, buffer.half())
    return network


def on_board(network: nn.Module, images: ImageSet, typical: torch.Tensor, pixels: export.Pixels) -> zoo.Board:
    """The packed network on an emulated Cortex-M4F."""
    with tempfile.TemporaryDirectory(prefix="quern-") as name:
        folder = Path(name)
        made = export.to_mcu(network, folder / "device", typical, images.test.pixels[0], dtype="int8", pixels=pixels)
        emulator.said(["make", "-s", "m4.elf"], made.folder)
        given = images.test.pixels[: mcu.IMAGES].numpy()
        program = emulator.build("m4", folder, parts=made.folder)
        found = mcu.measured(program, bytes(made.network._content), given, folder)
        mcu.check(made.network(given), found.outputs[0], exact=True)
        flash = emulator.flash(made.folder / "m4.elf")
        return zoo.Board(flash=flash, ram=made.network.ram, instructions=round(found.instructions))


def make(name: str) -> zoo.Card:
    """Both files of a network, and its card."""
    origin = origin_of(RUNS.parent / name if name in OTHERS else RUNS / name)
    images = data.load(origin.record["dataset"])
    files = {suffix: OUT / f"{name}{suffix}" for suffix in (".safetensors", ".qrn", ".json")}
    network = io.load(origin.network)
    io.save(halved(network), files[".safetensors"], images=images.about())
    network = io.load(files[".safetensors"]).float()
    pixels = export.Pixels(tuple(images.mean), tuple(images.std), top=images.top)
    chosen = torch.randperm(len(images.train), generator=torch.Generator().manual_seed(0))[: mcu.CALIBRATION]
    typical = images.train.pixels[chosen]
    export.to_packed(network, files[".qrn"], typical, dtype="int8", pixels=pixels)
    packed = runtime.load(files[".qrn"])
    labels = images.test.labels
    right = packed(images.test.pixels.numpy()).argmax(1) == labels.numpy()
    batches = zip(images.test.pixels.split(250), labels.split(250), strict=True)
    size = sparsity.measure(network, images.normalize(images.test.pixels[:1])).size
    environment = origin.record["environment"]
    card = zoo.Card(
        name=name,
        dataset=images.name,
        command=origin.record["command"],
        seed=origin.settings["seed"],
        commit=environment["commit"],
        sums=origin.record["sums"],
        neurons=size.neurons,
        parameters=size.parameters,
        macs=size.macs or 0,
        test_images=len(labels),
        test_accuracy=evaluate(network, ((images.normalize(x), y.long()) for x, y in batches))[1],
        packed_accuracy=float(right.mean()),
        bytes=files[".safetensors"].stat().st_size,
        packed_bytes=files[".qrn"].stat().st_size,
        latency_ms=time_packed({name: files[".qrn"]})[name].median_ms,
        cpu=cpu(),
        board=on_board(network, images, typical, pixels),
    )
    if card.packed_bytes >= MOST_BYTES:
        raise SystemExit(f"{name} has {card.packed_bytes:,} bytes packed: less than {MOST_BYTES:,} is wanted")
    write_text(files[".json"], json.dumps(to_plain(card), indent=1) + "\n")
    return card


def table() -> str:
    """The cards as docs/zoo.md has them."""
    heads = (
        "network",
        "parameters",
        "test accuracy",
        "95 % interval",
        "packed bytes",
        "flash",
        "memory",
        "instructions",
    )
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for card in map(zoo.card, zoo.names()):
        low, high = card.interval
        cells = [card.name, f"{card.parameters:,}", f"{100 * card.packed_accuracy:.2f} %"]
        cells += [f"{100 * low:.2f} to {100 * high:.2f}", f"{card.packed_bytes:,}"]
        cells += [f"{card.board.flash:,}", f"{card.board.ram:,}", f"{card.board.instructions / 1e6:.2f} million"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted([*OTHERS, *(path.name for path in RUNS.iterdir() if path.is_dir())])
    parser.add_argument("names", nargs="*", default=known)
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for name in parser.parse_args().names:
        print(make(name), flush=True)
    print(table())  # for docs/zoo.md


if __name__ == "__main__":
    main()
