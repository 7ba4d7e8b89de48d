"""``quern export``."""

import json
from pathlib import Path

import pytest
import torch

from quern import data, io
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
    assert "neither .onnx, .pt2 nor .qrn" in refused("export", run, tmp_path / "x.tflite")
    assert "--int8 is for .onnx" in refused("export", run, tmp_path / "x.pt2", "--int8")
    assert not list(tmp_path.iterdir())
