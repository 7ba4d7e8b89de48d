"""The record of public architectures, and what the documentation says of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import architectures

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "architectures.json").read_text())


def test_the_page_has_the_record(record: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "convert.md").read_text()
    assert architectures.table(record["rows"]) in page
    through = sum(len(row["steps"]) == len(architectures.STEPS) for row in record["rows"])
    assert f"{through} of {len(record['rows'])} go all the way" in page


def test_the_record_is_of_the_listed_architectures_and_names_reasons(record: dict[str, Any]) -> None:
    assert [row["name"] for row in record["rows"]] == [a.name for a in architectures.ARCHITECTURES]
    for row in record["rows"]:
        done = len(row["steps"])
        assert row["steps"] == list(architectures.STEPS[:done])
        assert bool(row["reason"]) == (done < len(architectures.STEPS))
