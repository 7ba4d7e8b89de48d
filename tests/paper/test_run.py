"""One run, against numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from quern import io, paper, records
from quern.bench import peak_memory, time_onnx
from quern.export import to_onnx
from quern.paper import _run
from quern.records import Run
from quern.records.schema import to_plain
from quern.train import Settings
from tests.paper.small_runs import DIGITS, EPOCHS, QUATERNIONS, QUERN_RUN, REAL_RUN, Local, timeless

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("quick"),
    pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning"),  # so short a training takes a large λ
]


def raw_weights(task: paper.Task) -> list[np.ndarray]:
    """The quaternion weights in the file of the network: a row for each component."""
    found = load_file(task.folder / "model.safetensors")
    return [w.reshape(4, -1) for name, w in found.items() if name.endswith("weight") and w.ndim > 2]


def accuracy_by_hand(network: torch.nn.Module) -> float:
    test = DIGITS.test
    x = (test.pixels.float() / 16 - torch.tensor(DIGITS.mean)) / torch.tensor(DIGITS.std)
    with torch.no_grad():
        scores = network.eval()(x)
    return float(np.mean(scores.numpy().argmax(1) == test.labels.numpy()))


@pytest.mark.parametrize("which", range(3), ids=["paper", "quern", "real"])
def test_a_record_has_all_its_parts_and_is_small(local: Local, which: int) -> None:
    folder, tasks, found = local
    task = tasks[which]
    record = found[task.run.name]
    path = records.record_path(folder / "results", task.run)
    read = records.read_record(path)
    assert read.run == task.run
    assert to_plain(read) == to_plain(record)
    assert path.stat().st_size < 20_000
    assert record.images == {"train": 1237, "val": 200, "test": 360}
    assert record.sums == DIGITS.sums
    assert record.weight == task.weight
    assert record.model == ("digits_cnn" if task.run.family == "real" else "digits_qcnn")
    assert record.environment.get("threads") == 1
    assert [line.epoch for line in record.history] == list(range(1, EPOCHS + 1))
    assert Settings.from_dict(read.settings.to_dict()) == task.settings
    for network in (record.small, record.dense):
        assert network.bytes > 1000
        assert network.nonzero_parameters is not None
        assert network.parameters >= network.nonzero_parameters > 0
    assert record.dense.parameters == sum(p.numel() for p in paper.build(task.run).parameters())


@pytest.mark.parametrize("which", [0, 1], ids=["paper", "quern"])
def test_the_zeros_of_a_record_are_those_in_its_network(local: Local, which: int) -> None:
    _, tasks, found = local
    record, tol = found[tasks[which].run.name], (1e-3, 0.0)[which]
    rows = np.concatenate(raw_weights(tasks[which]), 1)
    left, moduli = np.abs(rows) > tol, np.sqrt((rows.astype(np.float64) ** 2).sum(0))
    sparsity = record.result.sparsity
    assert sparsity.tol == tol
    assert sparsity.component_sparsity == (4 * QUATERNIONS - left.sum()) / (4 * QUATERNIONS)
    assert sparsity.quaternion_sparsity == (QUATERNIONS - (moduli > tol).sum()) / QUATERNIONS
    assert record.zeros_by == "modulus"
    assert sum(layer.quaternions for layer in sparsity.layers) == QUATERNIONS
    assert 0.05 < sparsity.component_sparsity < 1  # or there would be nothing to see
    if which == 1:  # whole neurons were removed, which count as zeros
        assert rows.shape[1] < QUATERNIONS
        assert sparsity.neurons_left < sparsity.neurons == 22
    moduli = record.moduli
    assert sum(moduli.counts) + moduli.zeros == QUATERNIONS
    sizes = np.sqrt((rows.astype(np.float64) ** 2).sum(0))
    alive = sizes[sizes > 0]
    assert moduli.zeros == QUATERNIONS - len(alive)
    inner = 10.0 ** np.array(moduli.edges[1:-1])
    expected = np.bincount(np.searchsorted(inner, alive, side="right"), minlength=len(inner) + 1)
    assert np.abs(np.array(moduli.counts) - expected).sum() <= 2  # an edge may fall on either side


@pytest.mark.parametrize("which", range(3), ids=["paper", "quern", "real"])
def test_the_accuracies_of_a_record_are_those_of_its_network(local: Local, which: int) -> None:
    """Also that of the small one: setting to zero by hand, and removing nothing, answers the same."""
    _, tasks, found = local
    record = found[tasks[which].run.name]
    network = io.load(tasks[which].folder / "model.safetensors")
    assert record.result.test_accuracy == accuracy_by_hand(network)
    assert record.result.test_accuracy > 0.2
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith("weight") and p.dim() > 2:
                p[p.abs() <= record.settings.tol] = 0
    assert record.small.test_accuracy == accuracy_by_hand(network)
    assert record.small.nonzero_parameters == sum(int((p != 0).sum()) for p in network.parameters())


def test_the_history_of_a_record_ends_where_its_result_is(local: Local) -> None:
    for record in local[2].values():
        best = record.history[record.result.best_epoch - 1]
        assert best.val_accuracy == pytest.approx(record.result.val_accuracy, rel=1e-5)
        for what in ("component_sparsity", "quaternion_sparsity"):
            assert getattr(best, what) == pytest.approx(getattr(record.result.sparsity, what), rel=1e-5)
        assert best.test_accuracy == pytest.approx(record.result.test_accuracy, rel=1e-5)
        assert best.compacted_neurons == record.small.neurons
        assert record.history[0].test_accuracy != best.test_accuracy
    phases = [line.phase for line in local[2][QUERN_RUN.name].history]
    assert phases == ["grind"] * 4 + ["heal"] * 2


@pytest.mark.parametrize("run", [Run("digits", "quern", "rql", 1, 0), Run("digits", "paper", "rql", 1, 0)])
def test_a_penalty_that_leaves_nothing_still_gives_a_record(run: Run, tmp_path: Path) -> None:
    found = paper.perform(run, paper.settings_of(run, 1e6), 1e6, tmp_path, None)
    assert found.small.test_accuracy <= 1
    records.write(tmp_path, found)
    assert len(list(records.read(tmp_path))) == 1


def test_records_of_the_same_seed_are_the_same(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one measures times and memory, too."""
    _, tasks, found = local
    monkeypatch.setattr(_run, "to_onnx", to_onnx)
    monkeypatch.setattr(_run, "time_onnx", time_onnx)
    monkeypatch.setattr(_run, "peak_memory", peak_memory)
    again = paper.perform(REAL_RUN, tasks[2].settings, None, tmp_path, None)
    assert timeless(again) == timeless(found[REAL_RUN.name])
    for network in (again.small, again.dense):
        assert network.latency_ms is not None
        assert network.memory is not None
        assert 0 < network.latency_ms < 1000
        assert network.latency_ms != 1.0
        assert 10**7 < network.memory < 10**9
