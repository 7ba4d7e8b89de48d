"""The tables of the experiments."""

from collections.abc import Callable

from quern.records import DATASETS, FAMILIES, METHODS, NEURONS, PAPER, TABLE1, TrialRow, without_penalty
from quern.records.schema import visible
from quern.report._load import Compressed, Group, Records
from quern.report._tables import NONE, Cell, Table, counted, judged, marked, mean, measured, number, ratio, word

OURS = {"paper": "paper's way", "quern": "quern", "real": "real-valued"}
SLOWEST = 1.10  # a step with R_Q or R_QL may take so many times that of one without


def table1(records: Records, dataset: str) -> Table | None:
    """Accuracy and sparsity of every method: the paper's, and ours in both families."""
    rows: list[tuple[Cell, ...]] = []
    printed = PAPER.get(dataset)
    for method in TABLE1:
        ours = [group for family in ("paper", "quern") if (group := records.group(dataset, family, method))]
        if ours and printed:
            cells = (number(printed[what][method]) for what in _SHARES)
            rows.append((word(METHODS[method]), word("the paper"), *cells, *_blank(2), *_REPETITIONS[dataset]))
        rows += [_row1(group) for group in ours]
    if not rows:
        return None
    if real := records.group(dataset, "real", "none"):
        rows.append(_real(real))
    columns = ("method", "from", "test accuracy, %", "component sparsity, %", "quaternion sparsity, %")
    columns += ("accuracy with zeros cut, %", "beats the paper", "runs", "epochs")
    if not printed:
        last = columns.index("beats the paper")
        columns = columns[:last] + columns[last + 1 :]
        rows = [row[:last] + row[last + 1 :] for row in rows]
    notes = ["Mean ± standard deviation over seeds; with one run there is no deviation."]
    if printed:
        notes.append(
            "▲ above the paper's mean, = equal to it, ▼ below it, both as printed. A row beats the paper (✓) only when "
            "its means of accuracy and of quaternion sparsity are both at least the paper's."
        )
    shown = [group for group in records.groups if group.dataset == dataset and group.method in TABLE1]
    if rest := ", ".join(f"{g.left_out} of {OURS[g.family]} {METHODS[g.method]}" for g in shown if g.left_out):
        notes.append(f"Of runs with different numbers of epochs the longest count; left out are {rest}.")
    return Table(f"table1-{dataset}", f"Table 1, {DATASETS[dataset]}", columns, tuple(rows), tuple(notes))


_SHARES = ("test_accuracy", "component_sparsity", "quaternion_sparsity")
_REPETITIONS = {"mnist": (counted(5), counted(20)), "cifar10": (counted(5), counted(50))}  # and epochs, of the paper


def _blank(count: int) -> tuple[Cell, ...]:
    return (word(""),) * count


def _row1(group: Group) -> tuple[Cell, ...]:
    shares = (
        measured([run.result.test_accuracy for run in group.runs]),
        measured([run.result.sparsity.component_sparsity for run in group.runs]),
        measured([run.quaternion_sparsity for run in group.runs]),
    )
    printed = PAPER.get(group.dataset)
    beats = word("")
    if printed:
        accuracy, component, quaternion = (
            marked(cell, printed[what][group.method]) for cell, what in zip(shares, _SHARES, strict=True)
        )
        shares = (accuracy, component, quaternion)
        beats = judged(word(""), accuracy.sign != "worse" and quaternion.sign != "worse")
    cut = measured([run.small.test_accuracy for run in group.runs])
    return (*_who(group), *shares, cut, beats, *_runs(group))


def _who(group: Group) -> tuple[Cell, ...]:
    return word(METHODS[group.method]), word(OURS[group.family])


def _runs(group: Group) -> tuple[Cell, ...]:
    return counted(len(group.runs)), counted(group.epochs)


def _real(group: Group) -> tuple[Cell, ...]:
    """The real-valued twin has no quaternions that could be zero."""
    accuracy = measured([run.result.test_accuracy for run in group.runs])
    cut = measured([run.small.test_accuracy for run in group.runs])
    return (*_who(group), accuracy, NONE, NONE, cut, word(""), *_runs(group))


