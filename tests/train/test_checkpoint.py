"""Checkpoints: every bit counts, and a training goes on from nothing but its own."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from quern import data, io, models
from quern.data import ImageSet
from quern.errors import Stopped, TrainingError
from quern.io.tensorfile import head_of, kinds_of, write_tensors
from quern.penalties import RQL, GammaL1
from quern.train import Settings, checkpoint, fit
from tests.train.short_runs import Stop

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ

SETTINGS = Settings(epochs=2, heal=3, penalty=RQL(30.0) + GammaL1(20.0), lr=0.02, batch=16, compact_every=1)
Damage = Callable[[dict[str, Tensor], dict[str, Any]], object]


@pytest.fixture(scope="module")
def images() -> ImageSet:
    digits = data.load("digits")
    some = data.Images(digits.train.pixels[:48].contiguous(), digits.train.labels[:48].contiguous())
    return replace(digits, train=some, val=some, test=some)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return models.digits_qcnn(widths=(8, 8), norm="after_conv")


@pytest.fixture(scope="module")
def stopped(images: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the second epoch of healing: with a plan, masks, and a best network that may stay the best."""
    folder = tmp_path_factory.mktemp("checkpoint") / "run"
    with pytest.raises(Stopped):
        fit(network(), images, SETTINGS, folder, watchers=[Stop(10, 15)])
    tensors, state = checkpoint.load(folder / "last.safetensors")
    assert state["plan"]["layers"]
    assert (state["epoch"], state["step"]) == (3, 1)
    assert any(name.startswith("frozen.") for name in tensors)
    return folder


