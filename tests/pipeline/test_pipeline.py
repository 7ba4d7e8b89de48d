"""From a user's network and loaders to a small network in files; stopped anywhere; and what is refused."""

import copy
import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import quern
from quern import io, models
from quern import nn as qnn
from quern._files import claimed
from quern.bench import Timing
from quern.data import Images, ImageSet, digits
from quern.errors import ExportError, RecordError, Stopped, TrainingError
from quern.export import open_session
from quern.penalties import GammaL1
from quern.pipeline import Compressed
from quern.records import Answers, read_compression
from quern.report import write_run_report
from quern.train import Epoch, Loaders, Result, Settings, fit
from tests.commands import here
from tests.train.test_train import Stop

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


class Own(nn.Module):
    """A residual network that quern does not know, with a real-valued end."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.first, self.second = (qnn.QConv2d(n, 16, 3, padding=1, bias=False) for n in (4, 16, 16))
        self.norms = nn.ModuleList([qnn.QBatchNorm2d(16) if norm else nn.Identity() for _ in range(3)])
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.stem(x)))
        y = torch.relu(self.norms[1](self.first(x)))
        x = torch.relu(x + self.norms[2](self.second(y)))
        return self.head(x.mean((2, 3)))


def shallow(inputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), qnn.QLinear(inputs, 32, bias=False), qnn.QBatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    )


def tensors(images: Images) -> TensorDataset:
    return TensorDataset(images.pixels.repeat(1, 4, 1, 1) / 16 - 0.5, images.labels)


@pytest.fixture(scope="module")
def images() -> ImageSet:
    whole = digits()
    part = Images(whole.train.pixels[:160], whole.train.labels[:160])
    return dataclasses.replace(whole, train=part, val=Images(whole.val.pixels[:100], whole.val.labels[:100]))


@pytest.fixture(scope="module")
def loaders(images: ImageSet) -> tuple[Any, ...]:
    """Five batches to train with, one to validate and one to test with."""
    train, val = tensors(images.train), tensors(images.val)
    test = TensorDataset(*(t[:50] for t in tensors(images.test).tensors))
    return DataLoader(train, 32, shuffle=True), DataLoader(val, 100), DataLoader(test, 50)


@pytest.fixture(autouse=True, scope="module")
def _few_milestones() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for place in ("quern.train._run.MILESTONES", "quern.pipeline.steering.MILESTONES"):
            patch.setattr(place, 3)
        yield


@pytest.fixture
def no_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting and timing take longer than all the rest."""

    def export(network: nn.Module, path: Path, example: Tensor) -> None:
        path.write_bytes(b"onnx")

    def times(files: dict[str, Path], shape: Any) -> dict[str, Timing]:
        return {name: Timing(name, "onnxruntime", 1, 1, 1.0, 1.0, 1.0) for name in files}

    monkeypatch.setattr("quern.pipeline.to_onnx", export)
    monkeypatch.setattr("quern.pipeline.time_onnx", times)


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def same(a: nn.Module, b: nn.Module) -> None:
    torch.testing.assert_close(dict(a.state_dict()), dict(b.state_dict()), rtol=0, atol=0)


# Loaders.

PLAIN = Settings(epochs=2, lr=1e-2)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Images with noise of torch's generator, as random crops would have."""

    def __init__(self, images: Images) -> None:
        self.x, self.labels = tensors(images).tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
        return self.x[n] + 0.1 * torch.randn(4, 8, 8), self.labels[n]


def test_shuffled_and_noisy_loaders_give_the_same_weights_stopped_or_not(images: ImageSet, tmp_path: Path) -> None:
    data = Loaders(DataLoader(Noisy(images.train), 32, shuffle=True), DataLoader(tensors(images.val), 100))
    runs = []
    for noise in (1, 2):
        net = Own()
        torch.manual_seed(noise)
        fit(net, data, PLAIN)
        runs.append(net)
    same(*runs)
    for n, after in enumerate((3, 4)):
        with pytest.raises(Stopped):
            fit(Own(), data, PLAIN, tmp_path, n > 0, [Stop(after, 15)])
    net = Own()
    fit(net, data, PLAIN, tmp_path, resume=True)
    same(net, runs[0])
    other = Own()
    fit(other, data, dataclasses.replace(PLAIN, seed=1))
    assert not torch.equal(other.head.weight, net.head.weight)


