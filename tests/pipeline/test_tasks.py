"""``compress`` for tasks that are no classification of images."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quern
from quern.errors import Stopped, TrainingError
from quern.records import read_compression
from quern.report import write_run_report
from quern.train import evaluate, task_of
from tests.small_tasks import few_digits, same
from tests.tasks import mae, overlap, regression, segmentation, sequences
from tests.train.short_runs import Stop

SHORT: dict[str, Any] = {"epochs": 1, "grind": 2, "heal": 1, "lr": 1e-2}
REGRESSION: dict[str, Any] = {"loss": F.mse_loss, "metric": mae, "lower_is_better": True}


def test_a_regression_with_inputs_by_name_is_killed_and_resumed(no_onnx: None, tmp_path: Path) -> None:
    network, train, val = regression()
    whole = quern.compress(network, train, val, **REGRESSION, max_params=300, out=tmp_path / "whole", **SHORT)
    options: dict[str, Any] = {**REGRESSION, **SHORT, "max_params": 300, "out": tmp_path / "run"}
    with pytest.raises(Stopped, match="go on with resume=True"):
        quern.compress(network, train, val, **options, watchers=[Stop(8, 15)])
    again = quern.compress(network, train, val, **options, resume=True)
    same(again.small_network, whole.small_network)
    assert again.small.val_metric == whole.small.val_metric
    assert again.small.parameters <= 300
    batches = [((x["vector"], x["angle"]), y) for x, y in val]
    assert again.small.value == pytest.approx(evaluate(again.small_network, batches, task=task_of(F.mse_loss, mae))[1])
    assert "validation mae" in str(again)
    assert (again.chance, again.answers, again.small.val_accuracy) == (None, (), None)
    record = read_compression(tmp_path / "run" / "record.json")
    task = record["settings"].get("task")
    assert task == {"loss": "mse_loss", "metric": "mae", "lower_is_better": True}
    page = write_run_report(tmp_path / "run").read_text()
    assert "Validation mae" in page
    assert "accuracy" not in page
    with pytest.raises(TrainingError, match="was begun with other settings"):
        quern.compress(network, train, val, **{**options, "metric": F.l1_loss}, resume=True)


def test_a_u_net_segments_with_fewer_parameters(tmp_path: Path) -> None:
    network, train, val = segmentation()
    loss = F.binary_cross_entropy_with_logits
    done = quern.compress(network, train, val, loss=loss, metric=overlap, max_params=900, out=tmp_path / "run", **SHORT)
    assert done.small.parameters <= 900 < done.dense.parameters
    outputs = torch.cat([done.small_network(x) for x, _ in val])
    assert done.small.val_metric == pytest.approx(overlap(outputs, torch.cat([y for _, y in val])))
    for name in ("model.onnx", "model.qrn"):
        assert (tmp_path / "run" / "small" / name).exists()


def test_sequences_with_a_mask_are_classified(tmp_path: Path) -> None:
    network, train, val = sequences()
    done = quern.compress(network, train, val, max_params=300, out=tmp_path / "run", **SHORT)
    right = [(done.small_network(*x).argmax(1) == y).float() for x, y in val]
    assert done.small.val_accuracy == pytest.approx(float(torch.cat(right).mean()))
    assert done.small.parameters <= 300
    assert done.small.packed is not None
    assert "task" not in json.loads((tmp_path / "run" / "record.json").read_text())["settings"]


def test_what_may_be_lost_is_in_the_unit_of_the_metric(no_onnx: None) -> None:
    network, train, val = regression()
    done = quern.compress(network, train, val, **REGRESSION, max_drop=100.0, **SHORT)
    (verdict,) = done.verdicts()
    assert (verdict.what, verdict.limit, verdict.met) == ("validation mae lost", 100.0, True)
    assert verdict.value == pytest.approx(done.small.value - done.dense.value)


def test_without_a_budget_there_is_none_to_assume() -> None:
    network, train, val = regression()
    with pytest.raises(TrainingError, match=r"^there is no budget: say how much mae may be lost, max_drop=, or .*\.$"):
        quern.compress(network, train, val, **REGRESSION, **SHORT)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.states = nn.Embedding(8, 12), nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.states(self.words(tokens))[0] * mask.unsqueeze(-1)).sum(1))


def test_ordinary_networks_of_real_numbers_are_compressed_as_they_are(no_onnx: None, tmp_path: Path) -> None:
    """An LSTM by norms of its neurons, convolutions by the scales of their normalisations."""
    _, train, val = sequences()
    done = quern.compress(Words(), train, val, max_params=500, out=tmp_path / "words", **SHORT)
    conv = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    images = quern.compress(conv, few_digits(), max_params=3000, out=tmp_path / "images", **SHORT, batch=32)
    for one, name, limit, kind in ((done, "words", 500, "NeuronNorm"), (images, "images", 3000, "GammaL1")):
        assert one.small.parameters <= limit < one.dense.parameters
        assert 0 < one.small.neurons < one.dense.neurons
        assert one.small.packed is not None
        assert one.dense.packed is not None
        assert one.small.packed.bytes < one.dense.packed.bytes
        assert "compacted" in str(one)
        record = read_compression(tmp_path / name / "record.json")
        assert record["settings"]["small"]["penalty"][0]["kind"] == kind
    small: Any = done.small_network
    assert small.states.hidden_size < 16
    right = [(small(*x).argmax(1) == y).float() for x, y in val]
    assert done.small.val_accuracy == pytest.approx(float(torch.cat(right).mean()))
