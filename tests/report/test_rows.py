"""The tables of the experiments: numbers next to numpy's, and what they say of the paper's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quern.records import PAPER
from quern.report import _plots, _rows
from quern.report._figures import Spreads
from quern.report._load import load
from tests.report.pages import column, row, there
from tests.sample_records import run_record, write_experiments, write_run


def test_means_and_deviations_are_numpys(tmp_path: Path) -> None:
    accuracies, shares = [0.9612, 0.9733, 0.9645], [0.55, 0.61, 0.587]
    for seed, (accuracy, share) in enumerate(zip(accuracies, shares, strict=True)):
        changed: Any = {"test_accuracy": accuracy, "quaternion_sparsity": share, "cut_accuracy": accuracy - 0.01}
        write_run(tmp_path, run_record("mnist", "quern", "rq", seed, **changed))
    cells = row(there(_rows.table1(load(tmp_path), "mnist")), "rq", "quern")
    mean, std = 100 * np.mean(accuracies), 100 * np.std(accuracies, ddof=1)
    assert cells["test accuracy, %"].text == f"{mean:.2f} ± {std:.2f}"
    assert cells["test accuracy, %"].value == pytest.approx(mean)
    assert cells["test accuracy, %"].spread == pytest.approx(std)
    shown = f"{100 * np.mean(shares):.2f} ± {100 * np.std(shares, ddof=1):.2f}"
    assert cells["quaternion sparsity, %"].text == shown
    assert cells["accuracy with zeros cut, %"].text == f"{mean - 1:.2f} ± {std:.2f}"
    assert cells["runs"].text == "3"


def test_one_run_has_no_deviation(tmp_path: Path) -> None:
    write_run(tmp_path, run_record("mnist", "paper", "l1", 0, test_accuracy=0.9346))
    cell = row(there(_rows.table1(load(tmp_path), "mnist")), "l1", "paper's way")["test accuracy, %"]
    assert (cell.text, cell.spread) == ("93.46", None)


@pytest.mark.parametrize(
    ("accuracy", "share", "signs", "beats"),
    [
        (0.9681, 0.5382, ("equal", "equal"), "yes"),
        (0.9682, 0.5382, ("better", "equal"), "yes"),
        (0.9681, 0.5383, ("equal", "better"), "yes"),
        (0.9680, 0.9, ("worse", "better"), "no"),
        (0.99, 0.5381, ("better", "worse"), "no"),
        (0.5, 0.1, ("worse", "worse"), "no"),
    ],
)
def test_a_row_beats_the_paper_only_in_both(
    tmp_path: Path, accuracy: float, share: float, signs: tuple[str, str], beats: str
) -> None:
    assert (PAPER["mnist"]["test_accuracy"]["rq"], PAPER["mnist"]["quaternion_sparsity"]["rq"]) == (96.81, 53.82)
    write_run(tmp_path, run_record("mnist", "quern", "rq", test_accuracy=accuracy, quaternion_sparsity=share))
    cells = row(there(_rows.table1(load(tmp_path), "mnist")), "rq", "quern")
    assert (cells["test accuracy, %"].sign, cells["quaternion sparsity, %"].sign) == signs
    assert cells["beats the paper"].sign == beats


def test_the_papers_rows_are_as_printed_and_the_real_twin_is_there(tmp_path: Path) -> None:
    table = there(_rows.table1(load(write_experiments(tmp_path, ("cifar10",))), "cifar10"))
    for method in PAPER["cifar10"]["test_accuracy"]:
        cells = row(table, method, "the paper")
        for what in ("test accuracy", "component sparsity", "quaternion sparsity"):
            assert cells[f"{what}, %"].value == PAPER["cifar10"][what.replace(" ", "_")][method]
    assert row(table, "none", "real-valued")["quaternion sparsity, %"].text == "–"


def test_a_data_set_the_paper_has_not_has_nothing_to_beat(tmp_path: Path) -> None:
    write_run(tmp_path, run_record("digits", "quern", "rq"))
    table = there(_rows.table1(load(tmp_path), "digits"))
    assert "beats the paper" not in table.columns
    assert all(cell.sign == "" for cells in table.rows for cell in cells)
    assert len({len(cells) for cells in table.rows} | {len(table.columns)}) == 1


def test_table2_has_ratios_and_says_whether_the_bar_is_met(tmp_path: Path) -> None:
    table = there(_rows.table2(load(write_experiments(tmp_path, ("mnist",))), "mnist"))
    seconds = PAPER["mnist"]["seconds"]
    assert [c.value for c in column(table, "the paper, ratio")] == [s / seconds["none"] for s in seconds.values()]
    assert [c.sign for c in column(table, "quern, ratio")] == ["", "", "", "yes", "no"]
    assert [c.text for c in column(table, "quern, ms a step")] == ["80.00", "81.60", "82.40", "83.20", "89.60"]


def test_what_is_left_of_neurons_is_judged_number_by_number(tmp_path: Path) -> None:
    record = run_record("cifar10", "quern", "gamma-bn", test_accuracy=0.75, cut_accuracy=0.75)
    record["dense"] |= {"neurons": 200, "bytes": 1000, "latency_ms": 3.0}
    record["small"] |= {"neurons": 33, "parameters": 15_000, "bytes": 200, "latency_ms": 1.5}
    write_run(tmp_path, record)

    def found() -> dict[str, tuple[str, str]]:
        cells = row(there(_rows.neurons(load(tmp_path), "cifar10")), "gamma-bn", "quern")
        return {name: (cell.text, cell.sign) for name, cell in cells.items()}

    judged = found()
    assert judged["neurons left, %"] == ("16.50", "yes")
    assert judged["parameters left"] == ("15,000", "no")  # under 15,000, says the paper
    assert judged["file smaller"] == ("5.0×", "yes")
    assert judged["memory, MB"] == ("62 → 41", "")
    assert judged["faster"] == ("2.0×", "no")
    assert judged["points against none"] == ("–", "")
    # "No loss" is against the same network that kept everything: with its batch normalisation.
    write_run(tmp_path, run_record("cifar10", "quern", "none", test_accuracy=0.9))
    assert found()["points against none"] == ("–", "")
    for accuracy, points in ((0.75, ("+0.00", "yes")), (0.80, ("-5.00", "no")), (0.70, ("+5.00", "yes"))):
        write_run(tmp_path, run_record("cifar10", "quern", "none-bn", test_accuracy=accuracy))
        write_run(tmp_path, run_record("cifar10", "paper", "none-bn", test_accuracy=0.9))
        assert found()["points against none"] == points
    write_run(tmp_path, run_record("cifar10", "quern", "none-bn", epochs=12))  # trained for longer, it is another thing
    assert found()["points against none"] == ("–", "")


def test_weights_are_compared_with_those_of_the_same_network(tmp_path: Path) -> None:
    for n, method in enumerate(("none", "rq", "none-bn", "rq-bn")):
        record = run_record("digits", "quern", method)
        record["moduli"] |= {"counts": [n + 1, *[0] * (len(record["moduli"]["counts"]) - 1)], "zeros": 9 - n}
        write_run(tmp_path, record)
        if method == "rq-bn":
            plain, normed = there(_plots.moduli(load(tmp_path), "digits", "quern")).panels
            assert isinstance(plain, Spreads)
            assert isinstance(normed, Spreads)
            assert (plain.before.zeros, plain.after.zeros) == (90, 80)
            assert (normed.before.zeros, normed.after.zeros) == (70, 60)
    (tmp_path / "digits" / "quern-none-bn-6-0.json").unlink()
    (panel,) = there(_plots.moduli(load(tmp_path), "digits", "quern")).panels  # there is nothing to compare rq-bn with
    assert panel.title == "R_Q"


def test_tuned_weights_runs_sums_and_compress_records(tmp_path: Path) -> None:
    found = load(write_experiments(tmp_path, ("mnist",)))
    assert {c.text for c in column(there(_rows.tuned(found, "mnist")), "λ")} == {"4"}
    runs = there(_rows.provenance(found))
    assert {c.text for c in column(runs, "seeds")} == {"0, 1", "0"}
    assert {c.text for c in column(runs, "hours")} == {"1.00", "0.50"}
    assert {c.text for c in column(runs, "commit")} == {"a" * 10}
    assert [c.text for c in column(there(_rows.sums(found)), "SHA-256")] == ["0f" * 32]
    compressed = there(_rows.compressed(found))
    assert [c.text for c in column(compressed, "parameters")] == ["11,748 → 1,467"]
    assert [c.value for c in column(compressed, "faster")] == [4.0]
