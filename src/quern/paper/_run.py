"""One run: trained, cut to zero where it counts as zero, compacted, measured, written down."""

import hashlib
import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from quern import data, io, models
from quern.bench import peak_memory, time_onnx
from quern.bench.machine import facts
from quern.compact import compact, plan
from quern.data import ImageSet
from quern.export import to_onnx
from quern.graph import quaternion_weights
from quern.paper._plan import network_of
from quern.records import Deployed, Epoch, LayerCounts, Moduli, Reached, Record, Run, Small, Zeros
from quern.sparsity import Sparsity, measure
from quern.train import Result, Settings, evaluate, find_device, fit, held_out, source, task_of
from quern.train.team import Team

EDGES = tuple(n / 4 for n in range(-24, 9))  # exponents of ten


def build(run: Run) -> nn.Module:
    """The network of a run, drawn from its seed."""
    name, options = network_of(run)
    torch.manual_seed(run.seed)
    return models.BUILDERS[name](**options).train()


def work_folder(work: Path, run: Run, settings: Settings) -> Path:
    """Where a run keeps its checkpoints. A run with other settings is another run."""
    digest = hashlib.sha256(json.dumps(settings.to_dict(), sort_keys=True).encode()).hexdigest()[:8]
    return work / f"{run.name}-{digest}"


def perform(run: Run, settings: Settings, weight: float | None, work: Path, data_dir: Path | None) -> Record:
    """Train a run, or go on with it, on one thread; its record, for :func:`quern.records.write`."""
    torch.set_num_threads(1)
    environment = facts()  # of the program as it was when it began
    images = data.load(run.dataset, data_dir)
    network, dense = build(run), build(run)
    result = fit(network, images, settings, out := work_folder(work, run, settings), resume=out.is_dir())
    small = _cut(network, images, settings.tol)
    sizes = _deployed({"dense": dense.eval(), "small": small}, images)
    tests = held_out(source(images, settings, Team(), find_device(settings.device), network, task_of()))
    name, options = network_of(run)
    return Record(
        run=run,
        settings=settings,
        model=name,
        options=options,
        weight=weight,
        images={part: len(getattr(images, part)) for part in ("train", "val", "test")},
        sums=images.sums,
        environment=environment,
        history=tuple(map(_rounded, result.history)),
        result=_reached(result),
        moduli=moduli(network, result.sparsity),
        zeros_by="modulus",
        dead_by="compaction",
        dense=sizes["dense"],
        small=Small(**vars(sizes["small"]), test_accuracy=evaluate(small, tests)[1]),
    )


def _rounded(line: Epoch) -> Epoch:
    """A line of a history without what only matters while it runs; six digits are more than enough."""
    floats = {key: float(f"{value:.6g}") for key, value in vars(line).items() if isinstance(value, float)}
    return replace(line, **{**floats, "images_per_second": None, "peak_memory_mb": None})


def _reached(result: Result) -> Reached:
    assert result.test_accuracy is not None
    sparsity = result.sparsity
    layers = [
        {field.name: getattr(layer, field.name) for field in fields(LayerCounts)}
        for layer in sparsity.quaternion_layers
    ]
    counts = {field.name: getattr(sparsity, field.name) for field in fields(Zeros)}
    return Reached(
        best_epoch=result.best_epoch,
        val_accuracy=result.val,
        test_accuracy=result.test_accuracy,
        test_loss=result.test_loss,
        seconds=result.seconds,
        sparsity=Zeros(**{**counts, "layers": tuple(LayerCounts(**layer) for layer in layers)}),
    )


def moduli(network: nn.Module, sparsity: Sparsity) -> Moduli:
    """How the moduli of the weights are spread; what was removed from the network counts as zero."""
    rows = [w.detach().norm(dim=0).flatten() for w in quaternion_weights(network).values()]
    every = torch.cat(rows) if rows else torch.zeros(0)
    exponents = every[every > 0].double().log10().clamp(EDGES[0], EDGES[-1])
    counts = torch.histc(exponents, len(EDGES) - 1, EDGES[0], EDGES[-1])
    whole = sum(layer.quaternions for layer in sparsity.quaternion_layers)
    return Moduli(EDGES, tuple(int(n) for n in counts), whole - int((every > 0).sum()))


def _cut(network: nn.Module, images: ImageSet, tol: float) -> nn.Module:
    """The network without what counts as zero."""
    example = images.normalize(images.train.pixels[:2])
    return compact(network, plan(network, example, tol)).eval()


def _deployed(networks: dict[str, nn.Module], images: ImageSet) -> dict[str, Deployed]:
    """The networks' sizes, memory and times. The times are taken in turns, in one thread each, as trainings beside them
    allow: their ratio means more than they do."""
    example, sizes, memory = images.normalize(images.train.pixels[:2]), {}, {}
    with tempfile.TemporaryDirectory(prefix="quern-") as folder:
        files = {name: Path(folder) / f"{name}.onnx" for name in networks}
        for name, network in networks.items():
            to_onnx(network, files[name], example)
            io.save(network, own := Path(folder) / f"{name}.safetensors", images=images.about())
            sizes[name] = replace(measure(network, example).size, bytes=own.stat().st_size)
            memory[name] = float(peak_memory(files[name], images.shape))
        pixels = np.random.default_rng(1).standard_normal((1, *images.shape)).astype(np.float32)
        times = time_onnx(files, [pixels])
    return {
        name: Deployed(**vars(size), latency_ms=times[name].median_ms, memory=memory[name])
        for name, size in sizes.items()
    }
