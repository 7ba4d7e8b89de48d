"""The paper's runs as data: which there are, how each is trained, and with which weight of its penalty."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quern import paper
from quern.errors import RecordError
from quern.penalties import L1, L2, RQ, RQL, GammaL1, Penalty
from quern.records import DATASETS, METHODS, Run
from quern.train import Settings

ROOT = Path(__file__).parents[2]

# Which runs.


def test_a_run_that_several_parts_need_is_there_once() -> None:
    parts = [("table1", "mnist"), ("figure1", "mnist"), ("figure2", "cifar10"), ("table1", "cifar10")]
    found = paper.runs(parts, 3)
    assert len(found) == len(set(found))
    assert set(paper.runs([("figure1", "mnist")], 3)) < set(paper.runs([("table1", "mnist")], 3))
    # Table 1 has two families of five methods and a real twin, figure 2 and what goes with it five more methods.
    assert len(found) == 3 * (2 * (2 * 5 + 1) + 2 * 5)
    assert [run.seed for run in found] == sorted(run.seed for run in found)
    rows = [[(run.dataset, run.family, run.method) for run in found if run.seed == seed] for seed in range(3)]
    assert rows[0] == rows[1] == rows[2]  # whole rows grow together
    assert {run.epochs for run in found if run.dataset == "mnist"} == {20}
    assert {run.epochs for run in found if run.dataset == "cifar10"} == {12}


def test_table_one_alone_has_the_real_twin() -> None:
    found = paper.runs([("table1", "mnist")], 2)
    assert {run.method for run in found} == {"none", "l2", "l1", "rq", "rql"}
    assert [run for run in found if run.family == "real"] == [Run("mnist", "real", "none", 20, n) for n in (0, 1)]
    for part in ("figure1", "figure2"):
        assert {run.family for run in paper.runs([(part, "mnist")], 1)} == {"paper", "quern"}
    with_neurons = {"rq", "none-bn", "rq-bn", "rql-bn", "gamma-bn", "gamma-beta-bn"}
    assert {run.method for run in paper.runs([("figure2", "mnist")], 1)} == with_neurons
    assert paper.runs([("table2", "mnist")], 5) == []


@settings(max_examples=20)
@given(
    st.sets(st.sampled_from(["paper", "quern", "real"])),
    st.sets(st.sampled_from(sorted(METHODS))),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_what_is_not_named_is_left_out(families: set[str], methods: set[str], seeds: int, epochs: int | None) -> None:
    parts = [("table1", "digits"), ("figure2", "digits")]
    found = paper.runs(parts, seeds, epochs, families, methods)
    every = paper.runs(parts, seeds, epochs)
    assert found == [
        run for run in every if (not families or run.family in families) and (not methods or run.method in methods)
    ]
    assert all(run.epochs == (epochs or 20) for run in found)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([("table1", "imagenet")], 1), r"there is no data set imagenet: choose among .*\.$"),
        (([("table1", "mnist")], 1, 1, ["mine"]), r"there is no family mine: choose among .*\.$"),
        (([("table1", "mnist")], 1, 1, [], ["rqq"]), r"there is no method rqq: did you mean rq\?$"),
        (([("tabel1", "mnist")], 1), r"there is no experiment tabel1: did you mean table1\?$"),
    ],
)
def test_names_that_are_not_known_are_one_sentence(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(RecordError, match=said):
        paper.runs(*arguments)


# How they are trained.

KINDS: dict[str, Callable[[float], Penalty]] = {
    "l2": L2,
    "l1": L1,
    "rq": RQ,
    "rql": RQL,
    "rq-bn": RQ,
    "rql-bn": RQL,
    "gamma-bn": GammaL1,
    "gamma-beta-bn": lambda weight: GammaL1(weight, with_beta=True),
}
some_epochs = st.integers(1, 500)


@given(st.sampled_from(sorted(DATASETS)), st.sampled_from(sorted(KINDS)), some_epochs, st.integers(0, 9))
def test_the_papers_family_is_trained_as_the_paper_did(dataset: str, method: str, epochs: int, seed: int) -> None:
    found = paper.settings_of(Run(dataset, "paper", method, epochs, seed), 3.5)
    assert (found.optimizer, found.schedule, found.tol) == ("adam", "constant", 1e-3)
    assert (found.epochs, found.warmup, found.heal, found.ramp, found.compact_every) == (epochs, 0, 0, 0.0, 0)
    assert found.penalty == KINDS[method](3.5)
    assert found.strength_at(0, 0, 10) == 1.0  # λ from the first step on
    assert found.seed == seed
    assert Settings.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@given(st.sampled_from(sorted(DATASETS)), st.sampled_from(sorted(KINDS)), some_epochs)
def test_querns_family_takes_exact_zeros_and_heals(dataset: str, method: str, epochs: int) -> None:
    found = paper.settings_of(Run(dataset, "quern", method, epochs, 0), 3.5)
    assert (found.optimizer, found.tol, found.compact_every) == ("proximal-adam", 0.0, 1)
    assert found.total == epochs
    assert found.epochs >= 1
    assert found.heal >= 1 or epochs == 1
    assert found.penalty == KINDS[method](3.5)
    assert found.heal_dropout == (dataset == "cifar10")


@pytest.mark.parametrize("family", ["paper", "quern", "real"])
def test_without_a_penalty_nothing_grinds(family: str) -> None:
    found = paper.settings_of(Run("mnist", family, "none", 20, 0), None)
    assert (found.penalty, found.total, found.heal, found.compact_every) == (None, 20, 0, 0)
    assert found.tol == (1e-3 if family == "paper" else 0.0)


def test_what_the_authors_ran() -> None:
    theirs = paper.settings_of(Run("mnist", "paper", "rq", 20, 0), 1.0)
    assert (theirs.batch, theirs.lr, paper.PROTOCOLS["mnist"].epochs) == (400, 2e-3, 20)
    assert paper.settings_of(Run("mnist", "paper", "rq-bn", 20, 0), 1.0).lr == 1e-3
    for dataset, epochs in (("mnist", 20), ("cifar10", 12), ("digits", 20)):
        assert paper.PROTOCOLS[dataset].epochs == epochs
    sizes = {Run("mnist", "quern", "rq", 1, 0): 11_688, Run("cifar10", "quern", "rq", 1, 0): 474_920}
    for run, size in sizes.items():
        assert sum(p.numel() for p in paper.build(run).parameters()) == size
    normed = paper.build(Run("digits", "quern", "gamma-bn", 1, 0))
    assert any("BatchNorm" in type(layer).__name__ for layer in normed.modules())


def test_a_network_is_drawn_from_its_seed() -> None:
    first, again, other = (paper.build(Run("digits", "quern", "rq", 1, seed)).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


# The weights of the penalties.


def test_every_run_of_an_experiment_has_a_weight() -> None:
    for dataset in DATASETS:
        for run in paper.runs([(name, dataset) for name in paper.EXPERIMENTS], 1):
            weight = paper.lambda_of(run, paper.read_lambdas())
            assert weight is None if run.method in ("none", "none-bn") else weight is not None and weight > 0
            paper.settings_of(run, weight)


@pytest.mark.parametrize("path", sorted(ROOT.glob("results/*/tuning.json")), ids=lambda path: path.parent.name)
def test_weights_that_were_tuned_are_those_that_tuning_chose(path: Path) -> None:
    own = paper.read_lambdas()[path.parent.name]
    rows = [row for row in json.loads(path.read_text())["trials"] if row["chosen"]]
    assert rows
    assert all(own[row["family"]][row["method"]] == float(f"{row['lambda']:.4g}") for row in rows)


def test_weights_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lambdas.toml"
    path.write_text("[digits.paper]\nrq = 100.0\nl2 = 1\n[digits.quern]\nrql = 80.5\n")
    found = paper.read_lambdas(path)
    assert found == {"digits": {"paper": {"rq": 100.0, "l2": 1.0}, "quern": {"rql": 80.5}}}
    assert paper.lambda_of(Run("digits", "paper", "rq", 1, 0), found) == 100.0
    assert paper.lambda_of(Run("digits", "real", "none", 1, 0), found) is None
    run = Run("mnist", "quern", "gamma-bn", 1, 0)
    with pytest.raises(RecordError, match="quern tune --dataset mnist --family quern --method gamma-bn"):
        paper.lambda_of(run, found)


@pytest.mark.parametrize(
    "text",
    [
        *("[digits", "digits = 1", "[digits]\npaper = 1", "[digits.paper.rq]\nx = 1", "[digits.paper]\nrq = -1"),
        *(
            "[digits.paper]\nrq = 0",
            "[digits.paper]\nrq = nan",
            "[digits.paper]\nrq = inf",
            "[digits.paper]\nrq = true",
        ),
        *("[digits.paper]\nrq = '1'", "[digits.paper]\nrqq = 1", "[digits.mine]\nrq = 1", "[imagenet.paper]\nrq = 1"),
        "\xff",
    ],
)
def test_a_file_without_weights_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lambdas.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(RecordError) as caught:
        paper.read_lambdas(path)
    said = str(caught.value)
    assert said.startswith(f"{path} does not hold weights of penalties (")
    assert said.endswith(".")
    assert "\n" not in said
    with pytest.raises(RecordError, match=r"is not there"):
        paper.read_lambdas(tmp_path / "nowhere.toml")
