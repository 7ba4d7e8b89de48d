"""Reports: numbers next to numpy's, forms that parse back, strings that mean harm, records that are damaged."""

import csv
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern.errors import RecordError
from quern.records import METHODS, PAPER, Moduli, read_compression
from quern.records.intervals import tango, wilson
from quern.report import _plots, _rows, write_report, write_run_report
from quern.report._draw import pictures
from quern.report._experiments import read_experiments
from quern.report._figures import Bars, Curves, Figure, Line, Scatter, Spreads
from quern.report._load import load
from quern.report._panels import STYLES
from quern.report._run import read_run
from quern.report._tables import Cell, Table, latex, marked, measured, to_csv, to_latex, to_markdown
from tests.sample_records import (
    compress_record,
    run_record,
    sample_record,
    write_compress,
    write_experiments,
    write_run,
)

pytestmark = pytest.mark.xdist_group("report")  # what they share takes long to make

HOSTILE = "<script>alert('&_%')</script>"
SENTENCE = re.compile(r"[^\n]+\.")
TEMPLATE = files("quern.report").joinpath("templates", "base.html").read_text()
SCRIPT = TEMPLATE[TEMPLATE.index("<script>") : TEMPLATE.index("</script>") + len("</script>")]  # the only one of a page


def column(table: Table, name: str) -> list[Cell]:
    return [row[table.columns.index(name)] for row in table.rows]


def row(table: Table, method: str, who: str) -> dict[str, Cell]:
    found = [r for r in table.rows if (r[0].text, r[1].text) == (METHODS[method], who)]
    assert len(found) == 1
    return dict(zip(table.columns, found[0], strict=True))


def there(found: Any) -> Any:
    assert found is not None
    return found


# Table 1


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


@given(st.floats(0, 1), st.floats(0, 100))
def test_signs_follow_what_is_printed(share: float, paper: float) -> None:
    cell = marked(measured([share]), paper)
    ours, theirs = float(cell.text), float(f"{paper:.2f}")
    assert cell.sign == ("better" if ours > theirs else "worse" if ours < theirs else "equal")


def test_the_papers_rows_are_as_printed_and_the_real_twin_is_there(tmp_path: Path) -> None:
    table = there(_rows.table1(load(write_experiments(tmp_path, ("cifar10",))), "cifar10"))
    for method in PAPER["cifar10"]["test_accuracy"]:
        cells = row(table, method, "the paper")
        for what in ("test accuracy", "component sparsity", "quaternion sparsity"):
            assert cells[f"{what}, %"].value == PAPER["cifar10"][what.replace(" ", "_")][method]
    assert row(table, "none", "real-valued")["quaternion sparsity, %"].text == "–"


def test_the_most_epochs_count(tmp_path: Path) -> None:
    write_run(tmp_path, run_record("mnist", "quern", "rq", 0, epochs=3, test_accuracy=0.5))
    write_run(tmp_path, run_record("mnist", "quern", "rq", 1, epochs=20, test_accuracy=0.75))
    cells = row(there(_rows.table1(load(tmp_path), "mnist")), "rq", "quern")
    assert (cells["test accuracy, %"].text, cells["epochs"].text, cells["runs"].text) == ("75.00", "20", "1")


def test_a_data_set_the_paper_has_not_has_nothing_to_beat(tmp_path: Path) -> None:
    write_run(tmp_path, run_record("digits", "quern", "rq"))
    table = there(_rows.table1(load(tmp_path), "digits"))
    assert "beats the paper" not in table.columns
    assert all(cell.sign == "" for cells in table.rows for cell in cells)
    assert len({len(cells) for cells in table.rows} | {len(table.columns)}) == 1


# The other tables


