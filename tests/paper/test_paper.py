"""The paper's runs: planned, done, killed, gone on with, failed, in processes and on a cluster."""

import io as streams
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file

from quern import data, io, paper, records
from quern.bench import peak_memory, time_onnx
from quern.errors import RecordError, Stopped, TrainingError
from quern.export import to_onnx
from quern.paper import _pool, _run
from quern.records import PAPER, Record, Run
from quern.records.schema import to_plain
from quern.train import Settings
from tests.commands import here, quern, refused, start
from tests.sample_records import record_of

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ

ROOT = Path(__file__).parents[2]
EPOCHS = 6
DIGITS = data.load("digits")
LAMBDAS = {"digits": {"paper": {"rq": 100.0, "l2": 1.0}, "quern": {"rql": 80.0}}}
PAPER_RUN, QUERN_RUN, REAL_RUN = RUNS = [
    Run("digits", "paper", "rq", EPOCHS, 0),
    Run("digits", "quern", "rql", EPOCHS, 0),
    Run("digits", "real", "none", EPOCHS, 0),
]
QUATERNIONS = 4 * 1 * 9 + 8 * 4 * 9 + 10 * 128  # of the network for digits


def lambdas_file(folder: Path) -> Path:
    lines = [
        f"[{name}.{family}]\n" + "".join(f"{k} = {v}\n" for k, v in values.items())
        for name, families in LAMBDAS.items()
        for family, values in families.items()
    ]
    path = folder / "lambdas.toml"
    path.write_text("\n".join(lines))
    return path


def timeless(record: Record) -> dict[str, Any]:
    """A record without what no two runs have in common."""
    kept = {key: value for key, value in to_plain(record).items() if key not in ("environment", "run")}
    for line in kept["history"]:
        del line["seconds"]
    del kept["result"]["seconds"]
    for part in ("small", "dense"):
        del kept[part]["latency_ms"], kept[part]["memory"]
    return kept


# In place of the measured times and memory, which no two runs have in common: exporting to ONNX takes longest of all.
QUICK = """
from types import SimpleNamespace
from quern.paper import _run
_run.to_onnx = lambda *_: None
_run.time_onnx = lambda files, _: {name: SimpleNamespace(median_ms=1.0) for name in files}
_run.peak_memory = lambda *_: 1
"""


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("to_onnx", "time_onnx", "peak_memory"):
            patch.setattr(_run, name, getattr(_run, name))  # so that they come back
        exec(QUICK, {})
        yield


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[paper.Task], dict[str, Record]]:
    """A run of each family, one after the other in this process."""
    folder = tmp_path_factory.mktemp("local")
    tasks = paper.survey(RUNS, folder / "results", folder / "work", LAMBDAS)
    found: dict[str, Record] = {}
    for task, record in paper.perform_all(tasks, folder / "results", folder / "work", jobs=1):
        assert isinstance(record, Record), record
        found[task.run.name] = record
    return folder, tasks, found


Local = tuple[Path, list[paper.Task], dict[str, Record]]


# One run, against numpy.


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


# Again, killed, with other settings.

ONE = ["--dataset", "digits", "--epochs", EPOCHS, "--family", "quern", "--method", "rql", "--jobs", 1]


def test_killed_in_the_middle_it_goes_on(local: Local, tmp_path: Path) -> None:
    results, work = tmp_path / "results", tmp_path / "work"
    places = ["--results", results, "--work", work, "--lambdas", lambdas_file(tmp_path)]
    process = start("reproduce", "table1", *ONE, *places)
    [task] = paper.survey([QUERN_RUN], results, work, LAMBDAS)
    while not (task.folder / "history.jsonl").exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, (out, err)
    done = [json.loads(line) for line in (task.folder / "history.jsonl").read_text().splitlines()]
    assert 1 <= task.epoch == len(done) < EPOCHS
    out, _ = here("reproduce", "table1", *ONE, *places, "--dry-run")
    assert f"{QUERN_RUN.name}, λ = 80: {len(done)} of {EPOCHS} epochs done" in out
    assert list(records.read(results)) == []
    here("reproduce", "table1", *ONE, *places)
    [record] = records.read(results)
    assert record.run == QUERN_RUN
    assert timeless(record) == timeless(local[2][QUERN_RUN.name])
    kept = [line.seconds for line in record.history[: len(done)]]
    assert kept == pytest.approx([line["seconds"] for line in done], rel=1e-5)  # they were not done again


