"""The training loop: seeded, resumable, watched; and what it says when something goes wrong."""

import dataclasses
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from quern import compress, io, models
from quern import nn as qnn
from quern._files import claimed
from quern.data import Images, ImageSet, digits
from quern.errors import TrainingError
from quern.optim import ProximalAdam
from quern.penalties import L1, RQ, RQL, GammaL1, Penalty
from quern.train import Epoch, Loaders, Result, Settings, augment, checkpoint, derived_seed, evaluate, fit
from tests.commands import quern

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


@pytest.fixture(scope="module")
def images() -> ImageSet:
    """The first few hundred digits."""
    whole = digits()
    part = Images(whole.train.pixels[:320], whole.train.labels[:320])
    return dataclasses.replace(whole, train=part, val=Images(whole.val.pixels[:100], whole.val.labels[:100]))


def build(seed: int = 0, **options: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    return models.digits_qcnn(widths=(8, 8), **options)


SHORT = Settings(epochs=2, heal=1, warmup=1, penalty=RQL(8.0), batch=32, lr=5e-3, ramp=0.0)


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
    assert result.val_accuracy == max(line.val_accuracy for line in history[5:])
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


COMPACTING = Settings(
    epochs=5, heal=2, penalty=GammaL1(8.0, with_beta=True), batch=32, lr=1e-2, ramp=0.0, compact_every=2
)


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


@pytest.mark.parametrize("steps", [[11], [22], [23, 18, 12]], ids=str)
@pytest.mark.parametrize("penalty", [COMPACTING.penalty, RQ(100.0, by_cost=0.5)], ids=str)
def test_a_compacting_run_is_resumed_bit_for_bit(
    images: ImageSet, tmp_path: Path, steps: list[int], penalty: Penalty
) -> None:
    settings = dataclasses.replace(COMPACTING, penalty=penalty)
    straight = build(norm="after_conv")
    whole = sum(p.numel() for p in straight.parameters())
    fit(straight, images, settings)
    assert sum(p.numel() for p in straight.parameters()) < whole
    for count in steps:
        with pytest.raises(TrainingError, match="stopped by"):
            fit(build(norm="after_conv"), images, settings, tmp_path, count != steps[0], [Stop(count, 15)])
    model = build(2, norm="after_conv")
    fit(model, images, settings, tmp_path, resume=True)
    torch.testing.assert_close(dict(model.state_dict()), dict(straight.state_dict()), rtol=0, atol=0)


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


def test_a_run_that_was_not_weighed_goes_on_weighed_by_nothing_else(images: ImageSet, tmp_path: Path) -> None:
    fit(build(), images, dataclasses.replace(SHORT, epochs=1), tmp_path)
    weighed = dataclasses.replace(SHORT, epochs=1, penalty=RQL(8.0, by_cost=0.5))
    with pytest.raises(TrainingError, match="trained with other settings: penalty differ"):
        fit(build(), images, weighed, tmp_path, resume=True)


def test_a_network_that_cannot_be_compacted_says_so_at_once(images: ImageSet) -> None:
    model = nn.Sequential(build(norm="after_conv")[:6], nn.GroupNorm(2, 8), build()[4:])
    with pytest.raises(
        TrainingError, match=r"no rule for 1 \(GroupNorm\), so .* compact it then with keep_unknown=True\.$"
    ):
        fit(model, images, COMPACTING)
    with pytest.raises(TrainingError, match=r"no rule for 1 \(GroupNorm\)"):
        compress(model, images)


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


def test_a_checkpoint_from_before_a_setting_was_there_goes_on(images: ImageSet, tmp_path: Path) -> None:
    whole = fit(build(), images, SHORT, tmp_path)
    for name in ("last", "best"):
        tensors, state = checkpoint.load(tmp_path / f"{name}.safetensors")
        del state["settings"]["curves"]
        checkpoint.save(tmp_path / f"{name}.safetensors", tensors, state)
    assert fit(build(), images, SHORT, tmp_path, resume=True).test_accuracy == whole.test_accuracy
    with pytest.raises(TrainingError, match="other settings: curves differ"):
        fit(build(), images, dataclasses.replace(SHORT, curves=True), tmp_path, resume=True)


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


class Stop:
    """A watcher that sends a signal to this process after some steps."""

    def __init__(self, after: int, signal: int) -> None:
        self.left, self.signal = after, signal

    def start(self, settings: Settings, epoch: int, steps: int) -> None: ...

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signal)

    def epoch(self, line: Epoch) -> None: ...

    def end(self) -> None: ...


