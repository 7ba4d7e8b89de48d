"""The page of one run."""

import json
from pathlib import Path

import pytest

from quern.errors import RecordError
from quern.records import read_compression
from quern.records.intervals import tango, wilson
from quern.report import write_run_report
from quern.report._run import read_run
from tests.report.pages import SENTENCE, assert_self_contained, there
from tests.sample_records import compress_record, sample_record, write_compress


@pytest.mark.slow
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
    assert (read_compression(path).get("command") or "").startswith("quern compress")
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


def test_scores_for_more_than_the_classes_have_numbers_for_names(tmp_path: Path) -> None:
    folder = write_compress(tmp_path)
    (folder / "samples.json").write_text(json.dumps(sample_record(("zero", "one"))))
    assert [sample.label for sample in read_run(folder).samples[-1].samples][:3] == ["zero", "one", "2"]


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