def test_table2_has_ratios_and_says_whether_the_bar_is_met(tmp_path: Path) -> None:
    table = there(_rows.table2(load(write_experiments(tmp_path, ("mnist",))), "mnist"))
    seconds = PAPER["mnist"]["seconds"]
    assert [c.value for c in column(table, "the paper, ratio")] == [s / seconds["none"] for s in seconds.values()]
    assert [c.sign for c in column(table, "quern, ratio")] == ["", "", "", "yes", "no"]
    assert [c.text for c in column(table, "quern, ms a step")] == ["80.00", "81.60", "82.40", "83.20", "89.60"]


def test_claims_are_judged_one_by_one(tmp_path: Path) -> None:
    record = run_record("cifar10", "quern", "gamma-bn", test_accuracy=0.75, cut_accuracy=0.75)
    record["dense"] |= {"neurons": 200, "bytes": 1000, "latency_ms": 3.0}
    record["small"] |= {"neurons": 33, "parameters": 15_000, "bytes": 200, "latency_ms": 1.5}
    write_run(tmp_path, record)

    def found() -> dict[str, tuple[str, str]]:
        cells = row(there(_rows.claims(load(tmp_path), "cifar10")), "gamma-bn", "quern")
        return {name: (cell.text, cell.sign) for name, cell in cells.items()}

    judged = found()
    assert judged["neurons left, %"] == ("16.50", "yes")
    assert judged["parameters left"] == ("15,000", "no")  # under 15,000, says the paper
    assert judged["file smaller"] == ("5.0×", "yes")
    assert judged["memory, MB"] == ("62 → 41", "")
    assert judged["faster"] == ("2.0×", "no")
    assert judged["points against none"] == ("–", "")
    # "No loss" is against a network that kept everything, not against itself before the dead parts were taken out.
    for accuracy, points in ((0.75, ("+0.00", "yes")), (0.80, ("-5.00", "no")), (0.70, ("+5.00", "yes"))):
        write_run(tmp_path, run_record("cifar10", "quern", "none", test_accuracy=accuracy))
        write_run(tmp_path, run_record("cifar10", "paper", "none", test_accuracy=0.9))
        assert found()["points against none"] == points
    write_run(tmp_path, run_record("cifar10", "quern", "none", epochs=12))  # trained for longer, it is another thing
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


# The forms of a table

texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="±"), min_size=1)


def test_all_forms_parse_back_to_the_same_numbers(tmp_path: Path) -> None:
    for table in read_experiments(write_experiments(tmp_path, ("mnist",))).tables():
        shown = [[str(cell) for cell in cells] for cells in table.rows]
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("| ")][2:]
        parsed = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        assert [[re.sub(r"\\(.)", r"\1", c) for c in cells] for cells in parsed] == shown
        head, *rows = csv.reader(io.StringIO(to_csv(table)))
        for cells, values in zip(table.rows, rows, strict=True):
            by_name = dict(zip(head, values, strict=True))
            for name, cell in zip(table.columns, cells, strict=True):
                if cell.value is not None:
                    assert float(by_name[name]) == pytest.approx(cell.value, rel=1e-9)
                if cell.spread is not None:
                    assert float(by_name[f"{name} (std)"]) == pytest.approx(cell.spread, rel=1e-9)
        body = [line for line in to_latex(table).splitlines() if line.endswith(r" \\")][1:]
        for cells, line in zip(shown, body, strict=True):
            set_ = line.removesuffix(r" \\").split(" & ")
            numbers = [re.findall(r"[-+]?\d[\d,]*\.\d+", text) for text in set_]
            assert numbers == [re.findall(r"[-+]?\d[\d,]*\.\d+", text) for text in cells]


@given(texts)
def test_text_survives_markdown_csv_and_latex(text: str) -> None:
    table = Table("t", "t", ("a", "b"), ((Cell("x"), Cell(text)),))
    line = to_markdown(table).splitlines()[-1]
    cells = re.findall(r"((?:\\.|[^\\|])*)\|", line)  # a bar after a backslash is none
    assert [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells] == ["", "x", text]
    assert list(csv.reader(io.StringIO(to_csv(table))))[1] == ["x", text]
    bare = re.sub(r"\\[&%$#_{}]", "", latex(text))
    bare = re.sub(r"\$[^$]*\$", "", bare)  # mathematics
    bare = re.sub(r"\\[a-zA-Z]+(\{\d*\})?|(?<=-)\{\}", "", bare)
    assert "--" not in latex(text)
    assert not set(bare) & set("&%#~^\\{}$_")
    assert latex(text).count("$") % 2 == latex(text).count(r"\$") % 2


