"""Folders and files whose names are not UTF-8: everything works in them, and what is said of them is text."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from quern import data, io, models
from quern.data import _registry, _sources
from quern.errors import DataError
from quern.export import accuracy, to_int8, to_onnx, to_pt2
from tests.commands import here, refused

QUICK = ("--threads", 1, "--epochs", 1, "--heal", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / os.fsdecode(b"\xffer\xfe")
    try:
        found.mkdir()
    except OSError:
        pytest.skip("this file system takes no name that is not UTF-8")
    return found


def shown(path: Path) -> str:
    return str(path).replace("\udcff", r"\xff").replace("\udcfe", r"\xfe")


@pytest.mark.slow
def test_a_run_is_trained_shown_resumed_compacted_exported_and_timed(folder: Path) -> None:
    run = folder / "run"
    out, err = here("train", *QUICK, "--norm", "after_conv", "--out", run)
    assert f"in {shown(run)}" in err
    out, _ = here("show", run)
    assert shown(run) in out  # in the command
    here("train", "--resume", "--out", run, "--quiet")
    small = folder / "small.safetensors"
    out, _ = here("compact", run, "--out", small)
    assert f"{shown(small)}: " in out
    for name in ("it.onnx", "it.pt2"):
        out, _ = here("export", small, folder / name, "--json")
        assert json.loads(out)["file"] == shown(folder / name)
    here("export", small, folder / "int8.onnx", "--int8", "--calibration", 32)
    options = ("--repeats", 1, "--batch", 1, "--threads", 1)
    out, _ = here("bench", small, folder / "it.onnx", *options, "--out", folder / "bench.json")
    record = json.loads((folder / "bench.json").read_text("utf-8"))
    assert record["files"] == [shown(small), shown(folder / "it.onnx")]
    assert f"{shown(folder / 'none')} is not there" in refused("bench", folder / "none")


@pytest.mark.slow
def test_a_network_is_compressed_and_reported(folder: Path) -> None:
    run = folder / "run"
    options = ("--epochs", 1, "--grind", 1, "--heal", 1, "--threads", 1, "--max-neurons", 20)
    _, err = here("compress", *options, "--out", run)
    assert f"the report: {shown(run / 'report.html')}" in err
    assert shown(run) in (run / "report.html").read_bytes().decode()
    here("show", run)
    out, _ = here("report", run, "--out", folder / "page")
    assert out == f"{shown(folder / 'page' / 'report.html')}\n"
    assert shown(run) in (folder / "page" / "report.html").read_bytes().decode()
    here("compress", "--start", run / "small", *options[2:], "--quiet", "--out", folder / "again")


@pytest.mark.slow
def test_every_file_of_a_network(folder: Path) -> None:
    network, x = models.digits_qcnn().eval(), torch.randn(3, 1, 8, 8)
    io.save(network, folder / "net")
    labels = io.load(folder / "net")(x).argmax(1)
    to_pt2(network, folder / "net.pt2", x)
    to_onnx(network, folder / "net.onnx", x)
    assert accuracy(folder / "net.onnx", x, labels) == 1
    to_int8(folder / "net.onnx", folder / "int8.onnx", x)
    accuracy(folder / "int8.onnx", x, labels)
    assert sorted(path.name for path in folder.iterdir()) == ["int8.onnx", "net", "net.onnx", "net.pt2"]


def test_data_sets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder / os.fsdecode(b"mine\xff")
    for name in (b"a\xff", b"a\xfe", b"b"):
        (root / os.fsdecode(name)).mkdir(parents=True)
        for n in range(10):
            Image.new("RGB", (8, 8), (n, n, n)).save(root / os.fsdecode(name) / f"{n}.png")
    found = data.load(root)
    assert found.name == r"mine\xff"
    assert found.classes == (r"a\xfe", r"a\xff", "b")
    io.save(models.digits_qcnn(), folder / "net", images=found.about())
    assert io.describe(folder / "net")["images"]["classes"] == list(found.classes)
    np.savez(root / os.fsdecode(b"it\xff.npz"), images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) % 2)
    assert data.load(root / os.fsdecode(b"it\xff.npz")).name == r"it\xff"
    with pytest.raises(DataError, match=r"x\.npz cannot be read") as caught:
        data.npz(folder / "x.npz")
    assert "\udcff" in str(caught.value)  # a path to go on with, until it is shown
    monkeypatch.setenv("QUERN_DATA", str(folder / "cache"))
    arrays = {
        key: np.zeros((2, 1, 2, 2) if "images" in key else 2, np.uint8) for key in _registry.SOURCES["mnist"].sums
    }
    monkeypatch.setattr(_sources, "check", lambda arrays, *_: arrays)
    _sources._store("mnist", arrays)
    assert set(_sources.read_cache(_registry.SOURCES["mnist"])) == set(arrays)
    here("data", "list")


def test_a_run_on_such_data_goes_on(folder: Path) -> None:
    path = folder / os.fsdecode(b"it\xff.npz")
    images = np.random.RandomState(0).randint(0, 256, (60, 8, 8)).astype(np.uint8)
    np.savez(path, images=images, labels=np.arange(60) % 3)
    here("train", "--dataset", path, "--model", "digits_qcnn", *QUICK, "--quiet", "--out", folder / "run")
    here("train", "--resume", "--quiet", "--out", folder / "run")
    out, _ = here("show", folder / "run")
    assert shown(path) in out
    assert io.describe(folder / "run" / "model.safetensors")["images"]["name"] == r"it\xff"
