"""``quern reproduce``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quern.cli._console import Fetching, err_console, out_console, say
from quern.cli._options import DataDirOfPaper, of_what, of_where
from quern.errors import RecordError
from quern.records import check_writable
from quern.records.text import clock

if TYPE_CHECKING:
    from quern.paper import Task

EXAMPLES = """
Examples:

  quern reproduce table1 --dataset digits --seeds 2    (a taste, in minutes)

  quern reproduce table1 --dataset mnist --seeds 5

  quern reproduce all --dry-run

  quern reproduce figure2 --dataset cifar10 --method gamma-bn --family quern --epochs 50

  quern reproduce all --backend dask --address tcp://scheduler:8786
"""

_What = Annotated[
    Literal["table1", "table2", "figure1", "figure2", "all"],
    typer.Argument(help="A table or figure of the paper, or all of them."),
]
_Datasets = Annotated[
    list[str] | None,
    of_what("--dataset", help="mnist, cifar10 or digits; repeat it for several.", show_default="paper's"),
]
# What the paper shows on which data.
_PAPER_DATASETS = {
    "table1": ["mnist", "cifar10"],
    "table2": ["mnist", "cifar10"],
    "figure1": ["mnist"],
    "figure2": ["cifar10"],
}


def reproduce(
    what: _What,
    dataset: _Datasets = None,
    seeds: Annotated[int, of_what(help="Runs of each kind, with seeds from 0 on.")] = 1,
    epochs: Annotated[int | None, of_what(help="Epochs of each run.", show_default="20; 12 for cifar10")] = None,
    family: Annotated[list[str] | None, of_what(help="Only this family: paper, quern or real.")] = None,
    method: Annotated[list[str] | None, of_what(help="Only this method: none, l2, l1, rq, rql, ...")] = None,
    lambdas: Annotated[
        Path | None, of_what(help="Weights of the penalties, as quern tune writes them.", show_default="quern's own")
    ] = None,
    dry_run: Annotated[bool, of_what("--dry-run", help="Say what would be run, and how long it would take.")] = False,
    results: Annotated[Path, of_where(help="Folder of the records; what is there already is not run again.")] = Path(
        "results"
    ),
    work: Annotated[Path, of_where(help="Folder for checkpoints, from which half-finished runs go on.")] = Path(
        "runs/reproduce"
    ),
    data_dir: DataDirOfPaper = None,
    jobs: Annotated[int | None, of_where(help="Runs at once here, one thread each.", show_default="all cores")] = None,
    backend: Annotated[Literal["local", "dask"], of_where(help="Processes here, or a Dask cluster.")] = "local",
    address: Annotated[str | None, of_where(help="Address of the cluster.")] = None,
) -> None:
    """Do the runs of the paper's tables and figures, next to the paper's numbers."""
    if seeds < 1:
        raise RecordError(f"--seeds is {seeds}, but there must be at least one.")
    if epochs is not None and epochs < 1:
        raise RecordError(f"--epochs is {epochs}, but there must be at least one.")
    wanted = list(_PAPER_DATASETS) if what == "all" else [what]
    from joblib import cpu_count

    from quern import paper

    parts = [(one, name) for one in wanted for name in dataset or _PAPER_DATASETS[one]]
    todo = paper.runs(parts, seeds, epochs, family or (), method or ())
    tasks = paper.survey(todo, results, work, paper.read_lambdas(lambdas))
    timed = list(dict.fromkeys(name for one, name in parts if one == "table2"))
    if what == "all":  # asked for by its name, table 2 is timed again
        timed = [name for name in timed if not paper.timing_path(results, name).exists()]
    if not tasks and what != "table2":
        raise RecordError(f"{what} has no such runs: leave out --family or --method, or name others.")
    jobs = cpu_count() if jobs is None else jobs
    if jobs < 1:
        raise RecordError(f"--jobs is {jobs}, but there must be at least one.")
    if dry_run:
        _say_tasks(tasks, timed, jobs)
        return
    for name in timed:
        check_writable(paper.timing_path(results, name).parent, "--results")
    for name in dict.fromkeys([*(task.run.dataset for task in tasks if task.record is None), *timed]):
        _fetch(name, data_dir)
    outdated = [task.run.name for task in tasks if task.outdated]
    if outdated:
        say(f"recorded with other settings, and run again: {', '.join(outdated)}", err_console)
    if tasks:
        options: dict[str, Any] = {"jobs": jobs, "backend": backend, "address": address, "data_dir": data_dir}
        failed = _perform(tasks, results, work, options)
        if failed:
            raise RecordError(f"{len(failed)} of {len(tasks)} runs failed; the first, {failed[0]}")
    for name in timed:
        say(f"{name}: timing steps of all methods in turn", err_console)
        say(f"in {paper.time_steps(name, results, data_dir)}", err_console)


def _fetch(name: str, data_dir: Path | None) -> None:
    """Once, before several processes want it."""
    from quern import data

    with Fetching(False) as progress:
        data.load(name, data_dir, None, progress)


def _say_tasks(tasks: "list[Task]", timed: list[str], jobs: int) -> None:
    from quern.paper import seconds_left

    for task in tasks:
        state = (
            "recorded" if task.record else f"{task.epoch} of {task.run.epochs} epochs done" if task.epoch else "to do"
        )
        if task.outdated:
            state += " in place of a record with other settings"
        weight = "" if task.weight is None else f", λ = {task.weight:g}"
        say(f"{task.run.name}{weight}: {state}")
    for name in timed:
        say(f"{name}/table2: steps of all methods timed in turn")
    left = [task for task in tasks if task.record is None]
    longest = max((seconds_left([*(t for t in tasks if t.record), task]) for task in left), default=0.0)
    total = max(seconds_left(tasks) / jobs, longest)
    say(f"{len(left)} of {len(tasks)} runs to do, {jobs} at a time: about {clock(total)}")


def _perform(tasks: "list[Task]", results: Path, work: Path, options: dict[str, Any]) -> list[str]:
    """Do what has no record, with a table that is live on a terminal and lines elsewhere; what failed, as sentences."""
    from rich.live import Live

    from quern.paper import board, percent, perform_all

    done = {t.run.name: t.record for t in tasks if t.record is not None}
    failed: list[str] = []
    started = time.monotonic()
    live = Live(
        get_renderable=lambda: board(tasks, done),
        console=err_console,
        refresh_per_second=0.5,
        transient=True,
        auto_refresh=err_console.is_terminal,
    )
    with live:
        for task, outcome in perform_all(tasks, results, work, **options):
            if isinstance(outcome, str):
                failed.append(f"{task.run.name}: {outcome}")
                say(f"failed: {failed[-1]}", live.console)
                continue
            done[task.run.name] = outcome
            if not err_console.is_terminal:
                accuracy, zero = (percent(outcome, what) for what in ("test_accuracy", "quaternion_sparsity"))
                took = f"{len(done)} of {len(tasks)} done after {clock(time.monotonic() - started)}"
                say(f"{task.run.name}: {accuracy:.2f} %, {zero:.2f} % of quaternions zero; {took}", err_console)
    out_console.print(board(tasks, done))
    say(f"in {results}; tables and figures: quern report {results}", err_console)
    return failed
