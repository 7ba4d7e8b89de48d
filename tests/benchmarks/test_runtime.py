"""The record of the C runtime, and what the documentation says of it."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["runtime", "runtime_avx2"])
def test_the_page_has_the_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # as for a script
    table = importlib.import_module("benchmarks.runtime").table
    record = json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())
    assert table(record["rows"]) in (ROOT / "docs" / "runtime.md").read_text()
    library, *rows = record["rows"]
    assert library["quern"] <= 100 * 1024 < library["baseline"]
    lost = [row["float32"]["accuracy"] - row["int8"]["accuracy"] for row in rows if "dense_onnxruntime_ms" in row]
    assert lost
    assert max(lost) <= 0.003  # 0.3 points
