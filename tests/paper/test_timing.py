"""Steps of training, timed."""

import json
from pathlib import Path

import pytest
import torch

from quern import paper

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


def test_steps_of_all_methods_are_timed(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    path = paper.time_steps("digits", tmp_path / "results", rounds=2)
    assert path == tmp_path / "results" / "digits" / "table2.json"
    found = json.loads(path.read_text())
    assert (found["dataset"], found["rounds"], found["batch"]) == ("digits", 2, 64)
    assert found["environment"]["threads"] == 1
    rows = {(row["family"], row["method"]): row for row in found["rows"]}
    methods = ("none", "l2", "l1", "rq", "rql")
    assert list(rows) == [(family, method) for family in ("paper", "quern") for method in methods]
    for row in rows.values():
        assert row["median_ms"] > 0
        assert row["ratio"] > 0
    assert rows["paper", "none"]["ratio"] == rows["quern", "none"]["ratio"] == 1.0
    assert torch.get_num_threads() == threads