@pytest.mark.parametrize("optimizer", ["proximal-adam", "proximal-sgd", "adam"])
@pytest.mark.parametrize("steps", [[1], [10], [13, 9, 12]], ids=str)
def test_stopped_anywhere_and_resumed_is_never_stopped(
    images: ImageSet, tmp_path: Path, steps: list[int], optimizer: Any
) -> None:
    settings = dataclasses.replace(
        SHORT, penalty=RQL(8.0) + GammaL1(0.2), crop=1, optimizer=optimizer, heal_dropout=False
    )
    straight = build(norm="after_conv")
    wanted = fit(straight, images, settings, tmp_path / "straight")
    for n, after in enumerate(steps):
        with pytest.raises(
            TrainingError, match=r"stopped by SIG(TERM|INT): epoch \d, step \d+ of 10; go on with resume=True"
        ):
            fit(build(norm="after_conv"), images, settings, tmp_path / "run", n > 0, [Stop(after, (15, 2)[n % 2])])
    model = build(seed=7, norm="after_conv")  # whatever the weights were
    result = fit(model, images, settings, tmp_path / "run", resume=True)
    for name, value in straight.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    timing: dict[str, Any] = {"seconds": 0.0, "images_per_second": None, "peak_memory_mb": None}
    for ours, theirs in zip(result.history, wanted.history, strict=True):
        assert dataclasses.replace(ours, **timing) == dataclasses.replace(theirs, **timing)
    last = [checkpoint.load(tmp_path / run / "last.safetensors")[0] for run in ("run", "straight")]
    assert last[0].keys() == last[1].keys()
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_a_finished_run_can_be_resumed_to_its_result(images: ImageSet, tmp_path: Path) -> None:
    model = build()
    result = fit(model, images, SHORT, tmp_path)
    other = build(seed=3)
    (tmp_path / ".last.safetensors.abc.tmp").write_text("half a file, left by a kill")
    (tmp_path / "history.jsonl").write_text("")
    again = fit(other, images, SHORT, tmp_path, resume=True)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 4
    assert not list(tmp_path.glob(".*"))
    assert again == result
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_resume_refuses_what_does_not_fit(images: ImageSet, tmp_path: Path) -> None:
    fit(build(), images, SHORT, tmp_path)
    with pytest.raises(TrainingError, match="already holds a run"):
        fit(build(), images, SHORT, tmp_path)
    with pytest.raises(TrainingError, match="other settings: lr differ"):
        fit(build(), images, dataclasses.replace(SHORT, lr=1e-3), tmp_path, resume=True)
    with pytest.raises(TrainingError, match="another network"):
        fit(models.digits_qcnn(), images, SHORT, tmp_path, resume=True)
    with pytest.raises(TrainingError, match="no run to resume"):
        fit(build(), images, SHORT, tmp_path / "nowhere", resume=True)
    (tmp_path / ".last.safetensors.abc.tmp").write_text("what the other one is writing")
    with claimed(tmp_path), pytest.raises(TrainingError, match="another training is at"):
        fit(build(), images, SHORT, tmp_path, resume=True)
    assert (tmp_path / ".last.safetensors.abc.tmp").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("the settings of the first one")
    with claimed(other), pytest.raises(TrainingError, match="another training is at"):
        fit(build(), images, SHORT, other, about={"lr": 1.0})
    assert (other / "config.json").read_text() == "the settings of the first one"
    (tmp_path / "last.safetensors").write_bytes((tmp_path / "last.safetensors").read_bytes()[:-100])
    with pytest.raises(TrainingError, match="not a file of quern, or is damaged"):
        fit(build(), images, SHORT, tmp_path, resume=True)


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


