"""Speed of quern's layers against the common way: the 4x4 block rebuilt by ``cat``, one real operation, default layout.

    python benchmarks/layers.py [--json FILE] [--repeats N]

Every ratio is baseline over quern, measured interleaved in this one run; above 1 is faster. Whole networks are timed in
five fresh processes, of which the one with the median ratio is shown. The two networks of a row have the same weights,
the same layers in the same order, and compute the same scores (checked before timing).
"""

import copy
import itertools
import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quern import models
from quern import nn as qnn
from quern.bench.memory import peak_bytes
from timing import main, medians


def cat_block(w: Tensor) -> Tensor:
    """The block as every public library builds it, typed out on purpose: this is the thing to compare with."""
    r, i, j, k = w
    rows = [(r, -i, -j, -k), (i, r, -k, j), (j, k, r, -i), (k, -j, i, r)]
    return torch.cat([torch.cat(row, 1) for row in rows], 0)


class BaselineConv2d(nn.Module):
    def __init__(self, layer: qnn.QConv2d) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone(memory_format=torch.contiguous_format))
        assert layer.bias is not None
        self.bias = nn.Parameter(layer.bias.detach().flatten())
        self.stride, self.padding = layer.stride, layer.padding

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, cat_block(self.weight), self.bias, self.stride, self.padding)


class BaselineLinear(nn.Module):
    def __init__(self, layer: qnn.QLinear) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone())
        assert layer.bias is not None
        self.bias = nn.Parameter(layer.bias.detach().flatten())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, cat_block(self.weight), self.bias)


def baseline(network: nn.Sequential) -> nn.Sequential:
    """The same network with the common layers; it takes the encoded 4-channel image."""
    swap = {qnn.QConv2d: BaselineConv2d, qnn.QLinear: BaselineLinear}
    return nn.Sequential(
        *(swap[type(m)](m) if type(m) in swap else copy.deepcopy(m) for m in network)  # pyright: ignore
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "CIFAR-10": (models.cifar_qcnn, (3, 32, 32), qnn.encode_rgb),
    "MNIST": (models.mnist_qcnn, (1, 28, 28), qnn.encode_gray),
}


def pair(name: str, batch: int) -> tuple[nn.Sequential, Tensor, nn.Sequential, Tensor]:
    """quern's network with its input, the baseline with its input; same function, checked."""
    torch.manual_seed(0)
    build, shape, encode = NETWORKS[name]
    ours, x = build(), torch.randn(batch, *shape)
    theirs, encoded = baseline(ours), encode(x)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(encoded), rtol=1e-3, atol=1e-3)
    return ours.train(), x, theirs.train(), encoded


def training_step(network: Callable[[Tensor], Tensor], parameters: Any, x: Tensor) -> Callable[[], None]:
    labels = torch.randint(10, (x.shape[0],))
    optimizer = torch.optim.Adam(parameters, lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(x), labels).backward()
        optimizer.step()

    return step


