"""``quern compact``."""

import json
from pathlib import Path

import numpy as np
import torch

from quern import io
from tests.commands import here, refused


def test_a_compacted_network_is_a_smaller_file_with_the_same_scores(run: Path, small: Path) -> None:
    dense, compacted = io.load(run / "model.safetensors"), io.load(small)
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(compacted(x), dense(x), rtol=1e-5, atol=1e-5)
    assert io.describe(small)["parameters"] < io.describe(run / "model.safetensors")["parameters"]
    assert small.stat().st_size < (run / "model.safetensors").stat().st_size
    out, err = here("compact", run, "--out", run / "again.safetensors", "--json")
    assert "neurons 22 ->" in err
    result = json.loads(out)
    assert result["right"][0] == result["right"][1]
    assert result["classified_differently"] == 0
    assert result["neurons"][1] < result["neurons"][0] == 22


def test_a_file_that_takes_the_place_of_the_old_one(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((run / "model.safetensors").read_bytes())
    before = path.stat().st_size
    out, _ = here("compact", path, "--out", path, "--json")
    assert json.loads(out)["bytes"] == [before, path.stat().st_size]
    assert path.stat().st_size < before


def test_what_is_wrong_is_one_sentence(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", images=np.zeros((40, 6, 6), np.uint8), labels=np.arange(40) % 2)
    assert "takes images of" in refused("compact", run, "--dataset", tmp_path / "other.npz", "--out", tmp_path / "x")
    assert "--tol is -1.0" in refused("compact", run, "--tol", -1, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    refused("compact", run, "--out", tmp_path / "no" / "folder" / "x.safetensors")