def test_latex_sets_mathematics_and_obeys_nothing() -> None:
    assert latex("R_Q + BN, R_QL, ℓ1") == r"$R_{Q}$ + BN, $R_{QL}$, $\ell_{1}$"
    assert latex("a & b_c 100% ~\\x{}") == r"a \& b\_c 100\% \textasciitilde{}\textbackslash{}x\{\}"
    assert latex("--max-neurons ---") == "-{}-max-neurons -{}-{}-"


# Figures


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


def test_phases_that_are_short_keep_their_names_apart() -> None:
    line = Line("a", "first", tuple(map(float, range(1, 40))), tuple(map(float, range(39))))
    panel = Curves("t", "epoch", "%", (line,), ((1.0, "dense"), (38.0, "grind"), (39.0, "heal")))
    (drawn,) = pictures(Figure("f", "t", "c", (panel,)))
    heights = [re.search(rf'y="([\d.]+)"[^>]*>{name}<', drawn) for name in ("grind", "heal")]
    first, second = (float(there(found)[1]) for found in heights)
    assert abs(first - second) >= 9


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


# Pages


class Outside(HTMLParser):
    """Collects what a page would load from elsewhere, its scripts, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            inside = (value or "").startswith(("#", "data:"))
            if name in ("src", "href", "xlink:href", "srcset", "data", "action") and not inside:
                self.loads.append(str(value))
            if name.startswith("on"):
                self.loads.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_self_contained(path: Path) -> Outside:
    page = path.read_text(encoding="utf-8")
    seen = Outside(page)
    assert seen.loads == []
    assert not seen.tags & {"iframe", "object", "embed"}
    assert re.findall(r"<script.*?</script>", page, re.DOTALL) == [SCRIPT]
    assert not re.search(r"@import|url\((?!#)", page)
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    return seen


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Records, and the report made from them."""
    folder = tmp_path_factory.mktemp("experiments")
    write_experiments(folder / "results", ("mnist",), ("none", "rq", "gamma-bn"))
    return folder / "results", write_report(folder / "results", folder / "report").parent


def test_the_report_of_experiments_is_whole_and_self_contained(experiments: tuple[Path, Path]) -> None:
    results, report = experiments
    seen = assert_self_contained(report / "index.html")
    for said in (
        "component sparsity",
        "quaternion sparsity",
        "beats the paper",
        "above the paper",
        "2.13.0",
        "0f" * 32,
    ):
        assert said in seen.text.lower()
    page = read_experiments(results)
    names = {f"figures/{f.name}.{kind}" for f in page.figures() for kind in ("svg", "png", "pdf")}
    names |= {f"tables/{t.name}.{kind}" for t in page.tables() for kind in ("md", "csv", "tex")}
    found = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    assert found == names | {"index.html"}
    for name, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert all(path.read_bytes().startswith(start) for path in report.glob(f"figures/*.{name}"))


def test_the_same_records_give_the_same_bytes(experiments: tuple[Path, Path], tmp_path: Path) -> None:
    results, report = experiments
    again = write_report(results, tmp_path / "again").parent
    for path in report.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(report)).read_bytes(), path


