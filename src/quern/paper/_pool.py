"""Many runs at once: which of them are to be done, and doing them in processes here or on a cluster."""

import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quern import records
from quern.errors import QuernError, RecordError, Stopped
from quern.paper._plan import PROTOCOLS, Lambdas, lambda_of, settings_of
from quern.paper._run import perform, work_folder
from quern.records import Record, Run
from quern.train import Settings

Backend = Literal["local", "dask"]
ANSWER = 10  # seconds for a cluster to answer in


@dataclass(frozen=True)
class Task:
    """A run, how it is to be trained, and how far it is: ``record`` if it is done, else ``epoch`` of its last
    checkpoint. ``outdated`` if there is a record of other settings, or one that counts zeros in another way, which the
    new one will replace."""

    run: Run
    weight: float | None
    settings: Settings
    folder: Path
    record: Record | None
    outdated: bool = False

    @property
    def epoch(self) -> int:
        """Epochs done."""
        if self.record is not None:
            return self.run.epochs
        try:
            lines = (self.folder / "history.jsonl").read_bytes().count(b"\n")
            return min(lines, self.run.epochs)
        except OSError:
            return 0


def survey(todo: Sequence[Run], results: Path, work: Path, lambdas: Lambdas) -> list[Task]:
    """What there is to do. A record counts if it was made with the settings that the run would have now, and counts
    zero quaternions as it would."""
    tasks = []
    for run in todo:
        weight = lambda_of(run, lambdas)
        settings = settings_of(run, weight)
        path = records.record_path(results, run)
        record = records.read_record(path) if path.exists() else None
        outdated = record is not None and (
            Settings.from_dict(record.settings.to_dict(), path) != settings
            or (settings.tol > 0 and record.zeros_by != "modulus")
        )
        folder = work_folder(work, run, settings)
        tasks.append(Task(run, weight, settings, folder, None if outdated else record, outdated))
    return tasks


MEASURES = ("test_accuracy", "component_sparsity", "quaternion_sparsity")


def percent(record: Record, what: str) -> float:
    """One of :data:`MEASURES` of a record."""
    result = record.result
    return 100 * getattr(result if hasattr(result, what) else result.sparsity, what)


def seconds_left(tasks: Sequence[Task]) -> float:
    """How long one core would take for what is left, from the seconds that epochs took so far."""
    taken: dict[str, list[float]] = {}
    for task in tasks:
        if task.record is not None:
            taken.setdefault(task.run.dataset, []).extend(line.seconds for line in task.record.history)
    guess = {name: sum(times) / len(times) for name, times in taken.items() if times}
    return sum(
        (task.run.epochs - task.epoch) * guess.get(task.run.dataset, PROTOCOLS[task.run.dataset].seconds)
        for task in tasks
    )


def perform_all(
    tasks: Sequence[Task],
    results: Path,
    work: Path,
    *,
    jobs: int = 2,
    backend: Backend = "local",
    address: str | None = None,
    data_dir: Path | None = None,
) -> Iterator[tuple[Task, Record | str]]:
    """Do the tasks that have no record, ``jobs`` at a time in processes of one thread, and keep their records as they
    come; yields each with its record, or with the sentence that says why there is none.

    ``backend`` "dask" does them on a cluster at ``address``, as many at a time as it has workers, or, without an
    address, on one that is started here; "local" in processes of this machine.
    """
    if address is not None and backend == "local":
        raise RecordError("--address is of a cluster: say --backend dask.")
    todo = [task for task in tasks if task.record is None]
    if not todo:
        return iter(())
    for dataset in dict.fromkeys(task.run.dataset for task in todo):
        records.check_writable(results / dataset, "--results")
    # A process elsewhere may have been started in another folder.
    places = (work.resolve(), None if data_dir is None else data_dir.resolve())
    calls = [(n, task, *places) for n, task in enumerate(todo)]
    done = _locally(calls, jobs) if backend == "local" else _on_dask(calls, jobs, address)
    return _kept(done, todo, results)


Call = tuple[int, Task, Path, Path | None]
Done = tuple[int, Record | str | int]


def _kept(done: Iterator[Done], todo: Sequence[Task], results: Path) -> Iterator[tuple[Task, Record | str]]:
    for n, outcome in done:
        if isinstance(outcome, int):
            name = signal.Signals(outcome).name
            raise Stopped(f"stopped by {name}: all epochs so far are saved, and the same command goes on.", outcome)
        if isinstance(outcome, Record):
            records.write(results, outcome)
        yield todo[n], outcome


# Torch has one random generator per process, so a worker of a cluster that has several threads does one run at a time.
_ALONE = threading.Lock()


def _perform(n: int, task: Task, work: Path, data_dir: Path | None) -> Done:
    """In a worker: the record, or what went wrong, or the signal that ended it. One run that fails must not end the
    others, whatever it was."""
    try:
        with _ALONE:
            return n, perform(task.run, task.settings, task.weight, work, data_dir)
    except Stopped as reason:
        return n, reason.signal
    except QuernError as reason:
        return n, str(reason)
    except Exception as reason:
        traceback.print_exc()
        return n, f"{type(reason).__name__}: {reason}"


def _locally(calls: Sequence[Call], jobs: int) -> Iterator[Done]:
    import joblib

    options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1, "pre_dispatch": "n_jobs"}
    with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
        done: Any = joblib.Parallel(jobs, **options)(joblib.delayed(_perform)(*call) for call in calls)
        try:
            yield from done
        except BrokenProcessPool:
            raise RecordError(
                "a process that did a run was ended from outside, as happens when memory is short: the same command "
                "goes on from the last epochs, with fewer --jobs if need be."
            ) from None


def _on_dask(calls: Sequence[Call], jobs: int, address: str | None) -> Iterator[Done]:
    """Without joblib: its Dask backend waits forever for a call that no worker could begin or finish."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise RecordError("--backend dask needs the dask package: pip install 'quern-nn[dask]'.") from None
    own: dict[str, Any] = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": ":0"}
    try:
        client = Client(address, timeout=ANSWER, set_as_default=False, **({} if address else own))
    except (OSError, ValueError, TimeoutError):
        raise RecordError(f"there is no Dask scheduler at {address}: start one, or mend --address.") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=ANSWER)
        except TimeoutError:
            raise RecordError(f"the Dask scheduler at {address} has no workers: start some.") from None
        try:
            client.run(exec, "import quern.paper", {})  # without it they would wait for calls they cannot read
        except ImportError as reason:
            raise RecordError(f"the workers at {address} have no quern ({reason}): install it there.") from None
        places = {client.submit(_perform, *call, pure=False): call[0] for call in calls}
        for future in as_completed(places, loop=client.loop):
            reason = future.exception()  # of what is not the run's: no quern over there, a worker that died
            yield future.result() if reason is None else (places[future], f"{type(reason).__name__}: {reason}")