def table2(records: Records, dataset: str) -> Table | None:
    """What a penalty costs in time, as a ratio to training without one."""
    timings = {(timing.family, timing.method): timing for timing in records.timings.get(dataset, ())}
    printed = PAPER.get(dataset, {}).get("seconds")
    rows = []
    for method in TABLE1:
        cells = [number(printed[method] / printed["none"])] if printed else []
        for family in ("paper", "quern"):
            timing = timings.get((family, method))
            cells.append(number(timing.median_ms if timing else None))
            cells.append(_bounded(timing.ratio, method) if timing else NONE)
        rows.append((word(METHODS[method]), *cells))
    if not timings:
        return None
    columns = ("method", *(("the paper, ratio",) if printed else ()))
    for family in ("paper", "quern"):
        columns += (f"{OURS[family]}, ms a step", f"{OURS[family]}, ratio")
    note = (
        "Ratios are to “none” of the same column. The paper timed whole trainings on its GPU; ours are steps of all "
        "methods taken in turns on one CPU thread, and a ratio is the median of those within a turn, not that of the "
        f"medians. Our bar: R_Q and R_QL cost at most {SLOWEST:.2f} times (✓ met, ✗ not)."
    )
    title = f"Table 2, {DATASETS[dataset]}: time of training"
    return Table(f"table2-{dataset}", title, columns, tuple(rows), (note,))


def _bounded(value: float, method: str) -> Cell:
    return judged(number(value), value <= SLOWEST) if method in ("rq", "rql") else number(value)


def neurons(records: Records, dataset: str) -> Table | None:
    """Networks that lost whole neurons, next to what the paper claims of its CIFAR-10 network."""
    pairs = [(family, method) for method in NEURONS for family in ("paper", "quern")]
    groups = [group for pair in pairs if (group := records.group(dataset, *pair))]
    if not groups:
        return None
    claimed = dataset == "cifar10"
    rows = []
    for group in groups:
        none = records.group(dataset, group.family, without_penalty(group.method))
        if none is not None and none.epochs != group.epochs:  # they cannot be compared
            none = None
        rows.append(_neurons_row(group, none, claimed and group.method == "gamma-bn"))
    if claimed:
        claimed_cells = ("under 17", "under 15,000", "5×", "", "about 3×", "", "", "none lost")
        rows.insert(0, (word(METHODS["gamma-bn"]), word("the paper"), *map(word, claimed_cells), *_blank(2)))
    columns = ("method", "from", "neurons left, %", "parameters left", "file smaller", "memory, MB", "faster")
    columns += ("accuracy before, %", "accuracy small, %", "points against none", "runs", "epochs")
    note = (
        "Small is the network with all that counts as zero removed, before is the same network with it; points are "
        "those of the small one against the same network with batch normalisation and without penalty, of the same "
        "family and as many epochs. File and time are ratios to the network that nothing was removed from; time is "
        "onnxruntime, one image, one thread. Memory is the most that a process takes with onnxruntime and the network, "
        "for one image."
    )
    notes = (note,)
    if claimed:
        judging = (
            "✓ and ✗ say whether L1(BN) does what the paper claims for it. Its memory footprint of 1/5 is taken to be "
            "that of the weights, which is that of the file."
        )
        notes = (note, judging)
    return Table(f"neurons-{dataset}", f"Whole neurons removed, {DATASETS[dataset]}", columns, tuple(rows), notes)


def _neurons_row(group: Group, none: Group | None, claimed: bool) -> tuple[Cell, ...]:
    runs = group.runs
    left = measured([run.small.neurons / max(1, run.dense.neurons) for run in runs])
    parameters = measured([float(run.small.parameters) for run in runs], 0, 1.0)
    files = ratio(mean([run.dense.bytes for run in runs]), mean([run.small.bytes for run in runs]))
    times = [
        run.dense.latency_ms / run.small.latency_ms for run in runs if run.dense.latency_ms and run.small.latency_ms
    ]
    faster = ratio(mean(times), 1.0) if times else NONE
    used = [(run.dense.memory, run.small.memory) for run in runs if run.dense.memory and run.small.memory]
    memory = word(" → ".join(f"{mean(side) / 1e6:.0f}" for side in zip(*used, strict=True))) if used else NONE
    before = measured([run.result.test_accuracy for run in runs])
    after = measured([run.small.test_accuracy for run in runs])
    points = _points(after, measured([run.result.test_accuracy for run in none.runs])) if none else NONE
    cells = (left, parameters, files, memory, faster, before, after, points)
    if claimed:
        cells = tuple(
            judged(cell, claim(cell.value)) if claim and cell.value is not None else cell
            for cell, claim in zip(cells, _CLAIMS, strict=True)
        )
    return (*_who(group), *cells, *_runs(group))


# What the paper claims of each cell, if anything.
_CLAIMS: tuple[Callable[[float], bool] | None, ...] = (
    lambda share: share < 17,
    lambda count: count < 15_000,
    lambda times: times >= 5,
    None,
    lambda times: times >= 3,
    None,
    None,
    lambda points: points >= 0,
)


