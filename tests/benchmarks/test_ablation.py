"""The record of what gives quern's way its zeros, and what the documentation says of it."""

import json
from pathlib import Path

from benchmarks import ablation

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_record_of_every_seed() -> None:
    rows = json.loads((ROOT / "benchmarks" / "ablation-digits.json").read_text())["rows"]
    assert ablation.table(rows) in (ROOT / "docs" / "results" / "README.md").read_text()
    assert set(rows) == set(ablation.ways("digits", 0))
    assert {tuple(by_seed) for by_seed in rows.values()} == {("0", "1", "2", "3", "4")}