def test_a_folder_that_cannot_be_written(images: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"could not be written \(Not a directory\)"):
        fit(build(), images, SHORT, tmp_path / "file" / "run")


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


def test_schedules() -> None:
    settings = Settings(warmup=2, epochs=4, heal=3, penalty=RQ(1.0), ramp=0.5, lr=0.1, heal_lr=0.01)
    assert [settings.phase(e) for e in (0, 2, 5, 6, 8)] == [
        ("warmup", 0, 2),
        ("grind", 0, 4),
        ("grind", 3, 4),
        ("heal", 0, 3),
        ("heal", 2, 3),
    ]
    assert [settings.strength_at(e, s, 10) for e, s in ((0, 0), (1, 9), (2, 0), (2, 9), (3, 9), (5, 9), (6, 0))] == [
        *(0, 0, 0.05, 0.5, 1, 1, 0)
    ]
    assert [settings.lr_at(e, 0.5) for e in (0, 3, 5)] == [0.1] * 3
    assert settings.lr_at(6, 0.0) == 0.01
    assert settings.lr_at(7, 0.5) == pytest.approx(0.005)
    assert settings.lr_at(8, 1.0) == pytest.approx(0, abs=1e-12)
    constant = dataclasses.replace(settings, schedule="constant")
    assert constant.lr_at(8, 1.0) == 0.01
    plain = Settings(epochs=4, lr=0.1)
    assert plain.phase(0)[0] == "train"
    assert plain.lr_at(2, 0.0) == pytest.approx(0.05)
    assert plain.strength_at(2, 3, 10) == 0
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": 0, "heal": 0, "warmup": 0}, "no epochs"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"heal_lr": -1.0}, "heal_lr is -1"),
        ({"ramp": 1.5}, "ramp is 1.5"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1"),
        ({"weight_decay": -1.0}, "weight_decay is -1"),
        ({"crop": -1}, "crop is -1"),
        ({"compact_every": -1}, "compact_every is -1"),
        ({"compact_every": 1, "optimizer": "adam"}, "compact_every needs exact zeros"),
        ({"compact_every": 1, "penalty": None}, "compact_every needs a penalty"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        dataclasses.replace(SHORT, **change)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": "20"}, "epochs is '20', but must be a whole number"),
        ({"epochs": 2.5}, "epochs is 2.5, but must be a whole number"),
        ({"lr": "fast"}, "lr is 'fast', but must be a number"),
        ({"heal_lr": True}, "heal_lr is True, but must be a number"),
        ({"penalty": "rql"}, r"penalty is 'rql', but must be one of quern\.penalties, such as RQL\(12\.0\)"),
    ],
    ids=str,
)
def test_settings_of_the_wrong_kind_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=rf"^{said}\.$"):
        dataclasses.replace(SHORT, **change)


@pytest.mark.unchecked
def test_data_and_settings_of_the_wrong_kind_are_refused(images: ImageSet) -> None:
    wrong: list[tuple[Any, Any, str]] = [
        ("digits", SHORT, r"the data must be .* is of type str: load it by quern\.data\.load\('digits'\)"),
        ([], SHORT, r"the data must be .* is of type list: wrap them, Loaders\(train, val\)"),
        (images, {"epochs": 1}, r"settings must be a quern\.train\.Settings, but is of type dict"),
    ]
    for data, settings, said in wrong:
        with pytest.raises(TrainingError, match=rf"^{said}\.$"):
            fit(build(), data, settings)
    with pytest.raises(TrainingError, match=r"^max_params is '15k', but must be a number\.$"):
        compress(build(norm="after_conv"), images, max_params="15k")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"^the penalty is 30, but must be one of quern\.penalties, .*\.$"):
        ProximalAdam(build(), 30)  # pyright: ignore[reportArgumentType]