def refused(folder: Path, images: ImageSet) -> str:
    """The sentence, with all files as they were."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(TrainingError) as caught:
        fit(network(), images, SETTINGS, folder, resume=True)
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    assert str(folder) in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    return said


def write(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """As somebody would who knows the format."""
    with path.open("wb") as file:
        write_tensors(file, head_of(kinds_of(tensors), json.dumps(state)), tensors)


@pytest.mark.slow
def test_a_flipped_bit_is_found_anywhere(stopped: Path, tmp_path: Path, images: ImageSet) -> None:
    whole = (stopped / "last.safetensors").read_bytes()
    path, chance = tmp_path / "last.safetensors", random.Random(0)
    for place in [0, 8 * len(whole) - 1, *(chance.randrange(8 * len(whole)) for _ in range(400))]:
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(TrainingError):
            checkpoint.load(path)
    for name in ("last", "best"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(stopped, tmp_path / "run")
        content = bytearray((stopped / f"{name}.safetensors").read_bytes())
        content[-5] ^= 1  # of a weight, or of what the optimizer keeps
        (tmp_path / "run" / f"{name}.safetensors").write_bytes(content)
        assert "its checksum is wrong" in refused(tmp_path / "run", images)


def test_a_checkpoint_without_a_checksum_is_refused(stopped: Path, tmp_path: Path, images: ImageSet) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    tensors, state = checkpoint.load(stopped / "last.safetensors")
    save_file(tensors, tmp_path / "run" / "last.safetensors", {"quern": json.dumps(state)})
    assert "it has no checksum; begin again in another folder." in refused(tmp_path / "run", images)


def test_other_files_are_no_checkpoints(stopped: Path, tmp_path: Path, images: ImageSet) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    path = tmp_path / "run" / "last.safetensors"
    io.save(network(), path)
    assert "settings is missing" in refused(tmp_path / "run", images)
    save_file({"a": torch.ones(1)}, path)
    assert "is not a checkpoint of quern" in refused(tmp_path / "run", images)
    path.write_text("")
    assert "it is empty" in refused(tmp_path / "run", images)


def first(tensors: dict[str, Tensor], part: str) -> str:
    """By name: the order of tensors in a file is another each time."""
    return min(name for name in tensors if part in name)


def drop(part: str) -> Damage:
    return lambda tensors, state: tensors.pop(first(tensors, part))


def put(part: str, change: Callable[[Tensor], Tensor]) -> Damage:
    return lambda tensors, state: tensors.update({(name := first(tensors, part)): change(tensors[name])})


def add(name: str, value: Tensor) -> Damage:
    return lambda tensors, state: tensors.update({name: value})


def state(**changed: Any) -> Damage:
    return lambda tensors, state: state.update(changed)


def line(**changed: Any) -> Damage:
    return lambda tensors, state: state["history"][-1].update(changed)


def flatter(value: Tensor) -> Tensor:
    return value.reshape(1, -1)


def forgotten(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.startswith("optimizer.0.")]:
        del tensors[name]


def spread(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    next(iter(state["plan"]["layers"].values()))["outputs"] = {"of": 9, "keep": "0-2000000000"}


WRONG: dict[str, tuple[Damage, str]] = {
    "no weight": (drop("model."), "another network than this one: .* is missing"),
    "another weight": (add("model.x", torch.ones(1)), "x is not one of its tensors"),
    "weight of another shape": (put("model.", flatter), "another network than this one: .*, but should be"),
    "weight of another type": (put("model.", Tensor.double), "torch.float64"),
    "weight that is no number": (put("model.", lambda t: t * float("nan")), "is not finite"),
    "no moment": (drop("exp_avg_sq"), "the optimizer's .*exp_avg_sq is missing"),
    "no state of a parameter": (forgotten, r"the optimizer's 0\.step is missing"),
    "moment of another shape": (put("exp_avg_sq", flatter), "the optimizer's .* is .*, but should be"),
    "moment of another type": (put("exp_avg", Tensor.half), "the optimizer's .*float16"),
    "no steps": (put(".step", torch.zeros_like), "step is 0"),
    "steps that are none": (put(".step", lambda t: t * float("nan")), "step is nan"),
    "moment of nothing": (add("optimizer.0.x", torch.ones(1)), r"keeps no 0\.x"),
    "moments of a parameter too many": (state(moved=[99]), "there is no parameter 99"),
    "mask of nothing": (add("frozen.x", torch.ones(1).bool()), "there is no parameter x"),
    "mask of another shape": (put("frozen.", flatter), "the mask of .*, but should be"),
    "mask of another type": (put("frozen.", Tensor.float), "the mask of .*float32"),
    "epoch beyond the last": (state(epoch=6), "epoch 6 of 5"),
    "epoch as text": (state(epoch="3"), "epoch is .*, but should be a whole number"),
    "negative step": (state(step=-1), "step is -1"),
    "step beyond the last": (state(step=4), "step 4 of 3"),
    "no time": (state(seconds=0.0), "steps that took no time"),
    "no history": (state(history=[]), "0 lines of history for 3 epochs"),
    "history of another epoch": (line(epoch=7), "history of other epochs"),
    "history of another phase": (line(phase="train"), "history of other epochs"),
    "a share beyond 1": (line(neuron_sparsity=1.5), r"history\[2\]\.neuron_sparsity is 1\.5"),
    "no best": (state(best=None), "best epoch"),
    "best to come": (state(best={"epoch": 4, "val_accuracy": 0.5}), "best epoch that was not yet"),
    "plan of nothing": (state(plan={"layers": {"x": {"kind": "QLinear"}}}), "not of this training"),
    "plan a text": (state(plan="0-3"), "plan is"),
    "plan of too much": (spread, "plans of more than"),
    "infinite strength": (state(strength=1e999), "strength is Infinity"),
    "costs below zero": (state(costs={"0.weight": -1.0}), r"costs\.0\.weight is -1\.0"),
    "other settings": (lambda tensors, state: state["settings"].update(lr=0.5), "other settings: lr differ"),
    "several processes": (state(processes=2), "trained by 2 processes"),
    "no processes": (state(processes=None), "processes is null"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_checkpoint_that_is_not_of_this_training_is_refused(
    name: str, stopped: Path, tmp_path: Path, images: ImageSet
) -> None:
    damage, wanted = WRONG[name]
    shutil.copytree(stopped, folder := tmp_path / "run")
    tensors, state = checkpoint.load(stopped / "last.safetensors")
    damage(tensors, state)
    write(folder / "last.safetensors", tensors, state)
    assert re.search(wanted, said := refused(folder, images)), said


@pytest.mark.parametrize("damage", [drop("model."), put("model.", flatter), state(settings={})])
def test_a_best_network_that_is_not_of_this_training_is_refused(
    damage: Damage, stopped: Path, tmp_path: Path, images: ImageSet
) -> None:
    shutil.copytree(stopped, folder := tmp_path / "run")
    tensors, about = checkpoint.load(stopped / "best.safetensors")
    damage(tensors, about)
    write(folder / "best.safetensors", tensors, about)
    refused(folder, images)
    (folder / "best.safetensors").unlink()
    assert "best.safetensors is not there" in refused(folder, images)


def test_what_killed_runs_left_is_swept_on_resume(stopped: Path, tmp_path: Path, images: ImageSet) -> None:
    shutil.copytree(stopped, folder := tmp_path / "run")
    ours = [".history.jsonl.a1b2c3d4.tmp", ".result.json.a1b2c3d4.tmp", ".model.onnx.x_y_z_00.tmp"]
    ours += [".last.safetensors.a1b2c3d4.tmp", ".model.safetensors.a1b2c3d4.tmp", ".config.json.a1b2c3d4.tmp"]
    theirs = [".notes.a1b2c3d4.tmp", "history.jsonl.tmp", ".history.jsonl", ".a.history.jsonl.b.tmp"]
    for name in (*ours, *theirs):
        (folder / name).write_text("half a file")
    fit(network(), images, SETTINGS, folder, resume=True)
    names = {path.name for path in folder.iterdir()}
    assert not names & set(ours)
    assert set(theirs) <= names
