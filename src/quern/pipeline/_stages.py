"""The stages of ``compress``: train the dense network, grind and heal a copy of it, export and measure both.

To *grind* is to train under a penalty until neurons are zero, to *heal* is to fine-tune what is left. Each stage is a
function of plain values. It writes what it made into the run's folder under its final name only when it is whole, and
is skipped on resume if that is there.

Under torchrun all processes train; the leading one alone decides, writes, exports and measures.
"""

import copy
import hashlib
import itertools
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quern import io, runtime
from quern._files import write_text
from quern._size import size_of
from quern.bench import time_onnx, time_packed
from quern.data import Images, ImageSet
from quern.errors import DeadNetworkWarning, ExportError, NoRuntimeError
from quern.export import Pixels, packed_size, to_onnx, to_packed
from quern.graph import Example
from quern.pipeline._answers import compare_answers, count_by_class, samples
from quern.pipeline._folder import open_folder
from quern.pipeline._scratch import fresh
from quern.pipeline._sizes import Packing, Packs
from quern.pipeline.steering import Steering
from quern.records import Answers, Budget, Chance, Comparison, Network, PackedSize, Scratch, schema
from quern.records.schema import to_plain
from quern.records.text import in_epochs
from quern.sparsity import measure
from quern.train import (
    Loaders,
    Result,
    Settings,
    Source,
    Task,
    Watcher,
    as_arguments,
    changed,
    evaluate,
    first,
    fit,
    held_out,
)
from quern.train.team import Team

Tell = Callable[[str], None]
TRIAL = 4  # one in so many images is enough to see how a network would heal


@dataclass(frozen=True)
class Compressed(Comparison):
    """What :func:`compress` made: also both networks, in eval mode."""

    dense_network: nn.Module
    small_network: nn.Module


@dataclass(frozen=True)
class Job:
    """What all stages have in common. ``judged`` are loss and metric as :func:`quern.train.fit` takes them; a
    ``teacher`` is one besides the dense network."""

    data: ImageSet | Loaders
    batches: Source
    task: Task
    judged: dict[str, Any]
    out: Path
    resume: bool
    watchers: Sequence[Watcher]
    tell: Tell
    teacher: nn.Module | None = None

    @property
    def crew(self) -> Team:
        return self.batches.crew

    def fit(self, name: str, network: nn.Module, settings: Settings, **options: Any) -> Result:
        going_on = self.resume and (self.out / name).is_dir()
        return fit(network, self.data, settings, self.out / name, going_on, self.watchers, **self.judged, **options)

    def finished(self, name: str, model: nn.Module) -> tuple[nn.Module, Result] | None:
        """The network and the result of a stage that is done, on resume."""
        folder = self.out / name
        done = self.resume and (folder / "result.json").exists() and (folder / "model.safetensors").exists()
        if not self.crew.from_leader(done):
            return None
        result = schema.read(folder / "result.json", Result, "the result of a run", f"remove {folder} to do it again")
        self.tell(f"the {name} network is there")
        return io.load(folder / "model.safetensors", model).to(self.batches.device), result

    def example_batch(self) -> Example:
        return first(self.batches.shown[0], 64)

    def one_input(self) -> tuple[Any, ...]:
        """What a network is timed with."""
        return changed(as_arguments(first(self.batches.example, 1)), lambda t: t.cpu().numpy())


