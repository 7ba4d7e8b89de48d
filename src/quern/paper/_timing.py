"""Table 2: what a step of training costs with each penalty, next to a step without one."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from quern import data
from quern.bench.machine import facts
from quern.optim import ProximalAdam
from quern.paper._plan import PROTOCOLS, lambda_of, read_lambdas, settings_of
from quern.paper._run import build
from quern.records import TABLE1, Run, TimingRow, Timings, keep
from quern.records.schema import to_plain

ROUNDS = 15
FAMILIES = ("paper", "quern")


def time_steps(dataset: str, results: Path, data_dir: Path | None = None, rounds: int = ROUNDS) -> Path:
    """Time training steps of all methods in both families on one batch, in turns, on one thread; the file with the
    medians and their ratios to "none" of the same family. The λs are quern's own: a step takes as long with any.

    The paper's times are of whole trainings; steps taken in turns say the same, without what else the machine did.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        images = data.load(dataset, data_dir)
        chosen = slice(0, PROTOCOLS[dataset].batch)
        x, labels = images.normalize(images.train.pixels[chosen]), images.train.labels[chosen]
        runs = [Run(dataset, family, method, 1, 0) for family in FAMILIES for method in TABLE1]
        steps = {(run.family, run.method): _step(run, lambda_of(run, read_lambdas()), x, labels) for run in runs}
        times: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
        for n in range(rounds + 2):
            for key, step in steps.items():
                started = time.perf_counter()
                step()
                if n >= 2:  # the first rounds warm up
                    times[key].append(1000 * (time.perf_counter() - started))
        environment = facts()
    finally:
        torch.set_num_threads(threads)
    path = timing_path(results, dataset)
    record = Timings(
        dataset=dataset, environment=environment, rounds=rounds, batch=len(labels), rows=tuple(_rows(times))
    )
    keep(path, json.dumps(to_plain(record), indent=1) + "\n")
    return path


def timing_path(results: Path, dataset: str) -> Path:
    """Where :func:`time_steps` writes to."""
    return results / dataset / "table2.json"


def _rows(times: dict[tuple[str, str], list[float]]) -> list[TimingRow]:
    """The ratio is the median of the ratios within a round: what slows down a round slows down all of it."""
    rows = []
    for (family, method), mine in times.items():
        ratios = [a / b for a, b in zip(mine, times[family, "none"], strict=True)]
        rows.append(TimingRow(family, method, round(statistics.median(mine), 3), round(statistics.median(ratios), 4)))
    return rows


def _step(run: Run, weight: float | None, x: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    settings = settings_of(run, weight)
    network, penalty = build(run), settings.penalty
    optimizer: torch.optim.Optimizer
    if run.family == "quern":
        optimizer = ProximalAdam(network, penalty, settings.lr)
    else:
        optimizer = torch.optim.Adam(network.parameters(), settings.lr)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(network(x), labels)
        if run.family == "paper" and penalty is not None:
            loss = loss + penalty(network)
        loss.backward()
        optimizer.step()

    return step
