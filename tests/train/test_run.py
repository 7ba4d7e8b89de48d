"""The training loop: seeded, resumable, watched; and what it says when something goes wrong."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from quern import compress, io
from quern import nn as qnn
from quern.data import Images, ImageSet
from quern.errors import TrainingError
from quern.penalties import L1, RQ, RQL, GammaL1
from quern.train import Epoch, Result, Settings, checkpoint, evaluate, fit
from tests.train.short_runs import COMPACTING, SHORT, Stop, build

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


def test_a_run_has_its_phases_zeros_files_and_result(images: ImageSet, tmp_path: Path) -> None:
    model = build(norm="after_conv")
    settings = dataclasses.replace(SHORT, epochs=4, heal=2, penalty=RQL(10.0) + GammaL1(0.05))
    result = fit(model, images, settings, tmp_path / "run")
    history = result.history
    assert [line.phase for line in history] == ["warmup"] + ["grind"] * 4 + ["heal"] * 2
    assert [line.epoch for line in history] == list(range(1, 8))
    assert history[0].quaternion_sparsity == 0
    assert history[4].quaternion_sparsity > 0.01
    zeros = [line.component_sparsity for line in history[4:]]
    assert zeros[0] == zeros[1] == zeros[2] == result.sparsity.component_sparsity
    assert history[0].loss > history[-1].loss
    assert not model.training
    with torch.no_grad():
        scores = model(images.normalize(images.test.pixels))
    assert float((scores.argmax(1) == images.test.labels).double().mean()) == pytest.approx(result.test_accuracy)
    assert result.best_epoch in (6, 7)
    assert result.val_accuracy == max(line.val for line in history[5:])
    files = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert files == ["best.safetensors", "history.jsonl", "last.safetensors", "model.safetensors", "result.json"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert lines == [line.to_dict() for line in history]
    assert Result.from_dict(json.loads((tmp_path / "run" / "result.json").read_text())) == result
    tensors, _ = checkpoint.load(tmp_path / "run" / "best.safetensors")
    torch.testing.assert_close({k.removeprefix("model."): v for k, v in tensors.items()}, dict(model.state_dict()))
    loaded = io.load(tmp_path / "run" / "model.safetensors")
    torch.testing.assert_close(loaded(images.normalize(images.test.pixels)), scores, rtol=0, atol=0)
    about = io.describe(tmp_path / "run" / "model.safetensors")
    assert about["metrics"]["test_accuracy"] == result.test_accuracy
    assert about["images"]["shape"] == [1, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["proximal-adam", "proximal-sgd"])
def test_what_dies_is_removed_while_training(images: ImageSet, tmp_path: Path, optimizer: Any) -> None:
    settings = dataclasses.replace(COMPACTING, optimizer=optimizer, lr=1e-2 if optimizer == "proximal-adam" else 1e-1)
    model = build(norm="after_conv")
    before = sum(p.numel() for p in model.parameters())
    result = fit(model, images, settings, tmp_path)
    sizes = [line.parameters or 0 for line in result.history]
    assert sizes[0] == sizes[1] == before
    assert sizes == sorted(sizes, reverse=True)
    assert sum(p.numel() for p in model.parameters()) == sizes[-1] < before
    left = [line.neurons_left for line in result.history]
    assert left[-1] == result.sparsity.neurons_left < result.sparsity.neurons == 14
    assert result.sparsity.parameters == before
    assert 0 < result.history[-1].neuron_sparsity == result.sparsity.neuron_sparsity
    small = io.load(tmp_path / "model.safetensors")
    x = images.normalize(images.test.pixels)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=0)


@pytest.mark.slow
def test_compacting_does_not_change_the_steps_before_it(images: ImageSet) -> None:
    """The first compaction is before epoch 3; neurons that died with their β change nothing in training either, as
    long as the others do not let them come back."""
    plain = fit(build(norm="after_conv"), images, dataclasses.replace(COMPACTING, compact_every=0))
    compacted = fit(build(norm="after_conv"), images, COMPACTING)
    for a, b in zip(plain.history[:2], compacted.history[:2], strict=True):
        assert a.loss == b.loss
        assert a.penalty == b.penalty
    assert compacted.history[2].loss == pytest.approx(plain.history[2].loss, rel=0.1)
    assert compacted.history[2].penalty == pytest.approx(plain.history[2].penalty, rel=0.1)


def test_a_network_that_cannot_be_compacted_says_so_at_once(images: ImageSet) -> None:
    model = nn.Sequential(build(norm="after_conv")[:6], nn.LocalResponseNorm(3), build()[4:])
    with pytest.raises(
        TrainingError, match=r"no rule for 1 \(LocalResponseNorm\), so .* compact it then with keep_unknown=True\.$"
    ):
        fit(model, images, COMPACTING)
    with pytest.raises(TrainingError, match=r"no rule for 1 \(LocalResponseNorm\)"):
        compress(model, images)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "after_conv"])
@pytest.mark.parametrize("optimizer", ["proximal-adam", "adam"])
def test_test_images_that_are_looked_at_every_epoch_change_nothing(
    images: ImageSet, tmp_path: Path, norm: Any, optimizer: Any
) -> None:
    """Not with other images and labels, nor with none looked at: every weight, choice and other number is the same."""
    settings = dataclasses.replace(SHORT, epochs=3, heal=2, optimizer=optimizer, curves=True)
    if optimizer == "proximal-adam":
        settings = dataclasses.replace(settings, compact_every=1)
    torch.manual_seed(7)
    noise = Images(torch.randint_like(images.test.pixels, 17), images.test.labels.flip(0))
    given = {
        "right": (images, settings),
        "wrong": (dataclasses.replace(images, test=noise), settings),
        "without": (images, dataclasses.replace(settings, curves=False)),
    }
    networks, histories, bests, tests = {}, {}, {}, {}
    for name, (data, how) in given.items():
        model = build(norm=norm)
        result = fit(model, data, how, tmp_path / name)
        networks[name], bests[name] = model.state_dict(), (result.best_epoch, result.val_accuracy, result.sparsity)
        tests[name] = [line.test_accuracy for line in result.history]
        left_out = ("seconds", "images_per_second", "peak_memory_mb", "test_accuracy", "compacted_neurons")
        histories[name] = [{k: v for k, v in line.to_dict().items() if k not in left_out} for line in result.history]
        if how.curves:
            assert tests[name][result.best_epoch - 1] == result.test_accuracy
            assert all(line.compacted_neurons for line in result.history)
    for name in ("wrong", "without"):
        assert histories[name] == histories["right"]
        assert bests[name] == bests["right"]
        torch.testing.assert_close(networks[name], networks["right"], rtol=0, atol=0)
    assert tests["wrong"] != tests["right"]
    assert tests["without"] == [None] * 6


def test_a_history_line_has_what_a_reader_wants(images: ImageSet) -> None:
    settings = dataclasses.replace(SHORT, warmup=0, heal=0, epochs=1, penalty=RQ(0.5))
    model = build()
    line = fit(model, images, settings).history[0]
    assert line.penalty == pytest.approx(float(RQ(0.5)(model).detach()))
    assert line.strength == 1
    assert line.lr == settings.lr
    assert line.images_per_second == pytest.approx(320 / line.seconds, rel=0.5)
    assert line.peak_memory_mb is not None
    assert line.peak_memory_mb > 50
    loss, accuracy = evaluate(model, [(images.normalize(images.val.pixels), images.val.labels)])
    assert (line.val_loss, line.val_accuracy) == (pytest.approx(loss), accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["proximal-adam", "proximal-sgd", "adam"])
def test_the_same_settings_give_the_same_weights(images: ImageSet, optimizer: Any) -> None:
    settings = dataclasses.replace(SHORT, optimizer=optimizer, crop=1, flip=True, label_smoothing=0.1)
    runs = []
    for noise in (1, 2):
        model = build(norm="after_conv")
        torch.manual_seed(noise)  # what else has drawn numbers does not matter
        fit(model, images, settings)
        runs.append(model.state_dict())
    for name in runs[0]:
        assert torch.equal(runs[0][name], runs[1][name]), name
    other = build(norm="after_conv")
    fit(other, images, dataclasses.replace(settings, seed=1))
    assert not torch.equal(other.get_parameter("0.weight"), runs[0]["0.weight"])


def test_training_does_not_disturb_the_callers_random_numbers(images: ImageSet) -> None:
    model = build()
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    fit(model, images, dataclasses.replace(SHORT, warmup=0, heal=0, epochs=1))
    assert torch.equal(torch.rand(3), wanted)


def test_divergence_names_the_place_and_the_checkpoint(images: ImageSet, tmp_path: Path) -> None:
    model = build()
    settings = dataclasses.replace(SHORT, penalty=None, warmup=0, epochs=3, heal=0)

    class Break(Stop):
        def epoch(self, line: Epoch) -> None:
            if line.epoch == 2:
                model.get_parameter("0.weight").data.fill_(math.nan)

    with pytest.raises(TrainingError, match=r"loss is nan in epoch 3, step 1: .*last\.safetensors \(2 epochs done\)"):
        fit(model, images, settings, tmp_path, watchers=[Break(-1, 0)])
    tensors, _ = checkpoint.load(tmp_path / "last.safetensors")
    assert all(torch.isfinite(t).all() for t in tensors.values())

    class Spoil(Stop):
        """Weights that are not finite after the last step of an epoch, whose loss was."""

        def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
            if (epoch, step) == (2, steps):
                spoilt.get_parameter("0.weight").data[0, 0] = math.inf

    spoilt = build()
    with pytest.raises(TrainingError, match=r"epoch 2, step 10: .*\(1 epoch done\)"):
        fit(spoilt, images, settings, tmp_path / "spoilt", watchers=[Spoil(-1, 0)])
    for name in ("last", "best"):
        tensors, _ = checkpoint.load(tmp_path / "spoilt" / f"{name}.safetensors")
        assert all(torch.isfinite(t).all() for t in tensors.values())
    with pytest.raises(TrainingError, match=r"diverged; there is no checkpoint yet"):
        fit(build(), images, dataclasses.replace(settings, lr=1e9, optimizer="proximal-sgd"))


def test_best_of_a_run_that_ends_grinding_is_its_last_epoch(images: ImageSet) -> None:
    result = fit(build(), images, dataclasses.replace(SHORT, heal=0, epochs=3))
    assert result.best_epoch == 4


def test_adam_follows_the_gradient_of_the_penalty(images: ImageSet) -> None:
    """The paper's way: small weights, no exact zeros."""
    strong = dataclasses.replace(SHORT, optimizer="adam", penalty=L1(50.0), warmup=0, heal=0, epochs=3)
    model = build()
    result = fit(model, images, strong)
    assert result.sparsity.component_sparsity < 0.01
    free = build()
    fit(free, images, dataclasses.replace(strong, penalty=None))
    assert model.get_parameter("2.weight").abs().mean() < 0.8 * free.get_parameter("2.weight").abs().mean()