def test_a_run_report_shows_all_there_is(tmp_path: Path) -> None:
    path = write_run_report(write_compress(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    seen = assert_self_contained(path)
    for said in ("digits", "11,748", "1,467", "✓ met: 1,467 parameters", "✗ missed: 4 times faster", "8.0×"):
        assert said in seen.text
    for said in ("quern compress --max-params 1500", "Validation accuracy", "✗\u00a0wrong", "0f" * 32, "-0.50 points"):
        assert said in seen.text
    assert seen.text.count("dense: ") == 12
    first = path.read_bytes()
    assert write_run_report(tmp_path / "run").read_bytes() == first


def test_a_run_says_how_sure_its_accuracies_are(tmp_path: Path) -> None:
    page = read_run(write_compress(tmp_path))
    cells = next(row for row in page.table.rows if row[0].text == "its 95\u00a0% interval")
    expected = (*wilson(0.99, 200), *wilson(0.985, 200), *tango(1, 2, 200))
    bounds = [float(bound) for cell in cells[1:] for bound in cell.text.split(" to ")]
    assert bounds == pytest.approx([100 * bound for bound in expected], abs=0.005)
    assert "which holds zero: these inputs cannot tell the two apart" in page.summary
    lost = {"name": "0", "both": 150, "only_dense": 48, "only_small": 0, "neither": 2}
    assert ", without zero)." in read_run(write_compress(tmp_path, answers=[lost])).summary


def test_the_class_that_lost_the_largest_share_comes_first(tmp_path: Path) -> None:
    page = read_run(write_compress(tmp_path))
    assert page.classes is not None
    assert [cell.text for cell in page.classes.rows[0]] == ["7", "20", "20", "18", "-2 (-10.0)"]
    assert [cell.text for cell in page.classes.rows[-1]] == ["3", "20", "18", "19", "+1 (+5.0)"]
    assert [row[0].text for row in page.classes.rows[1:-1]] == list("01245689")
    assert page.lost.startswith("Class 7 lost the most: 18 of its 20 inputs")
    rows = [{"name": "a", "both": 900, "only_dense": 9, "only_small": 0, "neither": 0}]
    rows += [{"name": "b", "both": 5, "only_dense": 5, "only_small": 1, "neither": 0}]
    assert read_run(write_compress(tmp_path, answers=rows)).lost.startswith("Class b lost the most")
    rows = [{"name": "a", "both": 9, "only_dense": 1, "only_small": 1, "neither": 0}]
    assert read_run(write_compress(tmp_path, answers=rows)).lost == "No class lost any."


def test_images_stand_under_who_is_right(tmp_path: Path) -> None:
    page = read_run(write_compress(tmp_path))
    assert [kind.title for kind in page.samples] == [
        "Only the dense network is right: 2 of 200",
        "Both are right: 196 of 200",
    ]
    for kind, right in zip(page.samples, ((True, False), (True, True)), strict=True):
        assert all(tuple(answer.right for answer in sample.answers) == right for sample in kind.samples)
    assert "evenly spaced" in page.choice
    assert sum(len(kind.samples) for kind in page.samples) == 12


def test_many_classes_are_folded(tmp_path: Path) -> None:
    rows = [{"name": f"class {n}", "both": n + 1, "only_dense": 0, "only_small": 0, "neither": 1} for n in range(100)]
    text = write_run_report(write_compress(tmp_path, answers=rows)).read_text()
    assert "<summary>All 100 classes</summary>" in text


def test_records_from_before_answers_were_counted_are_read(tmp_path: Path) -> None:
    folder = write_compress(tmp_path)
    record = compress_record()
    del record["answers"]
    (folder / "record.json").write_text(json.dumps(record))
    text = write_run_report(folder).read_text()
    for said in ("interval", "Class by class", "evenly spaced", " of 200"):
        assert said not in text
    assert "Only the dense network is right</h3>" in text


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("results/*/record.json")), ids=str)
def test_every_record_of_this_repository_is_read(path: Path) -> None:
    assert "answers" not in read_compression(path)  # they are older
    assert read_run(path.parent).title.endswith("made small")


