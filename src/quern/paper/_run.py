"""One run: trained, cut to zero where it counts as zero, compacted, measured, written down."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from quern.records import Run
from quern.sparsity import Sparsity, measure
from quern.train import Result, Settings, evaluate, find_device, fit, held_out, source
from quern.train.team import Team

EDGES = [n / 4 for n in range(-24, 9)]  # exponents of ten


def build(run: Run) -> nn.Module:
    """The network of a run, drawn from its seed."""
    name, options = network_of(run)
    torch.manual_seed(run.seed)
    return models.BUILDERS[name](**options).train()


def work_folder(work: Path, run: Run, settings: Settings) -> Path:
    """Where a run keeps its checkpoints. A run with other settings is another run."""
    digest = hashlib.sha256(json.dumps(settings.to_dict(), sort_keys=True).encode()).hexdigest()[:8]
    return work / f"{run.name}-{digest}"


def perform(run: Run, settings: Settings, weight: float | None, work: Path, data_dir: Path | None) -> dict[str, Any]:
    """Train a run, or go on with it, on one thread; its record, for :func:`quern.records.write`."""
    torch.set_num_threads(1)
    environment = facts()  # of the program as it was when it began
    images = data.load(run.dataset, data_dir)
    network, dense = build(run), build(run)
    found = fit(network, images, settings, out := work_folder(work, run, settings), resume=out.is_dir())
    name, options = network_of(run)
    return {
        "settings": settings.to_dict(),
        "model": name,
        "options": options,
        "lambda": weight,
        "images": {part: len(getattr(images, part)) for part in ("train", "val", "test")},
        "sums": images.sums,
        "environment": environment,
        "history": [_rounded(line) for line in found.history],
        "result": _result(found),
        "moduli": moduli(network, found.sparsity),
        "zeros_by": "modulus",
        **_sizes(dense, _cut(network, images, settings.tol), images, settings),
    }


def _rounded(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a history without what only matters while it runs; six digits are more than enough."""
    kept = {key: value for key, value in line.items() if key not in ("images_per_second", "peak_memory_mb")}
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in kept.items()}


def _result(found: Result) -> dict[str, Any]:
    values = found.to_dict()
    layer_keys = ("name", "kind", "quaternions", "zero_components", "zero_quaternions", "neurons", "dead_neurons")
    sparsity = values.pop("sparsity")
    sparsity["layers"] = [{key: layer[key] for key in layer_keys} for layer in sparsity["layers"]]
    del values["history"]
    return {**values, "sparsity": sparsity}


def moduli(network: nn.Module, found: Sparsity) -> dict[str, Any]:
    """How the moduli of the weights are spread; what was removed from the network counts as zero."""
    rows = [w.detach().norm(dim=0).flatten() for w in quaternion_weights(network).values()]
    every = torch.cat(rows) if rows else torch.zeros(0)
    exponents = every[every > 0].double().log10().clamp(EDGES[0], EDGES[-1])
    counts = torch.histc(exponents, len(EDGES) - 1, EDGES[0], EDGES[-1])
    whole = sum(layer.quaternions for layer in found.layers)
    return {"edges": EDGES, "counts": [int(n) for n in counts], "zeros": whole - int((every > 0).sum())}


def _cut(network: nn.Module, images: ImageSet, tol: float) -> nn.Module:
    """The network without what counts as zero."""
    example = images.normalize(images.train.pixels[:2])
    return compact(network, plan(network, example, tol)).eval()


def _sizes(dense: nn.Module, small: nn.Module, images: ImageSet, settings: Settings) -> dict[str, Any]:
    """Both networks' sizes, memory and times, and the test accuracy of the small one. The times are taken in turns, in
    one thread each, as trainings beside them allow: their ratio means more than they do."""
    example, found = images.normalize(images.train.pixels[:2]), {}
    networks = {"dense": dense.eval(), "small": small}
    with tempfile.TemporaryDirectory(prefix="quern-") as folder:
        files = {name: Path(folder) / f"{name}.onnx" for name in networks}
        for name, network in networks.items():
            to_onnx(network, files[name], example)
            size = measure(network, example)
            io.save(network, own := Path(folder) / f"{name}.safetensors", images=images.about())
            found[name] = {
                "neurons": size.neurons,
                "parameters": size.parameters,
                "nonzero_parameters": size.nonzero_parameters,
                "bytes": own.stat().st_size,
                "macs": size.macs,
                "memory": peak_memory(files[name], images.shape),
            }
        times = time_onnx(files, images.shape)
    for name, about in found.items():
        about["latency_ms"] = times[name].median_ms
    tests = held_out(source(images, settings, Team(), find_device(settings.device)))
    _, found["small"]["test_accuracy"] = evaluate(small, tests)
    return found
