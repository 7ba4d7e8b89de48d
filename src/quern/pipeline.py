"""From data to a small network that meets a budget: train, grind, heal, compact, export, measure.

    found = compress(network, train_loader, val_loader, max_params=15_000, out="runs/mine")
    print(found)                     # the table
    small = found.small_network

Each stage is a function of plain values, writes what it made into the run's folder under its final name only when it is
whole, and is skipped on resume if that is there:

    config.json   what is to be done, by which a run goes on
    dense/        the dense network: history.jsonl, checkpoints, result.json, model.safetensors, model.onnx
    small/        the same for the small one, ground, healed and compacted
    samples.json  some test images with the answers of both networks, where the data are images of quern.data
    record.json   settings, data, machine, histories, the table, and what the budget came to
"""

import copy
import itertools
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quern import io, schema
from quern.bench import time_onnx
from quern.compact import plan
from quern.data import Images, ImageSet
from quern.distributed import Team
from quern.environment import facts
from quern.errors import DeadNetworkWarning, Stopped, TrainingError
from quern.export import check_onnx, to_onnx
from quern.files import claimed, sweep, write_text
from quern.penalties import GammaL1, Penalty
from quern.records import Begun, Chance, Network
from quern.samples import samples
from quern.sparsity import measure
from quern.steering import Budget, Steering, check_possible
from quern.train import NAMES, Loaders, Result, Settings, Source, Watcher, evaluate, find_device, fit, source

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Budget", "Chance", "Comparison", "Compressed", "Network", "Verdict", "compress"]

Tell = Callable[[str], None]
TRIAL = 4  # one in so many images is enough to see how a network would heal


@dataclass(frozen=True)
class Verdict:
    """A limit of the budget, and what came of it."""

    what: str
    limit: float
    value: float
    met: bool

    def __str__(self) -> str:
        asked = f"{self.what}: {_number(self.value)}, asked for {_number(self.limit)}"
        return f"{asked}: {'met' if self.met else f'missed by {_number(abs(self.value - self.limit))}'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.2f}"


