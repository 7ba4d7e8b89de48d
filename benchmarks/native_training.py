"""Whole trainings of the CIFAR-10 network with and without the kernels in C: accuracies and seconds of both.

    python benchmarks/native_training.py --json FILE [--seeds 0 1] [--epochs 4] [--batch 100] [--images N]

Each training is a fresh process, with ``QUERN_NATIVE=0`` or without; the two of a seed have the same weights at first,
the same batches and the same settings, and follow each other. The record is written after each. One that is there
already, with the same settings, is not run again, so a command that was stopped goes on.

By default there are few epochs: the two trainings of a seed are compared with each other, and say nothing of what the
network comes to. The record says how many there were.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from quern import data, models
from quern._files import write_text
from quern.bench.machine import commit
from quern.functional import native
from quern.train import Settings, fit
from timing import host

KERNELS = {"native": None, "plain": "0"}  # what QUERN_NATIVE is set to


def trained(seed: int, epochs: int, batch: int, images: int | None, threads: int) -> dict[str, Any]:
    """One training, in this process: accuracies, and the seconds of its epochs."""
    torch.set_num_threads(threads)
    images_set = data.load("cifar10")
    if images is not None:
        parts = {name: getattr(images_set, name) for name in ("train", "val", "test")}
        fewer = {name: data.Images(part.pixels[:images], part.labels[:images]) for name, part in parts.items()}
        images_set = replace(images_set, **fewer)
    torch.manual_seed(seed)
    network = models.cifar_qcnn(norm="after_conv")
    result = fit(network, images_set, Settings(epochs=epochs, batch=batch, lr=2e-3, flip=True, seed=seed))
    return {
        "native_kernels": native.is_available(),
        "test_accuracy": result.test_accuracy,
        "val_accuracy": result.val_accuracy,
        "seconds": result.seconds,
        "last_loss": result.history[-1].loss,
    }


def in_fresh_process(kernels: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same in another process, with or without the kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "QUERN_NATIVE"}
    if (value := KERNELS[kernels]) is not None:
        environment["QUERN_NATIVE"] = value
    command = [sys.executable, __file__, "--one", json.dumps(arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def summary(rows: list[dict[str, Any]]) -> str:
    """Means over seeds of both, in one line each."""
    lines = []
    for kernels in KERNELS:
        runs = [row for row in rows if row["kernels"] == kernels]
        if runs:
            accuracies = ", ".join(f"{100 * row['test_accuracy']:.2f}" for row in runs)
            lines.append(
                f"{kernels:7s} test accuracy {accuracies} %; {mean(row['seconds'] for row in runs):.0f} s each"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="the record; it is written after every training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, help="only so many images of each part")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(trained(**options.one)))
        return
    if options.json is None:
        parser.error("say by --json where the record goes")
    if not native.is_available():
        parser.error("there are no kernels here to compare with: see quern bench --machine")
    rows: list[dict[str, Any]] = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    for seed in options.seeds:
        names = ("epochs", "batch", "images", "threads")
        arguments = {"seed": seed, **{name: getattr(options, name) for name in names}}
        for kernels in KERNELS:
            settings = {"kernels": kernels, **arguments}
            if any(settings.items() <= row.items() for row in rows):
                continue
            row = {**settings, "commit": commit(), **in_fresh_process(kernels, arguments)}
            if row["native_kernels"] != (kernels == "native"):
                raise SystemExit(f"the training that should be {kernels} was not: see quern bench --machine")
            rows.append(row)
            print(row, flush=True)
            write_text(options.json, json.dumps({"host": host(), "rows": rows}, indent=1) + "\n")
    print(summary(rows))


if __name__ == "__main__":
    main()
