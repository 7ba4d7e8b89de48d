"""A training that was stopped goes on as if it had not been, or says why it cannot."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from quern import models
from quern._files import claimed
from quern.data import ImageSet
from quern.errors import TrainingError
from quern.penalties import RQ, RQL, GammaL1, Penalty
from quern.train import checkpoint, fit
from tests.train.short_runs import COMPACTING, SHORT, Stop, build

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


@pytest.mark.slow
@pytest.mark.parametrize(
    ("penalty", "steps"),
    [*((COMPACTING.penalty, steps) for steps in ([11], [22], [23, 18, 12])), (RQ(100.0, by_cost=0.5), [22])],
    ids=str,
)
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


def test_a_checkpoint_from_before_a_setting_was_there_goes_on(images: ImageSet, tmp_path: Path) -> None:
    whole = fit(build(), images, SHORT, tmp_path)
    for name in ("last", "best"):
        tensors, state = checkpoint.load(tmp_path / f"{name}.safetensors")
        del state["settings"]["curves"]
        checkpoint.save(tmp_path / f"{name}.safetensors", tensors, state)
    assert fit(build(), images, SHORT, tmp_path, resume=True).test_accuracy == whole.test_accuracy
    with pytest.raises(TrainingError, match="other settings: curves differ"):
        fit(build(), images, dataclasses.replace(SHORT, curves=True), tmp_path, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["proximal-adam", "proximal-sgd", "adam"])
@pytest.mark.parametrize("steps", [[1], [10], [13, 9, 12]], ids=str)
def test_stopped_anywhere_and_resumed_is_never_stopped(
    images: ImageSet, tmp_path: Path, steps: list[int], optimizer: Any
) -> None:
    settings = dataclasses.replace(
        SHORT, penalty=RQL(8.0) + GammaL1(0.2), crop=1, optimizer=optimizer, heal_dropout=False, ema=0.9
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


def test_a_run_that_was_not_weighed_goes_on_weighed_by_nothing_else(images: ImageSet, tmp_path: Path) -> None:
    fit(build(), images, dataclasses.replace(SHORT, epochs=1), tmp_path)
    weighed = dataclasses.replace(SHORT, epochs=1, penalty=RQL(8.0, by_cost=0.5))
    with pytest.raises(TrainingError, match="trained with other settings: penalty differ"):
        fit(build(), images, weighed, tmp_path, resume=True)
