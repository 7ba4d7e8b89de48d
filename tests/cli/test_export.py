"""``quern export``."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from quern import data, io, models, runtime
from quern.export import accuracy
from quern.runtime import format as qrn
from tests.commands import here, refused


@pytest.mark.slow
def test_raw_images_go_into_an_onnx_file_with_the_accuracy_of_the_network(run: Path, small: Path) -> None:
    out, _ = here("export", small, run / "small.onnx", "--pixels", "uint8", "--int8", "--calibration", 64, "--json")
    result = json.loads(out)
    test = data.digits().test
    assert result["int8_accuracy"] == accuracy(run / "small.onnx", test.pixels, test.labels)
    assert result["accuracy"] == pytest.approx(io.describe(small)["metrics"]["test_accuracy"], abs=1 / len(test))
    assert result["int8_bytes"] == (run / "small.onnx").stat().st_size
    out, _ = here("export", run, run / "model.pt2")
    assert str(run / "model.pt2") in out
    program = torch.export.load(run / "model.pt2").module()
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(program(x), io.load(run / "model.safetensors")(x), rtol=1e-4, atol=1e-4)


def test_what_is_wrong_is_one_sentence(run: Path, tmp_path: Path) -> None:
    assert "neither .onnx, .pt2, .html nor .qrn" in refused("export", run, tmp_path / "x.tflite")
    assert "--int8 is for .onnx" in refused("export", run, tmp_path / "x.pt2", "--int8")
    assert "--dtype is for .qrn and .html files" in refused("export", run, tmp_path / "x.onnx", "--dtype", "int8")
    assert "a page has images as bytes" in refused("export", run, tmp_path / "x.html", "--pixels", "float32")
    assert "cannot be written" in refused("export", run, tmp_path / "nowhere" / "x.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (None, "how its images are normalised: save it with images="),
        ({"mean": [0.1], "std": [0.3]}, "what images it takes: save it with images=."),
        ({"shape": [1, 8, 8]}, "how its images are normalised: save it with images="),
    ],
)
def test_a_page_needs_to_know_the_images(images: dict[str, Any] | None, said: str, tmp_path: Path) -> None:
    io.save(models.digits_qcnn(), tmp_path / "net.safetensors", images=images)
    assert said in refused("export", tmp_path / "net.safetensors", tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


@pytest.mark.skipif(not runtime.is_built(), reason="the C runtime was not built: no compiler")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_page_holds_the_packed_network(run: Path, tmp_path: Path, dtype: str) -> None:
    out, _ = here("export", run, tmp_path / "page.html", "--dtype", dtype, "--json")
    result = json.loads(out)
    assert result["file"] == str(tmp_path / "page.html")
    here("export", run, tmp_path / "net.qrn", "--pixels", "uint8", "--dtype", dtype)
    page = (tmp_path / "page.html").read_text("utf-8")
    found = re.search(r'<script type="application/json">(.*?)</script>', page)
    assert found is not None
    held = json.loads(found[1])
    assert [base64.b64decode(one) for one in held["networks"]] == [(tmp_path / "net.qrn").read_bytes()]
    assert (held["shape"], held["top"], held["classes"]) == ([1, 8, 8], 16, list("0123456789"))
    assert result["bytes"] == (tmp_path / "net.qrn").stat().st_size
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "net.qrn"}


@pytest.mark.slow
def test_a_folder_for_a_microcontroller(small: Path, tmp_path: Path) -> None:
    """It takes bytes, and says of the network what the file for the same runtime does."""
    device = tmp_path / "device"
    made = json.loads(here("export", small, device, "--mcu", "--dtype", "int8", "--calibration", 64, "--json")[0])
    options = ("--pixels", "uint8", "--dtype", "int8", "--calibration", 64, "--json")
    file = json.loads(here("export", small, tmp_path / "small.qrn", *options)[0])
    same = ("bytes", "arena", "least_arena", "ram", "accuracy", "layers")
    assert {name: made[name] for name in same} == {name: file[name] for name in same}
    network = runtime.load(tmp_path / "small.qrn")
    assert network.ram == made["ram"] == made["device_arena"] + qrn.STACK
    first = data.digits().test.pixels[:1]
    assert made["image_class"] == int(network(first.numpy()).argmax())
    words = re.findall(r"0x([0-9a-f]{8})", (device / "network.c").read_text())
    assert b"".join(int(word, 16).to_bytes(4, "little") for word in words) == (tmp_path / "small.qrn").read_bytes()
    assert "const uint8_t image[64]" in (device / "network.c").read_text()
    assert f"make -C {tmp_path / 'again'} host" in here("export", small, tmp_path / "again", "--mcu")[0]
    before = sorted(path.name for path in tmp_path.iterdir())
    assert "something in it; give another folder" in refused("export", small, device, "--mcu")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_is_wrong_with_a_folder_is_one_sentence(run: Path, tmp_path: Path) -> None:
    new, file = tmp_path / "new", tmp_path / "file"
    file.write_text("mine")
    assert "it is no folder" in refused("export", run, file, "--mcu")
    assert "there is no folder" in refused("export", run, new / "deeper", "--mcu")
    assert "the name of a file" in refused("export", run, tmp_path / "x.qrn", "--mcu")
    assert "say --dtype int8" in refused("export", run, new, "--mcu", "--int8")
    own = tmp_path / "own.safetensors"  # of a network that says nothing of its images
    io.save(models.digits_qcnn(), own)
    _, said = here("export", own, new, "--mcu", code=1)
    assert said.splitlines()[-1] == "quern: --mcu needs an image to put in the folder: say --dataset."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "own.safetensors"]
    assert file.read_text() == "mine"
