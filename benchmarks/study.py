"""What makes the small network good: one choice of ``quern compress`` changed at a time, from the same dense network.

Problems cut to size: ``cifar10``, the paper's network at half the widths, trained on a fifth of the
images and ground to 8,000 parameters; ``digits``, a network of 8 and 16 neurons ground to 1,500 parameters; and with
the networks and the recipe that compress begins with, ``small-cifar10``, a fifth of the images and 5,000 of 13,641
parameters, and ``small-mnist``, a third of the images and 1,500 of 5,495. In these all variants have as many epochs.
They are compared by their accuracy on validation images. Run
``python -m benchmarks.study digits --seeds 3 --out benchmarks/study-digits.json``; what is in the file already is
skipped. (The record of ``cifar10`` has the test accuracy of the dense network, as ``dense``.)
"""

import argparse
import copy
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from quern import data, models
from quern._files import write_text
from quern.bench.machine import facts
from quern.cli._recipes import recipe_of
from quern.data import Images, ImageSet
from quern.penalties import RQ, RQL, GammaL1
from quern.pipeline import Budget
from quern.pipeline._scratch import fresh
from quern.pipeline.steering import PROTECTED, Steering
from quern.sparsity import measure
from quern.train import Grinding, Settings, fit

BUDGETS = {"cifar10": 8_000, "digits": 1_500, "small-cifar10": 5_000, "small-mnist": 1_500}
DENSE = Settings(epochs=12, batch=100, flip=True)
CHANGED = {  # while grinding and healing
    "epochs": 6,
    "heal": 12,
    "penalty": GammaL1(1.0, with_beta=True),
    "compact_every": 1,
    "heal_dropout": False,
}


class Idle(Steering):
    """Milestones without a λ: neurons are removed, nothing prepares them for it."""

    def strength(self, now: Grinding) -> float | None:
        return None if super().strength(now) is None else 0.0


class AtOnce(Idle):
    """All neurons that are too many are removed before the first step."""

    def _goal(self, now: Grinding, milestone: int) -> float:
        return super()._goal(now, max(milestone, now.milestones - 1))


class Alike(Steering):
    """All neurons cost the same, but for the last one of a layer, which is to stay."""

    def _costs(self, now: Grinding) -> dict[str, float]:
        return {name: cost if cost == PROTECTED else 1.0 for name, cost in super()._costs(now).items()}


class Once(Steering):
    """Neurons are weighed by what they cost in the dense network, also when their neighbours are gone."""

    def _costs(self, now: Grinding) -> dict[str, float]:
        costs = super()._costs(now)
        return costs if now.milestone == 0 else {name: cost for name, cost in costs.items() if cost == PROTECTED}


# What is changed, in the settings or in the steering.
OF_THE_PAPERS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "all neurons cost the same": {"steering": Alike},
    "neurons cost what they did in the dense network": {"steering": Once},
    "distillation 0.5": {"distill": 0.5},
    "gamma alone, without beta": {"penalty": GammaL1(1.0)},
    "R_Q": {"penalty": RQ(1.0)},
    "no penalty, neurons only removed": {"steering": Idle},
    "heal at lr 0.004": {"heal_lr": 4e-3},
    "shifted by a pixel too": {"crop": 1},
    "heal 24 epochs": {"heal": 24},
    "grind 12 epochs": {"epochs": 12},
    "quaternions after neurons, by RQL": {"then": RQL(4.0)},
    "half the parameters": {"share": 0.5},
}
OF_SMALL: dict[str, dict[str, Any]] = {
    "as it is": {},
    "R_Q": {"penalty": RQ(1.0)},
    "both, one after the other": {"epochs": 3, "heal": 6, "then": RQ(4.0)},
    "no penalty, removed step by step": {"steering": Idle},
    "no penalty, removed at once": {"steering": AtOnce},
    "from scratch": {"scratch": True},
    "distillation 0.5": {"distill": 0.5},
    "grind 3, heal 15": {"epochs": 3, "heal": 15},
    "grind 12, heal 6": {"epochs": 12, "heal": 6},
}
NOT_SETTINGS = ("steering", "then", "share", "scratch")


def variants(name: str) -> dict[str, dict[str, Any]]:
    return OF_SMALL if name.startswith("small-") else OF_THE_PAPERS