def test_without_test_images_there_is_no_test_accuracy(loaders: tuple[Any, ...], tmp_path: Path) -> None:
    train, val, test = loaders
    once = dataclasses.replace(PLAIN, epochs=1)
    net = Own()
    found = fit(net, Loaders(train, val), once, tmp_path)
    assert (found.test_accuracy, found.test_loss) == (None, None)
    assert io.describe(tmp_path / "model.safetensors")["metrics"] == {"val_accuracy": found.val_accuracy}
    assert Result.from_dict(json.loads((tmp_path / "result.json").read_text())) == found
    x, labels = next(iter(test))
    right = float((net(x).argmax(1) == labels).double().mean())
    assert fit(Own(), Loaders(train, val, test), once).test_accuracy == pytest.approx(right)


class Short:
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2, 4, 8, 8), torch.zeros(2, dtype=torch.long))] * 2)


def test_loaders_that_do_not_fit_are_refused(loaders: tuple[Any, ...]) -> None:
    train, val, _ = loaders
    x, labels = next(iter(val))
    for wrong, said in (
        (Loaders((pair for pair in train), val), "must have a length"),
        (Loaders([], val), "at least one batch"),
        (Loaders(train, []), "no batches"),
        (Loaders(train, iter(val)), "to validate with can be gone through only once"),
        (Loaders(train, val, (pair for pair in val)), "to test with can be gone through only once"),
        (Loaders([x], val), "pairs of tensors"),
        (Loaders([(x, labels, labels)], val), "pairs of tensors"),
        (Loaders([(x, list(range(len(x))))], val), "pairs of tensors"),
        (
            Loaders([(x, labels.float())], val),
            "100 inputs with labels .* torch.float32, but each input needs one class",
        ),
        (Loaders([(x, labels[:-1])], val), "one class number"),
        (Loaders(train, [(x, torch.zeros(100, 10, dtype=torch.long))]), r"shape \(100, 10\)"),
        (Loaders(Short(), val), "ended after 2 of its 3 batches"),
    ):
        with pytest.raises(TrainingError, match=rf"{said}.*\.$"):
            fit(Own(), wrong, PLAIN)
    for change in ({"crop": 1}, {"flip": True}):
        with pytest.raises(TrainingError, match="let your own loader do it"):
            fit(Own(), Loaders(train, val), dataclasses.replace(PLAIN, **change))


# Distillation.


class Losses(Stop):
    def __init__(self) -> None:
        super().__init__(-1, 0)
        self.seen: list[tuple[str, float]] = []

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        self.seen.append((phase, loss))


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_loss_of_distillation_is_the_formula(loaders: tuple[Any, ...], share: float) -> None:
    x, labels = next(iter(loaders[1]))
    net, teacher = (nn.Sequential(nn.Flatten(), qnn.QLinear(256, 16), nn.ReLU(), nn.Linear(16, 10)) for _ in range(2))
    with torch.no_grad():
        scores, taught = net(x).double().numpy(), teacher(x).double().numpy()
    watcher = Losses()
    settings = Settings(epochs=0, heal=1, distill=share)
    fit(net, Loaders([(x, labels)], [(x, labels)]), settings, watchers=[watcher], teacher=teacher)
    entropy = -log_softmax(scores)[np.arange(len(labels)), labels.numpy()].mean()
    s, t = log_softmax(scores / 4), log_softmax(taught / 4)
    wanted = (1 - share) * entropy + share * 4**2 * (np.exp(t) * (t - s)).sum(1).mean()
    assert watcher.seen == [("heal", pytest.approx(wanted, rel=1e-5))]


