"""``quern tune`` as a user runs it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quern.paper import read_lambdas, tune
from quern.records import METHODS, without_penalty
from tests.commands import here, refused
from tests.paper.trials import counted, trial

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


FEW = ["--images", 128, "--epochs", 1, "--trials", 2]


@pytest.mark.slow
def test_the_command_finds_weights_that_reproduce_takes(tmp_path: Path) -> None:
    options = ["--lambdas", tmp_path / "l.toml", "--storage", tmp_path / "j", "--results", tmp_path / "r"]
    methods = ["--method", "rq", "--method", "gamma-bn", "--family", "quern"]
    out, err = here("tune", "--dataset", "digits", *methods, *FEW, *options)
    weights = read_lambdas(tmp_path / "l.toml")["digits"]["quern"]
    assert weights.keys() == {"rq", "gamma-bn"}
    rows = json.loads((tmp_path / "r" / "digits" / "tuning.json").read_text())["trials"]
    picked = {row["method"]: row["lambda"] for row in rows if row["chosen"]}
    assert picked.keys() == weights.keys()
    for method, weight in picked.items():
        assert math.isclose(weight, weights[method], rel_tol=1e-3)
        assert f"{weight:.4g}" in out
    assert len(rows) == 6  # two of each, and one of each kind of network without penalty
    assert err.count("on validation images") == 6
    assert "quern reproduce --lambdas" in err
    dry = ["reproduce", "table1", "--dataset", "digits", "--family", "quern", "--method", "rq", "--dry-run"]
    out, _ = here(*dry, "--lambdas", tmp_path / "l.toml", "--results", tmp_path / "none")
    assert f"λ = {weights['rq']:g}" in out


def test_without_names_the_command_tunes_every_penalty_of_both_families_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "try_weight", lambda _, run, weight, __: trial(0.9, 0.5, run.method, weight, run.family))
    options = ["--lambdas", tmp_path / "l.toml", "--storage", tmp_path / "j", "--results", tmp_path / "r"]
    here("tune", "--dataset", "digits", "--trials", 2, *options)
    rows = json.loads((tmp_path / "r" / "digits" / "tuning.json").read_text())["trials"]
    tried: dict[tuple[str, str], int] = {}
    for row in rows:
        tried[row["family"], row["method"]] = tried.get((row["family"], row["method"]), 0) + 1
    every = {(family, method) for family in ("paper", "quern") for method in METHODS}
    assert tried == {key: 1 if key[1] == without_penalty(key[1]) else 2 for key in every}
    weights = read_lambdas(tmp_path / "l.toml")["digits"]
    assert all(weights[family].keys() == {m for m in METHODS if m != without_penalty(m)} for family in weights)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "imagenet"], "there is no data set imagenet"),
        (["--method", "none"], "there is no method with a weight none"),
        (["--method", "rqq"], "there is no method with a weight rqq"),
        (["--family", "real"], "there is no family with penalties real"),
        (["--trials", 0], "--trials is 0"),
        (["--epochs", 0], "--epochs is 0"),
        (["--images", 0], "--images is 0"),
        (["--images", 63], "a batch has 64"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(
    arguments: list[object], said: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("tune", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p.write_text("my notes"),
        lambda p: p.write_text("my notes\nof two lines\n"),
        lambda p: p.write_text("[1, 2]\n"),
        lambda p: p.write_text('{"a": 1}\n'),
        lambda p: p.write_bytes(b"\xff\xfe\x00\n\x01"),
        lambda p: p.write_text('{"op_code":0,"worker_id":"a"}\nmy notes'),
        lambda p: p.write_text('{"op_code":99,"worker_id":"a"}\n'),
        lambda p: p.write_text('{"op_code":0}\n'),
        lambda p: p.write_text("[" * 100_000 + "\n"),
        lambda p: p.mkdir(),
    ],
    ids=["line", "lines", "list", "object", "bytes", "notes after", "code", "worker", "deep", "folder"],
)
def test_what_is_no_journal_is_one_sentence_and_left_alone(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    said = refused("tune", "--method", "rq", *FEW, "--storage", path)
    assert f"{path} does not hold studies of Optuna" in said
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_damaged_file_of_weights_is_found_before_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = counted(monkeypatch)
    (tmp_path / "l.toml").write_text("[digits")
    said = refused("tune", *FEW, "--lambdas", tmp_path / "l.toml", "--storage", tmp_path / "j")
    assert "does not hold weights of penalties" in said
    assert tried == []


@pytest.mark.parametrize("option", ["--results", "--lambdas"])
def test_where_nothing_can_be_written_is_found_before_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tried = counted(monkeypatch)
    (tmp_path / "file").write_text("mine")
    assert f"choose another {option}" in refused("tune", *FEW, option, "file/deeper/x", "--storage", tmp_path / "j")
    assert tried == []
    (tmp_path / "results" / "digits").mkdir(parents=True, exist_ok=True)
    (tmp_path / "results" / "digits" / "tuning.json").write_text('{"trials": [{}]}')
    assert "does not hold trials of quern tune" in refused("tune", *FEW, "--storage", tmp_path / "j")
    assert tried == []
    assert not (tmp_path / "j").exists()
