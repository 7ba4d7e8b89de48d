"""Large networks: saving and loading a file of 53 million parameters against torch, memory, and the time of a plan.

    python benchmarks/large.py [--json FILE] [--repeats N]

torch.save and torch.load (its defaults: the state dict, weights only, not mapped) write and read the same numbers on
the same file system, in turn with ours; the files are in the page cache. Memory is the most that a fresh process has
in RAM during the call above what it had before, in multiples of the file; for a load that includes the network. The
plan is timed next to one forward pass of the network on the same example.
"""

import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quern import io, models
from quern.compact import plan
from timing import main, medians

WIDTHS = (256, 512, 2048)
SPEED, MEMORY, PLAN_SECONDS = 0.5, 3.0, 2.0


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.qresnet20(widths=WIDTHS).eval()


def peak(what: str, path: Path) -> float:
    """Bytes that ``what``, "save" or "load", takes in a fresh process."""
    done = subprocess.run([sys.executable, __file__, what, str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def taken(what: str, path: Path) -> int:
    if what == "save":
        model = network()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    if what == "save":
        io.save(model, path)  # pyright: ignore[reportPossiblyUnboundVariable]
    else:
        io.load(path)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(peak.split()[1]) - before


def measure(repeats: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(what: str, value: float, limit: float, at_least: bool) -> None:
        missed = "" if (value >= limit if at_least else value <= limit) else "MISSED"
        rows.append({"what": what, "value": value, "limit": limit, "at_least": at_least})
        print(f"{what:64s} {value:6.2f}   at {'least' if at_least else 'most'} {limit:.2f} {missed}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, model = Path(folder) / "ours", Path(folder) / "theirs", network()
        calls = {
            "save": partial(io.save, model, ours),
            "torch.save": lambda: torch.save(model.state_dict(), theirs),
            "load": lambda: io.load(ours),
            "torch.load": lambda: torch.load(theirs),
        }
        seconds, size = medians(calls, repeats), ours.stat().st_size
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {size:,} bytes")
        for name in ("save", "load"):
            speeds = f"{size / 1e6 / seconds[name]:,.0f} MB/s, torch {size / 1e6 / seconds[f'torch.{name}']:,.0f}"
            add(f"speed of io.{name} to torch's ({speeds})", seconds[f"torch.{name}"] / seconds[name], SPEED, True)
        for name in ("save", "load"):
            add(f"memory of io.{name}, in files", peak(name, ours) / size, MEMORY, False)
        x = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            seconds = medians({"plan": partial(plan, model, x), "forward": lambda: model(x)}, max(3, repeats // 2))
        add(
            f"seconds of a plan ({seconds['plan'] / seconds['forward']:.1f} forward passes)",
            seconds["plan"],
            PLAN_SECONDS,
            False,
        )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] in (["save"], ["load"]):
        print(taken(sys.argv[1], Path(sys.argv[2])))
    else:
        main(__doc__, measure, repeats=7)