def test_parts_that_are_missing_are_left_out(tmp_path: Path) -> None:
    record = compress_record()
    for name in ("command", "dataset", "budget", "sums", "environment", "answers"):
        del record[name]
    record["history"] = {"dense": [], "small": []}
    record["settings"] = {"dense": None, "small": {}, "budget": {}}
    folder = write_compress(tmp_path / "run", samples=False)
    (folder / "record.json").write_text(json.dumps(record))
    seen = assert_self_contained(write_run_report(folder))
    assert "A network, made small" in seen.text
    for said in ("Epoch by epoch", "Images, and", "Budget", "SHA-256"):
        assert said not in seen.text


def test_an_empty_history_of_the_dense_network_is_no_phase(tmp_path: Path) -> None:
    record = compress_record()
    record["history"]["dense"] = []
    panel = there(read_run(write_compress(tmp_path, history=record["history"])).curves).panels[0]
    assert [name for _, name in panel.phases] == ["grind", "heal"]


def test_missing_experiments_are_one_line_each(tmp_path: Path) -> None:
    write_compress(tmp_path / "results" / "small-1")
    page = write_report(tmp_path / "results", tmp_path / "report")
    seen = assert_self_contained(page)
    assert seen.text.count("No records yet: MNIST, CIFAR-10.") == 8
    assert "11,748 → 1,467" in seen.text


def test_folded_sections_say_their_main_number(experiments: tuple[Path, Path], tmp_path: Path) -> None:
    results, _ = experiments
    page = read_experiments(results)
    headlines = {section.name: section.headline for section in page.sections}
    table = there(_rows.table1(load(results), "mnist"))
    beaten = [cells for cells in table.rows if cells[1].text == "quern" and cells[6].sign == "yes"]
    assert headlines["table1"] == f"Methods by which quern beats the paper: {len(beaten)} of 2 on MNIST."
    assert headlines["table2"].endswith("penalty: 1.04 on MNIST.")
    assert headlines["curves"] == "Quaternions that R_Q makes zero: 59.50\u00a0% on MNIST."
    assert headlines["neurons"] == "Neurons that L1(BN) leaves: 18.18\u00a0% on MNIST."
    assert headlines["compress"] == "Files up to 5.0 times smaller; runs: 1."
    assert headlines["front"].endswith(": 97.10\u00a0% at 59.50\u00a0% on MNIST.")
    assert headlines["tuning"] == "λ of R_Q: 4 from 6 trials on MNIST."
    assert headlines["layers"] == "Quaternions that R_Q leaves: 1,144 of 2,825 on MNIST."
    assert headlines["moduli"].endswith(" and 0.00\u00a0% on MNIST.")
    assert headlines["runs"] == "13 runs, 6.5 hours."
    write_run(tmp_path, run_record("digits", "paper", "l1"))  # has none of it
    assert {section.name for section in read_experiments(tmp_path).sections if section.headline} == {"runs"}


