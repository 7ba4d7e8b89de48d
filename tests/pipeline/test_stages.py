"""What the stages write, and a run that is stopped in any of them."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quern
from quern import io, runtime
from quern.errors import ExportError, Stopped, TrainingError
from quern.export import open_session
from quern.penalties import GammaL1
from quern.pipeline import Compressed
from quern.records import Answers, read_compression
from tests.pipeline.conftest import SHORT
from tests.small_tasks import Own, same
from tests.train.short_runs import Stop

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ

BY_LAMBDA: dict[str, Any] = {**SHORT, "penalty": GammaL1(30.0, with_beta=True), "ramp": 0.0, "grind": 2}


@pytest.mark.xdist_group("pipeline")
def test_all_its_files_hold_the_same_networks(
    run: tuple[Path, Compressed, nn.Module], loaders: tuple[Any, ...]
) -> None:
    folder, found, _ = run
    x, labels = next(iter(loaders[2]))
    right: dict[str, Tensor] = {}
    for name, network, column in (
        ("dense", found.dense_network, found.dense),
        ("small", found.small_network, found.small),
    ):
        with torch.no_grad():
            scores = network(x)
            again = io.load(folder / name / "model.safetensors", Own())(x)
        torch.testing.assert_close(again, scores, rtol=0, atol=0)
        (onnx,) = open_session(folder / name / "model.onnx").run(None, {"image": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(onnx), scores, rtol=1e-4, atol=1e-5)
        assert column.test_accuracy == pytest.approx(float((scores.argmax(1) == labels).double().mean()))
        right[name] = scores.argmax(1) == labels
        assert column.bytes == (folder / name / "model.safetensors").stat().st_size
        assert column.onnx_bytes == (folder / name / "model.onnx").stat().st_size
        packed = runtime.load(folder / name / "model.qrn")
        assert column.packed is not None
        assert (column.packed.bytes, column.packed.ram) == (packed.bytes, packed.ram)
        assert column.latency_ms > 0
    total, only_dense = Answers.total(found.answers), right["dense"] & ~right["small"]
    assert (total.inputs, total.only_dense) == (len(labels), int(only_dense.sum()))
    for one in found.answers:
        mine = labels == int(one.name)
        assert (one.inputs, one.only_dense) == (int(mine.sum()), int((mine & only_dense).sum()))


@pytest.mark.xdist_group("pipeline")
def test_the_table_and_the_record(run: tuple[Path, Compressed, nn.Module]) -> None:
    folder, found, _ = run
    head, *lines = str(found).splitlines()
    assert head.split() == ["dense", "compacted", "ratio"]
    assert lines[1].startswith("its 95 % interval ")
    for bound, accuracy in zip(re.findall(r"(\S+) to (\S+)", lines[1]), (found.dense, found.small), strict=False):
        assert float(bound[0]) <= 100 * accuracy.value <= float(bound[1])
    assert f"{found.dense.parameters:,}" in lines[3]
    assert f"{found.dense.parameters / found.small.parameters:.1f}x" in lines[3]
    assert lines[11].endswith(": met")
    assert " ".join(line.strip() for line in lines[12:]) == found.useless  # after so few steps
    record = json.loads((folder / "record.json").read_text())
    assert {key: record[key] for key in found.to_dict()} == found.to_dict()
    read = read_compression(folder / "record.json")
    assert (read["dense"], read["small"], read.get("answers")) == (found.dense, found.small, found.answers)
    assert "its 95 % interval" not in str(dataclasses.replace(found, answers=()))  # of a record that does not say
    assert record["settings"]["budget"]["max_params"] == 1200
    assert record["settings"]["small"]["epochs"] == 1
    assert record["environment"]["torch"]
    assert [len(record["history"][name]) for name in ("dense", "small")] == [2, 3]
    layers = {layer["name"]: layer for layer in record["layers"]}
    assert layers["first"]["dense"] == 4
    assert sum(layer["small"] for layer in layers.values()) == found.small.neurons < found.dense.neurons


@pytest.mark.slow
@pytest.mark.usefixtures("no_onnx")
def test_stopped_in_any_stage_and_resumed_is_never_stopped(
    loaders: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = quern.compress(Own(), *loaders, **BY_LAMBDA)
    assert 0 < straight.small.neurons < straight.dense.neurons
    assert straight.verdicts() == ()
    with pytest.raises(Stopped, match="go on with resume=True"):
        quern.compress(Own(), *loaders, **BY_LAMBDA, out=tmp_path, watchers=[Stop(3, 15)])
    assert not (tmp_path / "small").exists()
    with pytest.raises(Stopped, match="go on with resume=True"):  # 7 steps of the dense network, 5 + 4 of the small one
        quern.compress(Own(), *loaders, **BY_LAMBDA, out=tmp_path, resume=True, watchers=[Stop(16, 2)])
    assert not (tmp_path / "small" / "result.json").exists()

    def fail(network: nn.Module, path: Path, example: Tensor) -> None:
        raise ExportError("no room.")

    with monkeypatch.context() as patch:
        patch.setattr("quern.pipeline._stages.to_onnx", fail)
        with pytest.raises(ExportError):
            quern.compress(Own(), *loaders, **BY_LAMBDA, out=tmp_path, resume=True)
    assert (tmp_path / "small" / "result.json").exists()
    assert not (tmp_path / "record.json").exists()
    found = quern.compress(Own(), *loaders, **BY_LAMBDA, out=tmp_path, resume=True)
    same(found.dense_network, straight.dense_network)
    same(found.small_network, straight.small_network)
    assert (tmp_path / "record.json").exists()


class Asked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.often = nn.Linear(256, 10), 0

    def forward(self, x: Tensor) -> Tensor:
        self.often += 1
        return self.layer(x.flatten(1))


@pytest.mark.usefixtures("no_onnx")
def test_a_teacher_teaches_both_networks(loaders: tuple[Any, ...], tmp_path: Path) -> None:
    teacher = Asked().train()
    options: dict[str, Any] = {**SHORT, "epochs": 1, "grind": 1, "heal": 1, "max_params": 10**6}
    quern.compress(Own(), *loaders, **options, out=tmp_path, teacher=teacher)
    assert teacher.training
    assert teacher.often == 0  # a copy of it is asked
    settings = json.loads((tmp_path / "record.json").read_text())["settings"]
    assert settings["dense"]["distill"] == settings["small"]["distill"] == 0.5
    assert len(settings["teacher"]) == 64
    with pytest.raises(TrainingError, match="begun with other settings"):
        quern.compress(Own(), *loaders, **options, out=tmp_path, teacher=Asked(), resume=True)


@pytest.mark.slow
@pytest.mark.usefixtures("no_onnx")
def test_a_trained_network_is_not_trained_again(loaders: tuple[Any, ...], tmp_path: Path) -> None:
    net = Own()
    found = quern.compress(
        net, *loaders, **{**SHORT, "epochs": 0, "heal": 0, "distill": 0.5}, max_params=10**6, out=tmp_path
    )
    same(found.dense_network, net)
    assert found.dense.seconds == 0
    assert found.small.parameters == found.dense.parameters
    assert json.loads((tmp_path / "record.json").read_text())["settings"]["dense"] is None
