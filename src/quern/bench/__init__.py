"""How fast, how large: networks next to each other, in torch and in onnxruntime.

All networks of a setting take turns in one run, so that whatever else the machine does hits them alike. Times are
medians with the quartiles; every time is of one call with a whole batch.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from quern import io
from quern.bench import memory
from quern.errors import QuernError
from quern.export import open_session, to_onnx
from quern.sparsity import measure

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Bench", "Model", "Timing", "bench", "peak_memory", "time_onnx"]

Engine = Literal["torch", "onnxruntime"]
MIN_SECONDS = 0.01  # a call that is shorter is repeated until it takes so long, and divided


@dataclass(frozen=True)
class Model:
    """One network: real multiply-adds for one image, the bytes of its files, and the most memory of a fresh process
    that loads it and runs one batch of the largest size. None where it does not apply (an ONNX file has no MACs)."""

    name: str
    parameters: int | None
    macs: int | None
    file_bytes: int | None
    onnx_bytes: int
    torch_peak_bytes: int | None
    onnx_peak_bytes: int


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median and the quartiles."""

    model: str
    engine: Engine
    batch: int
    threads: int
    median_ms: float
    low_ms: float
    high_ms: float

    @property
    def images_per_second(self) -> float:
        return 1000 * self.batch / self.median_ms


@dataclass(frozen=True)
class Bench:
    """What :func:`bench` measured; print it with rich for tables. The first model is what the others compare with."""

    models: tuple[Model, ...]
    timings: tuple[Timing, ...]
    shape: tuple[int, ...]
    repeats: int

    def to_dict(self) -> dict[str, Any]:
        rows = [asdict(t) | {"images_per_second": t.images_per_second} for t in self.timings]
        return {"models": [asdict(m) for m in self.models], "timings": rows} | {
            "shape": list(self.shape),
            "repeats": self.repeats,
        }

    def timing(self, model: str, engine: Engine, batch: int, threads: int) -> Timing | None:
        wanted = (model, engine, batch, threads)
        return next((t for t in self.timings if (t.model, t.engine, t.batch, t.threads) == wanted), None)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("times in ms, with quartiles", no_wrap=True)
        for model in self.models:
            table.add_column(Text(model.name), justify="right")
            if model is not self.models[0]:
                table.add_column("ratio", justify="right")
        sizes = (
            ("parameters", "parameters", 1, ",.0f"),
            ("multiply-adds, one image", "macs", 1, ",.0f"),
            ("file, bytes", "file_bytes", 1, ",.0f"),
            ("ONNX file, bytes", "onnx_bytes", 1, ",.0f"),
            ("peak memory in torch, MB", "torch_peak_bytes", 1e6, ",.0f"),
            ("peak memory in onnxruntime, MB", "onnx_peak_bytes", 1e6, ",.0f"),
        )
        for said, what, unit, how in sizes:
            values = [getattr(model, what) for model in self.models]
            table.add_row(said, *_cells(values, [v and format(v / unit, how) for v in values]))
        seen: dict[tuple[Engine, int, int], None] = dict.fromkeys((t.engine, t.batch, t.threads) for t in self.timings)
        for engine, batch, threads in seen:
            found = [self.timing(m.name, engine, batch, threads) for m in self.models]
            values = [t and t.median_ms for t in found]
            said = f"{engine}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}"
            table.add_row(
                said, *_cells(values, [t and f"{t.median_ms:.3f} ({t.low_ms:.3f}-{t.high_ms:.3f})" for t in found])
            )
            rates = [t and 1 / t.images_per_second for t in found]
            table.add_row("  images per second", *_cells(rates, [t and f"{t.images_per_second:,.0f}" for t in found]))
        yield table


def _cells(values: Sequence[Any], texts: Sequence[str | None]) -> list[str]:
    """The first one's text, then of every other one its text and by how much it is smaller."""
    cells = [texts[0] or "-"]
    for value, text in zip(values[1:], texts[1:], strict=True):
        cells += [text or "-", f"{values[0] / value:.2f}x" if value and values[0] else "-"]
    return cells


