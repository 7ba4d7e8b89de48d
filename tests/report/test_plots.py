"""The figures of the experiments, as values."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern.records import METHODS
from quern.report import _plots
from quern.report._experiments import read_experiments
from quern.report._figures import Bars, Curves, Scatter, Spreads
from quern.report._load import load
from quern.report._panels import STYLES
from tests.report.pages import there
from tests.sample_records import run_record, write_experiments, write_run


def test_a_trial_without_penalty_is_a_point_like_any_other(tmp_path: Path) -> None:
    path = write_experiments(tmp_path, ("mnist",), ("none", "rq")) / "mnist" / "tuning.json"
    record = json.loads(path.read_text())
    record["trials"].append({**record["trials"][0], "method": "none", "lambda": None, "chosen": False})
    path.write_text(json.dumps(record))
    panel = there(_plots.tuning_front(load(tmp_path), "mnist", record["trials"][0]["family"])).panels[0]
    assert [len(dots.points) for dots in panel.dots] == [1, 6]


def test_networks_that_learned_nothing_are_left_out_of_a_search_and_counted(tmp_path: Path) -> None:
    path = write_experiments(tmp_path, ("mnist",), ("none", "rq")) / "mnist" / "tuning.json"
    record = json.loads(path.read_text())
    family = record["trials"][0]["family"]
    mine = [row for row in record["trials"] if row["family"] == family]
    record["trials"] += [{**mine[-1], "val_accuracy": 0.1, "quaternion_sparsity": 1.0, "chosen": False}] * 2
    path.write_text(json.dumps(record))
    figure = there(_plots.tuning_front(load(tmp_path), "mnist", family))
    assert f"Not shown: 2 of {len(mine) + 2} trials" in figure.caption
    panel = figure.panels[0]
    assert isinstance(panel, Scatter)
    assert min(y for dots in panel.dots for _, y in dots.points) > 10


points = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda p: (float(p[0]), float(p[1]))), min_size=1)


@given(points, st.booleans())
def test_the_front_is_what_brute_force_finds(found: list[tuple[float, float]], fewer: bool) -> None:
    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        x = a[0] <= b[0] if fewer else a[0] >= b[0]
        return x and a[1] >= b[1] and a != b

    expected = sorted({point for point in found if not any(beats(other, point) for other in found)})
    assert list(_plots.pareto(found, fewer)) == expected


def test_lines_are_means_over_seeds(tmp_path: Path) -> None:
    records = [run_record("mnist", "quern", "rq", seed) for seed in range(3)]
    for record in records:
        write_run(tmp_path, record)
    panel = there(_plots.curves(load(tmp_path), "mnist", "quern", 1)).panels[1]
    assert isinstance(panel, Curves)
    rows = np.array([[100 * line["quaternion_sparsity"] for line in record["history"]] for record in records])
    np.testing.assert_allclose(panel.lines[0].y, rows.mean(0))
    np.testing.assert_allclose(panel.lines[0].spread, rows.std(0, ddof=1), atol=1e-12)
    assert [name for _, name in panel.phases] == ["grind", "heal"]


def test_figure_2_shows_test_accuracy_where_every_epoch_was_tested(tmp_path: Path) -> None:
    def title_and_first() -> tuple[str, float]:
        panel = there(_plots.curves(load(tmp_path), "cifar10", "quern", 2)).panels[3]
        return panel.title, panel.lines[0].y[0]

    records = [run_record("cifar10", "quern", "rq-bn", seed) for seed in range(2)]
    for seed, record in enumerate(records):
        for line in record["history"]:
            line["test_accuracy"] = 0.25 + 0.5 * seed
        write_run(tmp_path, record)
    assert title_and_first() == ("Test accuracy", 50)
    del records[1]["history"][-1]["test_accuracy"]
    write_run(tmp_path, records[1])
    title, first = title_and_first()
    assert title == "Validation accuracy"
    assert first == pytest.approx(100 * np.mean([0.975 - 0.05, 0.977 - 0.05]))


def test_the_figures_of_the_paper_have_its_panels(tmp_path: Path) -> None:
    page = read_experiments(write_experiments(tmp_path, ("mnist",)))
    figures = {figure.name: figure for figure in page.figures()}
    assert [panel.title for panel in figures["figure1-mnist-paper"].panels] == [
        "Component sparsity",
        "Quaternion sparsity",
    ]
    second = figures["figure2-mnist-quern"].panels
    assert [panel.title for panel in second][2:] == ["Neuron sparsity", "Validation accuracy"]
    assert isinstance(second[0], Curves)
    assert [line.style for line in second[0].lines] == ["rq", "rq-bn", "rql-bn", "gamma-bn", "gamma-beta-bn"]
    front = figures["front-mnist"].panels
    assert isinstance(front[0], Scatter)
    assert sum(dots.source == "the paper" for dots in front[0].dots) == 5
    layers = figures["layers-mnist"].panels[2]
    assert isinstance(layers, Bars)
    shown = ["ℓ2", "ℓ1", "R_Q", "R_QL", "R_Q + BN", "R_QL + BN", "L1(BN)", "L1(BN), γ with β"]  # without none
    assert [panel.title for panel in figures["layers-mnist"].panels] == shown
    assert [panel.title for panel in figures["moduli-mnist-quern"].panels] == shown
    assert layers.bars[1].quaternions == (np.mean([320, 328]), 800)
    spreads = figures["moduli-mnist-quern"].panels[0]
    assert isinstance(spreads, Spreads)
    assert sum(spreads.after.shares) + spreads.after.zeros == pytest.approx(100)
    assert set(METHODS) <= set(STYLES)
