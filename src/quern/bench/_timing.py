"""Calls of several networks timed in turns, in torch or in onnxruntime."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
import torch
from torch import nn

from quern import runtime
from quern.bench._results import Engine, Timing
from quern.export import open_session

AT_ONCE = (
    16  # batches that the C runtime is given in one call: it takes input by input, and Python's call is not its own
)
MIN_SECONDS = 0.01  # a call that is shorter is repeated until it takes so long, and divided


def time_onnx(
    files: dict[str, Path], inputs: Sequence[Any], *, threads: int = 1, repeats: int = 30
) -> dict[str, Timing]:
    """Time ONNX files in onnxruntime, in turns, with these arrays ``(batch, ...)`` for their inputs."""
    results = timings("onnxruntime", dict(files), files, (), len(inputs[0]), threads, repeats, inputs)
    return {timing.model: timing for timing in results}


def time_packed(files: dict[str, Path], inputs: Sequence[Any] | None = None, *, repeats: int = 30) -> dict[str, Timing]:
    """Time packed networks in the C runtime, in turns: one input after the other, on one thread; with arrays
    ``(1, ...)`` for their inputs, or with random numbers."""
    results = timings("quern_rt", dict(files), files, (), 1, 1, repeats, inputs)
    return {timing.model: timing for timing in results}


def timings(
    engine: Engine,
    models: dict[str, nn.Module | Path],
    files: dict[str, Path],
    shape: tuple[int, ...],
    batch: int,
    threads: int,
    repeats: int,
    inputs: Sequence[Any] | None = None,
) -> list[Timing]:
    """Every model's calls in one engine, in turns: ``repeats`` rounds are counted, after three calls to warm up.
    Without ``inputs`` they are random, of ``shape``."""
    calls: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        if engine == "torch":
            if not isinstance(model, Path):
                calls[name] = _torch_call(model, shape, batch)
        elif name in files and engine == "onnxruntime":
            calls[name] = _onnx_call(files[name], shape, batch, threads, inputs)
        elif name in files:
            calls[name] = _packed_call(files[name], batch, inputs)
    if engine == "torch":
        torch.set_num_threads(threads)
    calls_per_turn = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        calls_per_turn[name] = max(1, round(MIN_SECONDS / max(_seconds(call, 3), 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_seconds(call, calls_per_turn[name]))
    results = []
    share = 1 / AT_ONCE if engine == "quern_rt" else 1.0
    for name, times in seconds.items():
        times = [share * one for one in times]
        low, median, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
        results.append(Timing(name, engine, batch, threads, 1000 * median, 1000 * low, 1000 * high))
    return results


def _seconds(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _torch_call(model: nn.Module, shape: tuple[int, ...], batch: int) -> Callable[[], object]:
    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))
    return lambda: model(x)


def _packed_call(path: Path, batch: int, given: Sequence[Any] | None) -> Callable[[], object]:
    network, random = runtime.load(path), np.random.default_rng(1)
    inputs = []
    for n, tensor in enumerate(network.inputs):
        shape = (AT_ONCE * batch, *tensor.shape)
        if given is not None:
            inputs.append(np.broadcast_to(given[n], shape).astype(tensor.dtype))
            continue
        numbers = random.standard_normal(shape) if tensor.dtype == np.float32 else random.integers(0, 2, shape)
        inputs.append((numbers if tensor.dtype == np.float32 else 100 * numbers % 256).astype(tensor.dtype))
    outputs = [np.empty((AT_ONCE * batch, *tensor.shape), tensor.dtype) for tensor in network.outputs]
    return lambda: network.run_into(inputs, outputs)


def _onnx_call(
    path: Path, shape: tuple[int, ...], batch: int, threads: int, given: Sequence[Any] | None
) -> Callable[[], object]:
    # Threads that wait by spinning would take the cores from the next model in turn.
    session = open_session(path, threads, spinning=False)
    if given is not None:
        arrays = {node.name: array for node, array in zip(session.get_inputs(), given, strict=True)}
        return lambda: session.run(None, arrays)
    (image,) = session.get_inputs()
    random = np.random.default_rng(1)
    if "uint8" in image.type:
        x = random.integers(0, 256, (batch, *shape), dtype=np.uint8)
    else:
        x = random.standard_normal((batch, *shape)).astype(np.float32)
    return lambda: session.run(None, {image.name: x})
