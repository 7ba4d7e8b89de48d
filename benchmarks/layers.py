"""Speed of quern's layers against the common way: the 4x4 block rebuilt by ``cat``, one real operation, default layout.

    python benchmarks/layers.py [--part NAME] [--json FILE] [--repeats N]

The library of 2019 writes its layers like that too, with a parameter for each component: rows of their own. Every
ratio is baseline over quern, measured interleaved in this one run; above 1 is faster. Whole networks are timed in five
fresh processes, of which the one with the median ratio is shown. The two networks of a row have the same weights, the
same layers in the same order, and compute the same scores (checked before timing), unless the row says otherwise: a
real network of equal width has as many channels, and a folded one has no batch normalisations left.
"""

import copy
import itertools
import multiprocessing
import statistics
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import separable
from quern import io, models
from quern import nn as qnn
from quern.bench.memory import peak_bytes
from quern.compact import fold
from quern.functional import products
from quern.sparsity import measure as measure_size
from quern.train._memory import kept_memory
from timing import main, medians

ROOT = Path(__file__).parent.parent


def cat_block(w: Iterable[Tensor]) -> Tensor:
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


class FourWeights(nn.Module):
    """A layer as the library of 2019 has it, written from the formula: a parameter for each of r, i, j and k."""

    def __init__(self, layer: BaselineConv2d | BaselineLinear) -> None:
        super().__init__()
        self.parts = nn.ParameterList(part.detach().clone() for part in layer.weight)
        self.bias = layer.bias
        self.geometry: Any = (layer.stride, layer.padding) if isinstance(layer, BaselineConv2d) else None

    def forward(self, x: Tensor) -> Tensor:
        block = cat_block(self.parts)
        return F.linear(x, block, self.bias) if self.geometry is None else F.conv2d(x, block, self.bias, *self.geometry)


def baseline(network: nn.Sequential) -> nn.Sequential:
    """The same network with the common layers; it takes the encoded 4-channel image."""
    swap = {
        qnn.QConv2d: BaselineConv2d,
        qnn.QLinear: BaselineLinear,
        qnn.SplitMaxPool2d: lambda m: nn.MaxPool2d(m.kernel_size),
    }
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