@torch.inference_mode()
def bench(
    models: dict[str, nn.Module | Path],
    shape: Sequence[int],
    *,
    batches: Sequence[int] = (1, 64),
    threads: Sequence[int] = (1, 2),
    repeats: int = 30,
    progress: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Time ``models`` on images of ``shape`` (channels, height, width), and say how large they are.

    A model is a network, timed in torch and in onnxruntime, or an ONNX file, timed there. ``repeats`` rounds are
    counted, in each of which every model has its turn.
    """
    if not models or min([*batches, *threads, repeats]) < 1:
        raise QuernError("a benchmark needs at least one model, and batches, threads and repeats of at least 1.")
    shape = tuple(shape)
    for model in models.values():
        if isinstance(model, Path):
            _check_input(model, shape)
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="quern-bench-") as folder:
        files, facts = {}, []
        for n, (name, model) in enumerate(models.items()):
            progress(f"preparing {name}")
            files[name], found = _prepare(name, model, shape, Path(folder) / str(n), max(batches))
            facts.append(found)
        timings: list[Timing] = []
        try:
            for engine in ("torch", "onnxruntime"):
                for batch in batches:
                    for count in threads:
                        progress(f"timing {engine}, batch {batch}, threads {count}")
                        timings += _timings(engine, models, files, shape, batch, count, repeats)
        finally:
            torch.set_num_threads(before)
    return Bench(tuple(facts), tuple(timings), shape, repeats)


def time_onnx(
    files: dict[str, Path], shape: Sequence[int], *, batch: int = 1, threads: int = 1, repeats: int = 30
) -> dict[str, Timing]:
    """Time ONNX files that take ``(batch, *shape)`` in onnxruntime, in turns."""
    found = _timings("onnxruntime", dict(files), files, tuple(shape), batch, threads, repeats)
    return {timing.model: timing for timing in found}


def _prepare(name: str, model: nn.Module | Path, shape: tuple[int, ...], stem: Path, batch: int) -> tuple[Path, Model]:
    """The model's ONNX file, and its sizes."""
    if isinstance(model, Path):
        facts = Model(name, None, None, None, model.stat().st_size, None, peak_memory(model, shape, batch=batch))
        return model, facts
    model.eval()
    onnx, own = stem.with_suffix(".onnx"), stem.with_suffix(".safetensors")
    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    io.save(model, own, images={"shape": list(shape)})
    to_onnx(model, onnx, example)
    found = measure(model, example)
    again = io.describe(own)["builder"] is not None  # else a fresh process could not build it
    facts = Model(
        name,
        found.parameters,
        found.macs,
        own.stat().st_size,
        onnx.stat().st_size,
        peak_memory(own, shape, batch=batch) if again else None,
        peak_memory(onnx, shape, batch=batch),
    )
    return onnx, facts


def _check_input(path: Path, shape: tuple[int, ...]) -> None:
    """A sentence unless an ONNX file takes one batch, of any size, of such images."""
    taken = open_session(path).get_inputs()
    fits = len(taken) == 1 and taken[0].type in ("tensor(float)", "tensor(uint8)") and len(taken[0].shape) == 4
    if not fits or isinstance(taken[0].shape[0], int):
        raise QuernError(f"{path} does not take one batch of images, of any size, as float or uint8.")
    if any(isinstance(have, int) and have != want for have, want in zip(taken[0].shape[1:], shape, strict=True)):
        takes, are = (" x ".join(map(str, s)) for s in (taken[0].shape[1:], shape))
        raise QuernError(f"{path} takes images of {takes}, but the others take {are}.")


def peak_memory(path: Path, shape: Sequence[int], *, batch: int = 1) -> int:
    """The most memory, in bytes, of a fresh process that runs a file of a network once on ``(batch, *shape)``; for an
    ONNX file that is onnxruntime with the network, without torch."""
    sizes = [str(n) for n in (batch, *shape)]
    done = subprocess.run(
        [sys.executable, "-P", memory.__file__, str(path), *sizes], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise QuernError(f"a fresh process could not run {path.name}: {said}.")
    return int(done.stdout.split()[-1])


def _timings(
    engine: Engine,
    models: dict[str, nn.Module | Path],
    files: dict[str, Path],
    shape: tuple[int, ...],
    batch: int,
    threads: int,
    repeats: int,
) -> list[Timing]:
    calls: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        if engine == "onnxruntime":
            calls[name] = _onnx_call(files[name], shape, batch, threads)
        elif not isinstance(model, Path):
            calls[name] = _torch_call(model, shape, batch)
    if engine == "torch":
        torch.set_num_threads(threads)
    often = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        often[name] = max(1, round(MIN_SECONDS / max(_seconds(call, 3), 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_seconds(call, often[name]))
    found = []
    for name, times in seconds.items():
        low, middle, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
        blank = Timing(name, engine, batch, threads, 0.0, 0.0, 0.0)
        found.append(replace(blank, median_ms=1000 * middle, low_ms=1000 * low, high_ms=1000 * high))
    return found


def _seconds(call: Callable[[], object], often: int) -> float:
    start = time.perf_counter()
    for _ in range(often):
        call()
    return (time.perf_counter() - start) / often


def _torch_call(model: nn.Module, shape: tuple[int, ...], batch: int) -> Callable[[], object]:
    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))
    return lambda: model(x)


def _onnx_call(path: Path, shape: tuple[int, ...], batch: int, threads: int) -> Callable[[], object]:
    # Threads that wait by spinning would take the cores from the next model in turn.
    session = open_session(path, threads, spinning=False)
    (taken,) = session.get_inputs()
    random = np.random.default_rng(1)
    if "uint8" in taken.type:
        x = random.integers(0, 256, (batch, *shape), dtype=np.uint8)
    else:
        x = random.standard_normal((batch, *shape)).astype(np.float32)
    return lambda: session.run(None, {taken.name: x})