def run_stages(
    job: Job,
    model: nn.Module,
    dense_settings: Settings | None,
    small_settings: Settings,
    scratch_settings: Settings | None,
    budget: Budget,
    origin: dict[str, Any],
) -> Compressed:
    """All stages, and their record; ``origin`` (data, machine, ...) is added to what is written down."""
    settings = {
        "dense": dense_settings and dense_settings.to_dict(),
        "small": small_settings.to_dict(),
        "budget": budget.to_dict(),
    }
    if (task := job.task.written()) is not None:
        settings["task"] = task
    if job.teacher is not None:
        settings["teacher"] = _sum_of(job.teacher)
    if scratch_settings is not None:
        settings["scratch"] = scratch_settings.to_dict()
    crew = job.crew
    crew.led(lambda: open_folder(job.out, settings, origin, job.resume))
    dense, dense_result = _train_dense(job, model, dense_settings)
    crew.led(lambda: _export(job, "dense", dense))
    small, small_result = _grind(job, dense, dense_result, small_settings, budget)
    crew.led(lambda: _export(job, "small", small))
    scratch = None if scratch_settings is None else _train_from_scratch(job, small, scratch_settings)
    results = {"dense": dense_result, "small": small_result, "scratch": scratch}
    judged = _judge(job, dense, small)

    def compare_and_record() -> Comparison:
        comparison = _compare(job, dense, small, results, judged, budget)
        _record(job, dense, small, results, judged, {**origin, "settings": settings}, comparison)
        return comparison

    comparison = crew.led(compare_and_record)
    known = {field.name: getattr(comparison, field.name) for field in fields(Comparison)}
    return Compressed(**known, dense_network=dense, small_network=small)


@dataclass(frozen=True)
class _Judged:
    """What the networks come to on the same inputs, by name; of classes also their answers, and what chance gives."""

    values: dict[str, float]
    chance: Chance | None = None
    answers: tuple[Answers, ...] = ()
    outcomes: Tensor | None = None


def _judge(job: Job, dense: nn.Module, small: nn.Module) -> _Judged:
    if not job.task.classifies:
        networks = {"dense": dense, "small": small}
        values = {name: evaluate(one, held_out(job.batches), job.crew, job.task)[1] for name, one in networks.items()}
        return _Judged(values)
    labels, outcomes = compare_answers(dense, small, held_out(job.batches), job.crew)
    answers = count_by_class(labels, outcomes, job.data.classes if isinstance(job.data, ImageSet) else ())
    total = Answers.total(answers)
    chance = Chance(max(of_class.inputs for of_class in answers) / len(labels), len(labels))
    return _Judged({"dense": total.dense, "small": total.small}, chance, answers, outcomes)


def _compare(
    job: Job, dense: nn.Module, small: nn.Module, results: dict[str, Result | None], judged: _Judged, budget: Budget
) -> Comparison:
    job.tell("timing both networks in onnxruntime")
    times = time_onnx({name: job.out / name / "model.onnx" for name in ("dense", "small")}, job.one_input())
    packed = _packed_sizes(job)

    def column(name: str, network: nn.Module) -> Network:
        result = results[name]
        assert result is not None
        return _column(job, name, network, result, judged.values[name], times[name].median_ms, packed.get(name))

    columns = column("dense", dense), column("small", small)
    scratch = None if (result := results["scratch"]) is None else _scratch(job, result)
    return Comparison(*columns, budget, judged.chance, judged.answers, metric=job.task.metric, scratch=scratch)


def _record(
    job: Job,
    dense: nn.Module,
    small: nn.Module,
    results: dict[str, Result | None],
    judged: _Judged,
    origin: dict[str, Any],
    comparison: Comparison,
) -> None:
    record = {
        **{name: value for name, value in origin.items() if name not in ("metric", "lower_is_better")},
        **comparison.to_dict(),
        "layers": [
            {"name": before.name, "kind": before.kind, "dense": before.neurons, "small": after.neurons}
            for before, after in zip(measure(dense).counted_layers, measure(small).counted_layers, strict=True)
        ],
        "images": job.batches.image_format(),
        "dead_by": "compaction",
        "history": {name: to_plain(result.history) for name, result in results.items() if result is not None},
    }
    if isinstance(job.data, ImageSet) and judged.outcomes is not None:
        write_text(job.out / "samples.json", json.dumps(samples(dense, small, job.data, judged.outcomes)) + "\n")
    write_text(job.out / "record.json", json.dumps(record, indent=1) + "\n")