@dataclass(frozen=True)
class Comparison:
    """The dense network, the small one, and what the budget came to. Print it for the table. ``chance`` is None for
    records that do not say."""

    dense: Network
    small: Network
    budget: Budget
    chance: Chance | None

    @property
    def useless(self) -> str | None:
        """A sentence if the small network cannot be told from one that always answers with the largest class."""
        if self.chance is None:
            return None
        low, high = self.chance.interval(self.small.test_accuracy)
        if low > self.chance.largest_class:
            return None
        return (
            f"the small network is at chance: {100 * self.small.test_accuracy:.2f} % (95 % interval {100 * low:.2f} to "
            f"{100 * high:.2f}) where the largest class alone has {100 * self.chance.largest_class:.2f} %; "
            "allow it more, take a smaller λ, or heal for longer."
        )

    def verdicts(self) -> tuple[Verdict, ...]:
        dense, small, budget = self.dense, self.small, self.budget
        most = (
            ("neurons", budget.max_neurons, small.neurons),
            ("parameters", budget.max_params, small.parameters),
            ("bytes", budget.max_bytes, small.bytes),
            ("points of test accuracy lost", budget.max_drop, 100 * (dense.test_accuracy - small.test_accuracy)),
        )
        found = [Verdict(what, float(a), float(b), b <= a) for what, a, b in most if a is not None]
        if budget.min_speedup is not None:
            faster = dense.latency_ms / small.latency_ms
            found.append(Verdict("times faster", budget.min_speedup, faster, faster >= budget.min_speedup))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for records."""
        return {
            "dense": asdict(self.dense),
            "small": asdict(self.small),
            "budget": [asdict(verdict) for verdict in self.verdicts()],
            "chance": None if self.chance is None else asdict(self.chance),
        }

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table

        dense, small = self.dense, self.small
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("", no_wrap=True)
        for name in ("dense", "compacted", "ratio"):
            table.add_column(name, justify="right", no_wrap=True)
        points = 100 * (small.test_accuracy - dense.test_accuracy)
        accuracies = (f"{100 * n.test_accuracy:.2f} %" for n in (dense, small))
        table.add_row("test accuracy", *accuracies, f"{points:+.2f} points")
        rows = (
            ("neurons", dense.neurons, small.neurons, ",d"),
            ("parameters", dense.parameters, small.parameters, ",d"),
            ("file, bytes", dense.bytes, small.bytes, ",d"),
            ("ONNX file, bytes", dense.onnx_bytes, small.onnx_bytes, ",d"),
            ("multiply-adds, one input", dense.macs, small.macs, ",d"),
            ("onnxruntime, one input, one thread, ms", dense.latency_ms, small.latency_ms, ".3f"),
        )
        for name, before, after, how in rows:
            ratio = f"{before / after:.1f}x" if after else "-"
            table.add_row(name, format(before, how), format(after, how), ratio)
        yield table
        for verdict in self.verdicts():
            yield str(verdict)
        if self.useless:
            yield self.useless

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, color_system=None)
        with console.capture() as found:
            console.print(self)
        return found.get().rstrip()


@dataclass(frozen=True)
class Compressed(Comparison):
    """What :func:`compress` made: also both networks, in eval mode."""

    dense_network: nn.Module
    small_network: nn.Module


def compress(
    model: nn.Module,
    train: Iterable[Any] | ImageSet,
    val: Iterable[Any] | None = None,
    test: Iterable[Any] | None = None,
    *,
    penalty: Penalty | None = None,
    max_neurons: int | None = None,
    max_params: int | None = None,
    max_bytes: int | None = None,
    min_speedup: float | None = None,
    max_drop: float | None = None,
    epochs: int = 12,
    grind: int = 6,
    heal: int = 24,
    heal_lr: float | None = None,
    distill: float = 0.0,
    out: Path | str | None = None,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    tell: Tell = lambda _: None,
    about: dict[str, Any] | None = None,
    **options: Any,
) -> Compressed:
    """Train a copy of ``model``, make it small, and compare the two.

    ``train``, ``val`` and ``test`` give pairs (input, class numbers), as a ``DataLoader`` does; ``test`` is ``val`` if
    there is none. Or ``train`` is a :class:`quern.data.ImageSet`, which has all three.

    ``epochs`` train the dense network (0: it is trained already), ``grind`` drive neurons to zero under ``penalty``,
    ``heal`` train what is left, with the share ``distill`` of the loss asking for the dense network's answers.
    ``max_neurons``, ``max_params``, ``max_bytes``, ``min_speedup`` and ``max_drop`` are the budget (:class:`Budget`),
    for which λ is steered; the weights of the penalty then only say how its terms mix. Without a budget its own λ
    counts, ramped up over the first half of the grinding. With neither, the budget is one point of accuracy.
    ``options`` are further fields of :class:`quern.train.Settings`, for all stages; the batch is 100 if it is not said.

    With ``out`` everything is kept in that folder, and ``resume`` goes on where it stopped. ``about`` is added to
    what is written down.
    """
    budget = Budget(max_neurons, max_params, max_bytes, min_speedup, max_drop)
    if penalty is None and not budget:
        budget = Budget(max_drop=1.0)
    data = _data(train, val, test)
    common = {"batch": 100, **options}
    try:
        dense_settings = Settings(epochs=epochs, **common) if epochs else None
        small_settings = Settings(
            **{**common, "epochs": grind, "heal": heal, "heal_lr": heal_lr, "heal_dropout": False},
            compact_every=1,
            distill=distill if heal else 0.0,
            penalty=penalty or GammaL1(1.0, with_beta=True),
        )
    except TypeError as reason:
        raise TrainingError(f"{reason}: options are fields of quern.train.Settings.") from reason
    folder = None if out is None else Path(out)
    try:
        with tempfile.TemporaryDirectory(prefix="quern-compress-") as elsewhere:
            batches = source(data, small_settings, Team(), find_device(small_settings.device))
            job = _Job(data, batches, folder or Path(elsewhere), resume, watchers, tell)
            told = {"environment": facts(), **(about or {})}
            return _stages(job, model, dense_settings, small_settings, budget, told)
    except Stopped as reason:
        said = "nothing is kept without a folder: say out="
        if folder is not None:
            said = f"go on with: quern compress --resume --out {folder}" if about else "go on with resume=True"
        raise Stopped(f"stopped by signal {reason.signal}; {said}.", reason.signal) from None


def _data(train: Any, val: Any, test: Any) -> ImageSet | Loaders:
    if isinstance(train, ImageSet):
        if val is not None or test is not None:
            raise TrainingError("an ImageSet has its own images to validate and to test with: leave out val and test.")
        return train
    if val is None:
        raise TrainingError("there is nothing to validate with: give a loader as val.")
    return Loaders(train, val, test)


@dataclass(frozen=True)
class _Job:
    """What all stages have in common."""

    data: ImageSet | Loaders
    batches: Source
    out: Path
    resume: bool
    watchers: Sequence[Watcher]
    tell: Tell

    def fit(self, name: str, network: nn.Module, settings: Settings, **options: Any) -> Result:
        going_on = self.resume and (self.out / name).is_dir()
        return fit(network, self.data, settings, self.out / name, going_on, self.watchers, **options)

    def finished(self, name: str, model: nn.Module) -> tuple[nn.Module, Result] | None:
        """The network and the result of a stage that is done, on resume."""
        folder = self.out / name
        if not (self.resume and (folder / "result.json").exists() and (folder / "model.safetensors").exists()):
            return None
        result = schema.read(folder / "result.json", Result, "the result of a run", f"remove {folder} to do it again")
        self.tell(f"the {name} network is there")
        return io.load(folder / "model.safetensors", model).to(self.batches.example.device), result

    def some(self) -> Tensor:
        return next(iter(self.batches.val()))[0][:64]


def _stages(
    job: _Job,
    model: nn.Module,
    dense_settings: Settings | None,
    small_settings: Settings,
    budget: Budget,
    about: dict[str, Any],
) -> Compressed:
    settings = {
        "dense": dense_settings and dense_settings.to_dict(),
        "small": small_settings.to_dict(),
        "budget": budget.to_dict(),
    }
    _check(model, small_settings, budget, job.batches)
    _open(job.out, settings, about, job.resume)
    if job.resume:
        _sweep(job.out)
    dense, dense_result = _train_dense(job, model, dense_settings)
    _export(job, "dense", dense)
    small, small_result = _grind(job, dense, dense_result, small_settings, budget)
    _export(job, "small", small)
    job.tell("timing both networks in onnxruntime")
    times = time_onnx(
        {name: job.out / name / "model.onnx" for name in ("dense", "small")}, job.batches.example.shape[1:]
    )
    found = Compressed(
        _column(job, "dense", dense, dense_result, times["dense"].median_ms),
        _column(job, "small", small, small_result, times["small"].median_ms),
        budget,
        _chance(job.batches),
        dense,
        small,
    )
    record = {
        **about,
        "settings": settings,
        **found.to_dict(),
        "layers": [
            {"name": a.name, "kind": a.kind, "dense": a.neurons, "small": b.neurons}
            for a, b in zip(measure(dense).layers, measure(small).layers, strict=True)
        ],
        "history": {"dense": list(dense_result.history), "small": list(small_result.history)},
    }
    if isinstance(job.data, ImageSet):
        write_text(job.out / "samples.json", json.dumps(samples(dense, small, job.data)) + "\n")
    write_text(job.out / "record.json", json.dumps(record, indent=1) + "\n")
    return found


def _train_dense(job: _Job, model: nn.Module, settings: Settings | None) -> tuple[nn.Module, Result]:
    """The first stage: a trained copy of ``model``, and how it did; without ``settings`` it is as good as it is."""
    if found := job.finished("dense", model):
        return found
    dense = copy.deepcopy(model)
    if settings is not None:
        job.tell(f"dense network: {settings.epochs} epochs")
        return dense, job.fit("dense", dense, settings)
    dense.to(job.batches.example.device).eval()
    _, val_accuracy = evaluate(dense, job.batches.val())
    loss, accuracy = evaluate(dense, job.batches.test())
    result = Result((), 0, val_accuracy, accuracy, loss, measure(dense, job.batches.example), 0.0)
    folder, metrics = job.out / "dense", {"test_accuracy": accuracy, "val_accuracy": val_accuracy}
    folder.mkdir(parents=True, exist_ok=True)
    io.save(dense, folder / "model.safetensors", metrics=metrics, images=job.batches.about())
    write_text(folder / "result.json", json.dumps(result.to_dict(), indent=1))
    return dense, result


def _grind(
    job: _Job, dense: nn.Module, dense_result: Result, settings: Settings, budget: Budget
) -> tuple[nn.Module, Result]:
    """The second stage: a copy of ``dense``, ground under the penalty, healed and compacted, and how it did."""
    if found := job.finished("small", dense):
        return found
    teacher = dense if settings.distill else None

    def faster(small: nn.Module) -> float:
        job.tell("timing what is left in onnxruntime")
        with tempfile.TemporaryDirectory(prefix="quern-") as folder:
            files = {"dense": job.out / "dense" / "model.onnx", "small": Path(folder) / "small.onnx"}
            to_onnx(small, files["small"], job.some())
            times = time_onnx(files, job.batches.example.shape[1:])
        return times["dense"].median_ms / times["small"].median_ms

    def trial(small: nn.Module) -> float:
        less = _less(job.data)
        batch = min(settings.batch, len(less.train)) if isinstance(less, ImageSet) else settings.batch
        briefly = replace(settings, epochs=0, heal=1, penalty=None, compact_every=0, batch=batch)
        count = sum(p.numel() for p in small.parameters())
        job.tell(f"trial: a copy of {count:,} parameters heals for an epoch on one in {TRIAL} images")
        return fit(small, less, briefly, teacher=teacher).val_accuracy

    steer = None
    if budget:
        options = {"images": job.batches.about(), "dense_accuracy": dense_result.val_accuracy}
        steer = Steering(budget, job.batches.example, speedup=faster, trial=trial, **options)
    job.tell(f"small network: {settings.epochs} epochs to grind, {settings.heal} to heal")
    small = copy.deepcopy(dense)
    return small, job.fit("small", small, settings, teacher=teacher, steer=steer)


def _less(data: ImageSet | Loaders) -> ImageSet | Loaders:
    """Enough to see how a network would heal, and as good as nothing to test with."""
    if isinstance(data, Loaders):
        return Loaders(_Fewer(data.train), data.val, [])
    some = Images(data.train.pixels[::TRIAL].contiguous(), data.train.labels[::TRIAL].contiguous())
    return replace(data, train=some, test=Images(data.val.pixels[:1], data.val.labels[:1]))


class _Fewer:
    """The first batches of a loader, one in ``TRIAL``."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return max(1, len(self.batches) // TRIAL)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.batches, len(self))


