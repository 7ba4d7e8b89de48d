"""All records of a folder: what the tables and figures of the experiments are made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quern.errors import RecordError
from quern.records import (
    ACCURACY,
    DATASETS,
    FAMILIES,
    METHODS,
    Metric,
    Network,
    Record,
    TimingRow,
    Timings,
    TrialRow,
    Trials,
    read,
    read_compression,
    schema,
)
from quern.records.schema import visible


@dataclass(frozen=True)
class Group:
    """The runs of one row: they differ in their seeds only. ``left_out`` more have fewer epochs."""

    dataset: str
    family: str
    method: str
    epochs: int
    runs: tuple[Record, ...]
    left_out: int


@dataclass(frozen=True)
class Compressed:
    """A run of ``quern compress``."""

    name: str
    dataset: str
    dense: Network
    small: Network
    metric: Metric
    command: str


@dataclass(frozen=True)
class Records:
    """All that a folder holds. ``timings`` and ``trials`` are by data set."""

    groups: tuple[Group, ...]
    timings: dict[str, tuple[TimingRow, ...]]
    trials: dict[str, tuple[TrialRow, ...]]
    compressed: tuple[Compressed, ...]

    def group(self, dataset: str, family: str, method: str) -> Group | None:
        same = (g for g in self.groups if (g.dataset, g.family, g.method) == (dataset, family, method))
        return next(same, None)

    def datasets(self) -> tuple[str, ...]:
        """The data sets that there is anything of, besides runs of ``quern compress``."""
        known = {group.dataset for group in self.groups} | set(self.timings) | set(self.trials)
        return tuple(dataset for dataset in DATASETS if dataset in known)


def load(folder: Path) -> Records:
    """Read all records in a folder."""
    timings, trials = {}, {}
    for dataset in DATASETS:
        if (path := folder / dataset / "table2.json").exists():
            remedy = "run quern reproduce table2 again"
            timings[dataset] = schema.read(path, Timings, "times of training steps", remedy).rows
        if (path := folder / dataset / "tuning.json").exists():
            trials[dataset] = schema.read(path, Trials, "a search for λ", "run quern tune again").trials
    compressed = tuple(_compressed(path) for path in sorted(folder.glob("*/record.json")))
    records = Records(_groups(read(folder)), timings, trials, compressed)
    if not (records.groups or timings or trials or compressed):
        remedy = "make some with quern reproduce, or give the folder of a run of quern compress"
        raise RecordError(f"{folder} holds no records: {remedy}.")
    return records


def _groups(records: Iterable[Record]) -> tuple[Group, ...]:
    """Runs that differ in their seeds only, together; of several numbers of epochs, the largest counts."""
    rows: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        rows.setdefault((record.run.dataset, record.run.family, record.run.method), []).append(record)
    groups = []
    for key, same in rows.items():
        epochs = max(record.run.epochs for record in same)
        runs = sorted((one for one in same if one.run.epochs == epochs), key=lambda record: record.run.seed)
        strengths = sorted({record.weight for record in runs if record.weight is not None})
        if len(strengths) > 1:
            raise RecordError(
                f"the runs {'-'.join(map(str, (*key[1:], epochs)))} of {key[0]} have different λs "
                f"({', '.join(f'{strength:g}' for strength in strengths)}), so there is no mean of them: "
                "run quern reproduce for all seeds again, or remove the records of one λ."
            )
        groups.append(Group(*key, epochs, tuple(runs), len(same) - len(runs)))
    order = {name: n for n, name in enumerate((*DATASETS, *FAMILIES, *METHODS))}
    return tuple(sorted(groups, key=lambda g: (order[g.dataset], order[g.family], list(METHODS).index(g.method))))


def _compressed(path: Path) -> Compressed:
    record = read_compression(path)
    return Compressed(
        name=path.parent.name,
        dataset=visible(record.get("dataset") or "–"),
        dense=record["dense"],
        small=record["small"],
        metric=record.get("metric", ACCURACY),
        command=visible(record.get("command") or "–"),
    )