class Asked(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.often = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.often += 1
        assert not self.training
        return self.inner(x)


def test_the_teacher_is_asked_while_healing_and_stays_as_it_is(loaders: tuple[Any, ...], images: ImageSet) -> None:
    settings = Settings(epochs=1, heal=2, distill=0.5, batch=32)
    for net, data, often in (
        (Own(), Loaders(*loaders), 2 * 5),
        (models.digits_qcnn(norm="after_conv", widths=(8, 8)), images, 1),  # once for all images
    ):
        teacher = Asked(copy.deepcopy(net)).train()
        before, asked = copy.deepcopy(teacher.state_dict()), {}

        class See(Losses):
            def epoch(self, line: Epoch, teacher: Asked = teacher, asked: dict = asked) -> None:
                asked[line.phase] = teacher.often

        fit(net, data, settings, watchers=[See()], teacher=teacher)
        assert asked == {"train": 0, "heal": often}
        torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)


def test_a_teacher_and_a_share_need_each_other(loaders: tuple[Any, ...]) -> None:
    data = Loaders(*loaders)
    with pytest.raises(TrainingError, match="distill needs a teacher"):
        fit(Own(), data, dataclasses.replace(PLAIN, distill=0.5, heal=1))
    with pytest.raises(TrainingError, match="a teacher a share"):
        fit(Own(), data, PLAIN, teacher=Own())
    with pytest.raises(TrainingError, match=r"distill is 1\.5"):
        dataclasses.replace(PLAIN, distill=1.5)


# The whole way.

SHORT: dict[str, Any] = {"warmup": 1, "epochs": 1, "grind": 1, "heal": 1, "lr": 1e-2}
BY_LAMBDA: dict[str, Any] = {**SHORT, "penalty": GammaL1(30.0, with_beta=True), "ramp": 0.0, "grind": 2}


# Every annotation is checked while testing. Take these marks away when Verdict takes whole numbers.