def _points(mine: Cell, other: Cell) -> Cell:
    """The difference of what is printed, so that a reader finds the same; never a negative zero."""
    points = round(round(mine.value or 0.0, 2) - round(other.value or 0.0, 2), 2) + 0.0
    return Cell(f"{points:+.2f}", points)


def compressed(records: Records) -> Table | None:
    """The records of ``quern compress``."""
    if not records.compressed:
        return None
    columns = ("run", "data", "neurons", "parameters", "test accuracy, or metric", "file smaller", "faster", "command")
    rows = tuple(_compressed(one) for one in records.compressed)
    notes = ("Dense → compacted. Faster: onnxruntime, one image, one thread.",)
    return Table("compress", "Runs of quern compress", columns, rows, notes)


def _compressed(one: Compressed) -> tuple[Cell, ...]:
    untested = "" if one.small.judged_by == "test" else " (validation)"
    values = " → ".join(one.metric.text(network.value) for network in (one.dense, one.small))
    values = values if one.metric.percent else f"{one.metric.title} {values}"
    return (
        word(one.name),
        word(DATASETS.get(one.dataset, one.dataset)),
        word(f"{one.dense.neurons:,} → {one.small.neurons:,}"),
        word(f"{one.dense.parameters:,} → {one.small.parameters:,}"),
        word(f"{values}{untested}"),
        ratio(one.dense.bytes, one.small.bytes),
        ratio(one.dense.latency_ms, one.small.latency_ms),
        word(one.command),
    )


def tuned(records: Records, dataset: str) -> Table | None:
    """The λ that were chosen, and what they gave while searching."""
    trials = records.trials.get(dataset, ())
    chosen = [trial for trial in trials if trial.chosen]
    if not chosen:
        return None
    columns = (
        "method",
        "from",
        "tried",
        "λ",
        "validation accuracy, %",
        "quaternion sparsity, %",
        "non-zero parameters",
    )
    order = list(METHODS)
    chosen.sort(key=lambda trial: (order.index(trial.method), trial.family))
    rows = tuple(_tuned(trial, sum(_same(trial, other) for other in trials)) for trial in chosen)
    return Table(f"lambdas-{dataset}", f"Weights of the penalties, {DATASETS[dataset]}", columns, rows)


def _same(one: TrialRow, other: TrialRow) -> bool:
    return (one.family, one.method) == (other.family, other.method)


def _tuned(trial: TrialRow, tried: int) -> tuple[Cell, ...]:
    shares = (number(100 * trial.val_accuracy), number(100 * trial.quaternion_sparsity))
    strength = NONE if trial.weight is None else Cell(f"{trial.weight:.4g}", trial.weight)
    who = (word(METHODS[trial.method]), word(OURS[trial.family]))
    return (*who, counted(tried), strength, *shares, counted(trial.nonzero_parameters))


def provenance(records: Records) -> Table | None:
    """All runs that the report is made from."""
    if not records.groups:
        return None
    columns = ("data", "family", "method", "λ", "epochs", "seeds", "commit", "torch", "processor", "hours")
    rows = tuple(_origin(group) for group in records.groups)
    notes = tuple(
        f"Family {name}: {what}." for name, what in FAMILIES.items() if name in {g.family for g in records.groups}
    )
    return Table("runs", "Runs", columns, rows, notes)


def _origin(group: Group) -> tuple[Cell, ...]:
    def every(name: str) -> str:
        values = dict.fromkeys(str(run.environment.get(name, "–")) for run in group.runs)
        return ", ".join(_short(value) if name == "commit" else value for value in values)

    strengths = dict.fromkeys("–" if run.weight is None else f"{run.weight:.4g}" for run in group.runs)
    return (
        word(DATASETS[group.dataset]),
        word(group.family),
        word(METHODS[group.method]),
        word(", ".join(strengths)),
        counted(group.epochs),
        word(", ".join(str(run.run.seed) for run in group.runs)),
        *(word(every(name)) for name in ("commit", "torch", "cpu")),
        number(sum(run.result.seconds for run in group.runs) / 3600),
    )


def _short(commit: str) -> str:
    return commit[:10] + ("+" if commit.endswith("+") else "")


def sums(records: Records) -> Table | None:
    """The SHA-256 of the data the runs saw."""
    seen = dict.fromkeys((g.dataset, *pair) for g in records.groups for run in g.runs for pair in run.sums.items())
    if not seen:
        return None
    rows = tuple((word(DATASETS[dataset]), word(visible(name)), word(digest)) for dataset, name, digest in seen)
    return Table("data", "Data, SHA-256", ("data", "file", "SHA-256"), rows)
