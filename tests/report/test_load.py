"""Records as they are read: which runs are one row, and how zeros were counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern.errors import RecordError
from quern.records import Moduli
from quern.report import _plots, _rows, write_report
from quern.report._figures import Curves
from quern.report._load import load
from tests.report.pages import SENTENCE, row, there
from tests.sample_records import run_record, write_compress, write_run


def test_the_most_epochs_count(tmp_path: Path) -> None:
    write_run(tmp_path, run_record("mnist", "quern", "rq", 0, epochs=3, test_accuracy=0.5))
    write_run(tmp_path, run_record("mnist", "quern", "rq", 1, epochs=20, test_accuracy=0.75))
    cells = row(there(_rows.table1(load(tmp_path), "mnist")), "rq", "quern")
    assert (cells["test accuracy, %"].text, cells["epochs"].text, cells["runs"].text) == ("75.00", "20", "1")


def test_runs_of_different_weights_are_no_row(tmp_path: Path) -> None:
    write_run(tmp_path, run_record("mnist", "quern", "rq", 0))
    write_run(tmp_path, {**run_record("mnist", "quern", "rq", 1), "lambda": 50.0})
    with pytest.raises(RecordError, match=r"quern-rq-6 of mnist have different λs \(3\.2, 50\)"):
        load(tmp_path)


def test_the_longest_runs_count_and_the_others_are_named(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, {**run_record("mnist", "quern", "rq", seed), "lambda": 50.0})
    write_run(tmp_path, run_record("mnist", "quern", "rq", 0, 12))
    write_run(tmp_path, run_record("mnist", "quern", "l1", 0))
    found = load(tmp_path)
    assert row(there(_rows.table1(found, "mnist")), "rq", "quern")["epochs"].text == "12"
    assert "left out are 2 of quern R_Q." in there(_rows.table1(found, "mnist")).notes[-1]
    figure = there(_plots.curves(found, "mnist", "quern", 1))
    assert "Epochs: ℓ1 6, R_Q 12." in figure.caption
    for panel in figure.panels:
        assert isinstance(panel, Curves)
        assert panel.phases == ()  # they begin at different epochs


def damage_text(folder: Path) -> None:
    (folder / "mnist" / "quern-rq-6-0.json").write_text('{"run": ')


def damage_key(folder: Path) -> None:
    record = run_record("mnist", "quern", "rq")
    del record["result"]["sparsity"]["layers"]
    write_run(folder, record)


def damage_type(folder: Path) -> None:
    write_run(folder, {**run_record("mnist", "quern", "rq"), "history": 7})


@given(st.lists(st.floats(-8, 3), max_size=40), st.integers(0, 5), st.sampled_from([0.0, 1e-3, 10**-2.75, 2e-3]))
def test_the_share_of_small_moduli(exponents: list[float], zeros: int, tol: float) -> None:
    edges = tuple(-6 + n / 4 for n in range(33))
    counts, _ = np.histogram(np.clip(exponents, -6, 2), edges)
    found = Moduli(edges, tuple(map(int, counts)), zeros).share_up_to(tol)
    if tol == 2e-3:
        assert found is None  # it lies between two edges
        return
    below = sum(tol > 0 and exponent < np.log10(tol) for exponent in exponents)
    assert found == pytest.approx((zeros + below) / max(1, zeros + len(exponents)))


def test_older_records_are_counted_by_the_modulus_too(tmp_path: Path) -> None:
    """The tables are; their curves cannot be, and say so."""
    record = run_record("mnist", "paper", "rq", quaternion_sparsity=0.9)
    del record["zeros_by"]
    moduli = record["moduli"]
    below = sum(count for count, edge in zip(moduli["counts"], moduli["edges"][1:], strict=True) if edge <= -3)
    write_run(tmp_path, record)
    (group,) = load(tmp_path).groups
    assert group.runs[0].quaternion_sparsity == below / sum(moduli["counts"])
    said = "counts as zero when its four components do"
    assert said in there(_plots.curves(load(tmp_path), "mnist", "paper", 1)).caption
    write_run(tmp_path, {**record, "zeros_by": "modulus"})
    assert load(tmp_path).groups[0].runs[0].quaternion_sparsity == 0.9
    assert said not in there(_plots.curves(load(tmp_path), "mnist", "paper", 1)).caption


def damage_moduli(folder: Path) -> None:
    record = run_record("mnist", "quern", "rq")
    record["moduli"]["counts"].pop()
    write_run(folder, record)


def damage_times(folder: Path) -> None:
    (folder / "mnist" / "table2.json").write_text('{"rows": [{"family": "paper"}]}')


def damage_trials(folder: Path) -> None:
    (folder / "mnist" / "tuning.json").write_text('{"trials": [{"family": "nobody", "method": "rq"}]}')


def damage_compress(folder: Path) -> None:
    write_compress(folder / "run", dense=[])


DAMAGES = [damage_text, damage_key, damage_type, damage_moduli, damage_times, damage_trials, damage_compress]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_records_are_one_sentence(tmp_path: Path, damage: Any) -> None:
    write_run(tmp_path / "results", run_record("mnist", "quern", "rq"))
    damage(tmp_path / "results")
    with pytest.raises(RecordError) as caught:
        write_report(tmp_path / "results", tmp_path / "report")
    assert SENTENCE.fullmatch(str(caught.value))
    assert str(tmp_path / "results") in str(caught.value)
    assert not (tmp_path / "report").exists()
