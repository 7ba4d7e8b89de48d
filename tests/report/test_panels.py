"""Panels as they are drawn."""

import re
from pathlib import Path

import pytest

from quern.report import write_report, write_run_report
from quern.report._draw import pictures
from quern.report._figures import Curves, Figure, Line
from tests.report.pages import there
from tests.sample_records import compress_record, run_record, write_compress, write_run


def test_phases_that_are_short_keep_their_names_apart() -> None:
    line = Line("a", "first", tuple(map(float, range(1, 40))), tuple(map(float, range(39))))
    panel = Curves("t", "epoch", "%", (line,), ((1.0, "dense"), (38.0, "grind"), (39.0, "heal")))
    (drawn,) = pictures(Figure("f", "t", "c", (panel,)))
    heights = [re.search(rf'y="([\d.]+)"[^>]*>{name}<', drawn) for name in ("grind", "heal")]
    first, second = (float(there(found)[1]) for found in heights)
    assert abs(first - second) >= 9


@pytest.mark.slow
def test_odd_numbers_do_not_stop_a_report(tmp_path: Path) -> None:
    """A validation loss that is not a number, one epoch, none at all, nothing left, nothing in it, one point only."""
    record = compress_record()
    odd = {**record["history"]["small"][0], "val_loss": float("nan"), "penalty": float("inf")}
    write_run_report(write_compress(tmp_path / "run", history={"dense": [], "small": [odd]}))
    results = tmp_path / "results"
    for method in ("none", "rq", "rq-bn"):
        record = run_record("digits", "quern", method, nonzero_parameters=0, quaternion_sparsity=1.0)
        record["history"] = []
        record["moduli"]["counts"] = [0] * len(record["moduli"]["counts"])
        record["dense"] |= {"neurons": 0, "latency_ms": None}
        record["result"]["sparsity"]["layers"] = record["result"]["sparsity"]["layers"][: method != "rq"]
        write_run(results, record)
    write_report(results, tmp_path / "report")