def forward_of(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            layer(x)

    return call


def both_ways(layer: nn.Module, x: Tensor, first: bool) -> Callable[[], None]:
    """Forward and backward of one layer; the first layer of a network needs no gradient of its input."""
    x = x.detach().requires_grad_(not first)
    with torch.no_grad():
        gradient = torch.randn_like(layer(x))

    def call() -> None:
        layer(x).backward(gradient)
        layer.zero_grad()
        x.grad = None

    return call


def _time_steps(name: str, repeats: int) -> dict[str, float]:
    torch.set_num_threads(2)
    ours, x, theirs, encoded = pair(name, 400)
    steps = {
        "baseline": training_step(theirs, theirs.parameters(), encoded),
        "quern": training_step(ours, ours.parameters(), x),
    }
    return medians(steps, repeats)


def _time_eval(name: str, repeats: int) -> dict[str, float]:
    torch.set_num_threads(2)
    ours, x, theirs, encoded = pair(name, 1)
    return medians({"baseline": forward_of(theirs.eval(), encoded), "quern": forward_of(ours.eval(), x)}, repeats)


def in_fresh_processes(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``function`` returns in five processes that have done nothing else."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return [pool.apply(function, arguments) for _ in range(5)]


def _run_steps(name: str, which: str, batch: int) -> float:
    torch.set_num_threads(2)
    network, x = choose(pair(name, 2), which)
    x = x[:1].repeat(batch, 1, 1, 1)
    step = training_step(network, network.parameters(), x)
    for _ in range(3):
        step()
    return peak_bytes() / 2**20


def choose(both: tuple[nn.Sequential, Tensor, nn.Sequential, Tensor], which: str) -> tuple[nn.Sequential, Tensor]:
    return both[:2] if which == "quern" else both[2:]


def resident_memory(name: str, which: str, batch: int) -> float:
    """MiB of resident memory at the peak of a fresh process that runs three training steps: the median of five."""
    return statistics.median(in_fresh_processes(_run_steps, name, which, batch))


def live_memory(name: str, which: str, batch: int) -> float:
    """MiB of tensors alive at the peak of a training step, by torch's profiler."""
    network, x = choose(pair(name, batch), which)
    step = training_step(network, network.parameters(), x)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results: Any = profiler.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    events = [e for e in results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(itertools.accumulate(changes)) / 2**20


def measure(repeats: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(label: str, target: float | None, unit: str, common: float, ours: float) -> None:
        row = {"what": label, "unit": unit, "baseline": common, "quern": ours, "ratio": common / ours, "target": target}
        rows.append(row)
        goal = "" if target is None else f"   target {target:.2f}x {'' if row['ratio'] >= target else 'MISSED'}"
        print(f"{label:58s} {common:9.2f} {ours:9.2f} {unit:3s} {row['ratio']:6.2f}x{goal}", flush=True)

    def race(label: str, target: float | None, common: Callable[[], None], ours: Callable[[], None]) -> None:
        seconds = medians({"baseline": common, "quern": ours}, repeats)
        add(label, target, "ms", 1e3 * seconds["baseline"], 1e3 * seconds["quern"])

    print(f"{'':58s} {'baseline':>9s} {'quern':>9s}")

    def race_in_processes(label: str, target: float | None, function: Callable[..., Any], name: str) -> None:
        # Which allocations land on fresh pages is a matter of luck that lasts as long as the process: take several.
        seconds = in_fresh_processes(function, name, repeats)
        middle = sorted(seconds, key=lambda m: m["baseline"] / m["quern"])[len(seconds) // 2]
        add(label, target, "ms", 1e3 * middle["baseline"], 1e3 * middle["quern"])

    for name, target in (("CIFAR-10", 1.5), ("MNIST", 1.4)):
        race_in_processes(f"{name} training step, batch 400", target, _time_steps, name)
    for name in NETWORKS:
        ours, x, theirs, encoded = pair(name, 400)
        number = 0
        for mine, other in zip(ours.eval(), theirs.eval(), strict=True):
            if isinstance(mine, qnn.QConv2d):
                number += 1
                shown = f"{name} conv {number} ({mine.in_channels} -> {mine.out_channels} at {x.shape[-1]})"
                mine.train()
                other.train()
                race(f"{shown} forward", 0.95, forward_of(other, encoded), forward_of(mine, x))
                race(
                    f"{shown} both ways", 0.95, both_ways(other, encoded, number == 1), both_ways(mine, x, number == 1)
                )
            with torch.no_grad():
                x, encoded = mine(x), other(encoded)
    wide = qnn.QConv2d(512, 512, 3, padding=1)
    x = torch.randn(100, 512, 8, 8)
    race(
        "512 -> 512, 3x3 at 8, batch 100, both ways",
        1.6,
        both_ways(BaselineConv2d(wide), x, False),
        both_ways(wide.to(memory_format=torch.channels_last), x, False),  # pyright: ignore
    )
    for name, target in (("CIFAR-10", 1.5), ("MNIST", None)):
        race_in_processes(f"{name} eval forward, batch 1", target, _time_eval, name)
    for name in NETWORKS:
        for kind, peak in (("tensors", live_memory), ("whole process", resident_memory)):
            common, mine = (peak(name, which, 400) for which in ("baseline", "quern"))
            add(f"{name} peak memory of a training step, {kind}", 1 / 1.15, "MiB", common, mine)
    return rows


if __name__ == "__main__":
    main(__doc__, measure, repeats=9)
