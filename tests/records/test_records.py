"""Records on disk, and the paper's numbers as they were copied."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern import records
from quern._files import claimed
from quern.errors import RecordError
from quern.records import PAPER, Record, Run
from quern.train import Settings
from tests import sample_records

RUN = Run("digits", "quern", "rql", 3, 1)


def record_of(run: Run) -> Record:
    return sample_records.record_of(run.dataset, run.family, run.method, run.seed, run.epochs)


def written(folder: Path, run: Run = RUN) -> Path:
    return records.write(folder, record_of(run))


def refused(folder: Path) -> str:
    with pytest.raises(RecordError) as caught:
        list(records.read(folder))
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    return said


runs = st.tuples(
    *(st.sampled_from(sorted(known)) for known in (records.DATASETS, records.FAMILIES, records.METHODS)),
    st.integers(1, 12),
    st.integers(0, 12),
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert path == tmp_path / "digits" / "quern-rql-3-1.json" == records.record_path(tmp_path, RUN)
    [record] = records.read(tmp_path)
    assert record.run == RUN
    assert record == record_of(RUN) == records.read_record(path)
    plain = sample_records.run_record("digits", "quern", "rql", 1, 3)
    kept = json.loads(path.read_text())
    plain["result"]["sparsity"]["notes"] = []
    plain |= {"options": {}, "settings": Settings(lr=0.002).to_dict()}  # a sample has not all of them
    assert kept == plain


@given(st.lists(runs, unique=True, max_size=8))
def test_any_runs_are_read_back_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[str, str, str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("results")
    some = [Run(*one) for one in values]
    for run in some:
        written(folder, run)
    found = [record.run for record in records.read(folder)]
    assert sorted(found) == sorted(some)
    places = [(list(records.DATASETS).index(r.dataset), list(records.FAMILIES).index(r.family), r.name) for r in found]
    assert [place[:2] for place in places] == sorted(place[:2] for place in places)
    for group in {place[:2] for place in places}:
        names = [f"{name}.json" for *place, name in places if tuple(place) == group]
        assert names == sorted(names)


def test_a_folder_without_records_has_none(tmp_path: Path) -> None:
    assert list(records.read(tmp_path)) == []
    assert list(records.read(tmp_path / "nowhere")) == []
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "table2.json").write_text("{}")
    (tmp_path / "digits" / "tuning.json").write_text("{}")
    assert list(records.read(tmp_path)) == []


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b'{"run": 1}', b"[]", b"null", b'"run"', b"{}", b"[" * 100_000, b"\xff\x00"],
    ids=["empty", "half", "keys", "list", "null", "string", "nothing", "deep", "bytes"],
)
def test_what_is_no_record_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    path = written(tmp_path)
    path.write_bytes(text)
    assert str(path) in refused(tmp_path)


def test_every_part_of_a_record_is_needed(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = json.loads(path.read_text())
    needed = {"run", "settings", "model", "lambda", "images", "sums", "environment", "history", "result", "small"}
    for key in needed | {"dense", "moduli"}:
        path.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        assert str(path) in refused(tmp_path)


@pytest.mark.parametrize(
    "run",
    [
        3,
        [],
        {"dataset": "digits"},
        {"dataset": "digits", "family": "quern", "method": "rqq", "epochs": 3, "seed": 1},
        {"dataset": "digits", "family": "quern", "method": "rql", "epochs": 3, "seed": 2},
        {"dataset": "mnist", "family": "quern", "method": "rql", "epochs": 3, "seed": 1},
    ],
)
def test_a_record_of_no_run_or_of_another_one_is_one_sentence(tmp_path: Path, run: object) -> None:
    path = written(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "run": run}))
    assert str(path) in refused(tmp_path)


def test_a_folder_in_place_of_a_record_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "digits" / "quern-rql-3-1.json").mkdir(parents=True)
    refused(tmp_path)


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="No space"):
                records.write(tmp_path, replace(record_of(RUN), weight=5.0))
        assert path.read_bytes() == before
        assert [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(TypeError):
        records.write(tmp_path, replace(record_of(RUN), sums={"images": object()}))  # not JSON
    assert path.read_bytes() == before


def test_what_killed_writers_left_is_swept_when_the_record_is_written(tmp_path: Path) -> None:
    left = written(tmp_path).with_name(".quern-rql-3-1.json.a1b2c3d4.tmp")
    other = left.with_name(".quern-rq-3-1.json.a1b2c3d4.tmp")
    for path in (left, other):
        path.write_text("half a record")
    with claimed(left.parent):  # somebody else is writing
        written(tmp_path)
    assert left.exists()
    written(tmp_path)
    assert not left.exists()
    assert other.exists()


def test_a_file_in_place_of_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("mine")
    with pytest.raises(OSError, match="results"):
        written(tmp_path / "results")
    assert (tmp_path / "results").read_text() == "mine"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("imagenet", "quern", "rql", 3, 0), "there is no data set imagenet"),
        (("digits", "mine", "rql", 3, 0), "there is no family mine"),
        (("digits", "quern", "RQL", 3, 0), "there is no method RQL"),
        (("digits", "quern", "rql", 0, 0), "0 epochs with seed 0"),
        (("digits", "quern", "rql", 1, -1), "seed -1"),
    ],
)
def test_a_run_has_names_that_are_known(values: tuple[str, str, str, int, int], said: str) -> None:
    with pytest.raises(RecordError, match=said) as caught:
        Run(*values)
    assert str(caught.value).endswith(".")


def test_records_are_read_without_torch(tmp_path: Path) -> None:
    """A report must not wait for it."""
    written(tmp_path)
    code = (
        "import sys; from pathlib import Path; import quern.records; "
        f"assert len(list(quern.records.read(Path({str(tmp_path)!r})))) == 1; "
        "assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


METHODS = ["none", "l2", "l1", "rq", "rql"]
MNIST = """
test_accuracy 98.95 96.69 93.46 96.81 96.29
component_sparsity 1.71 54.68 34.08 68.40 75.08
quaternion_sparsity 0.0 40.01 23.45 53.82 69.42
seconds 179.35 183.17 185.43 184.22 186.22
"""
CIFAR10 = """
test_accuracy 71.30 72.58 73.43 72.03 73.20
component_sparsity 0.77 8.58 44.24 59.29 35.91
quaternion_sparsity 0.0 4.77 42.61 58.73 31.89
seconds 924.77 1146.89 1160.48 1151.50 1168.37
"""


@pytest.mark.parametrize(("dataset", "table"), [("mnist", MNIST), ("cifar10", CIFAR10)])
def test_the_papers_numbers_are_those_of_its_tables(dataset: str, table: str) -> None:
    """Copied a second time, by another hand."""
    rows = [line.split() for line in table.split("\n") if line]
    copied = {what: dict(zip(METHODS, map(float, values), strict=True)) for what, *values in rows}
    assert PAPER[dataset] == copied
    assert PAPER.keys() == {"mnist", "cifar10"}
