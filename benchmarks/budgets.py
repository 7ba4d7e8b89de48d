"""What a budget costs: epochs of a grinding whose λ is steered, against epochs of dense training.

    python benchmarks/budgets.py [--json FILE] [--repeats N]

Two problems: ``digits`` as ``quern compress`` trains them, and a residual network on a folder of colour images of 32x32
pixels (the same digits, enlarged and tinted). Whole grindings and some dense epochs are done in turn, again and again.
A grinding epoch is the mean over one grinding, milestones and files included; the ratio is that to the dense epoch of
the same turn, as the median over the turns. For a speedup multiply-adds stand in for the clock, which is not steering.
"""

import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quern import data, models
from quern.data import ImageSet
from quern.penalties import GammaL1
from quern.pipeline import Budget
from quern.pipeline.steering import Steering
from quern.sparsity import measure as measured
from quern.train import Epoch, Phase, Settings, fit
from timing import main

TARGET = 1.5  # dense epochs
DENSE_EPOCHS = 3  # to time in each turn


@dataclass(frozen=True)
class Problem:
    images: ImageSet
    build: Callable[[], nn.Module]
    dense: Settings
    small: Settings
    budgets: dict[str, Budget]


def folder_of_images(root: Path, count: int = 1000) -> ImageSet:
    """The first ``count`` of scikit-learn's digits as PNG files of 32x32 pixels, one colour for each class."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    shades = np.array([1.0, 0.85, 0.7])
    for n, (picture, label) in enumerate(zip(digits.images[:count], digits.target[:count], strict=True)):
        gray = Image.fromarray((picture * (255 / 16)).astype("uint8")).resize((32, 32), Image.Resampling.BICUBIC)
        tinted = Image.fromarray((np.asarray(gray)[..., None] * np.roll(shades, label)).astype("uint8"))
        folder = root / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        tinted.save(folder / f"{n}.png")
    return data.image_folder(root)


def _budgets(neurons: int, params: int, file_bytes: int) -> dict[str, Budget]:
    return {
        "max_neurons": Budget(max_neurons=neurons),
        "max_params": Budget(max_params=params),
        "max_bytes": Budget(max_bytes=file_bytes),
        "min_speedup": Budget(min_speedup=5.0),
        "max_params and max_bytes": Budget(max_params=params, max_bytes=file_bytes),
    }


def of_digits() -> Problem:
    dense, budgets = Settings(epochs=DENSE_EPOCHS, batch=64, lr=5e-3), _budgets(16, 1000, 6 << 10)
    return Problem(data.digits(), lambda: models.digits_qcnn(norm="after_conv"), dense, _small(dense, 20), budgets)


def of_folder(root: Path) -> Problem:
    dense, budgets = Settings(epochs=DENSE_EPOCHS, batch=100), _budgets(60, 5000, 40 << 10)
    return Problem(folder_of_images(root), models.qresnet20, dense, _small(dense, 6), budgets)


def _small(dense: Settings, epochs: int) -> Settings:
    penalty = GammaL1(1.0, with_beta=True)
    return dataclasses.replace(dense, epochs=epochs, penalty=penalty, compact_every=1, heal_dropout=False)


class Clock:
    """A watcher that notes when each epoch ends, all that belongs to it included."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def start(self, settings: Settings, epoch: int, steps: int) -> None:  # noqa: ARG002
        self.times.append(time.perf_counter())

    def step(self, epoch: int, phase: Phase, step: int, steps: int, loss: float) -> None: ...

    def epoch(self, line: Epoch) -> None:  # noqa: ARG002
        self.times.append(time.perf_counter())

    def end(self) -> None: ...

    @property
    def seconds(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.times)]


def dense_epoch(problem: Problem, network: nn.Module) -> float:
    """Median seconds of a dense epoch; leaves ``network`` trained."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        fit(network, problem.images, problem.dense, out, watchers=[clock])
    return statistics.median(clock.seconds)


def grinding_epoch(problem: Problem, network: nn.Module, budget: Budget) -> float:
    """Mean seconds of an epoch of a whole grinding of ``network`` to ``budget``."""
    clock, example = Clock(), problem.images.normalize(problem.images.train.pixels[:2])
    dense = measured(network, example).macs or 0

    def speedup(small: nn.Module) -> float:
        return dense / (measured(small, example).macs or 1)

    steer = Steering(budget, example, images=problem.images.about(), speedup=speedup)
    with tempfile.TemporaryDirectory() as out:
        fit(network, problem.images, problem.small, out, watchers=[clock], steer=steer)
    return statistics.mean(clock.seconds)


def turn(problem: Problem) -> dict[str, tuple[float, float]]:
    """Seconds of a dense epoch, before and after, and of a grinding epoch, for each budget."""
    torch.manual_seed(0)
    trained = problem.build()
    before = dense_epoch(problem, trained)
    state, seconds = trained.state_dict(), {}
    for name, budget in problem.budgets.items():
        network = problem.build()
        network.load_state_dict(state)
        ground = grinding_epoch(problem, network, budget)
        after = dense_epoch(problem, problem.build())
        seconds[name], before = ((before + after) / 2, ground), after
    return seconds


def measure(repeats: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    print(f"{'':58s} {'dense':>9s} {'grinding':>9s}")
    with tempfile.TemporaryDirectory() as root:
        for name, problem in (("digits", of_digits()), ("folder, qresnet20", of_folder(Path(root)))):
            turns = [turn(problem) for _ in range(max(3, repeats // 2))]
            for budget in problem.budgets:
                seconds = [by_budget[budget] for by_budget in turns]
                ratio = statistics.median(ours / dense for dense, ours in seconds)
                dense, ours = (1e3 * statistics.median(side) for side in zip(*seconds, strict=True))
                label = f"{name}: an epoch under {budget}"
                row = {"what": label, "unit": "ms", "baseline": dense, "quern": ours, "ratio": ratio, "target": TARGET}
                rows.append(row)
                missed = "" if ratio <= TARGET else "MISSED"
                print(
                    f"{label:58s} {dense:9.1f} {ours:9.1f} ms  {ratio:6.2f}x   at most {TARGET:.2f}x {missed}",
                    flush=True,
                )
    return rows


if __name__ == "__main__":
    main(__doc__, measure, repeats=7)