def test_what_is_recorded_is_not_run_again_unless_its_weight_changed(local: Local, tmp_path: Path) -> None:
    folder, _, _ = local
    results, work = folder / "results", tmp_path / "work"
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*.json")}
    tasks = paper.survey(RUNS, results, work, LAMBDAS)
    assert all(task.record is not None for task in tasks)
    assert [task.epoch for task in tasks] == [EPOCHS] * 3
    assert list(paper.perform_all(tasks, results, work)) == []
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*.json")} == before
    assert not work.exists()
    other = {"digits": {**LAMBDAS["digits"], "quern": {"rql": 81.0}}}
    assert [task.record is None for task in paper.survey(RUNS, results, work, other)] == [False, True, False]
    changed = [
        task.folder for lambdas in (LAMBDAS, other) for task in paper.survey([QUERN_RUN], results, work, lambdas)
    ]
    assert changed[0] != changed[1]  # nor does it go on from the other's checkpoint


def test_a_record_with_another_weight_is_replaced(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = local[2][QUERN_RUN.name]
    records.write(tmp_path, replace(old, weight=1.0, settings=paper.settings_of(QUERN_RUN, 1.0)))
    monkeypatch.setattr(_pool, "perform", lambda *_: old)
    places = ["--results", tmp_path, "--work", tmp_path / "work", "--lambdas", lambdas_file(tmp_path), "--jobs", 1]
    some = ["--dataset", "digits", "--epochs", EPOCHS, "--family", "quern", "--method", "rql"]
    command = ["reproduce", "table1", *some, *places]
    assert "to do in place of a record with other settings" in here(*command, "--dry-run")[0]
    assert f"recorded with other settings, and run again: {QUERN_RUN.name}" in here(*command)[1]
    [record] = records.read(tmp_path)
    assert record.weight == 80.0


def test_a_record_that_counts_zeros_by_components_is_replaced_if_that_differs(local: Local, tmp_path: Path) -> None:
    for run in RUNS:
        records.write(tmp_path, replace(local[2][run.name], zeros_by=None))
    tasks = paper.survey(RUNS, tmp_path, tmp_path / "work", LAMBDAS)
    assert [task.outdated for task in tasks] == [task.settings.tol > 0 for task in tasks] == [True, False, False]


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_the_records_that_come_with_quern_can_be_read(dataset: str) -> None:
    for record in records.read(ROOT / "results"):
        if record.run.dataset == dataset:
            penalty = Settings.from_dict(record.settings.to_dict()).penalty
            assert repr(penalty) == repr(record.settings.penalty)
            assert ("with_beta=True" in repr(penalty)) == (record.run.method == "gamma-beta-bn")
            assert record.dead_by is None  # they were made before


def test_a_dry_run_says_what_there_is_to_do_and_does_nothing(local: Local, tmp_path: Path) -> None:
    folder, _, _ = local
    places = ["--results", folder / "results", "--work", tmp_path / "work", "--lambdas", lambdas_file(tmp_path)]
    some = ["--dataset", "digits", "--epochs", EPOCHS, "--method", "rql", "--method", "none", "--family", "quern"]
    out, err = here("reproduce", "table1", *some, *places, "--dry-run", "--jobs", 1)
    assert err == ""
    took = np.mean([line.seconds for line in local[2][QUERN_RUN.name].history])
    minutes, seconds = divmod(round(took * EPOCHS), 60)
    assert out.splitlines() == [
        f"digits/quern-none-{EPOCHS}-0: to do",
        f"digits/quern-rql-{EPOCHS}-0, λ = 80: recorded",
        f"1 of 2 runs to do, 1 at a time: about {minutes}:{seconds:02d}",
    ]
    assert not (tmp_path / "work").exists()
    out, _ = here("reproduce", "all", "--dry-run", "--seeds", 5, "--results", tmp_path / "none", "--jobs", 2)
    # MNIST: 11 runs of 20 epochs and 12 s; CIFAR-10: 11 and 10 more of 12 epochs and 140 s; on two cores.
    whole = 5 * (11 * 20 * 12 + (11 + 10) * 12 * 140) / 2
    assert f"{5 * (11 + 11 + 10)} of 160 runs to do, 2 at a time: about {whole // 3600:.0f}:" in out
    assert out.count("to do\n") == 160
    assert "mnist/table2: steps of all methods timed in turn" in out
    assert not (tmp_path / "none").exists()


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


# Several at once.


def quick_perform(*call: Any) -> Any:
    """In a worker that has not been told."""
    exec(QUICK, {})
    return _pool._perform(*call)


def test_two_at_once_give_the_same_and_one_that_fails_ends_no_other(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pool, "_perform", quick_perform)
    bad = Run("digits", "paper", "l2", EPOCHS, 0)
    tasks = paper.survey([bad, PAPER_RUN, QUERN_RUN], tmp_path / "results", tmp_path / "work", LAMBDAS)
    tasks[0].folder.parent.mkdir(parents=True)
    tasks[0].folder.write_text("a file where its folder should be")
    done = paper.perform_all(tasks, tmp_path / "results", tmp_path / "work", jobs=2)
    found = {task.run: what for task, what in done}
    assert found.keys() == {bad, PAPER_RUN, QUERN_RUN}
    assert "could not be written" in str(found[bad])
    recorded = {record.run: record for record in records.read(tmp_path / "results")}
    assert recorded.keys() == {PAPER_RUN, QUERN_RUN}
    for run, record in recorded.items():
        assert timeless(record) == timeless(local[2][run.name])
        assert record.environment.get("threads") == 1


def pretend(monkeypatch: pytest.MonkeyPatch, local: Local, failing: Run, reason: BaseException) -> list[Run]:
    """Runs that take no time, of which one fails; the list of those that were begun."""
    begun: list[Run] = []

    def perform(run: Run, *_: object) -> Record:
        begun.append(run)
        if run == failing:
            raise reason
        return replace(local[2][QUERN_RUN.name], run=run)

    monkeypatch.setattr(_pool, "perform", perform)
    return begun


SOME = ["--dataset", "digits", "--epochs", EPOCHS, "--method", "none", "--jobs", 1]


@pytest.mark.parametrize(
    "reason", [TrainingError("the loss is nan."), OSError(28, "No space left on device"), ValueError("a bug")]
)
def test_the_command_names_what_failed_and_keeps_the_rest(
    local: Local,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: Exception,
) -> None:
    failing = Run("digits", "paper", "none", EPOCHS, 0)
    pretend(monkeypatch, local, failing, reason)
    places = ["--results", tmp_path / "results", "--work", tmp_path / "work"]
    out, err = here("reproduce", "table1", *SOME, *places, code=1)
    assert err.splitlines()[-1].startswith(f"quern: 1 of 3 runs failed; the first, {failing.name}: ")
    assert str(reason) in err.splitlines()[-1]
    assert {record.run.family for record in records.read(tmp_path / "results")} == {"quern", "real"}
    assert "1/1" in out
    assert ("Traceback" in err) == isinstance(reason, (OSError, ValueError))  # not ours to explain: it is shown


def test_a_signal_ends_all_runs_not_one(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Stopped("stopped by SIGTERM: epoch 1.", signal.SIGTERM)
    begun = pretend(monkeypatch, local, Run("digits", "quern", "none", EPOCHS, 0), stopped)
    places = ["--results", tmp_path / "results", "--work", tmp_path / "work"]
    _, err = here("reproduce", "table1", *SOME, *places, code=128 + signal.SIGTERM)
    assert [run.family for run in begun] == ["paper", "quern"]
    assert "stopped by SIGTERM: all epochs so far are saved, and the same command goes on." in err
    assert [record.run.family for record in records.read(tmp_path / "results")] == ["paper"]


def test_a_process_that_is_killed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = paper.survey(RUNS[:2], tmp_path / "results", tmp_path / "work", LAMBDAS)
    monkeypatch.setattr(_pool, "_perform", _die)
    with pytest.raises(RecordError, match=r"ended from outside.*the same command goes on"):
        list(paper.perform_all(tasks, tmp_path / "results", tmp_path / "work", jobs=2))


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# A cluster.


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    options: dict[str, Any] = {"processes": True, "dashboard_address": ":0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as found:
        yield found


def test_a_cluster_gives_the_same_records(local: Local, cluster: Any, tmp_path: Path) -> None:
    from distributed import Client

    tasks = paper.survey(RUNS, tmp_path / "results", tmp_path / "work", LAMBDAS)
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        client.run(exec, QUICK, {})
        client.get_task_stream()  # from here on it is kept
        options: dict[str, Any] = {"backend": "dask", "address": cluster.scheduler_address}
        done = list(paper.perform_all(tasks, tmp_path / "results", tmp_path / "work", **options))
        stream: Any = client.get_task_stream()
        asked: Any = client.run(os.getpid)
    processes = set(asked.values())
    assert len(done) == 3
    for record in records.read(tmp_path / "results"):
        assert timeless(record) == timeless(local[2][record.run.name])
    assert len(processes) == 2
    assert os.getpid() not in processes
    workers = [task["worker"] for task in stream if task["key"].startswith("_perform")]
    assert len(workers) == 3
    assert len(set(workers)) == 2


def test_the_command_takes_a_cluster(local: Local, cluster: Any, tmp_path: Path) -> None:
    places = ["--results", tmp_path / "results", "--work", tmp_path / "work"]
    options = ["--dataset", "digits", "--epochs", EPOCHS, "--family", "real", "--backend", "dask"]
    _, err = quern("reproduce", "table1", *options, "--address", cluster.scheduler_address, *places)
    assert f"{REAL_RUN.name}: " in err
    [record] = records.read(tmp_path / "results")
    assert record.run == REAL_RUN
    assert timeless(record) == timeless(local[2][REAL_RUN.name])


def test_workers_without_quern_are_one_sentence(cluster: Any, tmp_path: Path) -> None:
    from distributed import Client

    tasks = paper.survey([PAPER_RUN], tmp_path / "results", tmp_path / "work", LAMBDAS)
    options: dict[str, Any] = {"backend": "dask", "address": cluster.scheduler_address}
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        client.run(exec, "import sys; sys.modules['quern.paper'] = None", {})
        try:
            with pytest.raises(RecordError, match=rf"workers at {cluster.scheduler_address} have no quern .*\.$"):
                list(paper.perform_all(tasks, tmp_path / "results", tmp_path / "work", **options))
        finally:
            client.run(exec, "import sys; del sys.modules['quern.paper']", {})


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere", "tcp://", "foo://127.0.0.1:80"])
def test_an_address_where_nothing_is_is_one_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _pool.ANSWER <= 10
    monkeypatch.setattr(_pool, "ANSWER", 1)
    started = time.monotonic()
    options = [*SOME, "--results", tmp_path / "r", "--work", tmp_path / "w", "--backend", "dask"]
    said = refused("reproduce", "table1", *options, "--address", address)
    assert f"there is no Dask scheduler at {address}" in said
    assert time.monotonic() - started < 15
    assert list(records.read(tmp_path / "r")) == []


# What is seen.


def rendered(table: Any) -> str:
    console = Console(file=streams.StringIO(), width=250, color_system=None)
    console.print(table)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_board_has_means_and_deviations_next_to_the_papers_numbers(tmp_path: Path) -> None:
    runs = [Run("mnist", "quern", method, 20, seed) for method in ("rq", "none") for seed in range(3)]
    tasks = paper.survey(runs, tmp_path, tmp_path / "work", {"mnist": {"quern": {"rq": 1.0}}})
    shares = {"test_accuracy": [0.971, 0.9655, 0.9702], "quaternion_sparsity": [0.5, 0.61, 0.58]}
    shares["component_sparsity"] = [0.7, 0.71, 0.75]
    done = {
        run.name: record_of("mnist", "quern", "rq", run.seed, 20, **{what: v[run.seed] for what, v in shares.items()})
        for run in runs[:3]
    }
    done[runs[3].name] = record_of("mnist", "quern", "none", 0, 20, test_accuracy=0.9)
    (tasks[4].folder).mkdir(parents=True)
    (tasks[4].folder / "history.jsonl").write_text("{}\n{}\n")
    _, rq, none = rendered(paper.board(tasks, done)).splitlines()
    for values in shares.values():
        percent = 100 * np.array(values)
        assert f"{percent.mean():.2f} ± {percent.std(ddof=1):.2f}" in rq
    assert "3/3" in rq
    assert "96.81 | 68.40 | 53.82" in rq
    assert "1/3" in none
    assert " 90.00 " in none
    assert "98.95 | 1.71 | 0.00" in none
    assert "seed 1: 2/20" in none
    assert "seed 2" not in none


def test_the_board_without_records_or_papers_numbers(tmp_path: Path) -> None:
    runs = [Run("digits", "paper", "none", 20, 0), Run("mnist", "real", "none", 20, 0)]
    runs.append(Run("mnist", "paper", "gamma-bn", 20, 0))
    tasks = paper.survey(runs, tmp_path, tmp_path / "work", paper.read_lambdas())
    for line in rendered(paper.board(tasks, {})).splitlines()[1:]:
        assert "0/1" in line
        assert "|" not in line
    assert PAPER["mnist"].keys() >= {"test_accuracy", "component_sparsity", "quaternion_sparsity"}


# Table 2.


def test_steps_of_all_methods_are_timed(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    path = paper.time_steps("digits", tmp_path / "results", rounds=2)
    assert path == tmp_path / "results" / "digits" / "table2.json"
    found = json.loads(path.read_text())
    assert (found["dataset"], found["rounds"], found["batch"]) == ("digits", 2, 64)
    assert found["environment"]["threads"] == 1
    rows = {(row["family"], row["method"]): row for row in found["rows"]}
    methods = ("none", "l2", "l1", "rq", "rql")
    assert list(rows) == [(family, method) for family in ("paper", "quern") for method in methods]
    for row in rows.values():
        assert row["median_ms"] > 0
        assert row["ratio"] > 0
    assert rows["paper", "none"]["ratio"] == rows["quern", "none"]["ratio"] == 1.0
    assert torch.get_num_threads() == threads


def test_the_command_times_every_data_set_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[object, ...]] = []
    monkeypatch.setattr(paper, "time_steps", lambda *given: timed.append(given) or tmp_path / "table2.json")
    results = tmp_path / "results"
    twice = ["--dataset", "digits", "--dataset", "digits", "--results", results, "--lambdas", lambdas_file(tmp_path)]
    _, err = here("reproduce", "table2", *twice)
    assert timed == [("digits", results, None)]
    assert f"in {tmp_path / 'table2.json'}" in err
    # With everything else it is timed only if it was not yet.
    everything = ["reproduce", "all", "--dataset", "digits", "--results", results, "--dry-run"]
    assert "digits/table2" in here(*everything)[0]
    paper.timing_path(results, "digits").parent.mkdir(parents=True)
    paper.timing_path(results, "digits").write_text("{}")
    assert "digits/table2" not in here(*everything)[0]
    here("reproduce", "table2", *twice)
    assert len(timed) == 2
    assert "all has no such runs" in refused(*everything, "--family", "real", "--method", "rq")
    (tmp_path / "file").write_text("")
    assert "choose another --results" in refused(
        "reproduce", "table2", "--dataset", "digits", "--results", tmp_path / "file"
    )
    assert len(timed) == 2


# What the command refuses.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "imagenet"], "there is no data set imagenet"),
        (["--seeds", 0], "--seeds is 0"),
        (["--seeds", -3], "--seeds is -3"),
        (["--epochs", 0], "--epochs is 0"),
        (["--jobs", 0], "--jobs is 0"),
        (["--family", "mine"], "there is no family mine"),
        (["--method", "rqq"], "there is no method rqq"),
        (["--family", "real", "--method", "rq"], "table1 has no such runs"),
        (["--address", "tcp://127.0.0.1:1"], "--address is of a cluster: say --backend dask"),
        (["--lambdas", "nowhere.toml"], "nowhere.toml is not there"),
    ],
)
def test_what_cannot_be_reproduced_is_one_sentence(
    arguments: list[object],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = [] if "--dataset" in arguments else ["--dataset", "digits"]
    assert said in refused("reproduce", "table1", *dataset, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/deeper", "/proc/none", "/dev/null"])
def test_a_folder_that_cannot_be_written_to_is_found_before_the_first_run(
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    local: Local,
) -> None:
    (tmp_path / "file").write_text("mine")
    begun = pretend(monkeypatch, local, REAL_RUN, TrainingError("no."))
    options = ["--results", tmp_path / place, "--work", tmp_path / "work"]
    said = refused("reproduce", "table1", *SOME, *options)
    assert "cannot be written to" in said
    assert begun == []
    assert (tmp_path / "file").read_text() == "mine"


def test_a_work_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    options = ["--family", "real", "--results", tmp_path / "results", "--work", tmp_path / "file"]
    _, err = here("reproduce", "table1", *SOME, *options, code=1)
    assert "could not be written" in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["{", "{}", '{"run": {}}'])
def test_a_damaged_record_is_one_sentence(text: str, local: Local, tmp_path: Path) -> None:
    path = records.write(tmp_path, local[2][REAL_RUN.name])
    path.write_text(text)
    options = [*SOME, "--family", "real", "--results", tmp_path, "--work", tmp_path / "work"]
    assert str(path) in refused("reproduce", "table1", *options)
    whole = to_plain(local[2][REAL_RUN.name])
    for part in (
        {"settings": {"lr": -1.0}},
        {"result": {"test_accuracy": 0.5}},
        {"result": {"test_accuracy": "high"}},
        {"history": [{}]},
        {"history": None},
    ):
        path.write_text(json.dumps({**whole, **part}))
        assert str(path) in refused("reproduce", "table1", *options)
    assert not (tmp_path / "work").exists()
