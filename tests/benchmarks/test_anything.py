"""Records of networks and data that are not quern's, and what the documentation says of them."""

import json
from pathlib import Path
from typing import Any

from benchmarks import anything, trained_start

ROOT = Path(__file__).parents[2]


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / name).read_text())


def test_the_page_has_what_was_compressed() -> None:
    rows = record("anything.json")
    assert anything.table(rows) in (ROOT / "docs" / "own.md").read_text()
    for row in rows.values():
        assert row["dense"]["parameters"] >= anything.SMALLER * row["small"]["parameters"]


def test_the_page_has_what_a_trained_start_is_worth() -> None:
    assert trained_start.table(record("trained_start.json")) in (ROOT / "docs" / "convert.md").read_text()
