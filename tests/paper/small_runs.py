"""Runs of a second on digits: what they are, and what of their records two of them have in common."""

from pathlib import Path
from typing import Any

from quern import data, paper
from quern.records import Record, Run
from quern.records.schema import to_plain

EPOCHS = 6
DIGITS = data.load("digits")
LAMBDAS = {"digits": {"paper": {"rq": 100.0, "l2": 1.0}, "quern": {"rql": 80.0}}}
RUNS = [
    Run("digits", "paper", "rq", EPOCHS, 0),
    Run("digits", "quern", "rql", EPOCHS, 0),
    Run("digits", "real", "none", EPOCHS, 0),
]
PAPER_RUN, QUERN_RUN, REAL_RUN = RUNS
ONE = ["--dataset", "digits", "--epochs", EPOCHS, "--family", "quern", "--method", "rql", "--jobs", 1]
SOME = ["--dataset", "digits", "--epochs", EPOCHS, "--method", "none", "--jobs", 1]
QUATERNIONS = 4 * 1 * 9 + 8 * 4 * 9 + 10 * 128  # of the network for digits


def lambdas_file(folder: Path) -> Path:
    lines = [
        f"[{name}.{family}]\n" + "".join(f"{k} = {v}\n" for k, v in values.items())
        for name, families in LAMBDAS.items()
        for family, values in families.items()
    ]
    path = folder / "lambdas.toml"
    path.write_text("\n".join(lines))
    return path


def timeless(record: Record) -> dict[str, Any]:
    """A record without what no two runs have in common."""
    kept = {key: value for key, value in to_plain(record).items() if key not in ("environment", "run")}
    for line in kept["history"]:
        del line["seconds"]
    del kept["result"]["seconds"]
    for part in ("small", "dense"):
        del kept[part]["latency_ms"], kept[part]["memory"]
    return kept


# In place of the measured times and memory, which no two runs have in common: exporting to ONNX takes longest of all.
QUICK = """
from types import SimpleNamespace
from quern.paper import _run
_run.to_onnx = lambda *_: None
_run.time_onnx = lambda files, _: {name: SimpleNamespace(median_ms=1.0) for name in files}
_run.peak_memory = lambda *_: 1
"""

Local = tuple[Path, list[paper.Task], dict[str, Record]]