def _check(model: nn.Module, settings: Settings, budget: Budget, batches: Source) -> None:
    """What can be known to fail later is said now."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TrainingError(
            "compress is for one process: train the dense network by quern train with several, and start from that."
        )
    assert settings.penalty is not None
    try:
        settings.penalty.targets(model)
    except ValueError as reason:
        raise TrainingError(str(reason)) from reason
    check_onnx()
    plan(model, batches.example)
    check_possible(budget, model, settings.penalty, batches.example, batches.about())


def _chance(batches: Source) -> Chance:
    labels = torch.cat([labels.cpu() for _, labels in batches.test()])
    return Chance(float(labels.bincount().max()) / len(labels), len(labels))


def _open(out: Path, settings: dict[str, Any], about: dict[str, Any], resume: bool) -> None:
    """A new folder that says what is to be done, or one that says the same."""
    path = out / "config.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**about, "settings": settings}, indent=1) + "\n")
        return
    if not resume:
        raise TrainingError(f"{out} already holds a run: go on with resume, or choose another folder.")
    before = schema.read(path, Begun, "the settings of a run of quern compress", "choose another folder")
    if before["settings"] != json.loads(json.dumps(settings)):
        raise TrainingError(f"{out} was begun with other settings: see {path}, or choose another folder.")


def _sweep(out: Path) -> None:
    """Remove what a killed run left in a folder and in those of its stages, where nobody is at work."""
    for folder in (out, out / "dense", out / "small"):
        if folder.is_dir():
            with claimed(folder) as ours:
                if ours:
                    sweep(folder, (*NAMES, "record.json", "samples.json", "report.html"))


def _export(job: _Job, name: str, network: nn.Module) -> None:
    path = job.out / name / "model.onnx"
    if job.resume and path.exists():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadNetworkWarning)  # what became of the network is said elsewhere, once
        to_onnx(network, path, job.some())


def _column(job: _Job, name: str, network: nn.Module, result: Result, latency_ms: float) -> Network:
    found, folder = measure(network, job.batches.example), job.out / name
    return Network(
        test_accuracy=result.test_accuracy,
        val_accuracy=result.val_accuracy,
        neurons=found.neurons,
        parameters=found.parameters,
        bytes=(folder / "model.safetensors").stat().st_size,
        onnx_bytes=(folder / "model.onnx").stat().st_size,
        macs=found.macs or 0,
        latency_ms=latency_ms,
        seconds=result.seconds,
    )
