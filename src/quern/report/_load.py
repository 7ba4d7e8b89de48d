"""Records as frozen dataclasses: what the tables and figures of the experiments are made from."""

from dataclasses import dataclass
from pathlib import Path

from quern.errors import RecordError
from quern.records import (
    DATASETS,
    FAMILIES,
    METHODS,
    Deployed,
    Epoch,
    LayerCounts,
    Moduli,
    Network,
    Record,
    Run,
    TimingRow,
    Timings,
    TrialRow,
    Trials,
    read,
    read_compression,
    schema,
)
from quern.records.schema import visible

__all__ = ["Compressed", "Group", "Outcome", "Records", "load"]


@dataclass(frozen=True)
class Outcome:
    """What a run came to. ``cut_accuracy`` is the test accuracy with all that counts as zero set to zero. Quaternions
    are zero by their modulus, but for the ``history`` of older records, where it is by their four components
    (``curves_by_modulus`` is False). Dead neurons in ``history`` and ``layers`` are those that compaction removes, but
    for older records (``dead_by_compaction`` is False)."""

    run: Run
    strength: float | None
    test_accuracy: float
    cut_accuracy: float
    component: float
    quaternion: float
    curves_by_modulus: bool
    dead_by_compaction: bool
    nonzero_parameters: int
    history: tuple[Epoch, ...]
    layers: tuple[LayerCounts, ...]
    moduli: Moduli
    dense: Deployed
    small: Deployed
    seconds: float
    environment: tuple[tuple[str, str], ...]
    sums: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Group:
    """The runs of one row: they differ in their seeds only. ``left_out`` more have fewer epochs."""

    dataset: str
    family: str
    method: str
    epochs: int
    runs: tuple[Outcome, ...]
    left_out: int


@dataclass(frozen=True)
class Compressed:
    """A run of ``quern compress``."""

    name: str
    dataset: str
    dense: Network
    small: Network
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
    outcomes = [_outcome(record) for record in read(folder)]
    timings, trials = {}, {}
    for dataset in DATASETS:
        if (path := folder / dataset / "table2.json").exists():
            timings[dataset] = _timings(path)
        if (path := folder / dataset / "tuning.json").exists():
            trials[dataset] = _trials(path)
    compressed = tuple(_compressed(path) for path in sorted(folder.glob("*/record.json")))
    records = Records(_groups(outcomes), timings, trials, compressed)
    if not (records.groups or timings or trials or compressed):
        remedy = "make some with quern reproduce, or give the folder of a run of quern compress"
        raise RecordError(f"{folder} holds no records: {remedy}.")
    return records


def _groups(outcomes: list[Outcome]) -> tuple[Group, ...]:
    """Runs that differ in their seeds only, together; of several numbers of epochs, the largest counts."""
    rows: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault((outcome.run.dataset, outcome.run.family, outcome.run.method), []).append(outcome)
    groups = []
    for key, same in rows.items():
        epochs = max(outcome.run.epochs for outcome in same)
        runs = sorted((o for o in same if o.run.epochs == epochs), key=lambda outcome: outcome.run.seed)
        strengths = sorted({o.strength for o in runs if o.strength is not None})
        if len(strengths) > 1:
            raise RecordError(
                f"the runs {'-'.join(map(str, (*key[1:], epochs)))} of {key[0]} have different λs "
                f"({', '.join(f'{strength:g}' for strength in strengths)}), so there is no mean of them: "
                "run quern reproduce for all seeds again, or remove the records of one λ."
            )
        groups.append(Group(*key, epochs, tuple(runs), len(same) - len(runs)))
    order = {name: n for n, name in enumerate((*DATASETS, *FAMILIES, *METHODS))}
    return tuple(sorted(groups, key=lambda g: (order[g.dataset], order[g.family], list(METHODS).index(g.method))))


def _outcome(record: Record) -> Outcome:
    sparsity, quaternion = record.result.sparsity, record.result.sparsity.quaternion_sparsity
    by_modulus = sparsity.tol == 0 or record.zeros_by == "modulus"
    if not by_modulus and (share := record.moduli.share_up_to(sparsity.tol)) is not None:
        quaternion = share
    return Outcome(
        run=record.run,
        strength=record.weight,
        test_accuracy=record.result.test_accuracy,
        cut_accuracy=record.small.test_accuracy,
        component=sparsity.component_sparsity,
        quaternion=quaternion,
        curves_by_modulus=by_modulus,
        dead_by_compaction=record.dead_by == "compaction",
        nonzero_parameters=sparsity.nonzero_parameters,
        history=record.history,
        layers=sparsity.layers,
        moduli=record.moduli,
        dense=record.dense,
        small=record.small,
        seconds=record.result.seconds,
        environment=tuple((name, str(value)) for name, value in record.environment.items()),
        sums=tuple((visible(name), digest) for name, digest in record.sums.items()),
    )


def _timings(path: Path) -> tuple[TimingRow, ...]:
    return schema.read(path, Timings, "times of training steps", "run quern reproduce table2 again").rows


def _trials(path: Path) -> tuple[TrialRow, ...]:
    return schema.read(path, Trials, "a search for λ", "run quern tune again").trials


def _compressed(path: Path) -> Compressed:
    record = read_compression(path)
    return Compressed(
        name=path.parent.name,
        dataset=visible(record.get("dataset") or "–"),
        dense=record["dense"],
        small=record["small"],
        command=visible(record.get("command") or "–"),
    )
