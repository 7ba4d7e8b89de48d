"""Records as frozen dataclasses: what the tables and figures of the experiments are made from."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quern.errors import RecordError
from quern.records import DATASETS, FAMILIES, METHODS, Run, read, read_json, reading, record_path

__all__ = ["Compressed", "Found", "Group", "Layer", "Line", "Moduli", "Outcome", "Size", "Timing", "Trial", "load"]


@dataclass(frozen=True)
class Line:
    """One epoch; shares from 0 to 1."""

    phase: str
    component: float
    quaternion: float
    neuron: float
    val_accuracy: float


@dataclass(frozen=True)
class Layer:
    name: str
    kind: str
    quaternions: int
    zero_quaternions: int
    neurons: int
    dead_neurons: int


@dataclass(frozen=True)
class Moduli:
    """Counts of |w| between powers of ten, ``edges`` being the exponents, and how many are zero."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    zeros: int


@dataclass(frozen=True)
class Size:
    neurons: int
    parameters: int
    bytes: int
    latency_ms: float | None
    memory: float | None


@dataclass(frozen=True)
class Outcome:
    """What a run came to. ``cut_accuracy`` is the test accuracy with all that counts as zero set to zero."""

    run: Run
    strength: float | None
    test_accuracy: float
    cut_accuracy: float
    component: float
    quaternion: float
    nonzero_parameters: int
    history: tuple[Line, ...]
    layers: tuple[Layer, ...]
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
    dense: Size
    small: Size
    dense_accuracy: float
    small_accuracy: float
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
    outcomes = [_outcome(run, record, record_path(folder, run)) for run, record in read(folder)]
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


def _outcome(run: Run, record: dict[str, Any], path: Path) -> Outcome:
    with reading(path, "the record of a run"):
        result = record["result"]
        sparsity = result["sparsity"]
        return Outcome(
            run=run,
            strength=_maybe(record["lambda"]),
            test_accuracy=float(result["test_accuracy"]),
            cut_accuracy=float(record["small"]["test_accuracy"]),
            component=float(sparsity["component_sparsity"]),
            quaternion=float(sparsity["quaternion_sparsity"]),
            nonzero_parameters=int(sparsity["nonzero_parameters"]),
            history=tuple(_line(line) for line in record["history"]),
            layers=tuple(_layer(layer) for layer in sparsity["layers"]),
            moduli=_moduli(record["moduli"]),
            dense=_size(record["dense"]),
            small=_size(record["small"]),
            seconds=float(result["seconds"]),
            environment=_pairs(record["environment"]),
            sums=_pairs(record["sums"]),
        )


def _line(line: Any) -> Line:
    shares = {what: float(line[f"{what}_sparsity"]) for what in ("component", "quaternion", "neuron")}
    return Line(str(line["phase"]), **shares, val_accuracy=float(line["val_accuracy"]))


def _layer(layer: Any) -> Layer:
    keys = ("quaternions", "zero_quaternions", "neurons", "dead_neurons")
    return Layer(str(layer["name"]), str(layer["kind"]), **{key: int(layer[key]) for key in keys})


def _moduli(moduli: Any) -> Moduli:
    edges, counts = tuple(map(float, moduli["edges"])), tuple(map(int, moduli["counts"]))
    if not counts or len(edges) != len(counts) + 1 or any(b <= a for a, b in itertools.pairwise(edges)):
        raise ValueError(f"{len(edges)} edges do not part {len(counts)} counts of moduli")
    return Moduli(edges, counts, int(moduli["zeros"]))


def _size(size: Any) -> Size:
    counts = {key: int(size[key]) for key in ("neurons", "parameters", "bytes")}
    return Size(**counts, latency_ms=_maybe(size.get("latency_ms")), memory=_maybe(size.get("memory")))


def _maybe(value: Any) -> float | None:
    return None if value is None else float(value)


def _pairs(facts: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in facts.items())


def _timings(path: Path) -> tuple[Timing, ...]:
    found = read_json(path, "times of training steps", ("rows",))
    with reading(path, "times of training steps"):
        return tuple(Timing(*_known(row), float(row["median_ms"]), float(row["ratio"])) for row in found["rows"])


def _trials(path: Path) -> tuple[Trial, ...]:
    found = read_json(path, "a search for λ", ("trials",))
    with reading(path, "a search for λ"):
        return tuple(
            Trial(
                *_known(row),
                strength=_maybe(row["lambda"]),
                val_accuracy=float(row["val_accuracy"]),
                quaternion=float(row["quaternion_sparsity"]),
                nonzero_parameters=int(row["nonzero_parameters"]),
                chosen=bool(row["chosen"]),
            )
            for row in found["trials"]
        )


def _known(row: Any) -> tuple[str, str]:
    family, method = row["family"], row["method"]
    if family not in FAMILIES or method not in METHODS:
        raise ValueError(f"there is no family {family} with a method {method}")
    return family, method


def _compressed(path: Path) -> Compressed:
    record = read_json(path, "a run of quern compress", ("dense", "small"))
    with reading(path, "a run of quern compress"):
        dense, small = record["dense"], record["small"]
        return Compressed(
            name=path.parent.name,
            dataset=str(record.get("dataset") or "–"),
            dense=_size(dense),
            small=_size(small),
            dense_accuracy=float(dense["test_accuracy"]),
            small_accuracy=float(small["test_accuracy"]),
            command=str(record.get("command") or "–"),
        )
