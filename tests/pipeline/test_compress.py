"""From a user's network and loaders to a small network; and what is refused."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quern
from quern import io
from quern.errors import RecordError, Stopped, TrainingError
from quern.penalties import GammaL1
from quern.pipeline import Compressed
from quern.pipeline._scratch import fresh
from quern.report import write_run_report
from tests.commands import here
from tests.pipeline.conftest import SHORT
from tests.small_tasks import Own, few_digits, same, shallow, size
from tests.train.short_runs import Stop

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


@pytest.mark.slow
@pytest.mark.xdist_group("pipeline")
def test_a_network_of_ones_own_meets_its_budget(run: tuple[Path, Compressed, nn.Module]) -> None:
    _, found, net = run
    (verdict,) = found.verdicts()
    assert verdict.met
    assert str(verdict) == f"parameters: {found.small.parameters:,}, asked for 1,200: met"
    assert size(found.small_network) == found.small.parameters <= 1200 < found.dense.parameters == size(net)
    assert found.small.macs < found.dense.macs
    assert found.small.bytes < found.dense.bytes
    same(net, Own())
    assert net.training
    assert isinstance(found.small_network, Own)


@pytest.mark.slow
@pytest.mark.usefixtures("no_onnx")
def test_what_was_not_tested_is_not_called_so(loaders: tuple[Any, ...], tmp_path: Path) -> None:
    train, val, _ = loaders
    found = quern.compress(shallow(256), train, val, max_drop=50.0, out=tmp_path / "run", **SHORT)
    said = [str(found), here("show", tmp_path / "run")[0], write_run_report(tmp_path / "run").read_text()]
    for text in said:
        assert "validation accuracy" in text.lower()
        assert "test accuracy" not in text.lower()
    assert found.small.test_accuracy is None
    inputs = torch.cat([x for x, _ in val])
    labels = torch.cat([labels for _, labels in val])
    right = found.small_network(inputs).argmax(1) == labels
    assert found.small.value == pytest.approx(float(right.double().mean()))


@pytest.mark.slow
def test_by_default_a_point_of_accuracy_may_be_lost_and_nothing_is_left_behind(
    loaders: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))  # torch's own, made once in a process
    (work := tmp_path / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    monkeypatch.chdir(work)
    found = quern.compress(shallow(256), *loaders, **SHORT)
    (verdict,) = found.verdicts()
    assert (verdict.what, verdict.limit) == ("points of test accuracy lost", 1.0)
    assert verdict.value == pytest.approx(100 * (found.dense.value - found.small.value))
    assert list(work.iterdir()) == []
    with pytest.raises(Stopped, match="nothing is kept without a folder: say out="):
        quern.compress(shallow(256), *loaders, **SHORT, watchers=[Stop(2, 15)])
    assert list(work.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("no_onnx")
def test_few_images_are_enough() -> None:
    quern.compress(shallow(), few_digits(), **{**SHORT, "grind": 3}, batch=64, max_drop=5.0)


@pytest.mark.slow
@pytest.mark.usefixtures("no_onnx")
def test_the_same_from_scratch(loaders: tuple[Any, ...], tmp_path: Path) -> None:
    options: dict[str, Any] = {**SHORT, "warmup": 0, "max_params": 1200, "from_scratch": True, "out": tmp_path / "run"}
    with pytest.raises(Stopped):
        quern.compress(Own(), *loaders, **options, watchers=[Stop(3 * len(loaders[0]) + 2, 15)])
    assert (tmp_path / "run" / "scratch").is_dir()  # stopped there, it goes on there
    found = quern.compress(Own(), *loaders, **options, resume=True)
    assert found.scratch is not None
    assert found.scratch.epochs == 3
    trained = Own()
    small, scratch = (io.load(tmp_path / "run" / name / "model.safetensors", trained) for name in ("small", "scratch"))
    shapes = [{name: t.shape for name, t in network.state_dict().items()} for network in (small, scratch)]
    assert shapes[0] == shapes[1]
    inputs, labels = (torch.cat(part) for part in zip(*loaders[2], strict=True))
    right = scratch.eval()(inputs).argmax(1) == labels
    assert found.scratch.value == pytest.approx(float(right.double().mean()))
    line = next(line for line in str(found).splitlines() if line.startswith("its structure from scratch, 3 epochs"))
    assert f"{100 * found.scratch.value:.2f} %" in line
    assert f"{100 * (found.scratch.value - found.small.value):+.2f} points" in line
    assert here("show", tmp_path / "run")[0].count("from scratch, 3 epochs") == 1
    assert "from scratch, 3 epochs" in write_run_report(tmp_path / "run").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("no_onnx")
def test_mixed_precision_is_that_of_every_step(loaders: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    halved: list[str] = []

    class Recording(torch.autocast):
        def __init__(self, device_type: str, dtype: torch.dtype | None = None, **options: Any) -> None:
            super().__init__(device_type, dtype, **options)
            halved.extend([device_type] * (dtype == torch.bfloat16))

    monkeypatch.setattr(torch, "autocast", Recording)
    found = quern.compress(shallow(256), *loaders, **SHORT, max_params=4000, precision="bfloat16")
    assert halved == ["cpu"] * 5 * len(loaders[0])  # epochs: warm up and train, warm up, grind and heal
    assert all(p.dtype == torch.float32 for p in found.small_network.parameters())


def test_fresh_weights_are_drawn_as_when_a_network_is_built() -> None:
    small = shallow()
    with torch.no_grad():
        for p in small.parameters():
            p.fill_(7.0)
    state = torch.get_rng_state()
    one, same_one, other = (fresh(small, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all((p == 7).all() for p in small.parameters())
    same(one, same_one)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    weights, built = (next(m.parameters()).detach().square().mean() for m in (one, shallow()))
    assert float(weights) == pytest.approx(float(built), rel=0.3)


def test_what_cannot_begin_anew_is_named(loaders: tuple[Any, ...]) -> None:
    net = Own()
    net.token = nn.Parameter(torch.zeros(3))
    with pytest.raises(TrainingError, match=r"^Own has parameters but no reset_parameters\(\), .*\.$"):
        quern.compress(net, *loaders, **SHORT, from_scratch=True)


def test_what_cannot_work_is_said_before_any_training(
    loaders: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("quern.pipeline._stages.fit", never)
    train, val, _ = loaders
    cases: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], str]] = [
        (
            Own(norm=False),
            (train, val),
            {"penalty": GammaL1(1.0)},
            r"GammaL1.* has nothing to act on: .* take a penalty of neurons, .*",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(256, 10)),
            (train, val),
            {},
            "NeuronNorm.*: .* no neurons that could go",
        ),
        (Own(), ("digits",), {}, r".*load it by quern\.data\.load\('digits'\)"),
        (
            Own(),
            (train, val),
            {"temperature": 4},
            r"compress has no option temperature: .* the fields of quern\.train\.Settings",
        ),
        (Own(), (train, val), {"compact_every": 2}, "compress sets compact_every itself: leave it out"),
        (Own(), (train, val), {"heal_dropout": True}, "compress sets heal_dropout itself: leave it out"),
        (Own(), (train, val), {"optimizer": "adam"}, "exact zeros"),
        (Own(), (train, val), {"max_params": 0}, "max_params is 0"),
        (Own(), (train, val), {"distill": 2.0}, "distill is 2"),
        (Own(), (train,), {}, "nothing to validate with"),
        (
            Own(),
            (train, val),
            {"teacher": nn.Sequential(nn.Flatten(), nn.Linear(256, 7))},
            r"the teacher gives outputs of shape \(2, 7\), but the network \(2, 10\): .*",
        ),
        (Own(), (train, val), {"teacher": nn.Linear(3, 10)}, r"the teacher does not take inputs of shape \(2, .*"),
        (Own(), (few_digits(), val), {}, "leave out val and test"),
        (Own(), (train, []), {}, "no batches"),
        (Own(), (train, val, []), {}, "to test with has no batches"),
    ]
    for net, data, options, said in cases:
        with pytest.raises(TrainingError, match=rf"{said}[^\n]*\.$"):
            quern.compress(net, *data, **{**SHORT, **options}, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"file cannot be written to \(Not a directory\): choose another folder\.$"):
        quern.compress(Own(), train, val, out=tmp_path / "file")


def test_the_option_that_was_meant_is_named(loaders: tuple[Any, ...]) -> None:
    for wrong, meant in (("max_param", "max_params"), ("epoch", "epochs"), ("learning_smoothing", "label_smoothing")):
        with pytest.raises(TrainingError, match=rf"^compress has no option {wrong}: did you mean {meant}\?$"):
            quern.compress(Own(), *loaders, **{wrong: 1})  # pyright: ignore[reportArgumentType]
