"""``quern train`` as a user runs it: killed and resumed, alone and in pairs."""

import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from quern.train import Result, checkpoint
from tests.cli.conftest import TRAIN
from tests.commands import Started, here, launched, quern, refused

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


SHARED = [*TRAIN, "--dropout", "0", "--crop", "1", "--flip"]  # by two processes


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "quern"]


def same_weights(first: Path, second: Path) -> None:
    for name in ("last.safetensors", "best.safetensors"):
        ours, theirs = (checkpoint.load(folder / name)[0] for folder in (first, second))
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert np.array_equal(value.numpy(), theirs[key].numpy()), (name, key)


def test_a_run_says_what_it_reached(straight: tuple[Path, str, str]) -> None:
    folder, out, err = straight
    result = Result.from_dict(json.loads((folder / "result.json").read_text()))
    assert json.loads(out)["test_accuracy"] == result.test_accuracy
    assert f"test accuracy {result.test_accuracy:.2%}" in err
    assert len(re.findall(r"^epoch \d/5 (?:grind|heal) .* left$", err, re.MULTILINE)) == 5
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["epochs"] == 3
    assert config["environment"]["torch"]
    assert config["sums"]


@pytest.mark.slow
def test_the_same_command_gives_the_same_weights(straight: tuple[Path, str, str], tmp_path: Path) -> None:
    out, err = quern("train", *TRAIN, "--out", tmp_path / "run", "--quiet")
    assert (out, err) == ("", "")
    same_weights(tmp_path / "run", straight[0])


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_is_never_killed(straight: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, moments = tmp_path / "run", random.Random(0)
    lines = (straight[0] / "history.jsonl").read_text().splitlines()
    epoch = min(json.loads(line)["seconds"] for line in lines)  # on this machine, so that it is killed in the middle
    kills = 0
    for attempt in range(40):
        resume = (folder / "config.json").exists()
        process = Started("train", *(["--resume"] if resume else TRAIN), "--out", folder)
        if attempt >= 5:
            assert process.ended()[0] == 0
            break
        before = (folder / "last.safetensors").stat().st_mtime_ns if (folder / "last.safetensors").exists() else 0
        while process.poll() is None:  # not before it trains again
            now = (folder / "last.safetensors").stat().st_mtime_ns if (folder / "last.safetensors").exists() else 0
            if now != before or (attempt == 0 and (folder / "config.json").exists()):
                break
            time.sleep(0.002)
        time.sleep(moments.uniform(0, epoch / 2))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.ended()
    assert kills >= 2
    same_weights(folder, straight[0])
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(
    straight: tuple[Path, str, str], tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    process = Started("train", *TRAIN, "--out", folder)
    while not (folder / "history.jsonl").exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(number)
    code, _, err = process.ended()
    assert code == 128 + number, err
    assert f"stopped by {number.name}" in err
    assert f"go on with: quern train --resume --out {folder}" in err
    assert "Traceback" not in err
    assert "not finished; go on with" in here("show", folder)[0]
    here("train", "--resume", "--out", folder)
    same_weights(folder, straight[0])


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_files(straight: tuple[Path, str, str], tmp_path: Path) -> None:
    """The system refuses to write more than 40,000 bytes to a file: enough for all but the checkpoint."""
    folder = tmp_path / "run"
    code, _, err = Started("train", *TRAIN, "--out", folder, "--quiet", largest_file=40_000).ended()
    assert code == 1
    assert err.count("\n") == 1, err
    assert "last.safetensors could not be written" in err
    assert "File too large" in err
    assert sorted(p.name for p in folder.iterdir()) == ["best.safetensors", "config.json"]
    here("train", "--resume", "--out", folder, "--quiet")
    same_weights(folder, straight[0])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    quern("train", *SHARED, "--out", folder, "--quiet", launcher=TORCHRUN)
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")  # what they share takes long to make
def test_two_processes_give_the_losses_of_one(pair: Path, tmp_path: Path) -> None:
    here("train", *SHARED, "--out", tmp_path / "one", "--quiet")
    one, two = (json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "one", pair))
    for ours, theirs in zip(one["history"], two["history"], strict=True):
        for key in ("loss", "val_loss", "penalty"):
            assert ours[key] == pytest.approx(theirs[key], rel=2e-3), (ours["epoch"], key)
        assert ours["quaternion_sparsity"] == pytest.approx(theirs["quaternion_sparsity"], abs=0.005)
    assert one["history"][0]["loss"] == pytest.approx(two["history"][0]["loss"], rel=1e-5)
    assert "trained by 2 processes" in refused("train", "--resume", "--out", pair, "--quiet")


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")  # what they share takes long to make
def test_a_lost_worker_ends_the_run_and_it_goes_on(pair: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = launched("train", *SHARED, "--out", folder, launcher=TORCHRUN)
    while not (folder / "history.jsonl").exists() and process.poll() is None:
        time.sleep(0.005)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in workers}
    workers = [pid for pid, command in names.items() if b"train" in command]
    assert len(workers) == 2
    os.kill(int(workers[-1]), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    done = len((folder / "history.jsonl").read_text().splitlines())
    assert 1 <= done < 5, err
    assert not list(folder.glob(".*")), "no half-written files"
    quern("train", "--resume", "--out", folder, "--quiet", launcher=TORCHRUN)
    same_weights(folder, pair)


def test_tensorboard_files_hold_the_history(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    here("train", "--epochs", "2", "--batch", "200", "--tensorboard", "--quiet", "--out", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "events"))
    events.Reload()
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    for key in ("loss", "val_accuracy", "quaternion_sparsity"):
        assert [e.step for e in events.Scalars(key)] == [1, 2]
        assert [e.value for e in events.Scalars(key)] == pytest.approx([line[key] for line in history], rel=1e-5)


@pytest.mark.slow
def test_folders_and_npz_files_train(tmp_path: Path) -> None:
    random_ = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for n in range(30):
            pixels = random_.integers(0, 255, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / name / f"{n}.png")
    options = ["--epochs", "1", "--batch", "16", "--json"]
    out, err = here("train", "--dataset", tmp_path / "set", "--image-size", "12", *options)
    assert "qresnet20" in err
    assert json.loads(out.splitlines()[-1])["sparsity"]["neurons"] > 0
    images = random_.integers(0, 255, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(60) % 3)
    out, err = here("train", "--dataset", tmp_path / "set.npz", "--model", "digits_qcnn", *options)
    assert "digits_qcnn" in err


def test_bad_input_gets_one_sentence(straight: tuple[Path, str, str], tmp_path: Path) -> None:
    assert "already holds a run" in refused("train", *TRAIN, "--out", straight[0])
    assert "leave out --epochs, --lambda" in refused(
        "train", "--resume", "--out", straight[0], "--epochs", "9", "--lambda", "1"
    )
    assert "does not hold the settings of a run" in refused("train", "--resume", "--out", tmp_path / "nowhere")
    assert "--resume needs the folder" in refused("train", "--resume")
    assert "each penalty needs its weight" in refused("train", "--penalty", "rq")
    assert "no penalty l3" in refused("train", "--penalty", "l3", "--lambda", "1")
    assert "not negative" in refused("train", "--penalty", "l1", "--lambda", "-1")
    assert "--norm after_conv" in refused("train", "--penalty", "gamma", "--lambda", "1")
    by_cost = ("--lambda", "1", "--by-cost", "0.5")
    assert "--by-cost is for a penalty of weights: --penalty l1 or" in refused("train", "--penalty", "gamma", *by_cost)
    assert "by_cost is 2.0, but it must be" in refused("train", "--penalty", "rq", "--lambda", 1, "--by-cost", 2)
    assert "no network vgg" in refused("train", "--model", "vgg")
    assert "does not take images of 1 x 8 x 8" in refused("train", "--model", "cifar_qcnn")
    assert "no data set" in refused("train", "--dataset", tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in refused("train", *TRAIN, "--out", tmp_path / "file" / "run")
    assert "seed is" in refused("train", *TRAIN, "--seed", 10**20)
    assert "at least one" in refused("train", "--threads", "0")
    assert "no epochs" in refused("train", "--epochs", "0")
    assert "File name too long" in refused("train", "--out", "x" * 300)
    early = tmp_path / "early"  # a mistake that shows late does not spoil the folder
    assert "no device warp" in refused("train", "--device", "warp", "--quiet", "--out", early)
    here("train", "--epochs", "1", "--quiet", "--out", early)


@pytest.mark.slow
def test_the_command_to_train_takes_tol(tmp_path: Path) -> None:
    common = ["--epochs", 1, "--penalty", "rq", "--lambda", 100, "--optimizer", "adam", "--ramp", 0, "--threads", 1]
    out, err = here("train", *common, "--tol", "0.01", "--out", tmp_path / "run", "--json")
    found = load_file(tmp_path / "run" / "model.safetensors")
    rows = np.concatenate([w.reshape(4, -1) for name, w in found.items() if name.endswith("weight")], 1)
    share = (np.abs(rows) <= 0.01).mean()
    assert json.loads(out)["sparsity"]["component_sparsity"] == share > 0
    assert f"up to 0.01: {share:.1%} of components" in err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["tol"] == 0.01
