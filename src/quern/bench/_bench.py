"""Networks next to each other: their sizes, the memory they need, and their times."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quern import io, runtime
from quern.bench import memory
from quern.bench._results import Bench, Engine, Model, Timing
from quern.bench._timing import timings
from quern.errors import ExportError, NoRuntimeError, QuernError
from quern.export import open_session, to_onnx, to_packed
from quern.sparsity import measure


@torch.inference_mode()
def bench(
    models: dict[str, nn.Module | Path],
    shape: Sequence[int],
    *,
    batches: Sequence[int] = (1, 64),
    threads: Sequence[int] = (1, 2),
    repeats: int = 30,
    progress: Callable[[str], None] = lambda _: None,
    headers: Mapping[str, dict[str, Any]] | None = None,
) -> Bench:
    """Time ``models`` on images of ``shape`` (channels, height, width), and say how large they are.

    A model is a network, timed in torch, in onnxruntime and, packed, in the C runtime (on one thread); or an ONNX file
    or a packed network, timed there. ``repeats`` rounds are
    counted, in each of which every model has its turn. ``headers`` have, by the network's name, the ``images`` and
    ``metrics`` that its file holds, as :func:`quern.io.save` takes them: they are bytes too.
    """
    if not models or min([*batches, *threads, repeats]) < 1:
        raise QuernError("a benchmark needs at least one model, and batches, threads and repeats of at least 1.")
    shape = tuple(shape)
    for model in models.values():
        if isinstance(model, Path) and model.suffix != ".qrn":
            _check_input(model, shape)
    threads_before = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="quern-bench-") as folder:
        files: dict[Engine, dict[str, Path]] = {"torch": {}, "onnxruntime": {}, "quern_rt": {}}
        sizes = []
        for n, (name, model) in enumerate(models.items()):
            progress(f"preparing {name}")
            header = (headers or {}).get(name, {"images": {"shape": list(shape)}})
            made, size = _prepare(name, model, shape, Path(folder) / str(n), max(batches), header, progress)
            for engine, path in made.items():
                files[engine][name] = path
            sizes.append(size)
        results: list[Timing] = []
        try:
            for engine, own in files.items():
                for batch in batches:
                    for count in (1,) if engine == "quern_rt" else threads:
                        progress(f"timing {engine}, batch {batch}, threads {count}")
                        results += timings(engine, models, own, shape, batch, count, repeats)
        finally:
            torch.set_num_threads(threads_before)
    return Bench(tuple(sizes), tuple(results), shape, repeats)


def _prepare(
    name: str,
    model: nn.Module | Path,
    shape: tuple[int, ...],
    stem: Path,
    batch: int,
    header: dict[str, Any],
    progress: Callable[[str], None],
) -> tuple[dict[Engine, Path], Model]:
    """The model's ONNX file and packed network, and how large it is."""
    if isinstance(model, Path) and model.suffix == ".qrn":
        network = runtime.load(model)
        return {"quern_rt": model}, Model(name, None, None, None, None, network.bytes, network.arena)
    if isinstance(model, Path):
        peak = peak_memory(model, shape, batch=batch)
        return {"onnxruntime": model}, Model(name, None, model.stat().st_size, None, peak)
    model.eval()
    onnx, own = stem.with_suffix(".onnx"), stem.with_suffix(".safetensors")
    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    io.save(model, own, metrics=header.get("metrics"), images=header.get("images"))
    to_onnx(model, onnx, example)
    size = replace(measure(model, example).size, bytes=own.stat().st_size)
    can_be_built = io.describe(own)["builder"] is not None  # else a fresh process could not load it
    peak = peak_memory(own, shape, batch=batch) if can_be_built else None
    files: dict[Engine, Path] = {"onnxruntime": onnx}
    packed: tuple[int, int] | tuple[None, None] = (None, None)
    try:
        report = to_packed(model, stem.with_suffix(".qrn"), example)
        files["quern_rt"], packed = report.path, (report.bytes, report.arena)
    except (ExportError, NoRuntimeError) as reason:
        progress(f"{name} is not timed in the C runtime: {reason}")
    sizes = (size, onnx.stat().st_size, peak, peak_memory(onnx, shape, batch=batch))
    return files, Model(name, *sizes, *packed)


def _check_input(path: Path, shape: tuple[int, ...]) -> None:
    """A sentence unless an ONNX file takes one batch, of any size, of such images."""
    inputs = open_session(path).get_inputs()
    fits = len(inputs) == 1 and inputs[0].type in ("tensor(float)", "tensor(uint8)") and len(inputs[0].shape) == 4
    if not fits or isinstance(inputs[0].shape[0], int):
        raise QuernError(f"{path} does not take one batch of images, of any size, as float or uint8.")
    if any(isinstance(have, int) and have != want for have, want in zip(inputs[0].shape[1:], shape, strict=True)):
        takes, are = (" x ".join(map(str, s)) for s in (inputs[0].shape[1:], shape))
        raise QuernError(f"{path} takes images of {takes}, but the others take {are}.")


def peak_memory(path: Path, shape: Sequence[int], *, batch: int = 1) -> int:
    """The most memory, in bytes, of a fresh process that runs a file of a network once on ``(batch, *shape)``; for an
    ONNX file that is onnxruntime with the network, without torch."""
    sizes = [str(n) for n in (batch, *shape)]
    done = subprocess.run(
        [sys.executable, "-P", memory.__file__, str(path), *sizes], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise QuernError(f"a fresh process could not run {path.name}: {last_line}.")
    return int(done.stdout.split()[-1])