def test_a_network_and_data_that_do_not_fit_are_one_sentence(images: ImageSet, tmp_path: Path) -> None:
    x = torch.randn(4, 1, 8, 8)
    good, late, negative = ([(x, torch.tensor([0, 1, 2, n]))] for n in (9, 10, -1))
    classes = "10 scores, for classes 0 to 9: count classes from 0, or give the network a score for each"
    cases: list[tuple[nn.Module, ImageSet | Loaders, str]] = [
        (models.digits_qcnn(classes=9), images, "a label is 9, but the network gives 9 scores, for classes 0 to 8: .*"),
        (build(), Loaders(late, good), f"a label is 10, but the network gives {classes}"),
        (build(), Loaders(good, late), f"a label is 10, but the network gives {classes}"),
        (build(), Loaders(good, good, late), f"a label is 10, but the network gives {classes}"),
        (build(), Loaders(negative, good), f"a label is -1, but the network gives {classes}"),
        (models.mnist_qcnn(), images, r"the network does not take inputs of shape \(2, 1, 8, 8\): .*"),
        (nn.Flatten(0), images, r".* gives a tensor of shape \(128,\), but must give scores \(batch, classes\)"),
    ]
    for model, data, said in cases:
        with pytest.raises(TrainingError, match=rf"^{said}\.$"):
            fit(model, data, dataclasses.replace(SHORT, penalty=None))
    with pytest.raises(TrainingError, match="a label is 9, but the network gives 9 scores"):
        compress(models.digits_qcnn(classes=9, norm="after_conv"), images, epochs=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_larger_than_the_data_is_refused(images: ImageSet) -> None:
    with pytest.raises(TrainingError, match="there are 320 images to train on"):
        fit(build(), images, dataclasses.replace(SHORT, batch=321))


def test_augment_shifts_and_mirrors_and_nothing_else() -> None:
    pixels = torch.arange(1, 2 * 3 * 4 * 5 + 1).view(2, 3, 4, 5).to(torch.uint8).repeat(40, 1, 1, 1)
    out = augment(pixels, 2, True, torch.Generator().manual_seed(0))
    assert out.shape == pixels.shape
    assert out.dtype == torch.uint8
    padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, out, strict=True):
        found = []
        for down, right, mirrored in itertools.product(range(5), range(5), (False, True)):
            part = before[:, down : down + 4, right : right + 5]
            if torch.equal(part.flip(2) if mirrored else part, after):
                found.append((down, right, mirrored))
        assert found
        seen.add(found[0])
    assert len(seen) > 20
    assert torch.equal(augment(pixels, 0, False, torch.Generator()), pixels)
    whole = augment(pixels, 2, True, torch.Generator().manual_seed(1))
    part = augment(pixels[30:50], 2, True, torch.Generator().manual_seed(1), slice(30, 50), 80)
    assert torch.equal(part, whole[30:50])


def test_derived_seeds_differ() -> None:
    seeds = {
        derived_seed(seed, what, epoch, step) for seed in (0, 1) for what in "ab" for epoch in (0, 1) for step in (0, 1)
    }
    assert len(seeds) == 16
    assert derived_seed(3, "x") == derived_seed(3, "x")


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
    assert result.val_accuracy > 0.5


# What counts as zero.


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


@pytest.mark.parametrize("tol", [-1e-9, float("nan"), float("inf")])
def test_a_tol_that_is_none_is_one_sentence(tol: float) -> None:
    with pytest.raises(TrainingError, match=rf"tol is {tol}, but .*\.$"):
        Settings(tol=tol)


def test_the_command_to_train_takes_tol(tmp_path: Path) -> None:
    common = ["--epochs", 1, "--penalty", "rq", "--lambda", 100, "--optimizer", "adam", "--ramp", 0, "--threads", 1]
    out, err = quern("train", *common, "--tol", "0.01", "--out", tmp_path / "run", "--json")
    found = load_file(tmp_path / "run" / "model.safetensors")
    rows = np.concatenate([w.reshape(4, -1) for name, w in found.items() if name.endswith("weight")], 1)
    share = (np.abs(rows) <= 0.01).mean()
    assert json.loads(out)["sparsity"]["component_sparsity"] == share > 0
    assert f"up to 0.01: {share:.1%} of components" in err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["tol"] == 0.01