@pytest.fixture(scope="module")
def run(loaders: tuple[Any, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compressed, nn.Module]:
    folder, net = tmp_path_factory.mktemp("runs") / "run", Own()
    found = quern.compress(net, *loaders, **SHORT, max_params=1200, out=folder)
    for network in (found.dense_network, found.small_network):
        network.eval()
    return folder, found, net


def test_a_network_that_was_compacted_is_left_in_eval_mode(loaders: tuple[Any, ...]) -> None:
    net = Own()
    fit(net, Loaders(*loaders), Settings(epochs=1, penalty=GammaL1(1.0), compact_every=1))
    assert not net.training


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
        assert column.latency_ms > 0
    total, only_dense = Answers.total(found.answers), right["dense"] & ~right["small"]
    assert (total.inputs, total.only_dense) == (len(labels), int(only_dense.sum()))
    for one in found.answers:
        mine = labels == int(one.name)
        assert (one.inputs, one.only_dense) == (int(mine.sum()), int((mine & only_dense).sum()))


def test_the_table_and_the_record(run: tuple[Path, Compressed, nn.Module]) -> None:
    folder, found, _ = run
    head, *lines = str(found).splitlines()
    assert head.split() == ["dense", "compacted", "ratio"]
    assert lines[1].startswith("its 95 % interval ")
    for bound, accuracy in zip(re.findall(r"(\S+) to (\S+)", lines[1]), (found.dense, found.small), strict=False):
        assert float(bound[0]) <= 100 * accuracy.accuracy <= float(bound[1])
    assert f"{found.dense.parameters:,}" in lines[3]
    assert f"{found.dense.parameters / found.small.parameters:.1f}x" in lines[3]
    assert lines[8].endswith(": met")
    assert " ".join(line.strip() for line in lines[9:]) == found.useless  # after so few steps
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


def test_a_finished_folder_is_read_and_not_trained(
    run: tuple[Path, Compressed, nn.Module], loaders: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    folder, found, _ = run
    for what in ("fit", "to_onnx"):
        monkeypatch.setattr(f"quern.pipeline.{what}", never)
    said: list[str] = []
    left = [".record.json.a1b2c3d4.tmp", "dense/.model.onnx.a1b2c3d4.tmp", "small/.history.jsonl.a1b2c3d4.tmp"]
    for name in (*left, "small/.mine.a1b2c3d4.tmp"):
        (folder / name).write_text("half a file")
    with claimed(folder / "small"):
        again = quern.compress(
            Own(), *loaders, **SHORT, max_params=1200, out=folder, resume=True, tell=lambda text: said.append(text)
        )
    assert [(folder / name).exists() for name in left] == [False, False, True]  # somebody else is at the last
    assert (folder / "small" / ".mine.a1b2c3d4.tmp").exists()
    assert said[:2] == ["the dense network is there", "the small network is there"]
    for ours, theirs in ((again.dense, found.dense), (again.small, found.small)):
        assert dataclasses.replace(ours, latency_ms=0.0) == dataclasses.replace(theirs, latency_ms=0.0)
    same(again.small_network, found.small_network)
    with pytest.raises(TrainingError, match="already holds a run: go on with resume"):
        quern.compress(Own(), *loaders, **SHORT, max_params=1200, out=folder)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("config.json", '"settings"', '"setting"', "settings is missing"),
        ("dense/result.json", '"best_epoch": ', '"best_epoch": -', "best_epoch is -"),
        ("small/result.json", '"kind": "', '"kind": 3, "k": "', r"sparsity.layers[0].kind is 3"),
        ("small/result.json", "{", "[" * 50_000, "nested too deeply"),
    ],
)
def test_damaged_files_of_a_run_are_one_sentence(
    run: tuple[Path, Compressed, nn.Module],
    loaders: tuple[Any, ...],
    tmp_path: Path,
    name: str,
    old: str,
    new: str,
    said: str,
) -> None:
    shutil.copytree(run[0], folder := tmp_path / "run")
    (folder / name).write_text((folder / name).read_text().replace(old, new, 1))
    with pytest.raises(RecordError, match=re.escape(said)) as caught:
        quern.compress(Own(), *loaders, **SHORT, max_params=1200, out=folder, resume=True)
    assert str(caught.value).startswith(str(folder / name))


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
        patch.setattr("quern.pipeline.to_onnx", fail)
        with pytest.raises(ExportError):
            quern.compress(Own(), *loaders, **BY_LAMBDA, out=tmp_path, resume=True)
    assert (tmp_path / "small" / "result.json").exists()
    assert not (tmp_path / "record.json").exists()
    found = quern.compress(Own(), *loaders, **BY_LAMBDA, out=tmp_path, resume=True)
    same(found.dense_network, straight.dense_network)
    same(found.small_network, straight.small_network)
    assert (tmp_path / "record.json").exists()


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
    assert found.small.accuracy == pytest.approx(float(right.double().mean()))


def test_by_default_a_point_of_accuracy_may_be_lost_and_nothing_is_left_behind(
    loaders: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = quern.compress(shallow(256), *loaders, **SHORT)
    (verdict,) = found.verdicts()
    assert (verdict.what, verdict.limit) == ("points of test accuracy lost", 1.0)
    assert verdict.value == pytest.approx(100 * (found.dense.accuracy - found.small.accuracy))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Stopped, match="nothing is kept without a folder: say out="):
        quern.compress(shallow(256), *loaders, **SHORT, watchers=[Stop(2, 15)])
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.usefixtures("no_onnx")
def test_few_images_are_enough(images: ImageSet) -> None:
    quern.compress(shallow(64), images, **{**SHORT, "grind": 3}, batch=64, max_drop=5.0)


def test_what_cannot_work_is_said_before_any_training(
    loaders: tuple[Any, ...], images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("quern.pipeline.fit", never)
    train, val, _ = loaders
    cases: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], str]] = [
        (Own(norm=False), (train, val), {}, r"GammaL1.* has nothing to act on: .* take a penalty of weights, .*"),
        (nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), (train, val), {}, "the network has no quaternion layers: .*"),
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
        (Own(), (images, val), {}, "leave out val and test"),
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
