"""Networks from files, for all commands that take one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from quern import data, io
from quern.errors import NotFiniteWarning
from tests.commands import here, refused


def test_a_folder_without_a_network_is_one_sentence(tmp_path: Path) -> None:
    assert "holds no model.safetensors" in refused("compact", tmp_path, "--out", tmp_path / "x")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.json").write_text("{}")
    assert f"give one, such as {tmp_path}/runs/first." in refused("bench", tmp_path / "runs")
    (tmp_path / "config.json").write_text("{}")
    assert "not finished" in refused("export", tmp_path, tmp_path / "x.onnx")
    assert not list(tmp_path.glob("x*"))


def test_numbers_that_are_not_finite_are_said_by_every_command(run: Path, tmp_path: Path) -> None:
    network, header = io.load(run / "model.safetensors"), io.describe(run / "model.safetensors")
    next(value for name, value in network.state_dict().items() if name.endswith("running_var"))[0] = torch.nan
    path = tmp_path / "model.safetensors"
    with pytest.warns(NotFiniteWarning):
        io.save(network, path, images=header["images"])
    sentence = (
        f"quern: warning: {path} holds NaN or infinity in 1 of {len(network.state_dict())} tensors, the first is "
    )
    for command in (
        ("compact", path, "--out", tmp_path / "small"),
        ("compact", path, "--out", tmp_path / "small"),  # once in every command, not once in a process
        ("export", path, tmp_path / "it.onnx"),
        ("export", path, tmp_path / "it.pt2"),
        ("bench", path, path, "--repeats", 1, "--batch", 1, "--threads", 1),
        ("compress", "--start", path, "--grind", 1, "--heal", 1, "--quiet", "--out", tmp_path / "out"),
    ):
        _, err = here(*command, code=None)  # some go on, some cannot
        first, *rest = err.splitlines()
        assert first.startswith(sentence)
        assert first.endswith("so train it again.")
        assert not any(line.startswith(sentence) for line in rest)
        assert "Warning" not in err


@pytest.mark.slow
def test_images_are_normalised_as_the_network_knows_them(run: Path, tmp_path: Path) -> None:
    """Not by the mean of whatever they are shown with: half as bright, they are another thing to a network."""
    digits = data.digits()
    train, test = ((part.pixels * (255 // 16) // 2).numpy() for part in (digits.train, digits.test))
    labels, test_labels = (part.labels.numpy() for part in (digits.train, digits.test))
    np.savez(tmp_path / "dim.npz", images=train, labels=labels, test_images=test, test_labels=test_labels)
    network, known = io.load(run / "model.safetensors"), io.describe(run / "model.safetensors")["images"]
    x = torch.from_numpy(test).float() / 255
    with torch.no_grad():
        scores = network((x - known["mean"][0]) / known["std"][0])
    right = int((scores.argmax(1) == digits.test.labels).sum())
    out, _ = here("compact", run, "--dataset", tmp_path / "dim.npz", "--out", tmp_path / "x.safetensors", "--json")
    assert json.loads(out)["right"][0] == right
    out, _ = here("export", run, tmp_path / "x.onnx", "--dataset", tmp_path / "dim.npz", "--json")
    assert json.loads(out)["accuracy"] == right / len(digits.test)
    assert right < 0.98 * len(digits.test)  # else this would say nothing
    sentence = refused("export", run, tmp_path / "y.onnx", "--dataset", tmp_path / "dim.npz", "--pixels", "uint8")
    assert "white is 16 in the images of the network and 255 in those of dim" in sentence


@pytest.mark.slow
def test_a_dead_network_is_said_and_written_all_the_same(run: Path, tmp_path: Path) -> None:
    network, header = io.load(run / "model.safetensors"), io.describe(run / "model.safetensors")
    with torch.no_grad():
        next(network.parameters()).zero_()
    path = tmp_path / "dead.safetensors"
    io.save(network, path, images=header["images"])
    wanted = (
        "the network is dead: its output does not depend on its input; train it with a weaker penalty, or remove less."
    )
    for command in (
        ("compact", path, "--out", tmp_path / "small.safetensors"),
        ("export", path, tmp_path / "dead.pt2"),
        ("export", path, tmp_path / "dead.onnx", "--int8", "--calibration", 64),
        ("bench", path, "--batch", 1, "--threads", 1, "--repeats", 1),
    ):
        _, err = here(*command)
        lines = [line for line in err.splitlines() if "dead" in line]
        assert lines == [f"quern: warning: {wanted}"], err
    assert (tmp_path / "small.safetensors").exists()
    out, err = here("compact", run, "--out", tmp_path / "living.safetensors")
    assert "is dead" not in out + err
