"""Side-by-side timing: every candidate in turn, again and again, so that a slow moment of the machine hits all."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

from quern.environment import cpu


def medians(
    candidates: Mapping[str, Callable[[], object]], repeats: int, least_seconds: float = 0.02
) -> dict[str, float]:
    """Median seconds per call, interleaved. Calls shorter than ``least_seconds`` are timed several at a time."""
    loops = {}
    for name, call in candidates.items():
        call()  # warm up: first calls compile kernels and grow the heap
        start = time.perf_counter()
        call()
        loops[name] = max(1, int(least_seconds / max(1e-9, time.perf_counter() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            start = time.perf_counter()
            for _ in range(loops[name]):
                call()
            seconds[name].append((time.perf_counter() - start) / loops[name])
    return {name: statistics.median(times) for name, times in seconds.items()}


def host() -> dict[str, object]:
    """What a reader needs to know about the machine."""
    return {"cpu": cpu(), "threads": torch.get_num_threads(), "torch": torch.__version__}