def _time_steps(name: str, batch: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(2)
    ours, x, theirs, encoded = pair(name, batch)
    steps = {
        "baseline": training_step(theirs, theirs.parameters(), encoded),
        "quern": training_step(ours, ours.parameters(), x),
    }
    return medians(steps, repeats)


def _time_against_2019(name: str, batch: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(2)
    ours, x, theirs, encoded = pair(name, batch)
    common = (BaselineConv2d, BaselineLinear)
    theirs = nn.Sequential(*(FourWeights(m) if isinstance(m, common) else m for m in theirs))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(encoded), rtol=1e-3, atol=1e-3)
    steps = {
        "baseline": training_step(theirs.train(), theirs.parameters(), encoded),
        "quern": training_step(ours.train(), ours.parameters(), x),
    }
    return medians(steps, repeats)


REAL: dict[str, Callable[[], nn.Module]] = {
    "CIFAR-10": lambda: models.cifar_cnn(widths=(32, 64, 128, 256, 512)),
    "MNIST": lambda: models.mnist_cnn(widths=(16, 32)),
}


def _time_against_real(name: str, batch: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(2)
    build, shape, _ = NETWORKS[name]
    networks, x = {"baseline": REAL[name](), "quern": build()}, torch.randn(batch, *shape)
    return medians({n: training_step(network, network.parameters(), x) for n, network in networks.items()}, repeats)


def _time_separable(batch: int, kept: bool, repeats: int) -> dict[str, float]:
    """Seconds of a training step for each multiply-add of an image, with ``kept`` memory as in fit, or without."""
    torch.set_num_threads(2)
    networks, x = {"baseline": separable.plain(), "quern": separable.separable()}, torch.randn(batch, 3, 32, 32)
    steps = {n: training_step(network, network.parameters(), x) for n, network in networks.items()}
    with kept_memory() if kept else nullcontext():
        per_image = {n: seconds / batch for n, seconds in medians(steps, repeats).items()}
    for n, network in networks.items():
        macs = measure_size(network, x[:1]).macs
        assert macs is not None
        per_image[n] /= macs
    return per_image


def _time_eval(name: str, repeats: int) -> dict[str, float]:
    torch.set_num_threads(2)
    ours, x, theirs, encoded = pair(name, 1)
    return medians({"baseline": forward_of(theirs.eval(), encoded), "quern": forward_of(ours.eval(), x)}, repeats)


COMPACTED = {"CIFAR-10": ("cifar10-43", "cifar10-60k"), "MNIST": ("mnist-1500",)}


def _time_compacted(name: str, result: str, folded: bool, repeats: int) -> dict[str, float]:
    """A network of results/, as it is or folded, against the same in the common way."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    _, shape, encode = NETWORKS[name]
    small = io.load(ROOT / "results" / result / "small.safetensors").eval()
    assert isinstance(small, nn.Sequential)
    ours, theirs, x = fold(small).eval() if folded else small, baseline(small).eval(), torch.randn(1, *shape)
    encoded = encode(x)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(encoded), rtol=1e-3, atol=1e-3)
    return medians({"baseline": forward_of(theirs, encoded), "quern": forward_of(ours, x)}, repeats)


def _time_kept(name: str, result: str, repeats: int) -> dict[str, float]:
    """A network of results/, folded and with its weights kept from call to call, against neither."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    x = torch.randn(1, *NETWORKS[name][1])
    small = io.load(ROOT / "results" / result / "small.safetensors").eval()
    ours, theirs = fold(small).eval(), copy.deepcopy(small)
    for layer in theirs.modules():
        if isinstance(layer, (qnn.QConv2d, qnn.QLinear)):
            layer._cache = None  # pyright: ignore[reportAttributeAccessIssue]
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-3, atol=1e-3)
    return medians({"baseline": forward_of(theirs, x), "quern": forward_of(ours, x)}, repeats)


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


Rows = list[dict[str, Any]]


def row(label: str, target: float | None, unit: str, common: float, ours: float) -> dict[str, Any]:
    """A row of the record, printed."""
    ratio = common / ours
    goal = "" if target is None else f"   target {target:.2f}x {'' if ratio >= target else 'MISSED'}"
    print(f"{label:68s} {common:9.2f} {ours:9.2f} {unit:3s} {ratio:6.2f}x{goal}", flush=True)
    return {"what": label, "unit": unit, "baseline": common, "quern": ours, "ratio": ratio, "target": target}


def race(label: str, target: float | None, common: Callable[[], None], ours: Callable[[], None], repeats: int) -> Any:
    seconds = medians({"baseline": common, "quern": ours}, repeats)
    return row(label, target, "ms", 1e3 * seconds["baseline"], 1e3 * seconds["quern"])


def race_in_processes(
    label: str, target: float | None, function: Callable[..., Any], *arguments: Any, unit: str = "ms", of: float = 1e3
) -> dict[str, Any]:
    # Which allocations land on fresh pages is a matter of luck that lasts as long as the process: take several.
    seconds = in_fresh_processes(function, *arguments)
    middle = sorted(seconds, key=lambda m: m["baseline"] / m["quern"])[len(seconds) // 2]
    return row(label, target, unit, of * middle["baseline"], of * middle["quern"])


def steps(repeats: int) -> Rows:
    return [
        race_in_processes(f"{name} training step, batch {batch}", target, _time_steps, name, batch, repeats)
        for name, batch, target in (("CIFAR-10", 100, 2.0), ("CIFAR-10", 400, 2.3), ("MNIST", 400, 1.8))
    ]


def of_2019(repeats: int) -> Rows:
    label = "training step, batch 100, against layers as in the library of 2019"
    return [race_in_processes(f"{name} {label}", None, _time_against_2019, name, 100, repeats) for name in NETWORKS]


def real(repeats: int) -> Rows:
    label = "training step, batch 400, against the real network of equal width"
    return [
        race_in_processes(f"{name} {label}", target, _time_against_real, name, 400, repeats)
        for name, target in (("CIFAR-10", 1.5), ("MNIST", 1.0))
    ]


def depthwise(repeats: int) -> Rows:
    """The plain network is the baseline, per multiply-add."""
    label = "depthwise + pointwise against plain, step of a multiply-add"
    return [
        race_in_processes(label + shown, 1 / 1.5, _time_separable, 100, kept, repeats, unit="ps", of=1e12)
        for shown, kept in (("", False), (", in fit", True))
    ]


def layers(repeats: int) -> Rows:
    rows = []
    for name in NETWORKS:
        ours, x, theirs, encoded = pair(name, 400)
        number = 0
        for mine, other in zip(ours.eval(), theirs.eval(), strict=True):
            if isinstance(mine, qnn.QConv2d):
                number += 1
                shown = f"{name} conv {number} ({mine.in_channels} -> {mine.out_channels} at {x.shape[-1]})"
                mine.train()
                other.train()
                calls = forward_of(other, encoded), forward_of(mine, x)
                rows.append(race(f"{shown} forward", 0.95, *calls, repeats))
                calls = both_ways(other, encoded, number == 1), both_ways(mine, x, number == 1)
                rows.append(race(f"{shown} both ways", 0.95, *calls, repeats))
            with torch.no_grad():
                x, encoded = mine(x), other(encoded)
    return rows


WIDTHS = (16, 32, 64, 128, 256, 512)


def widths(repeats: int) -> Rows:
    """Time against width; a real convolution of as many channels beside it."""
    rows = []
    for width in WIDTHS:
        layer, x = qnn.QConv2d(width, width, 3, padding=1), torch.randn(100, width, 8, 8)
        convolution = nn.Conv2d(width, width, 3, padding=1)
        calls = {
            "baseline": both_ways(BaselineConv2d(layer), x, False),
            "quern": both_ways(last(layer), last(x), False),
            "real": both_ways(last(convolution), last(x), False),
        }
        seconds = {name: 1e3 * value for name, value in medians(calls, repeats).items()}
        label, target = f"{width} -> {width}, 3x3 at 8, batch 100, both ways", 1.6 if width == 512 else 0.95
        rows.append({**row(label, target, "ms", seconds["baseline"], seconds["quern"]), "real": seconds["real"]})
    return rows


def choice(repeats: int) -> Rows:
    """Where Winograd's form is chosen: the block form of the same layer, in the same layout, is the baseline."""
    rows, choose_form = [], products.choose_conv_form

    def with_choice(choose: Callable[..., products.Form], call: Callable[[], None]) -> Callable[[], None]:
        def chosen() -> None:
            products.choose_conv_form = choose
            call()

        return chosen

    sizes = ((4, 16), (4, 100), (8, 16), (8, 100), (16, 100))
    for width, (size, batch) in itertools.product((48, 64, 80, 96), sizes):
        layer, x = last(qnn.QConv2d(width, width, 3, padding=1)), last(torch.randn(batch, width, size, size))
        call = both_ways(layer, x, False)
        calls = with_choice(lambda *_: "block", call), with_choice(choose_form, call)
        rows.append(race(f"{width} -> {width}, 3x3 at {size}, batch {batch}, block form", 0.95, *calls, repeats))
    products.choose_conv_form = choose_form
    return rows


def last(thing: Any) -> Any:
    return thing.to(memory_format=torch.channels_last)


def evals(repeats: int) -> Rows:
    rows = [
        race_in_processes(f"{name} eval forward, batch 1", target, _time_eval, name, repeats)
        for name, target in (("CIFAR-10", 1.5), ("MNIST", None))
    ]
    for name, results in COMPACTED.items():
        for result, folded in itertools.product(results, (False, True)):
            label = f"{name} {result}{', folded' if folded else ''}, eval forward, batch 1"
            rows.append(race_in_processes(label, None, _time_compacted, name, result, folded, repeats))
        for result in results:
            label = f"{name} {result}, folded, kept weights, batch 1, against neither"
            rows.append(race_in_processes(label, 2.0, _time_kept, name, result, repeats))
    return rows


def memory(_: int) -> Rows:
    rows = []
    for name in NETWORKS:
        for kind, peak in (("tensors", live_memory), ("whole process", resident_memory)):
            common, mine = (peak(name, which, 400) for which in ("baseline", "quern"))
            rows.append(row(f"{name} peak memory of a training step, {kind}", 1 / 1.15, "MiB", common, mine))
    return rows


PARTS = {
    "steps": steps,
    "2019": of_2019,
    "real": real,
    "depthwise": depthwise,
    "layers": layers,
    "widths": widths,
    "choice": choice,
    "eval": evals,
    "memory": memory,
}

if __name__ == "__main__":
    main(__doc__, PARTS, repeats=9)
