"""The paper's claims: what is compared, and what is said of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from quern.report import _claims
from quern.report._claims import FAILS, HOLDS, OPEN, difference
from quern.report._load import Group, load
from quern.report._tables import Table
from tests.report.pages import there
from tests.sample_records import record_of, run_record, write_experiments, write_run

SPARSER = "R_Q makes more quaternions zero than ℓ1, and is as accurate"
SPARSER_THAN_L2 = "R_Q makes more quaternions zero than ℓ2"
ACCURATE = "on CIFAR-10 a penalty makes the network more accurate"
NO_LOSS = "L1(BN) loses no accuracy"


def verdicts(table: Table, who: str = "quern") -> dict[tuple[str, str], tuple[str, str]]:
    """Evidence and verdict of each claim and data set."""
    found = {}
    for what, dataset, family, evidence, verdict in table.rows:
        if family.text == who:
            found[what.text, dataset.text] = (evidence.text, verdict.text)
    return found


def write(folder: Path, dataset: str, method: str, accuracies: list[float], shares: list[float]) -> None:
    for seed, (accuracy, share) in enumerate(zip(accuracies, shares, strict=True)):
        changed: Any = {"test_accuracy": accuracy, "quaternion_sparsity": share, "cut_accuracy": accuracy}
        write_run(folder, run_record(dataset, "quern", method, seed, **changed))


ACCURACIES, SHARES = [0.971, 0.974, 0.972], [0.70, 0.72, 0.71]


@pytest.mark.parametrize(
    ("accuracies", "shares", "with_l1", "with_l2"),
    [
        ([0.972, 0.971, 0.974], [0.50, 0.52, 0.51], HOLDS, HOLDS),
        ([0.992, 0.991, 0.993], [0.50, 0.52, 0.51], FAILS, HOLDS),  # sparser, but less accurate
        ([0.942, 0.941, 0.943], [0.50, 0.52, 0.51], HOLDS, HOLDS),
        ([0.972, 0.971, 0.974], [0.90, 0.92, 0.91], FAILS, FAILS),
        ([0.972, 0.971, 0.974], [0.70, 0.73, 0.71], OPEN, OPEN),
    ],
)
def test_of_two_methods_zeros_count_and_accuracy_where_it_is_claimed(
    tmp_path: Path, accuracies: list[float], shares: list[float], with_l1: str, with_l2: str
) -> None:
    write(tmp_path, "mnist", "rq", ACCURACIES, SHARES)
    for method in ("l1", "l2"):
        write(tmp_path, "mnist", method, accuracies, shares)
    found = verdicts(there(_claims.table(load(tmp_path))))
    evidence, verdict = found[SPARSER, "MNIST"]
    assert verdict == with_l1
    assert found[SPARSER_THAN_L2, "MNIST"][1] == with_l2
    test = ttest_ind(SHARES, shares, equal_var=False).confidence_interval(0.95)
    points = 100 * (np.mean(SHARES) - np.mean(shares))
    wanted = f"zero quaternions {points:+.2f} points ({100 * test.low:+.2f} to {100 * test.high:+.2f})"
    assert evidence.startswith(wanted)


def test_one_seed_leaves_a_difference_open(tmp_path: Path) -> None:
    write(tmp_path, "mnist", "rq", [0.97], [0.9])
    write(tmp_path, "mnist", "l1", [0.90, 0.91], [0.1, 0.2])
    evidence, verdict = verdicts(there(_claims.table(load(tmp_path))))[SPARSER, "MNIST"]
    assert verdict == OPEN
    assert evidence == "zero quaternions +75.00 points (one seed); accuracy +6.50 points (one seed)"


def test_all_penalties_must_do_what_is_claimed_of_a_penalty(tmp_path: Path) -> None:
    write(tmp_path, "cifar10", "none", [0.70, 0.702], [0.0, 0.0])
    for method in ("l1", "rq"):
        write(tmp_path, "cifar10", method, [0.73, 0.731], [0.4, 0.4])
    assert verdicts(there(_claims.table(load(tmp_path))))[ACCURATE, "CIFAR-10"][1] == HOLDS
    write(tmp_path, "cifar10", "rql", [0.65, 0.651], [0.4, 0.4])
    evidence, verdict = verdicts(there(_claims.table(load(tmp_path))))[ACCURATE, "CIFAR-10"]
    assert verdict == FAILS
    assert [part.split()[0] for part in evidence.split("; ")] == ["ℓ1", "R_Q", "R_QL"]
    write(tmp_path, "cifar10", "rql", [0.70, 0.703], [0.4, 0.4])
    assert verdicts(there(_claims.table(load(tmp_path))))[ACCURATE, "CIFAR-10"][1] == OPEN


def test_l1_bn_is_judged_by_the_network_with_batch_normalisation(tmp_path: Path) -> None:
    write(tmp_path, "cifar10", "gamma-bn", [0.75, 0.751], [0.9, 0.9])
    write(tmp_path, "cifar10", "none", [0.60, 0.601], [0.0, 0.0])
    assert (NO_LOSS, "CIFAR-10") not in verdicts(there(_claims.table(load(tmp_path))))
    write(tmp_path, "cifar10", "none-bn", [0.80, 0.801], [0.0, 0.0])
    assert verdicts(there(_claims.table(load(tmp_path))))[NO_LOSS, "CIFAR-10"][1] == FAILS
    write(tmp_path, "cifar10", "none-bn", [0.75, 0.752], [0.0, 0.0])
    assert verdicts(there(_claims.table(load(tmp_path))))[NO_LOSS, "CIFAR-10"][1] == HOLDS


def test_runs_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, run_record("mnist", "quern", "rq", 0, 6))
    write_run(tmp_path, run_record("mnist", "quern", "l1", 0, 12))
    assert _claims.table(load(tmp_path)) is None


def test_numbers_of_neurons_are_those_of_their_table(tmp_path: Path) -> None:
    found = verdicts(there(_claims.table(load(write_experiments(tmp_path, ("cifar10",))))), "paper's way")
    assert found["L1(BN) leaves under 17 % of the neurons", "CIFAR-10"] == ("18.18 ± 0.00 % of the neurons left", FAILS)
    assert found["L1(BN) leaves under 15,000 parameters", "CIFAR-10"] == ("2,000 ± 0 parameters left", HOLDS)
    assert found["L1(BN) needs 1/5 of the memory (here: of the file)", "CIFAR-10"] == ("file 5.0× smaller", HOLDS)
    assert found["L1(BN) is about 3× faster", "CIFAR-10"] == ("4.0× faster in onnxruntime, one image", HOLDS)
    time = "a penalty costs little time (here: at most 1.10×)"
    assert found[time, "CIFAR-10"] == ("time of a step: ℓ1 1.03×, R_Q 1.04×, R_QL 1.12×", FAILS)


samples = st.lists(st.floats(0.5, 1.0), min_size=2, max_size=6)


@given(samples, samples)
def test_a_verdict_is_that_of_the_interval_and_turns_round(ours: list[float], theirs: list[float]) -> None:
    def group(values: list[float]) -> Group:
        runs = tuple(record_of("mnist", "quern", "rq", n, test_accuracy=value) for n, value in enumerate(values))
        return Group("mnist", "quern", "rq", 6, runs, 0)

    def accuracy(group: Group) -> list[float]:
        return [run.result.test_accuracy for run in group.runs]

    there_, back = (
        difference(*pair, accuracy) for pair in ((group(ours), group(theirs)), (group(theirs), group(ours)))
    )
    assert there_.points == pytest.approx(-back.points)
    assert {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[there_.above] == back.above
    assert (there_.not_below == FAILS) == (back.above == HOLDS)
