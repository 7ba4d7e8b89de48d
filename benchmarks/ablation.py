"""What of quern's way to train under R_Q gives what: one part of it left out, or added to the paper's way, at a time.

    python -m benchmarks.ablation digits|mnist [--seeds 5] [--json FILE]

The parts are the proximal step (else the penalty's gradient under Adam, and what is below 0.001 set to zero before
healing, or at the end), healing (else grinding for all epochs), dropout off while healing, and a learning rate that
falls in the last phase. Networks, images, epochs and λs are those of ``quern reproduce``; parts are left out at the λ
of quern's way, and added at the λ of the paper's. Accuracies are those of validation images. What is in the record
already is skipped.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quern import data
from quern._files import write_text
from quern.bench.machine import facts
from quern.data import ImageSet
from quern.graph import quaternion_weights
from quern.paper import build, lambda_of, read_lambdas, settings_of
from quern.records import Run
from quern.sparsity import measure
from quern.train import Settings, evaluate, fit

TOL = 1e-3  # what the paper calls zero


def ways(dataset: str, seed: int) -> dict[str, Settings]:
    """The settings of every row, quern's way and the paper's first."""
    settings = {}
    for family in ("quern", "paper"):
        run = Run(dataset, family, "rq", 20, seed)
        settings[family] = replace(settings_of(run, lambda_of(run, read_lambdas())), curves=False)
    ours, theirs = settings["quern"], settings["paper"]
    whole = ours.epochs + ours.heal
    return {
        "quern's way": ours,
        "without the proximal step": replace(ours, optimizer="adam", compact_every=0, tol=TOL),
        "without healing": replace(ours, epochs=whole, heal=0),
        "with dropout while healing": replace(ours, heal_dropout=True),
        "without a falling learning rate": replace(ours, schedule="constant"),
        "the paper's way": theirs,
        "with the proximal step": replace(theirs, optimizer="proximal-adam", tol=0.0),
        "with healing": replace(theirs, epochs=ours.epochs, heal=ours.heal, heal_dropout=True),
        "with a falling learning rate": replace(theirs, schedule="cosine"),
    }


@torch.no_grad()
def cut(network: nn.Module) -> None:
    """Set to zero what the paper calls zero."""
    for weight in quaternion_weights(network).values():
        weight.mul_(weight.norm(dim=0) > TOL)


def result_of(images: ImageSet, run: Run, settings: Settings) -> dict[str, Any]:
    """One training. Under Adam there are no exact zeros to be held: they are made before healing, or at the end."""
    network, seconds = build(run), 0.0
    quaternions = sum(layer.quaternions for layer in measure(network).quaternion_layers)
    if settings.optimizer == "adam" and settings.heal:
        ground = fit(network, images, replace(settings, heal=0, schedule="constant"))
        seconds = ground.seconds
        cut(network)
        settings = replace(settings, epochs=0, penalty=None)
    result = fit(network.train(), images, settings)
    cut(network)
    batches = zip(images.val.pixels.split(250), images.val.labels.split(250), strict=True)
    accuracy = evaluate(network, ((images.normalize(x), y.long()) for x, y in batches))[1]
    left = sum(int((w != 0).any(0).sum()) for w in quaternion_weights(network).values())
    zeros = 1 - left / quaternions
    return {"val_accuracy": accuracy, "quaternion_sparsity": zeros, "seconds": seconds + result.seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=("digits", "mnist"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="the record; it is written after every training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load(options.dataset)
    rows: dict[str, dict[str, Any]] = {}
    if options.json and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    for seed in range(options.seeds):
        run = Run(options.dataset, "quern", "rq", 20, seed)
        for name, settings in ways(options.dataset, seed).items():
            if str(seed) in rows.setdefault(name, {}):
                continue
            rows[name][str(seed)] = result_of(images, run, settings)
            print(name, seed, rows[name][str(seed)], flush=True)
            if options.json:
                record = {"environment": facts(), "sums": images.sums, "rows": rows}
                write_text(options.json, json.dumps(record, indent=1) + "\n")
    print(table(rows))


def table(rows: dict[str, dict[str, Any]]) -> str:
    """As it stands in docs/results."""
    lines = ["| | validation accuracy, % | zero quaternions, % | seeds |", "|---|---:|---:|---:|"]
    for name, by_seed in rows.items():
        cells = []
        for key in ("val_accuracy", "quaternion_sparsity"):
            values = [100 * one[key] for one in by_seed.values()]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}")
        lines.append(f"| {' | '.join((name, *cells, str(len(by_seed))))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
