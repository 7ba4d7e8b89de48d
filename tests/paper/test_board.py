"""The table that is seen while runs are done."""

import io as streams
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from quern import paper
from quern.records import PAPER, Run
from tests.sample_records import record_of

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


def rendered(table: Any) -> str:
    console = Console(file=streams.StringIO(), width=250, color_system=None)
    console.print(table)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_board_has_means_and_deviations_next_to_the_papers_numbers(tmp_path: Path) -> None:
    runs = [Run("mnist", "quern", method, 20, seed) for method in ("rq", "none") for seed in range(3)]
    tasks = paper.survey(runs, tmp_path, tmp_path / "work", {"mnist": {"quern": {"rq": 1.0}}})
    shares = {"test_accuracy": [0.971, 0.9655, 0.9702], "quaternion_sparsity": [0.5, 0.61, 0.58]}
    shares["component_sparsity"] = [0.7, 0.71, 0.75]
    done = {
        run.name: record_of("mnist", "quern", "rq", run.seed, 20, **{what: v[run.seed] for what, v in shares.items()})
        for run in runs[:3]
    }
    done[runs[3].name] = record_of("mnist", "quern", "none", 0, 20, test_accuracy=0.9)
    (tasks[4].folder).mkdir(parents=True)
    (tasks[4].folder / "history.jsonl").write_text("{}\n{}\n")
    _, rq, none = rendered(paper.board(tasks, done)).splitlines()
    for values in shares.values():
        percent = 100 * np.array(values)
        assert f"{percent.mean():.2f} ± {percent.std(ddof=1):.2f}" in rq
    assert "3/3" in rq
    assert "96.81 | 68.40 | 53.82" in rq
    assert "1/3" in none
    assert " 90.00 " in none
    assert "98.95 | 1.71 | 0.00" in none
    assert "seed 1: 2/20" in none
    assert "seed 2" not in none


def test_the_board_without_records_or_papers_numbers(tmp_path: Path) -> None:
    runs = [Run("digits", "paper", "none", 20, 0), Run("mnist", "real", "none", 20, 0)]
    runs.append(Run("mnist", "paper", "gamma-bn", 20, 0))
    tasks = paper.survey(runs, tmp_path, tmp_path / "work", paper.read_lambdas())
    for line in rendered(paper.board(tasks, {})).splitlines()[1:]:
        assert "0/1" in line
        assert "|" not in line
    assert PAPER["mnist"].keys() >= {"test_accuracy", "component_sparsity", "quaternion_sparsity"}
