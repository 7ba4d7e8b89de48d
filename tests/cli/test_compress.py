"""``quern compress`` as a user runs it."""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from quern import io, runtime
from quern.cli._compress import _bytes, _penalty
from quern.errors import TrainingError
from tests.commands import Started, here, in_pair, refused

pytestmark = [pytest.mark.xdist_group("compress"), pytest.mark.slow]  # what they share takes long to make

SHORT = ["--epochs", 2, "--grind", 2, "--heal", 1, "--threads", 1]
BY_LAMBDA = [*SHORT, "--penalty", "gamma-beta", "--lambda", 8, "--lr", "0.01"]
FILES = {"history.jsonl", "result.json", "model.safetensors", "model.onnx"}


@pytest.fixture(scope="module")
def budget(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("runs") / "budget"
    return folder, *here("compress", *SHORT, "--max-params", 4000, "--out", folder)


@pytest.fixture(scope="module")
def by_lambda(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Without a budget, and quicker."""
    folder = tmp_path_factory.mktemp("runs") / "lambda"
    return folder, *here("compress", *BY_LAMBDA, "--out", folder, "--json", "--quiet")


def test_a_run_meets_its_budget_and_says_so(budget: tuple[Path, str, str]) -> None:
    folder, out, err = budget
    head, *rows = out.splitlines()
    assert head.split() == ["dense", "compacted", "ratio"]
    assert [row.split("  ")[0] for row in rows[:3]] == ["test accuracy", "its 95 % interval", "neurons"]
    assert rows[-1].startswith("parameters: ")
    assert rows[-1].endswith("asked for 4,000: met")
    assert "dense network: 2 epochs" in err
    assert "small network: 2 epochs to grind, 1 to heal" in err
    assert f"in {folder}: small/model.safetensors" in err
    record, config = (json.loads((folder / name).read_text()) for name in ("record.json", "config.json"))
    assert record["small"]["parameters"] <= 4000 < record["dense"]["parameters"]
    assert record["budget"][0]["met"] is True
    assert record["command"] == config["command"]
    assert config["budget"]["max_params"] == 4000
    for name in ("dense", "small"):
        assert {p.name for p in (folder / name).iterdir()} >= FILES
    assert record["images"] == io.describe(folder / "small" / "model.safetensors")["images"]
    report = (folder / "report.html").read_text("utf-8")
    assert ('<div class="live">' in report) == runtime.is_built()


@pytest.mark.parametrize("stage", ["dense", "small"])
def test_each_stage_is_shown_as_a_run_of_its_own(budget: tuple[Path, str, str], stage: str) -> None:
    folder = budget[0]
    result = json.loads((folder / stage / "result.json").read_text())
    shown, _ = here("show", folder / stage)
    assert shown.startswith(f"the {stage} network of quern compress")
    assert f"test accuracy {result['test_accuracy']:.2%}" in shown
    epochs = here("show", folder / stage, "--history")[0].splitlines()
    assert len(epochs) == len(shown.splitlines()) + len(result["history"])


def test_json_is_all_on_standard_output_and_quiet_is_quiet(by_lambda: tuple[Path, str, str]) -> None:
    folder, out, err = by_lambda
    assert err == ""
    record = json.loads((folder / "record.json").read_text())
    assert json.loads(out) == {
        key: record[key] for key in ("metric", "dense", "small", "budget", "chance", "answers", "scratch")
    }
    assert record["budget"] == []
    assert 0 < record["small"]["neurons"] < record["dense"]["neurons"]


def test_killed_at_a_random_moment_and_resumed_is_never_killed(
    by_lambda: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = Started("compress", *BY_LAMBDA, "--out", folder, "--quiet")
    while not (folder / "small" / "last.safetensors").exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(random.Random(1).uniform(0, 0.5))
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.ended()
    assert not (folder / "record.json").exists()
    here("compress", "--resume", "--out", folder, "--quiet")
    for name in ("dense", "small"):
        ours, theirs = (load_file(run / name / "model.safetensors") for run in (folder, by_lambda[0]))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_two_processes_write_and_speak_as_one(by_lambda: tuple[Path, str, str], tmp_path: Path) -> None:
    (code, out, err), second = in_pair("compress", *BY_LAMBDA, "--dropout", 0, "--out", tmp_path / "run")
    assert code == 0, err
    assert second == (0, "", "")
    assert out.startswith("  ")
    assert out.count("test accuracy") == 1
    assert err.count("dense network: 2 epochs") == err.count("in onnxruntime") == 1
    files, wanted = ({p.relative_to(run) for p in run.rglob("*")} for run in (tmp_path / "run", by_lambda[0]))
    assert files == wanted
    (code, out, err), second = in_pair("compress", "--max-neurons", 1, "--out", tmp_path / "other")
    assert (code, out, err.count("\n")) == (1, "", 3), err  # what it trains on, and why it does not
    assert "max_neurons is 1, but" in err
    assert second == (1, "", "")
    assert not (tmp_path / "other").exists()


def test_a_trained_network_is_where_it_starts_and_what_is_missed_is_said(
    budget: tuple[Path, str, str], tmp_path: Path
) -> None:
    out, _ = here(
        "compress",
        "--start",
        budget[0] / "dense",
        "--grind",
        0,
        "--heal",
        1,
        "--threads",
        1,
        "--max-params",
        1000,
        "--out",
        tmp_path / "run",
        code=4,
    )
    verdict = out.splitlines()[-1]
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    left = record["small"]["parameters"]
    assert verdict == f"parameters: {left:,}, asked for 1,000: missed by {left - 1000:,}"
    assert record["start"] == str(budget[0] / "dense")
    assert record["settings"]["dense"] is None
    ours, theirs = (load_file(run / "dense" / "model.safetensors") for run in (tmp_path / "run", budget[0]))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_the_folder_of_a_run_stands_for_its_small_network(budget: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, out, _ = budget
    shown, _ = here("show", folder)
    assert shown.startswith("quern compress --epochs 2")
    assert shown.endswith(out)  # the same table
    assert here("show", folder, "--history")[0].count("\nsmall: epoch") == 3
    here("compact", folder, "--out", tmp_path / "again.safetensors")
    small, again = (
        load_file(path) for path in (folder / "small" / "model.safetensors", tmp_path / "again.safetensors")
    )
    assert all(torch.equal(small[key], again[key]) for key in small)
    before = (folder / "config.json").read_text()
    assert "go on with quern compress --resume" in refused("train", "--resume", "--out", folder)
    assert "already holds a run" in refused("train", "--out", folder)
    assert (folder / "config.json").read_text() == before
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text(before)
    assert "go on with quern compress --resume" in refused("bench", tmp_path / "begun")
    assert "not finished; go on with: quern compress --resume" in here("show", tmp_path / "begun")[0]
    (tmp_path / "begun" / "record.json").write_text('{"command": "quern compress"}')
    assert "does not hold a run of quern compress" in refused("show", tmp_path / "begun")
    (tmp_path / "alone").mkdir()  # as records are kept
    (tmp_path / "alone" / "record.json").write_text((folder / "record.json").read_text())
    assert here("show", tmp_path / "alone", "--history") == here("show", folder, "--history")
    (tmp_path / "begun" / "record.json").unlink()
    (tmp_path / "begun" / "small").mkdir()
    first = (folder / "small" / "history.jsonl").read_text().splitlines()[0]
    (tmp_path / "begun" / "small" / "history.jsonl").write_text(first + "\n")
    assert "\nsmall: epoch 1/3 grind" in here("show", tmp_path / "begun")[0]
    assert "start from its folder dense or small" in refused("compress", "--start", folder, "--out", tmp_path / "new")


def test_the_folder_of_the_python_function_is_known_too(budget: tuple[Path, str, str], tmp_path: Path) -> None:
    """It says nothing of a command."""
    for name in ("config.json", "record.json"):
        content = json.loads((budget[0] / name).read_text())
        kept = {
            key: content[key]
            for key in content
            if key in ("environment", "settings", "dense", "small", "history", "layers", "answers")
        }
        (tmp_path / name).write_text(json.dumps(kept))
    assert here("show", tmp_path)[0].endswith(budget[1])
    before = (tmp_path / "config.json").read_text()
    assert "already holds a run" in refused("train", "--out", tmp_path)
    assert (tmp_path / "config.json").read_text() == before
    assert "go on with quern.compress(..., resume=True)" in refused("bench", tmp_path)


def test_bad_input_gets_one_sentence(budget: tuple[Path, str, str], tmp_path: Path) -> None:
    new = ("--out", tmp_path / "new")
    assert "a budget chooses λ" in refused("compress", "--max-params", 9, "--penalty", "rq", "--lambda", 1, *new)
    assert "a penalty needs its --lambda, or a budget" in refused("compress", "--penalty", "rq", *new)
    assert "--max-bytes is lots" in refused("compress", "--max-bytes", "lots", *new)
    assert "leave out --epochs" in refused("compress", "--start", budget[0] / "dense", "--epochs", 3, *new)
    assert "already holds a run" in refused("compress", *SHORT, "--out", budget[0])
    assert "leave out --epochs, --max-params" in refused(
        "compress", "--resume", "--out", budget[0], "--epochs", 9, "--max-params", 5
    )
    assert "does not hold a run of quern compress" in refused("compress", "--resume", "--out", tmp_path / "nowhere")
    assert not (tmp_path / "new").exists()


def test_a_mistake_that_shows_late_does_not_spoil_the_folder(tmp_path: Path) -> None:
    assert "heal is -1" in refused("compress", "--heal", -1, "--quiet", "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_zeros_are_weighed_by_cost_where_speed_is_asked_for() -> None:
    def powers(names: list[str] | None, by_cost: float | None, **limits: float) -> list[Any]:
        lambdas = None if limits else [1.0]
        terms = _penalty(names, lambdas, by_cost, {"min_speedup": None, **limits})
        return [] if terms is None else [term.get("by_cost") for term in terms]

    assert powers(["rq", "gamma"], None, min_speedup=2.0) == [0.5, None]
    assert powers(["rql"], 1.0, min_speedup=2.0) == [1.0]
    assert powers(["rql"], 0.0, min_speedup=2.0) == [None]
    assert powers(["rq"], None, max_params=9) == powers(["rq"], None) == [None]
    assert powers(["gamma"], None, min_speedup=2.0) == [None]
    assert powers(None, None, min_speedup=2.0) == []
    for names in (None, ["gamma"]):
        with pytest.raises(TrainingError, match="--by-cost is for a penalty of weights"):
            powers(names, 0.5, min_speedup=2.0)


def test_bytes_have_units() -> None:
    sizes = {text: _bytes("max_bytes", text) for text in ("65536", "64k", "64 K", "64kB", "1M", "0.5m", "10b")}
    assert list(sizes.values()) == [65536, 65536, 65536, 65536, 2**20, 2**19, 10]
    assert _bytes("max_bytes", None) is None
    for wrong in ("", "k", "-1", "1G", "1e3", "nan"):
        with pytest.raises(TrainingError, match=r"^--max-bytes is .*\.$"):
            _bytes("max_bytes", wrong)


def test_a_network_at_chance_ends_with_3_and_says_so(tmp_path: Path) -> None:
    """Steps too small to learn anything, and a limit that is missed besides. By luck a network that learnt nothing may
    seem better than chance; of this seed it does not."""
    folder = tmp_path / "run"
    options = ["--epochs", 1, "--grind", 1, "--heal", 1, "--lr", 1e-6, "--threads", 1, "--min-speedup", 1000]
    options += ["--seed", 2]
    out, err = here("compress", *options, "--out", folder, "--quiet", code=3)
    assert out == ""
    assert err.startswith("quern: the small network cannot be told from chance by 360 inputs: ")
    assert err.count("\n") == 1
    assert "told from chance" in here("show", folder)[0]
    record = json.loads((folder / "record.json").read_text())
    assert record["chance"] == {"largest_class": 44 / 360, "inputs": 360}
    assert record["small"]["test_accuracy"] < 0.2


def test_a_limit_that_is_missed_ends_with_4_and_says_so(tmp_path: Path) -> None:
    options = ["--epochs", 2, "--grind", 1, "--heal", 1, "--threads", 1, "--max-params", 900, "--max-drop", 0]
    out, err = here("compress", *options, "--out", tmp_path / "run", code=4)
    assert "points of test accuracy lost: " in out
    assert "missed by" in out
    assert "told from chance" not in out + err
    _, err = here("compress", "--resume", "--out", tmp_path / "run", "--quiet", code=4)
    assert err.startswith("quern: the budget was missed: points of test accuracy lost: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("limit", "least"), [("--max-params", "770"), ("--max-neurons", "12"), ("--max-bytes", "5,448")]
)
def test_a_budget_that_no_living_network_meets_is_refused(limit: str, least: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, err = here("compress", limit, 5, "--out", folder, "--quiet", code=1)
    assert f"the smallest network that can come of this one has {least}" in err
    assert err.count("\n") == 1
    assert not folder.exists()


def test_colour_images_of_ones_own_begin_with_a_small_network(tmp_path: Path) -> None:
    """What is not asked for follows from the images, and is written down; what is asked for stays."""
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(60) % 3)
    options = ["--dataset", tmp_path / "set.npz", "--epochs", 1, "--grind", 1, "--heal", 0, "--threads", 1]
    options += ["--width", 8, "--depth", 1, "--no-flip", "--max-drop", 99]
    here("compress", *options, "--out", tmp_path / "run", "--quiet", code=None)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"] == "small_qcnn"
    assert config["options"] == {"width": 8, "depth": 1}
    assert {name: config["stages"][name] for name in ("crop", "flip", "schedule", "ema", "lr")} == {
        "crop": 2,
        "flip": False,
        "schedule": "one-cycle",
        "ema": 0.999,
        "lr": 0.01,
    }
    assert config["stages"]["batch"] <= 60
