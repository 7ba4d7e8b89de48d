"""What targeted training costs: penalties, the proximal optimizer and the training loop, each against going without.

    python benchmarks/training.py [--part NAME] [--json FILE] [--repeats N]

Every ratio is quern over baseline, timed interleaved in this one run; 1 is no cost at all.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layers import NETWORKS, in_fresh_processes
from quern import data
from quern.optim import ProximalAdam
from quern.penalties import RQ, RQL, GammaL1, Penalty
from quern.train import Settings, derived_seed, fit
from timing import main, medians


def penalised_step(network: nn.Module, x: Tensor, labels: Tensor, penalty: Penalty | None) -> Callable[[], None]:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x), labels)
        (loss if penalty is None else loss + penalty(network)).backward()
        optimizer.step()

    return step


def penalty_costs(name: str, norm: str, penalty: Penalty, repeats: int) -> tuple[float, float]:
    """Seconds of a training step at batch 400 without and with the penalty, on networks with the same weights."""
    build, shape, _ = NETWORKS[name]
    x, labels = torch.randn(400, *shape), torch.randint(10, (400,))
    steps = {}
    for which in (None, penalty):
        torch.manual_seed(0)
        network = build(norm=norm)  # pyright: ignore[reportCallIssue]
        steps[str(which)] = penalised_step(network, x, labels, which)
    without, ours = medians(steps, repeats).values()
    return without, ours


def optimizer_costs(name: str, penalty: Penalty, repeats: int) -> tuple[float, float]:
    """Seconds of a step of torch's Adam and of ProximalAdam."""
    torch.set_num_threads(2)
    build, shape, _ = NETWORKS[name]
    steps = {}
    for which in ("torch", "quern"):
        torch.manual_seed(0)
        network = build()
        F.cross_entropy(network(torch.randn(50, *shape)), torch.randint(10, (50,))).backward()
        theirs = torch.optim.Adam(network.parameters(), lr=1e-5)
        steps[which] = (theirs if which == "torch" else ProximalAdam(network, penalty, lr=1e-5)).step
    without, ours = medians(steps, repeats).values()
    return without, ours


EPOCHS = 3


def bare_loop(images: data.ImageSet, batch: int) -> Callable[[], None]:
    """Epochs written by hand: the same batches in the same order, the same optimizer, nothing else."""
    build, _, _ = NETWORKS["MNIST"]
    torch.manual_seed(0)
    network = build().train()
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)

    def run() -> None:
        for epoch in range(EPOCHS):
            generator = torch.Generator().manual_seed(derived_seed(0, "order", epoch))
            order = torch.randperm(len(images.train), generator=generator)
            for chosen in order.split(batch)[: len(order) // batch]:
                x, labels = images.normalize(images.train.pixels[chosen]), images.train.labels[chosen]
                optimizer.zero_grad()
                F.cross_entropy(network(x), labels).backward()
                optimizer.step()

    return run


def fit_loop(images: data.ImageSet, batch: int, folder: Path) -> Callable[[], None]:
    """The same by fit: validation, sparsity, test and files included."""
    build, _, _ = NETWORKS["MNIST"]
    settings = Settings(epochs=EPOCHS, optimizer="adam", schedule="constant", batch=batch)
    runs = 0

    def run() -> None:
        nonlocal runs
        torch.manual_seed(0)
        runs += 1
        fit(build(), images, settings, folder / str(runs))

    return run


Rows = list[dict[str, Any]]


def row(label: str, target: float, seconds: tuple[float, float]) -> dict[str, Any]:
    """A row of the record, printed."""
    without, ours = (1e3 * s for s in seconds)
    ratio = ours / without
    missed = "" if ratio <= target else "MISSED"
    print(f"{label:58s} {without:9.2f} {ours:9.2f} ms  {ratio:6.3f}x   at most {target:.2f}x {missed}", flush=True)
    return {"what": label, "unit": "ms", "baseline": without, "quern": ours, "ratio": ratio, "target": target}


def penalties(repeats: int) -> Rows:
    rows = []
    for name in NETWORKS:
        for norm, penalty, shown in (("none", RQ(1e-3), "R_Q"), ("after_conv", GammaL1(1e-3), "L1(BN)")):
            seconds = penalty_costs(name, norm, penalty, repeats)
            rows.append(row(f"{name} training step with {shown}", 1.05, seconds))
    return rows


def optimizer(repeats: int) -> Rows:
    rows = []
    for name in NETWORKS:
        for penalty in (RQ(1.0), RQL(1.0)):
            # Which allocations land on fresh pages is a matter of luck that lasts as long as the process: take several.
            pairs = in_fresh_processes(optimizer_costs, name, penalty, 10 * repeats)
            middle = sorted(pairs, key=lambda seconds: seconds[1] / seconds[0])[len(pairs) // 2]
            rows.append(row(f"{name} step of ProximalAdam with {penalty} alone", 1.2, middle))
    return rows


def loop(_: int) -> Rows:
    images = data.mnist()
    with tempfile.TemporaryDirectory() as folder:
        epochs = {"bare": bare_loop(images, 400), "fit": fit_loop(images, 400, Path(folder))}
        without, ours = medians(epochs, 3).values()
    return [row("MNIST, 3 epochs by fit against a bare loop, batch 400", 1.05, (without, ours))]


PARTS = {"penalties": penalties, "optimizer": optimizer, "loop": loop}

if __name__ == "__main__":
    main(__doc__, PARTS, repeats=15)
