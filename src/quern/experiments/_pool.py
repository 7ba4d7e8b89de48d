"""Many runs at once: which of them are to be done, and doing them in processes here or on a cluster."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quern import records
from quern.errors import QuernError, RecordError
from quern.experiments._plan import PROTOCOLS, Lambdas, lambda_of, settings_of
from quern.experiments._run import perform, work_folder
from quern.records import Run
from quern.train import Settings

Backend = Literal["local", "dask", "ray"]


@dataclass(frozen=True)
class Task:
    """A run, how it is to be trained, and how far it is: ``record`` if it is done, else ``epoch`` of its last
    checkpoint."""

    run: Run
    weight: float | None
    settings: Settings
    folder: Path
    record: dict[str, Any] | None

    @property
    def epoch(self) -> int:
        """Epochs done."""
        if self.record is not None:
            return self.run.epochs
        try:
            return len((self.folder / "history.jsonl").read_text(encoding="utf-8").splitlines())
        except OSError:
            return 0


def survey(todo: Sequence[Run], results: Path, work: Path, lambdas: Lambdas) -> list[Task]:
    """What there is to do. A record counts if it was made with the settings that the run would have now."""
    found = []
    for run in todo:
        weight = lambda_of(run, lambdas)
        settings = settings_of(run, weight)
        path = records.record_path(results, run)
        record = records.read_record(path) if path.exists() else None
        if record is not None and Settings.from_dict(record["settings"]) != settings:
            record = None
        found.append(Task(run, weight, settings, work_folder(work, run, settings), record))
    return found


def seconds_left(tasks: Sequence[Task]) -> float:
    """How long one core would take for what is left, from the seconds that epochs took so far."""
    taken: dict[str, list[float]] = {}
    for task in tasks:
        if task.record is not None:
            taken.setdefault(task.run.dataset, []).extend(line["seconds"] for line in task.record["history"])
    guess = {name: sum(times) / len(times) for name, times in taken.items()}
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
) -> Iterator[tuple[Task, dict[str, Any] | str]]:
    """Do the tasks that have no record, ``jobs`` at a time in processes of one thread, and keep their records as they
    come; yields each with its record, or with the sentence that says why there is none.

    ``backend`` "dask" or "ray" does them on a cluster at ``address``; "local" in processes of this machine.
    """
    import joblib

    todo = [task for task in tasks if task.record is None]
    if not todo:
        return
    with _place(backend, address, jobs):
        options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": 1, "pre_dispatch": "n_jobs"}
        calls = (joblib.delayed(_perform)(n, task, work, data_dir) for n, task in enumerate(todo))
        done: Any = joblib.Parallel(jobs, **options)(calls)
        for n, found in done:
            if not isinstance(found, str):
                records.write(results, todo[n].run, found)
            yield todo[n], found


def _perform(n: int, task: Task, work: Path, data_dir: Path | None) -> tuple[int, dict[str, Any] | str]:
    """In a worker: the record, or what went wrong. One run that fails must not end the others."""
    try:
        return n, perform(task.run, task.settings, task.weight, work, data_dir)
    except QuernError as reason:
        return n, str(reason)


@contextmanager
def _place(backend: Backend, address: str | None, jobs: int) -> Iterator[None]:
    """Where joblib sends its calls."""
    import joblib

    if address is not None and backend == "local":
        raise RecordError("--address is of a cluster: say --backend dask or --backend ray.")
    if backend == "local":
        with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
            yield
    elif backend == "dask":
        try:
            from distributed import Client
        except ImportError:
            raise RecordError("--backend dask needs the dask package: pip install 'quern[dask]'.") from None
        try:
            client = Client(address, timeout=10, set_as_default=False) if address else Client(n_workers=jobs)
        except (OSError, ValueError, TimeoutError) as reason:
            raise RecordError(f"there is no Dask scheduler at {address}: {reason or 'it does not answer'}.") from None
        with client, joblib.parallel_config("dask", n_jobs=jobs, client=client):
            yield
    else:
        try:
            import ray  # pyright: ignore[reportMissingImports]
            from ray.util.joblib import register_ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise RecordError("--backend ray needs the ray package: pip install ray.") from None
        ray.init(address=address, ignore_reinit_error=True)
        register_ray()
        with joblib.parallel_config("ray", n_jobs=jobs):
            yield