def _train_dense(job: Job, model: nn.Module, settings: Settings | None) -> tuple[nn.Module, Result]:
    """The first stage: a trained copy of ``model``, and how it did; without ``settings`` it is as good as it is."""
    if finished := job.finished("dense", model):
        return finished
    dense = copy.deepcopy(model)
    if settings is not None:
        job.tell(f"dense network: {in_epochs(settings.epochs)}")
        return dense, job.fit("dense", dense, settings, teacher=job.teacher)
    dense.to(job.batches.device).eval()
    job.crew.equalize(dense)  # training does it by itself
    _, value = evaluate(dense, job.batches.val(), job.crew, job.task)
    tests = job.batches.test()
    loss, tested = (None, None) if tests is None else evaluate(dense, tests, job.crew, job.task)
    metric = job.task.metric
    judged: Any = {"val_accuracy": None, "test_accuracy": None, **metric.keyed(val=value, test=tested)}
    sparsity = measure(dense, job.batches.example)
    result = Result(history=(), best_epoch=0, test_loss=loss, sparsity=sparsity, seconds=0.0, metric=metric, **judged)

    def keep() -> None:
        folder = job.out / "dense"
        folder.mkdir(parents=True, exist_ok=True)
        io.save(dense, folder / "model.safetensors", metrics=result.metrics(), images=job.batches.image_format())
        write_text(folder / "result.json", json.dumps(result.to_dict(), indent=1))

    job.crew.led(keep)
    return dense, result


def _grind(
    job: Job, dense: nn.Module, dense_result: Result, settings: Settings, budget: Budget
) -> tuple[nn.Module, Result]:
    """The second stage: a copy of ``dense``, ground under the penalty, healed and compacted, and how it did."""
    if finished := job.finished("small", dense):
        return finished
    teacher = (job.teacher or dense) if settings.distill else None

    def speedup(small: nn.Module) -> float:
        packed = job.out / "dense" / "model.qrn"
        job.tell(f"timing what is left in {'the C runtime' if packed.exists() else 'onnxruntime'}")
        with tempfile.TemporaryDirectory(prefix="quern-") as folder:
            if packed.exists():
                files = {"dense": packed, "small": Path(folder) / "small.qrn"}
                example, pixels = _as_packed(job.data, job.example_batch())
                to_packed(small, files["small"], example, pixels=pixels)
                times = time_packed(files, _inputs_of_packed(job))
            else:
                files = {"dense": job.out / "dense" / "model.onnx", "small": Path(folder) / "small.onnx"}
                to_onnx(small, files["small"], job.example_batch())
                times = time_onnx(files, job.one_input())
        return times["dense"].median_ms / times["small"].median_ms

    def trial(small: nn.Module) -> float:
        data = _data_of_trial(job.data)
        batch = min(settings.batch, len(data.train)) if isinstance(data, ImageSet) else settings.batch
        briefly = replace(settings, epochs=0, heal=1, penalty=None, compact_every=0, batch=batch)
        job.tell(
            f"trial: a copy of {size_of(small).parameters:,} parameters heals for an epoch on one in {TRIAL} images"
        )
        return fit(small, data, briefly, teacher=teacher, **job.judged).val

    steer = None
    if budget:
        options: dict[str, Any] = {
            "images": job.batches.image_format(),
            "metric": job.task.metric,
            "dense_value": dense_result.val,
        }
        packs = packs_of(job.data, job.batches.example)
        options |= {"speedup": speedup, "trial": trial, "packs": packs, "crew": job.crew}
        steer = Steering(budget, job.batches.example, **options)
    job.tell(f"small network: {in_epochs(settings.epochs)} to grind, {settings.heal} to heal")
    small = copy.deepcopy(dense)
    return small, job.fit("small", small, settings, teacher=teacher, steer=steer)