def test_healing_without_dropout(images: ImageSet) -> None:
    model = build(dropout=0.5)
    dropout = next(layer for layer in model if isinstance(layer, qnn.QDropout))
    modes = set()

    class See(Stop):
        def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
            modes.add((phase, dropout.training))

    fit(model, images, dataclasses.replace(SHORT, heal=2, heal_dropout=False), watchers=[See(-1, 0)])
    assert modes == {("warmup", True), ("grind", True), ("heal", False)}


def test_bfloat16_trains(images: ImageSet) -> None:
    result = fit(build(), images, dataclasses.replace(SHORT, precision="bfloat16", epochs=4))
    assert result.val > 0.5


@pytest.mark.parametrize("tol", [0.0, 1e-3, 0.05])
def test_a_training_reports_zeros_up_to_tol(tol: float, images: ImageSet, tmp_path: Path) -> None:
    how = Settings(epochs=2, penalty=RQ(100.0), optimizer="adam", batch=64, lr=5e-3, ramp=0.0, tol=tol)
    result = fit(build(), images, how, tmp_path / "run")
    found = load_file(tmp_path / "run" / "model.safetensors")
    rows = np.concatenate([w.reshape(4, -1) for name, w in found.items() if name.endswith("weight")], 1)
    zero, gone = np.abs(rows) <= tol, np.sqrt((rows.astype(np.float64) ** 2).sum(0)) <= tol
    assert result.sparsity.component_sparsity == result.history[-1].component_sparsity == zero.mean()
    assert result.sparsity.quaternion_sparsity == result.history[-1].quaternion_sparsity == gone.mean()
    assert result.sparsity.tol == tol
    assert (zero.mean() > 0) == (tol > 0)
    assert (rows == 0).sum() == 0  # nothing was changed in the network


@pytest.mark.parametrize("optimizer", ["proximal-adam", "proximal-sgd", "adam"])
def test_quaternions_are_weighed_by_their_costs_while_training(images: ImageSet, optimizer: Any) -> None:
    """The penalty of a step is that of the weighed network, whichever optimizer takes it."""
    settings = dataclasses.replace(SHORT, epochs=1, heal=0, warmup=0, optimizer=optimizer, penalty=RQ(8.0, by_cost=1.0))
    weighed, plain = build(), build()
    line = fit(weighed, images, settings).history[-1]
    fit(plain, images, dataclasses.replace(settings, penalty=RQ(8.0)))
    assert settings.penalty is not None
    found = settings.penalty.weighed(weighed, images.normalize(images.train.pixels[:1]))(weighed)
    assert line.penalty == pytest.approx(found.item(), rel=1e-6)
    first = [float(model.get_parameter("0.weight").detach().norm(dim=0).sum()) for model in (weighed, plain)]
    assert first[0] < first[1]  # applied at 36 positions, where the linear layer is applied once