def some(images: ImageSet, every: int) -> ImageSet:
    """One in so many images to train with."""
    parts = (images.train.pixels[::every].contiguous(), images.train.labels[::every].contiguous())
    return dataclasses.replace(images, train=Images(*parts))


def problem(name: str) -> tuple[ImageSet, torch.nn.Module, dict[str, Any]]:
    """Images, the network to begin with, and what is different in all settings."""
    if name == "digits":
        return data.digits(), models.digits_qcnn(norm="after_conv", widths=(32, 64)), {"flip": False, "lr": 5e-3}
    if name == "cifar10":
        network = models.cifar_qcnn(norm="after_conv", widths=(16, 32, 64, 128, 256))
        return some(data.cifar10(), 5), network, {}
    images = some(data.cifar10(), 5) if name == "small-cifar10" else some(data.mnist(), 3)
    recipe = recipe_of(images, None).stages()
    common = {name: recipe[name] for name in ("lr", "batch", "schedule", "crop", "flip")} | {"ema": 0.99}
    width, depth = (28, 3) if name == "small-cifar10" else (20, 2)
    return images, models.small_qcnn(width, depth, channels=images.shape[0]), common


def small_network(
    images: ImageSet, dense: torch.nn.Module, budget: int, common: dict[str, Any], changed: dict[str, Any]
) -> dict[str, Any]:
    fields = {name: value for name, value in changed.items() if name not in NOT_SETTINGS}
    settings = dataclasses.replace(DENSE, **{**common, **CHANGED, **fields})
    network = copy.deepcopy(dense)
    example = images.normalize(images.train.pixels[:2])
    goal = Budget(max_params=round(changed.get("share", 1.0) * budget))
    steer = changed.get("steering", Steering)(goal, example)
    result = fit(network, images, settings, teacher=dense if settings.distill else None, steer=steer)
    if "then" in changed:
        again = dataclasses.replace(settings, penalty=changed["then"], compact_every=0)
        result = fit(network, images, again)
    if "scratch" in changed:
        epochs = DENSE.epochs + settings.epochs + settings.heal
        alone = dataclasses.replace(settings, epochs=epochs, heal=0, penalty=None, compact_every=0)
        network = fresh(network, settings.seed)
        result = fit(network, images, alone)
    size = measure(network)
    record = {"val_accuracy": result.val_accuracy, "seconds": result.seconds}
    record |= {"parameters": size.parameters, "nonzero_parameters": size.nonzero_parameters}
    return record | {"neurons": [layer.neurons for layer in size.layers]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=BUDGETS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    budget = BUDGETS[arguments.problem]
    record: dict[str, Any] = {"environment": facts(), "budget": budget, "dense_val": {}, "variants": {}}
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    for seed in range(arguments.seeds):
        all_variants = variants(arguments.problem)
        missing = [name for name in all_variants if str(seed) not in record["variants"].get(name, {})]
        if not missing:
            continue
        torch.manual_seed(seed)
        images, dense, common = problem(arguments.problem)
        common["seed"], record["sums"] = seed, images.sums
        trained = fit(dense, images, dataclasses.replace(DENSE, **common))
        record.setdefault("dense_val", {})[str(seed)] = trained.val_accuracy
        for name in missing:
            result = small_network(images, dense, budget, common, all_variants[name])
            record["variants"].setdefault(name, {})[str(seed)] = result
            write_text(arguments.out, json.dumps(record, indent=1) + "\n")
            summary = f"{result['val_accuracy']:.2%}, {result['nonzero_parameters']:,} parameters"
            print(f"{name:48} seed {seed}: {summary}", flush=True)
    if dense_accuracies := record.get("dense_val"):
        print(f"dense: {statistics.mean(dense_accuracies.values()):.2%}")
    for name, by_seed in record["variants"].items():
        accuracies = [result["val_accuracy"] for result in by_seed.values()]
        spread = f" ± {statistics.stdev(accuracies):.2%}" if len(accuracies) > 1 else ""
        size = statistics.mean(result["nonzero_parameters"] for result in by_seed.values())
        print(f"{name:48} {statistics.mean(accuracies):.2%}{spread}, {size:,.0f} parameters, {len(by_seed)} seed(s)")


if __name__ == "__main__":
    main()
