"""The record of networks on microcontrollers, and what the documentation says of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mcu
from quern.runtime import format as qrn

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "mcu.json").read_text())


def test_the_page_has_the_record(record: dict[str, Any]) -> None:
    assert mcu.table(record["rows"]) in (ROOT / "docs" / "runtime.md").read_text()


def test_the_record_keeps_what_is_promised(record: dict[str, Any]) -> None:
    """The bound of the stack, whole programs, and instructions that are worth their while."""
    *measured, reference = record["rows"]
    assert reference == mcu.REFERENCE
    assert {(row["chip"], row["dtype"]) for row in measured} == {(c, d) for c in mcu.CHIPS for d in ("float32", "int8")}
    for row in measured:
        assert max(row["stack"], row["check_stack"]) <= qrn.STACK
        assert row["flash"] > row["network"] + row["image"]
        assert row["small_flash"] < row["flash"]
        assert row.get("plain_instructions", 2 * row["instructions"]) > 1.3 * row["instructions"]
