"""The table that is seen while runs are done: a row per data set, family and method."""

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table

from quern.paper._pool import MEASURES, Task, percent
from quern.records import DATASETS, METHODS, PAPER, Record


def board(tasks: Sequence[Task], done: Mapping[str, Record]) -> Table:
    """Means over the seeds that are done, and how far the others are; ``done`` has records by the name of the run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("data", "family", "method"):
        table.add_column(column, no_wrap=True)
    for column in ("runs", "accuracy %", "components zero %", "quaternions zero %", "the paper's", "now"):
        table.add_column(column, justify="right", no_wrap=True)
    groups: dict[tuple[str, str, str, int], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.run.dataset, task.run.family, task.run.method, task.run.epochs), []).append(task)
    for (dataset, family, method, epochs), group in groups.items():
        finished = [done[task.run.name] for task in group if task.run.name in done]
        now = [
            f"seed {task.run.seed}: {task.epoch}/{epochs}"
            for task in group
            if task.run.name not in done and task.folder.is_dir()
        ]
        table.add_row(
            *(DATASETS[dataset], family, METHODS[method], f"{len(finished)}/{len(group)}"),
            *(mean_std([percent(record, what) for record in finished]) for what in MEASURES),
            _paper(dataset, family, method),
            ", ".join(now),
        )
    return table


def mean_std(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _paper(dataset: str, family: str, method: str) -> str:
    numbers = PAPER.get(dataset, {})
    if family == "real" or method not in numbers.get("test_accuracy", {}):
        return ""
    return " | ".join(f"{numbers[what][method]:.2f}" for what in MEASURES)
