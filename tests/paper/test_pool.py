"""The paper's runs: planned, done, killed, gone on with, failed, in processes and on a cluster."""

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

from quern import paper, records
from quern.errors import RecordError, Stopped, TrainingError
from quern.paper import _pool
from quern.records import Record, Run
from quern.records.schema import to_plain
from quern.train import Settings
from tests.commands import Started, here, quern, refused
from tests.paper.small_runs import (
    EPOCHS,
    LAMBDAS,
    ONE,
    PAPER_RUN,
    QUERN_RUN,
    QUICK,
    REAL_RUN,
    RUNS,
    SOME,
    Local,
    lambdas_file,
    timeless,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("quick"),
    pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning"),  # so short a training takes a large λ
]


ROOT = Path(__file__).parents[2]


def test_killed_in_the_middle_it_goes_on(local: Local, tmp_path: Path) -> None:
    results, work = tmp_path / "results", tmp_path / "work"
    places = ["--results", results, "--work", work, "--lambdas", lambdas_file(tmp_path)]
    process = Started("reproduce", "table1", *ONE, *places)
    [task] = paper.survey([QUERN_RUN], results, work, LAMBDAS)
    while not (task.folder / "history.jsonl").exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    code, out, err = process.ended()
    assert code == -signal.SIGKILL, (out, err)
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
    import distributed

    waited: list[float] = []

    class Impatient(distributed.Client):
        def __init__(self, *places: Any, timeout: float, **options: Any) -> None:
            waited.append(timeout)
            super().__init__(*places, timeout=1, **options)

    monkeypatch.setattr(distributed, "Client", Impatient)
    options = [*SOME, "--results", tmp_path / "r", "--work", tmp_path / "w", "--backend", "dask"]
    said = refused("reproduce", "table1", *options, "--address", address)
    assert f"there is no Dask scheduler at {address}" in said
    [seconds] = waited
    assert 0 < seconds <= 10
    assert list(records.read(tmp_path / "r")) == []


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
