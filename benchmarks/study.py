"""What makes the small network good: one choice of ``quern compress`` changed at a time, from the same dense network.

Two problems that fit into an hour each: ``cifar10``, its network at half the widths, trained on a fifth of the images
and ground to 8,000 parameters; and ``digits``, a network of 8 and 16 neurons ground to 1,500 parameters, for several
seeds. Variants are compared by their accuracy on validation images. Run
``python -m benchmarks.study digits --seeds 3 --out benchmarks/study-digits.json``; what is in the file already is
skipped. (Its first records kept the test accuracy of the dense network, as ``dense``.)
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
from quern.data import Images, ImageSet
from quern.penalties import RQL, GammaL1
from quern.pipeline import Budget
from quern.pipeline.steering import Steering
from quern.sparsity import measure
from quern.train import Grinding, Settings, fit

BUDGETS = {"cifar10": 8_000, "digits": 1_500}
DENSE = Settings(epochs=12, batch=100, flip=True)
SMALL = dataclasses.replace(
    DENSE,
    epochs=6,
    heal=12,
    penalty=GammaL1(1.0, with_beta=True),
    compact_every=1,
    heal_dropout=False,
)


class Idle(Steering):
    """Milestones without a λ: neurons are removed, nothing prepares them for it."""

    def strength(self, now: Grinding) -> float | None:
        return None if super().strength(now) is None else 0.0


class Once(Steering):
    """Neurons are weighed by what they cost in the dense network, also when their neighbours are gone."""

    def _costs(self, now: Grinding) -> dict[str, float]:
        return super()._costs(now) if now.milestone == 0 else {}


# What is changed, in the settings or in the steering.
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "all neurons cost the same": {"by_cost": False},
    "neurons cost what they did in the dense network": {"steering": Once},
    "distillation 0.5": {"distill": 0.5},
    "gamma alone, without beta": {"penalty": GammaL1(1.0)},
    "no penalty, neurons only removed": {"steering": Idle},
    "heal at lr 0.004": {"heal_lr": 4e-3},
    "shifted by a pixel too": {"crop": 1},
    "heal 24 epochs": {"heal": 24},
    "grind 12 epochs": {"epochs": 12},
    "quaternions after neurons, by RQL": {"then": RQL(4.0)},
    "half the parameters": {"share": 0.5},
}


def problem(name: str) -> tuple[ImageSet, torch.nn.Module, dict[str, Any]]:
    """Images, the network to begin with, and what is different in all settings."""
    if name == "digits":
        return data.digits(), models.digits_qcnn(norm="after_conv", widths=(32, 64)), {"flip": False, "lr": 5e-3}
    whole = data.cifar10()
    train = Images(whole.train.pixels[::5].contiguous(), whole.train.labels[::5].contiguous())
    network = models.cifar_qcnn(norm="after_conv", widths=(16, 32, 64, 128, 256))
    return dataclasses.replace(whole, train=train), network, {}


def small_network(
    images: ImageSet, dense: torch.nn.Module, budget: int, common: dict[str, Any], changed: dict[str, Any]
) -> dict[str, Any]:
    fields = {name: value for name, value in changed.items() if name not in ("by_cost", "steering", "then", "share")}
    settings = dataclasses.replace(SMALL, **{**common, **fields})
    network = copy.deepcopy(dense)
    example = images.normalize(images.train.pixels[:2])
    goal = Budget(max_params=round(changed.get("share", 1.0) * budget))
    steer = changed.get("steering", Steering)(goal, example, by_cost=changed.get("by_cost", True))
    result = fit(network, images, settings, teacher=dense if settings.distill else None, steer=steer)
    if "then" in changed:
        result = fit(network, images, dataclasses.replace(settings, penalty=changed["then"], compact_every=0))
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
        missing = [name for name in VARIANTS if str(seed) not in record["variants"].get(name, {})]
        if not missing:
            continue
        torch.manual_seed(seed)
        images, dense, common = problem(arguments.problem)
        common["seed"], record["sums"] = seed, images.sums
        trained = fit(dense, images, dataclasses.replace(DENSE, **common))
        record.setdefault("dense_val", {})[str(seed)] = trained.val_accuracy
        for name in missing:
            result = small_network(images, dense, budget, common, VARIANTS[name])
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