def test_strings_that_mean_harm_are_only_text(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "run"
    environment = {"cpu": "</style><img src=x onerror=alert(1)>"}
    named = {"name": HOSTILE, "both": 1, "only_dense": 1, "only_small": 0, "neither": 0}
    write_compress(
        folder,
        command=f"quern {HOSTILE}",
        dataset=f"/data/{HOSTILE}",
        model=HOSTILE,
        environment=environment,
        answers=[named],
    )
    (folder / "samples.json").write_text(json.dumps(sample_record((HOSTILE, *"123456789"))))
    (folder / "record.json").write_text((folder / "record.json").read_text().replace("QConv2d", "<b>&$"))
    for path in (write_run_report(folder), write_report(tmp_path / "results", tmp_path / "report")):
        seen = assert_self_contained(path)
        assert HOSTILE in seen.text
        assert "b" not in seen.tags
    row = (tmp_path / "report" / "tables" / "compress.tex").read_text()
    assert r"\textless{}script\textgreater{}alert('\&\_\%')" in row


def test_scores_for_more_than_the_classes_have_numbers_for_names(tmp_path: Path) -> None:
    folder = write_compress(tmp_path)
    (folder / "samples.json").write_text(json.dumps(sample_record(("zero", "one"))))
    assert [sample.label for sample in read_run(folder).samples[-1].samples][:3] == ["zero", "one", "2"]


def test_what_cannot_be_rendered_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_compress(tmp_path / "results" / "run")
    before = write_run_report(folder).read_bytes()

    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("no ink")

    monkeypatch.setattr("quern.report._page.render", fail)
    with pytest.raises(RuntimeError, match="no ink"):
        write_run_report(folder)
    with pytest.raises(RuntimeError, match="no ink"):
        write_report(tmp_path / "results", tmp_path / "report")
    assert {path.name for path in folder.iterdir()} == {"record.json", "samples.json", "report.html"}
    assert (folder / "report.html").read_bytes() == before
    assert not (tmp_path / "report").exists()


# Records that are damaged


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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("record.json", "{}"),
        ("record.json", "not JSON"),
        ("record.json", json.dumps({**compress_record(), "history": {}})),
        ("record.json", json.dumps({**compress_record(), "layers": [{"name": "0"}]})),
        ("record.json", json.dumps(compress_record()).replace('"loss": 1.0', '"loss": NaN')),
        ("record.json", json.dumps({**compress_record(), "small": {"test_accuracy": "high"}})),
        ("record.json", json.dumps(compress_record()).replace('"only_dense": 2', '"only_dense": -2')),
        ("record.json", json.dumps(compress_record()).replace('"both": 20', '"both": 0')),
        ("samples.json", "[]"),
        ("samples.json", json.dumps({"classes": ["a"], "samples": [{"png": "?", "label": 0}]})),
    ],
)
def test_damaged_runs_are_one_sentence(tmp_path: Path, name: str, text: str) -> None:
    folder = write_compress(tmp_path / "run")
    (folder / name).write_text(text)
    with pytest.raises(RecordError) as caught:
        write_run_report(folder)
    assert SENTENCE.fullmatch(str(caught.value))
    assert name in str(caught.value)
    assert not (folder / "report.html").exists()


def test_folders_without_records_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("nowhere", "empty", "file"):
        with pytest.raises(RecordError) as caught:
            write_report(tmp_path / name, tmp_path / "report")
        assert SENTENCE.fullmatch(str(caught.value))
        assert "quern reproduce" in str(caught.value)


# The command


def quern(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quern", "report", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_command_reports_runs_where_they_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_compress(tmp_path / name)
    done = quern(tmp_path, "one", "two")
    assert (done.returncode, done.stdout.split()) == (0, ["one/report.html", "two/report.html"])
    done = quern(tmp_path, "one", "two", "--out", "pages")
    assert done.stdout.split() == ["pages/one/report.html", "pages/two/report.html"]
    assert (tmp_path / "pages/two/report.html").read_bytes() == (tmp_path / "two/report.html").read_bytes()


def test_the_command_reports_results_by_default(tmp_path: Path) -> None:
    write_compress(tmp_path / "results" / "small-1")
    done = quern(tmp_path)
    assert (done.returncode, done.stdout) == (0, "report/index.html\n")
    assert (tmp_path / "report" / "index.html").exists()


def test_the_command_refuses_in_one_sentence(tmp_path: Path) -> None:
    write_compress(tmp_path / "bad", dense=None)
    (tmp_path / "empty").mkdir()
    for arguments in (["nowhere"], ["empty"], ["bad"], ["bad", "bad/"], []):
        done = quern(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"quern: [^\n]+\.\n", done.stderr), done.stderr


def test_reports_do_not_wait_for_torch(tmp_path: Path) -> None:
    write_compress(tmp_path / "results" / "run")
    code = (
        "import sys; from pathlib import Path; from quern import report\n"
        "assert 'matplotlib' not in sys.modules and 'jinja2' not in sys.modules\n"
        "report.write_run_report(Path('results/run')); report.write_report(Path('results'), Path('report'))\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)
