"""Records as frozen dataclasses: what the tables and figures of the experiments are made from."""

from dataclasses import dataclass
from pathlib import Path

from quern.errors import RecordError
from quern.records import (
    DATASETS,
    FAMILIES,
    METHODS,
    Epoch,
    LayerCounts,
    Moduli,
    Network,
    Record,
    Run,
    Sizes,
    Timings,
    Trials,
    read,
    read_compression,
    schema,
)
from quern.records.schema import visible

__all__ = ["Compressed", "Found", "Group", "Line", "Outcome", "Size", "Timing", "Trial", "load"]


@dataclass(frozen=True)
class Line:
    """One epoch; shares from 0 to 1."""

    phase: str
    component: float
    quaternion: float
    neuron: float
    val_accuracy: float


@dataclass(frozen=True)
class Size:
    neurons: int
    parameters: int
    bytes: int
    latency_ms: float | None
    memory: float | None


@dataclass(frozen=True)
class Outcome:
    """What a run came to. ``cut_accuracy`` is the test accuracy with all that counts as zero set to zero. Quaternions
    are zero by their modulus, but for the ``history`` of older records, where it is by their four components
    (``curves_by_modulus`` is False)."""

    run: Run
    strength: float | None
    test_accuracy: float
    cut_accuracy: float
    component: float
    quaternion: float
    curves_by_modulus: bool
    nonzero_parameters: int
    history: tuple[Line, ...]
    layers: tuple[LayerCounts, ...]
    moduli: Moduli
    dense: Size
    small: Size
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
class Timing:
    """What a step of training costs with a penalty; ``ratio`` is to that without any."""

    family: str
    method: str
    median_ms: float
    ratio: float


@dataclass(frozen=True)
class Trial:
    """One λ that was tried, and what it gave on the validation images; ``strength`` is None without penalty."""

    family: str
    method: str
    strength: float | None
    val_accuracy: float
    quaternion: float
    nonzero_parameters: int
    chosen: bool


@dataclass(frozen=True)
class Compressed:
    """A run of ``quern compress``."""

    name: str
    dataset: str
    dense: Network
    small: Network
    command: str


@dataclass(frozen=True)
class Found:
    """All that a folder holds. ``timings`` and ``trials`` are by data set."""

    groups: tuple[Group, ...]
    timings: dict[str, tuple[Timing, ...]]
    trials: dict[str, tuple[Trial, ...]]
    compressed: tuple[Compressed, ...]

    def group(self, dataset: str, family: str, method: str) -> Group | None:
        same = (g for g in self.groups if (g.dataset, g.family, g.method) == (dataset, family, method))
        return next(same, None)

    def datasets(self) -> tuple[str, ...]:
        """The data sets that there is anything of, besides runs of ``quern compress``."""
        known = {group.dataset for group in self.groups} | set(self.timings) | set(self.trials)
        return tuple(dataset for dataset in DATASETS if dataset in known)


def load(folder: Path) -> Found:
    """Read all records in a folder."""
    outcomes = [_outcome(run, record) for run, record in read(folder)]
    timings, trials = {}, {}
    for dataset in DATASETS:
        if (path := folder / dataset / "table2.json").exists():
            timings[dataset] = _timings(path)
        if (path := folder / dataset / "tuning.json").exists():
            trials[dataset] = _trials(path)
    compressed = tuple(_compressed(path) for path in sorted(folder.glob("*/record.json")))
    found = Found(_groups(outcomes), timings, trials, compressed)
    if not (found.groups or timings or trials or compressed):
        said = "make some with quern reproduce, or give the folder of a run of quern compress"
        raise RecordError(f"{folder} holds no records: {said}.")
    return found


def _groups(outcomes: list[Outcome]) -> tuple[Group, ...]:
    """Runs that differ in their seeds only, together; of several numbers of epochs, the largest counts."""
    rows: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault((outcome.run.dataset, outcome.run.family, outcome.run.method), []).append(outcome)
    groups = []
    for key, found in rows.items():
        epochs = max(outcome.run.epochs for outcome in found)
        runs = sorted((o for o in found if o.run.epochs == epochs), key=lambda outcome: outcome.run.seed)
        strengths = sorted({o.strength for o in runs if o.strength is not None})
        if len(strengths) > 1:
            raise RecordError(
                f"the runs {'-'.join(map(str, (*key[1:], epochs)))} of {key[0]} have different λs "
                f"({', '.join(f'{strength:g}' for strength in strengths)}), so there is no mean of them: "
                "run quern reproduce for all seeds again, or remove the records of one λ."
            )
        groups.append(Group(*key, epochs, tuple(runs), len(found) - len(runs)))
    order = {name: n for n, name in enumerate((*DATASETS, *FAMILIES, *METHODS))}
    return tuple(sorted(groups, key=lambda g: (order[g.dataset], order[g.family], list(METHODS).index(g.method))))


def _outcome(run: Run, record: Record) -> Outcome:
    result, small = record["result"], record["small"]
    sparsity, quaternion = result["sparsity"], result["sparsity"]["quaternion_sparsity"]
    by_modulus = sparsity["tol"] == 0 or record.get("zeros_by") == "modulus"
    if not by_modulus and (share := record["moduli"].share_up_to(sparsity["tol"])) is not None:
        quaternion = share
    return Outcome(
        run=run,
        strength=record["lambda"],
        test_accuracy=result["test_accuracy"],
        cut_accuracy=small["test_accuracy"],
        component=sparsity["component_sparsity"],
        quaternion=quaternion,
        curves_by_modulus=by_modulus,
        nonzero_parameters=sparsity["nonzero_parameters"],
        history=tuple(_line(line) for line in record["history"]),
        layers=tuple(sparsity["layers"]),
        moduli=record["moduli"],
        dense=_size(record["dense"]),
        small=_size(small),
        seconds=result["seconds"],
        environment=tuple((name, str(value)) for name, value in record["environment"].items()),
        sums=tuple((visible(name), digest) for name, digest in record["sums"].items()),
    )


def _line(line: Epoch) -> Line:
    shares = (line["component_sparsity"], line["quaternion_sparsity"], line["neuron_sparsity"])
    return Line(line["phase"], *shares, line["val_accuracy"])


def _size(size: Sizes) -> Size:
    counts = (size["neurons"], size["parameters"], size["bytes"])
    return Size(*counts, size.get("latency_ms"), size.get("memory"))


def _timings(path: Path) -> tuple[Timing, ...]:
    found = schema.read(path, Timings, "times of training steps", "run quern reproduce table2 again")
    return tuple(Timing(row["family"], row["method"], row["median_ms"], row["ratio"]) for row in found["rows"])


def _trials(path: Path) -> tuple[Trial, ...]:
    found = schema.read(path, Trials, "a search for λ", "run quern tune again")
    return tuple(
        Trial(
            family=row["family"],
            method=row["method"],
            strength=row["lambda"],
            val_accuracy=row["val_accuracy"],
            quaternion=row["quaternion_sparsity"],
            nonzero_parameters=row["nonzero_parameters"],
            chosen=row["chosen"],
        )
        for row in found["trials"]
    )


def _compressed(path: Path) -> Compressed:
    record = read_compression(path)
    return Compressed(
        name=path.parent.name,
        dataset=visible(record.get("dataset") or "–"),
        dense=record["dense"],
        small=record["small"],
        command=visible(record.get("command") or "–"),
    )
