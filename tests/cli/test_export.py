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
    assert "a page has images as bytes" in refused("export", run, tmp_path / "x.html", "--pixels", "float32")
    assert "cannot be written" in refused("export", run, tmp_path / "nowhere" / "x.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (None, "how its images are normalised: save it with images=."),
        ({"mean": [0.1], "std": [0.3]}, "what images it takes: save it with images=."),
        ({"shape": [1, 8, 8]}, "how its images are normalised: save it with images=."),
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
