"""``quern compact``, ``quern export`` and ``quern bench`` as a user runs them, on one small run."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from quern import data, io
from quern.errors import NotFiniteWarning, QuernError, QuernWarning
from quern.export import accuracy, to_onnx
from tests.commands import here, refused


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ["--norm", "after_conv", "--penalty", "gamma-beta", "--lambda", 4, "--ramp", 0, "--lr", 1e-2]
    here("train", *options, "--epochs", 6, "--heal", 1, "--threads", 1, "--quiet", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def small(run: Path) -> Path:
    out, _ = here("compact", run, "--out", run / "small.safetensors")
    assert "0 of them are classified differently" in out
    return run / "small.safetensors"


def test_a_compacted_network_is_a_smaller_file_with_the_same_scores(run: Path, small: Path) -> None:
    dense, compacted = io.load(run / "model.safetensors"), io.load(small)
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(compacted(x), dense(x), rtol=1e-5, atol=1e-5)
    assert io.describe(small)["parameters"] < io.describe(run / "model.safetensors")["parameters"]
    assert small.stat().st_size < (run / "model.safetensors").stat().st_size
    out, err = here("compact", run, "--out", run / "again.safetensors", "--json")
    assert "neurons 22 ->" in err
    found = json.loads(out)
    assert found["right"][0] == found["right"][1]
    assert found["classified_differently"] == 0
    assert found["neurons"][1] < found["neurons"][0] == 22


def test_raw_images_go_into_an_onnx_file_with_the_accuracy_of_the_network(run: Path, small: Path) -> None:
    out, _ = here("export", small, run / "small.onnx", "--pixels", "uint8", "--int8", "--calibration", 64, "--json")
    found = json.loads(out)
    test = data.digits().test
    assert found["int8_accuracy"] == accuracy(run / "small.onnx", test.pixels, test.labels)
    assert found["accuracy"] == pytest.approx(io.describe(small)["metrics"]["test_accuracy"], abs=1 / len(test))
    assert found["int8_bytes"] == (run / "small.onnx").stat().st_size
    out, _ = here("export", run, run / "model.pt2")
    assert str(run / "model.pt2") in out
    program = torch.export.load(run / "model.pt2").module()
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(program(x), io.load(run / "model.safetensors")(x), rtol=1e-4, atol=1e-4)


def test_bench_compares_a_run_with_itself_compacted(run: Path) -> None:
    options = ("--batch", 1, "--threads", 1, "--repeats", 2)
    out, _ = here("bench", run, *options, "--out", run / "bench.json")
    assert "dense" in out
    assert "compacted" in out
    record = json.loads((run / "bench.json").read_text())
    first, second = record["models"]
    assert first["name"] == "dense"
    for what in ("parameters", "macs", "file_bytes", "onnx_bytes"):
        assert second[what] < first[what], what
    assert {(t["model"], t["engine"]) for t in record["timings"]} == {
        (name, engine) for name in ("dense", "compacted") for engine in ("torch", "onnxruntime")
    }
    for timing in record["timings"]:
        assert 0 < timing["low_ms"] <= timing["median_ms"] <= timing["high_ms"]
        assert timing["images_per_second"] == pytest.approx(1000 / timing["median_ms"])
    assert 10e6 < first["onnx_peak_bytes"] < first["torch_peak_bytes"]


def test_what_is_wrong_is_one_sentence(run: Path, tmp_path: Path) -> None:
    assert "is not there" in refused("bench", tmp_path / "none.safetensors")
    assert "holds no model.safetensors" in refused("compact", tmp_path, "--out", tmp_path / "x")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.json").write_text("{}")
    assert f"give one, such as {tmp_path}/runs/first." in refused("bench", tmp_path / "runs")
    (tmp_path / "config.json").write_text("{}")
    assert "not finished" in refused("export", tmp_path, tmp_path / "x.onnx")
    assert "neither .onnx nor .pt2" in refused("export", run, tmp_path / "x.tflite")
    assert "--int8 is for .onnx" in refused("export", run, tmp_path / "x.pt2", "--int8")
    assert "takes images of" in refused("compact", run, "--dataset", _other(tmp_path), "--out", tmp_path / "x")
    assert not list(tmp_path.glob("x*"))
    (tmp_path / "broken.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-1])
    refused("bench", tmp_path / "broken.safetensors")
    refused("compact", run, "--out", tmp_path / "no" / "folder" / "x.safetensors")
    assert "--tol is -1.0" in refused("compact", run, "--tol", -1, "--out", tmp_path / "x")
    assert "cannot be written" in refused("bench", run, "--out", tmp_path / "no" / "x.json")
    assert "is a file" in refused("show", run / "model.safetensors")


def test_a_device_is_refused_before_any_work(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.safetensors"  # so whatever is said of the device is said first
    for name in ("device.onnx", "device.pt2", "device"):
        (tmp_path / name).symlink_to("/dev/null")
    said = "cannot be written: it is not a regular file; give another file"
    assert said in refused("export", nothing, tmp_path / "device.onnx")
    assert said in refused("export", nothing, tmp_path / "device.pt2")
    assert said in refused("compact", nothing, "--out", tmp_path / "device")
    assert said in refused("bench", nothing, "--out", tmp_path / "device")
    assert "it is a folder" in refused("compact", nothing, "--out", tmp_path)
    assert [path.readlink() for path in tmp_path.iterdir()] == [Path("/dev/null")] * 3


def test_numbers_that_are_not_finite_are_said_by_every_command(run: Path, tmp_path: Path) -> None:
    network, about = io.load(run / "model.safetensors"), io.describe(run / "model.safetensors")
    next(value for name, value in network.state_dict().items() if name.endswith("running_var"))[0] = torch.nan
    path = tmp_path / "model.safetensors"
    with pytest.warns(NotFiniteWarning):
        io.save(network, path, images=about["images"])
    said = f"quern: warning: {path} holds NaN or infinity in 1 of {len(network.state_dict())} tensors, the first is "
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
        assert first.startswith(said)
        assert first.endswith("so train it again.")
        assert not any(line.startswith(said) for line in rest)
        assert "Warning" not in err


def test_every_warning_of_quern_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    class OtherWarning(QuernWarning):
        pass

    def show(*_: object) -> None:
        warnings.warn("it is [bold]late.", OtherWarning, stacklevel=1)
        raise QuernError("it is over.")

    monkeypatch.setattr("quern.cli._show.begun", lambda run: {})
    monkeypatch.setattr("quern.cli._show._show_compressed", show)
    for _ in range(2):
        assert here("show", tmp_path, code=1) == ("", "quern: warning: it is [bold]late.\nquern: it is over.\n")
    assert not recwarn


def _other(folder: Path) -> Path:
    import numpy as np

    path = folder / "other.npz"
    np.savez(path, images=np.zeros((40, 6, 6), np.uint8), labels=np.arange(40) % 2)
    return path


def test_an_onnx_file_must_take_the_images_of_the_others(run: Path, tmp_path: Path) -> None:
    to_onnx(torch.nn.Conv2d(3, 2, 1), tmp_path / "colour.onnx", torch.randn(2, 3, 8, 8))
    said = refused("bench", run, tmp_path / "colour.onnx", "--repeats", 1)
    assert "takes images of 3 x 8 x 8, but the others take 1 x 8 x 8" in said


def test_images_are_normalised_as_the_network_knows_them(run: Path, tmp_path: Path) -> None:
    """Not by the mean of whatever they are shown with: half as bright, they are another thing to a network."""
    import numpy as np

    digits = data.digits()
    train, test = ((part.pixels * (255 // 16) // 2).numpy() for part in (digits.train, digits.test))
    labels, test_labels = (part.labels.numpy() for part in (digits.train, digits.test))
    np.savez(tmp_path / "dim.npz", images=train, labels=labels, test_images=test, test_labels=test_labels)
    network, about = io.load(run / "model.safetensors"), io.describe(run / "model.safetensors")["images"]
    x = torch.from_numpy(test).float() / 255
    with torch.no_grad():
        scores = network((x - about["mean"][0]) / about["std"][0])
    right = int((scores.argmax(1) == digits.test.labels).sum())
    out, _ = here("compact", run, "--dataset", tmp_path / "dim.npz", "--out", tmp_path / "x.safetensors", "--json")
    assert json.loads(out)["right"][0] == right
    out, _ = here("export", run, tmp_path / "x.onnx", "--dataset", tmp_path / "dim.npz", "--json")
    assert json.loads(out)["accuracy"] == right / len(digits.test)
    assert right < 0.98 * len(digits.test)  # else this would say nothing
    said = refused("export", run, tmp_path / "y.onnx", "--dataset", tmp_path / "dim.npz", "--pixels", "uint8")
    assert "white is 16 in the images of the network and 255 in those of dim" in said


def test_a_dead_network_is_said_and_written_all_the_same(run: Path, tmp_path: Path) -> None:
    network, about = io.load(run / "model.safetensors"), io.describe(run / "model.safetensors")
    with torch.no_grad():
        next(network.parameters()).zero_()
    path = tmp_path / "dead.safetensors"
    io.save(network, path, images=about["images"])
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
        said = [line for line in err.splitlines() if "dead" in line]
        assert said == [f"quern: warning: {wanted}"], err
    assert (tmp_path / "small.safetensors").exists()
    out, err = here("compact", run, "--out", tmp_path / "living.safetensors")
    assert "is dead" not in out + err


def test_a_file_that_takes_the_place_of_the_old_one(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((run / "model.safetensors").read_bytes())
    before = path.stat().st_size
    out, _ = here("compact", path, "--out", path, "--json")
    assert json.loads(out)["bytes"] == [before, path.stat().st_size]
    assert path.stat().st_size < before
