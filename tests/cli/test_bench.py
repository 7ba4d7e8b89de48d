"""``quern bench``."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from quern.bench.machine import machine
from quern.export import to_onnx
from tests.commands import here, refused


@pytest.mark.slow
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
        (name, engine) for name in ("dense", "compacted") for engine in ("torch", "onnxruntime", "quern_rt")
    }
    for timing in record["timings"]:
        assert 0 < timing["low_ms"] <= timing["median_ms"] <= timing["high_ms"]
        assert timing["images_per_second"] == pytest.approx(1000 / timing["median_ms"])
    assert 10e6 < first["onnx_peak_bytes"] < first["torch_peak_bytes"]


@pytest.mark.slow
def test_bytes_of_a_file_are_those_of_the_file(run: Path, small: Path) -> None:
    out, _ = here("bench", run, small, "--batch", 1, "--threads", 1, "--repeats", 1, "--json")
    files = (run / "model.safetensors", small)
    assert [model["file_bytes"] for model in json.loads(out)["models"]] == [file.stat().st_size for file in files]


def test_an_onnx_file_must_take_the_images_of_the_others(run: Path, tmp_path: Path) -> None:
    to_onnx(torch.nn.Conv2d(3, 2, 1), tmp_path / "colour.onnx", torch.randn(2, 3, 8, 8))
    sentence = refused("bench", run, tmp_path / "colour.onnx", "--repeats", 1)
    assert "takes images of 3 x 8 x 8, but the others take 1 x 8 x 8" in sentence


def test_what_is_wrong_is_one_sentence(run: Path, tmp_path: Path) -> None:
    assert "is not there" in refused("bench", tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-1])
    refused("bench", tmp_path / "broken.safetensors")
    assert "cannot be written" in refused("bench", run, "--out", tmp_path / "no" / "x.json")


def test_the_machine_is_shown_in_a_short_table() -> None:
    lines = here("bench", "--machine")[0].splitlines()
    assert [line.split("  ")[0].strip() for line in lines if line.strip()] == [
        "processor",
        "vector instructions",
        "training kernels in C",
        "C runtime",
        "torch",
        "quern",
    ]
    assert torch.__version__ in lines[4]


def test_the_machine_as_json() -> None:
    facts = json.loads(here("bench", "--machine", "--json")[0])
    assert facts == json.loads(json.dumps(asdict(machine())))
    assert facts["threads"] == torch.get_num_threads()


def test_the_machine_is_not_timed(run: Path, tmp_path: Path) -> None:
    assert "--machine times nothing" in refused("bench", run, "--machine")
    assert "--machine times nothing" in refused("bench", "--machine", "--out", tmp_path / "x.json")
    assert "say which networks to time, or --machine" in refused("bench")
