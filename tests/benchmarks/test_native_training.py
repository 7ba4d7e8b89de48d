"""Trainings with and without the kernels: one record, which goes on where it stopped."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from quern.functional import native

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # as for a script
    return importlib.import_module("benchmarks.native_training")


def test_each_seed_is_trained_both_ways_and_only_once(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def trained(kernels: str, arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append((kernels, arguments["seed"]))
        return {"native_kernels": kernels == "native", "test_accuracy": 0.5, "seconds": 2.0 + arguments["seed"]}

    monkeypatch.setattr(benchmark, "in_fresh_process", trained)
    record = tmp_path / "record.json"
    for seeds in (["0"], ["0", "1"]):
        monkeypatch.setattr(sys, "argv", ["benchmark", "--json", str(record), "--seeds", *seeds])
        benchmark.main()
    assert asked == [("native", 0), ("plain", 0), ("native", 1), ("plain", 1)]
    assert [(row["kernels"], row["seed"]) for row in json.loads(record.read_text())["rows"]] == asked
    assert "plain   test accuracy 50.00, 50.00 %; 2 s each" in capsys.readouterr().out


def test_a_training_that_did_not_use_what_it_should_is_an_error(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "in_fresh_process", lambda *_: {"native_kernels": False})
    monkeypatch.setattr(sys, "argv", ["benchmark", "--json", str(tmp_path / "record.json")])
    with pytest.raises(SystemExit, match="should be native was not"):
        benchmark.main()
    assert not (tmp_path / "record.json").exists()
