"""Side-by-side timing: every candidate in turn, again and again, so that a slow moment of the machine hits all."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from quern._files import write_text
from quern.bench.machine import commit, cpu


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


Rows = list[dict[str, Any]]


def main(
    description: str | None, measure: Callable[[int], Rows] | Mapping[str, Callable[[int], Rows]], repeats: int
) -> None:
    """The command line of a benchmark: print its rows, and keep them in a record.

    One in named parts can be run a part at a time: the record's rows of other parts stay, each with the commit at which
    it was measured.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--repeats", type=int, default=repeats)
    if isinstance(measure, Mapping):
        parser.add_argument("--part", choices=list(measure), help="only these rows")
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(host())
    source = commit()
    repeats = max(7, options.repeats)
    if isinstance(measure, Mapping):
        wanted = [options.part] if options.part else list(measure)
        kept = rows_in_parts(options.json) if options.json and options.part else []
        fresh = {name: [{"part": name, "commit": source, **row} for row in measure[name](repeats)] for name in wanted}
        rows = [row for name in measure for row in fresh.get(name, [row for row in kept if row["part"] == name])]
    else:
        rows = measure(repeats)
    if options.json:
        record = {"host": host(), "commit": source, "seed": 0, "repeats": repeats, "rows": rows}
        write_text(options.json, json.dumps(record, indent=1) + "\n")


def rows_in_parts(path: Path) -> Rows:
    """The rows of a record that say which part they are of; none if there is no record yet."""
    rows: Rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    kept = [row for row in rows if "part" in row]
    if len(kept) < len(rows):
        print(f"{path}: {len(rows) - len(kept)} rows that do not say which part they are of are left out.")
    return kept


def host() -> dict[str, object]:
    """What a reader needs to know about the machine."""
    return {"cpu": cpu(), "threads": torch.get_num_threads(), "torch": torch.__version__}
