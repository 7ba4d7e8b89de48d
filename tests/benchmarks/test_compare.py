"""Records of benchmarks: a cost is a ratio, so only what grew against its own baseline is worse."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare import Change, changes, committed, worse


def row(what: str, baseline: float, quern: float) -> dict[str, Any]:
    return {"what": what, "unit": "ms", "baseline": baseline, "quern": quern}


def test_a_slower_machine_changes_nothing() -> None:
    before = [row("step", 10.0, 5.0), row("layer", 3.0, 4.0)]
    after = [row("step", 70.0, 35.0), row("layer", 21.0, 28.0)]
    assert [c.ratio for c in changes(before, after)] == pytest.approx([1, 1])
    assert worse(changes(before, after)) == []


def test_what_costs_more_than_fifteen_percent_more_is_named_the_worst_first() -> None:
    before = [row("same", 10, 5), row("little", 10, 5), row("more", 10, 5), row("most", 10, 5), row("less", 10, 5)]
    after = [row("same", 10, 5), row("little", 10, 5.7), row("more", 10, 5.8), row("most", 5, 5), row("less", 10, 1)]
    assert [c.what for c in worse(changes(before, after))] == ["most", "more"]
    assert worse(changes(before, after))[0] == Change("most", 0.5, 1.0)
    assert [c.what for c in worse(changes(before, after), 1.9)] == ["most"]


def test_only_rows_of_both_records_are_compared() -> None:
    assert [c.what for c in changes([row("old", 1, 1), row("both", 1, 1)], [row("new", 1, 9), row("both", 1, 1)])] == [
        "both"
    ]


def test_the_committed_record_is_read_whatever_the_file_holds_now(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    path.write_text(json.dumps({"rows": [row("step", 2, 1)]}))
    assert committed(path) == []
    subprocess.run([*git, "add", "speed.json"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "a"], check=True)
    path.write_text(json.dumps({"rows": [row("step", 2, 9)]}))
    assert committed(path) == [row("step", 2, 1)]