def _sum_of(teacher: nn.Module) -> str:
    """By which a teacher is known again: a SHA-256 of its weights."""
    digest = hashlib.sha256()
    for name, t in teacher.state_dict().items():
        digest.update(name.encode() + t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _train_from_scratch(job: Job, small: nn.Module, settings: Settings) -> Result:
    """What the structure of the small network comes to without the large one."""
    if finished := job.finished("scratch", small):
        return finished[1]
    job.tell(f"the small network from scratch: {in_epochs(settings.epochs)}")
    return job.fit("scratch", fresh(small, settings.seed), settings)


def _scratch(job: Job, result: Result) -> Scratch:
    judged: Any = {"test_accuracy": None, "val_accuracy": None}
    judged |= job.task.metric.keyed(val=result.val, test=result.test)
    return Scratch(**judged, epochs=len(result.history), seconds=result.seconds)


def _data_of_trial(data: ImageSet | Loaders) -> ImageSet | Loaders:
    """Enough to see how a network would heal, and as good as nothing to test with."""
    if isinstance(data, Loaders):
        return Loaders(_FirstBatches(data.train), data.val)
    train = Images(data.train.pixels[::TRIAL].contiguous(), data.train.labels[::TRIAL].contiguous())
    return replace(data, train=train, test=Images(data.val.pixels[:1], data.val.labels[:1]))


class _FirstBatches:
    """The first batches of a loader, one in ``TRIAL``."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return max(1, len(self.batches) // TRIAL)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.batches, len(self))


def _export(job: Job, name: str, network: nn.Module) -> None:
    onnx, qrn = (job.out / name / f"model.{suffix}" for suffix in ("onnx", "qrn"))
    with warnings.catch_warnings():
        if job.task.classifies:  # then it is said elsewhere, once, that the network is useless
            warnings.simplefilter("ignore", DeadNetworkWarning)
        if not (job.resume and onnx.exists()):
            to_onnx(network, onnx, job.example_batch())
        if job.resume and qrn.exists():
            return
        try:
            example, pixels = _as_packed(job.data, job.example_batch())
            to_packed(network, qrn, example, pixels=pixels)
        except (ExportError, NoRuntimeError) as reason:
            job.tell(f"{name}/model.qrn is left out: {reason}")


def _as_packed(data: ImageSet | Loaders, example: Example) -> tuple[Example, Pixels | None]:
    """What the packed network takes: images as they are in files, other inputs as the network does."""
    if not isinstance(data, ImageSet):
        return changed(example, Tensor.cpu), None
    return data.val.pixels[:64], Pixels(tuple(data.mean), tuple(data.std), top=data.top)


def _inputs_of_packed(job: Job) -> tuple[Any, ...] | None:
    """What packed networks are timed with; images are made up."""
    return None if isinstance(job.data, ImageSet) else job.one_input()


def packs_of(data: ImageSet | Loaders, example: Example) -> Packs:
    """What a network takes that is packed as the small one will be."""
    raw, pixels = _as_packed(data, example)

    def packs(model: nn.Module) -> Packing:
        return Packing(*packed_size(model, first(raw, 2), pixels))

    return packs


def _packed_sizes(job: Job) -> dict[str, PackedSize]:
    """Both packed networks next to each other, where they are there."""
    files = {name: job.out / name / "model.qrn" for name in ("dense", "small")}
    if not all(path.exists() for path in files.values()):
        return {}
    job.tell("timing both networks in the C runtime")
    times = time_packed(files, _inputs_of_packed(job))
    networks = {name: runtime.load(path) for name, path in files.items()}
    return {name: PackedSize(one.bytes, one.ram, times[name].median_ms) for name, one in networks.items()}


def _column(
    job: Job,
    name: str,
    network: nn.Module,
    result: Result,
    value: float,
    latency_ms: float,
    packed: PackedSize | None,
) -> Network:
    size = measure(network, job.batches.example).size
    folder, tested = job.out / name, result.test is not None
    values: Any = {"val": result.val, "test": value} if tested else {"val": value, "test": None}
    judged: Any = {"test_accuracy": None, "val_accuracy": None, **job.task.metric.keyed(**values)}
    return Network(
        **judged,
        neurons=size.neurons,
        parameters=size.parameters,
        bytes=(folder / "model.safetensors").stat().st_size,
        onnx_bytes=(folder / "model.onnx").stat().st_size,
        macs=size.macs or 0,
        latency_ms=latency_ms,
        seconds=result.seconds,
        packed=packed,
    )
