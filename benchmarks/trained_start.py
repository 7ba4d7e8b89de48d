"""What a trained real network is worth as the start of a quaternion one.

    python -m benchmarks.trained_start [--seeds 2] [--epochs 8] [--json FILE]

A small convolutional network of torch is trained on a third of CIFAR-10's training images. Its quaternion form is
then trained from fresh weights and from the nearest weights (``trained=True``), each with and without the real
network as a teacher. Accuracies along the way are those of validation images; the test images are looked at once, at
the end of each training. The learning rate of each row is the one of two that is better on validation images, in the
first seed. What is in the record already is skipped.
"""

import argparse
import copy
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quern import data
from quern._files import write_text
from quern._size import size_of
from quern.bench.machine import facts
from quern.convert import conversion
from quern.data import Images, ImageSet
from quern.train import Settings, evaluate, fit

DENSE_EPOCHS, RATES, TAUGHT, SHARE = 16, (2e-3, 5e-4), 0.5, 3  # one in SHARE images is trained on
WAYS = {
    "fresh weights": (False, False),
    "nearest weights": (True, False),
    "fresh weights, taught": (False, True),
    "nearest weights, taught": (True, True),
}


def real_network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for into, out, stride in ((3, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def accuracy(network: nn.Module, images: ImageSet) -> float:
    batches = zip(images.val.pixels.split(500), images.val.labels.split(500), strict=True)
    return evaluate(network, ((images.normalize(x), y.long()) for x, y in batches))[1]


@torch.no_grad()
def statistics_anew(network: nn.Module, images: ImageSet) -> nn.Module:
    """A copy whose normalisations have taken their statistics from 2,000 training images again."""
    network = copy.deepcopy(network).train()
    layer: Any
    for layer in network.modules():
        if hasattr(layer, "reset_running_stats"):
            layer.reset_running_stats()
            layer.momentum = None
    for x in images.train.pixels[:2000].split(100):
        network(images.normalize(x))
    return network.eval()


def converted(real: nn.Module, images: ImageSet, trained: bool, seed: int) -> Any:
    torch.manual_seed(seed)
    return conversion(real, keep=nn.Linear, example=images.normalize(images.train.pixels[:2]), trained=trained)


def settings(epochs: int, lr: float, seed: int, taught: bool = False) -> Settings:
    return Settings(epochs=epochs, lr=lr, flip=True, batch=100, seed=seed, distill=TAUGHT if taught else 0.0)


def before(real: nn.Module, images: ImageSet, seed: int) -> dict[str, Any]:
    """What is there before any training: with channels grouped, and in the order given."""
    found: dict[str, Any] = {}
    example = images.normalize(images.train.pixels[:2])
    for name, given in (("grouped", example), ("order given", None)):
        done = conversion(real, keep=nn.Linear, example=given, trained=True)
        found[name] = {
            "share": next(row.share for row in done.rows if row.kind == "Conv2d"),
            "val_accuracy": accuracy(done.network.eval(), images),
            "statistics_anew": accuracy(statistics_anew(done.network, images), images),
        }
    fresh = converted(real, images, False, seed).network
    found["fresh"] = {"val_accuracy": accuracy(fresh.eval(), images)}
    found["parameters"] = {"real": size_of(real).parameters, "quaternion": size_of(fresh).parameters}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--json", type=Path, help="the record; it is written after every training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load("cifar10")
    some = Images(images.train.pixels[::SHARE].contiguous(), images.train.labels[::SHARE].contiguous())
    images = replace(images, train=some)
    record: dict[str, Any] = {"seeds": {}}
    if options.json and options.json.exists():
        record = json.loads(options.json.read_text())
    record |= {
        "environment": facts(),
        "sums": images.sums,
        "epochs": options.epochs,
        "dense_epochs": DENSE_EPOCHS,
        "share": SHARE,
    }

    def write() -> None:
        if options.json:
            write_text(options.json, json.dumps(record, indent=1) + "\n")

    for seed in range(options.seeds):
        rows = record["seeds"].setdefault(str(seed), {"ways": {}})
        if "longer" not in rows:
            own = settings(options.epochs + DENSE_EPOCHS, RATES[0], seed)
            result = fit(converted(real_network(), images, False, seed).network, images, own)
            rows["longer"] = {"val_accuracy": result.val_accuracy, "test_accuracy": result.test_accuracy}
            print(seed, rows["longer"], flush=True)
            write()
        if all(key in rows["ways"] for key in WAYS):
            continue
        torch.manual_seed(seed)
        real = real_network()
        result = fit(real, images, settings(DENSE_EPOCHS, RATES[0], seed))
        rows["real"] = {"val_accuracy": result.val_accuracy, "test_accuracy": result.test_accuracy}
        rows["before"] = before(real, images, seed)
        print(seed, rows, flush=True)
        write()
        for name, (trained, taught) in WAYS.items():
            if name in rows["ways"]:
                continue
            rates = RATES if seed == 0 else (record["seeds"]["0"]["ways"][name]["lr"],)
            tried = []
            for lr in rates:
                network = converted(real, images, trained, seed).network
                own = settings(options.epochs, lr, seed, taught)
                result = fit(network, images, own, teacher=real if taught else None)
                curve = [accuracy_of.val_accuracy for accuracy_of in result.history]
                tried.append({"lr": lr, "val": curve, "test_accuracy": result.test_accuracy, "seconds": result.seconds})
            best = max(tried, key=lambda one: one["val"][-1])
            others = [{k: v for k, v in one.items() if k != "test_accuracy"} for one in tried if one is not best]
            rows["ways"][name] = {**best, "others": others}
            print(seed, name, best, flush=True)
            write()
    print(table(record))


def _cell(values: list[float]) -> str:
    spread = f" ± {(max(values) - min(values)) * 50:.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}"


def table(record: dict[str, Any]) -> str:
    """As it stands in docs/convert.md: means over seeds, and half of their range."""
    seeds, epochs = list(record["seeds"].values()), record["epochs"]
    shown = [n for n in (1, 2, 4, 8, 16, 32) if n <= epochs]
    lines = [f"| start | 0 epochs | {' | '.join(map(str, shown))} | test | learning rate |"]
    lines.append("|---|" + "---:|" * (len(shown) + 3))
    for name, (trained, _) in WAYS.items():
        start = [
            one["before"]["grouped"]["statistics_anew"] if trained else one["before"]["fresh"]["val_accuracy"]
            for one in seeds
        ]
        rows = [one["ways"][name] for one in seeds]
        cells = [_cell(start), *(_cell([row["val"][n - 1] for row in rows]) for n in shown)]
        cells += [_cell([row["test_accuracy"] for row in rows]), f"{rows[0]['lr']:g}"]
        lines.append(f"| {' | '.join((name, *cells))} |")
    longer = [one["longer"] for one in seeds]
    cells = ["fresh weights, as many epochs in all", _cell([one["before"]["fresh"]["val_accuracy"] for one in seeds])]
    cells += [""] * (len(shown) - 1) + [_cell([one[f"{part}_accuracy"] for one in longer]) for part in ("val", "test")]
    lines.append(f"| {' | '.join((*cells, f'{RATES[0]:g}'))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
