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
import inspect
import itertools
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quern import io
from quern._files import claimed, sweep, write_text
from quern.bench import time_onnx
from quern.bench.machine import facts
from quern.data import Images, ImageSet
from quern.errors import DeadNetworkWarning, Stopped, TrainingError, instead_of
from quern.export import to_onnx
from quern.graph import check_module
from quern.nn import batch_norms, quaternion_weights
from quern.penalties import GammaL1, Penalty
from quern.pipeline.answers import counted, judged, samples
from quern.pipeline.steering import Steering, check_possible
from quern.records import (
    Answers,
    Begun,
    Budget,
    Chance,
    Comparison,
    Network,
    Verdict,
    check_writable,
    respelled,
    schema,
)
from quern.records.schema import to_plain
from quern.sparsity import measure
from quern.train import (
    NAMES,
    Loaders,
    Result,
    Settings,
    Source,
    Watcher,
    check_compacts,
    check_fits,
    evaluate,
    find_device,
    fit,
    held_out,
    source,
)
from quern.train.team import Team

__all__ = ["Budget", "Chance", "Comparison", "Compressed", "Network", "Verdict", "compress"]

Tell = Callable[[str], None]
TRIAL = 4  # one in so many images is enough to see how a network would heal


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

    ``train``, ``val`` and ``test`` give pairs (input, class numbers), as a ``DataLoader`` does; without ``test``
    they are compared on ``val``, and the table says so. Or ``train`` is a :class:`quern.data.ImageSet`, which has all
    three.

    ``epochs`` train the dense network (0: it is trained already), ``grind`` drive neurons to zero under ``penalty``,
    ``heal`` train what is left, with the share ``distill`` of the loss asking for the dense network's answers.
    ``max_neurons``, ``max_params``, ``max_bytes``, ``min_speedup`` and ``max_drop`` are the budget (:class:`Budget`),
    for which λ is steered; the weights of the penalty then only say how its terms mix. Without a budget its own λ
    counts, ramped up over the first half of the grinding. With neither, the budget is one point of accuracy.
    ``options`` are further fields of :class:`quern.train.Settings`, for all stages; the batch is 100 if it is not said.

    With ``out`` everything is kept in that folder, and ``resume`` goes on where it stopped. ``about`` is added to
    what is written down.
    """
    check_module(model)
    limits = {"max_neurons": max_neurons, "max_params": max_params, "max_bytes": max_bytes}
    for name, limit in (limits | {"min_speedup": min_speedup, "max_drop": max_drop}).items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real)):
            raise TrainingError(f"{name} is {limit!r}, but must be a number.")
    budget = Budget(max_neurons, max_params, max_bytes, min_speedup, max_drop)
    if penalty is None and not budget:
        budget = Budget(max_drop=1.0)
    _check_names(options)
    data = _data(train, val, test)
    common = {"batch": 100, **options}
    dense_settings = Settings(epochs=epochs, **common) if epochs else None
    small_settings = Settings(
        **common,
        epochs=grind,
        heal=heal,
        heal_lr=heal_lr,
        heal_dropout=False,
        compact_every=1,
        distill=distill if heal else 0.0,
        penalty=penalty or GammaL1(1.0, with_beta=True),
    )
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


_SET_HERE = ("compact_every", "heal_dropout")  # fields of Settings that are no options of compress


def _check_names(options: dict[str, Any]) -> None:
    """One sentence if an option is none of compress, nor a field of Settings."""
    own = [name for name, p in inspect.signature(compress).parameters.items() if p.kind == p.KEYWORD_ONLY]
    names = dict.fromkeys([*own, *(f.name for f in fields(Settings) if f.name not in _SET_HERE)])
    for name in options:
        if name in _SET_HERE:
            raise TrainingError(f"compress sets {name} itself: leave it out.")
        if name not in names:
            otherwise = "besides its own it takes the fields of quern.train.Settings."
            raise TrainingError(f"compress has no option {name}: {instead_of(name, names, otherwise)}")


def _data(train: Any, val: Any, test: Any) -> ImageSet | Loaders:
    if isinstance(train, ImageSet):
        if val is not None or test is not None:
            raise TrainingError("an ImageSet has its own images to validate and to test with: leave out val and test.")
        return train
    if isinstance(train, str):
        raise TrainingError(f"the data must be loaders or an ImageSet: load it by quern.data.load({train!r}).")
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
    _check(model, small_settings, budget, job.data, job.batches)
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
    labels, kinds = judged(dense, small, held_out(job.batches))
    answers = counted(labels, kinds, job.data.classes if isinstance(job.data, ImageSet) else ())
    total = Answers.total(answers)
    found = Compressed(
        _column(job, "dense", dense, dense_result, total.dense, times["dense"].median_ms),
        _column(job, "small", small, small_result, total.small, times["small"].median_ms),
        budget,
        Chance(max(one.inputs for one in answers) / len(labels), len(labels)),
        answers,
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
        "dead_by": "compaction",
        "history": {"dense": to_plain(dense_result.history), "small": to_plain(small_result.history)},
    }
    if isinstance(job.data, ImageSet):
        write_text(job.out / "samples.json", json.dumps(samples(dense, small, job.data, kinds)) + "\n")
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
    tests = job.batches.test()
    loss, accuracy = (None, None) if tests is None else evaluate(dense, tests)
    result, folder = (
        Result((), 0, val_accuracy, accuracy, loss, measure(dense, job.batches.example), 0.0),
        job.out / "dense",
    )
    folder.mkdir(parents=True, exist_ok=True)
    io.save(dense, folder / "model.safetensors", metrics=result.accuracies(), images=job.batches.about())
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
        return Loaders(_Fewer(data.train), data.val)
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


def _check(model: nn.Module, settings: Settings, budget: Budget, data: ImageSet | Loaders, batches: Source) -> None:
    """What can be known to fail later is said now."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TrainingError(
            "compress is for one process: train the dense network by quern train with several, and start from that."
        )
    assert settings.penalty is not None
    try:
        settings.penalty.targets(model)
    except ValueError as reason:
        said = str(reason).rstrip(".")
        if not quaternion_weights(model):
            said = "the network has no quaternion layers: build it from those of quern.nn"
        elif not batch_norms(model):
            said += ' (norm="after_conv" in quern.models), or take a penalty of weights, penalty=RQL(1.0)'
        raise TrainingError(f"{said}.") from reason
    if next(iter(held_out(batches)), None) is None:
        raise TrainingError("the loader to test with has no batches.")
    check_fits(model, data, batches)
    check_compacts(model, batches.example)
    check_possible(budget, model, settings.penalty, batches.example, batches.about())


def _open(out: Path, settings: dict[str, Any], about: dict[str, Any], resume: bool) -> None:
    """A new folder that says what is to be done, or one that says the same."""
    path = out / "config.json"
    if not path.exists():
        check_writable(out, "folder")
        out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**about, "settings": settings}, indent=1) + "\n")
        return
    if not resume:
        raise TrainingError(f"{out} already holds a run: go on with resume, or choose another folder.")
    before = schema.read(path, Begun, "the settings of a run of quern compress", "choose another folder")
    if respelled(dict(before["settings"])) != json.loads(json.dumps(settings)):
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


def _column(job: _Job, name: str, network: nn.Module, result: Result, accuracy: float, latency_ms: float) -> Network:
    found, folder, tested = measure(network, job.batches.example), job.out / name, result.test_accuracy is not None
    return Network(
        test_accuracy=accuracy if tested else None,
        val_accuracy=result.val_accuracy if tested else accuracy,
        neurons=found.neurons,
        parameters=found.parameters,
        bytes=(folder / "model.safetensors").stat().st_size,
        onnx_bytes=(folder / "model.onnx").stat().st_size,
        macs=found.macs or 0,
        latency_ms=latency_ms,
        seconds=result.seconds,
    )
