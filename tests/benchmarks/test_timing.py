"""Records of benchmarks that are made a part at a time."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A benchmark of two parts, each of which says how often it was measured; its record's rows are returned."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # as for a script
    timing = importlib.import_module("benchmarks.timing")
    monkeypatch.setattr(timing.torch, "set_num_threads", lambda _: None)  # other tests have theirs
    path, calls = tmp_path / "record.json", {"a": 0, "b": 0}

    def part(name: str) -> Any:
        def measure(repeats: int) -> list[dict[str, Any]]:
            calls[name] += 1
            return [{"what": f"{name} {calls[name]}", "repeats": repeats}]

        return measure

    def run(*options: str, old: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        if old is not None:
            path.write_text(json.dumps({"rows": old}))
        monkeypatch.setattr(sys, "argv", ["benchmark", "--json", str(path), *options])
        timing.main(None, {name: part(name) for name in calls}, 7)
        return json.loads(path.read_text())["rows"]

    return run


def test_a_part_that_is_not_run_keeps_its_rows(run: Any) -> None:
    first = run()
    assert [(row["part"], row["what"]) for row in first] == [("a", "a 1"), ("b", "b 1")]
    again = run("--part", "b")
    assert again[0] == first[0]
    assert [(row["part"], row["what"]) for row in again] == [("a", "a 1"), ("b", "b 2")]


def test_without_a_record_there_is_one_of_the_part(run: Any) -> None:
    assert [row["what"] for row in run("--part", "a")] == ["a 1"]


def test_rows_of_no_part_are_left_out_and_that_is_said(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    old = [{"what": "old"}, {"what": "older"}, {"part": "b", "what": "b 0"}]
    assert [row["what"] for row in run("--part", "a", old=old)] == ["a 1", "b 0"]
    assert "2 rows that do not say which part they are of are left out" in capsys.readouterr().out


def test_rows_of_a_part_that_is_no_more_are_left_out(run: Any) -> None:
    assert [row["what"] for row in run("--part", "a", old=[{"part": "gone", "what": "c 0"}])] == ["a 1"]
