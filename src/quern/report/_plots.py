"""The figures of the experiments, as plain values."""

import statistics
from collections.abc import Iterable

from quern.records import DATASETS, FIGURE2, METHODS, PAPER, TABLE1, TrialRow, without_penalty
from quern.report._figures import OLDER_DEAD, Bar, Bars, Curves, Dots, Figure, Line, Panel, Scatter, Spread, Spreads
from quern.report._load import Group, Records
from quern.report._rows import OURS
from quern.report._tables import mean

_SHOWN = {
    "component_sparsity": "Component sparsity",
    "quaternion_sparsity": "Quaternion sparsity",
    "neuron_sparsity": "Neuron sparsity",
    "test_accuracy": "Test accuracy",
    "val_accuracy": "Validation accuracy",
}


def curves(records: Records, dataset: str, family: str, number: int) -> Figure | None:
    """Figure 1 or 2 of the paper: shares epoch by epoch, a line per method, the mean of its seeds with ± deviation."""
    methods = TABLE1 if number == 1 else FIGURE2
    groups = [group for method in methods if (group := records.group(dataset, family, method))]
    if not groups or (number == 2 and all(group.method == "rq" for group in groups)):
        return None
    what = ["component_sparsity", "quaternion_sparsity"]
    if number == 2:
        what += ["neuron_sparsity", "test_accuracy" if _tested(groups) else "val_accuracy"]
    alike = len({group.epochs for group in groups}) == 1
    phases = _phases(groups[-1]) if alike else ()  # else they begin at different places
    panels = tuple(
        Curves(_SHOWN[key], "epoch", "%", tuple(_line(group, key) for group in groups), phases) for key in what
    )
    caption = "Mean over seeds, bands are ± one standard deviation."
    missing = [METHODS[method] for method in methods if not records.group(dataset, family, method)]
    if not alike:
        caption += f" Epochs: {', '.join(f'{METHODS[group.method]} {group.epochs}' for group in groups)}."
    if missing:
        caption += f" Not run yet: {', '.join(missing)}."
    if not all(run.by_modulus for group in groups for run in group.runs):
        caption += (
            " Here a quaternion counts as zero when its four components do; in the tables, when its modulus does."
        )
    if number == 2 and not _by_compaction(groups):
        caption += f" {OLDER_DEAD}"
    title = f"Figure {number}, {DATASETS[dataset]}, {OURS[family]}"
    return Figure(f"figure{number}-{dataset}-{family}", title, caption, panels)


def _tested(groups: Iterable[Group]) -> bool:
    """Whether every epoch was tested, as in the paper; older records tell of validation images alone."""
    return all(line.test_accuracy is not None for group in groups for run in group.runs for line in run.history)


def _by_compaction(groups: Iterable[Group]) -> bool:
    """Whether dead neurons are what compaction removes, in all records."""
    return all(run.dead_by == "compaction" for group in groups for run in group.runs)


def _line(group: Group, key: str) -> Line:
    rows = list(zip(*([100 * getattr(line, key) for line in run.history] for run in group.runs), strict=False))
    epochs = tuple(float(n) for n in range(1, len(rows) + 1))
    spread = tuple(statistics.stdev(row) for row in rows) if len(group.runs) > 1 else ()
    return Line(METHODS[group.method], group.method, epochs, tuple(map(mean, rows)), spread)


def _phases(group: Group) -> tuple[tuple[float, str], ...]:
    """Where phases begin, if there is more than one."""
    names = [line.phase for line in group.runs[0].history]
    starts = tuple((float(n + 1), name) for n, name in enumerate(names) if not n or names[n - 1] != name)
    return starts if len(starts) > 1 else ()


def pareto(points: Iterable[tuple[float, float]], fewer: bool = False) -> tuple[tuple[float, float], ...]:
    """The points that no other beats in both, from left to right: higher is better, and so is further right, or,
    with ``fewer``, further left."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points), key=lambda p: (p[0] if fewer else -p[0], -p[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return tuple(front if fewer else reversed(front))


SHOWN = 0.12  # of accuracy below the best: networks that learned nothing would leave no room for the others


def tuning_front(records: Records, dataset: str, family: str) -> Figure | None:
    """All λ that were tried, with the front of every method."""
    every = [trial for trial in records.trials.get(dataset, ()) if trial.family == family]
    if not every:
        return None
    floor = max(trial.val_accuracy for trial in every) - SHOWN
    trials = [trial for trial in every if trial.val_accuracy >= floor or trial.chosen]
    methods = [method for method in METHODS if any(trial.method == method for trial in trials)]
    panels: list[Panel] = []
    for counts in (False, True):
        dots = tuple(
            _tried(method, [trial for trial in trials if trial.method == method], counts) for method in methods
        )
        panels.append(_panel(dots, "validation accuracy, %", counts))
    caption = (
        "Every λ that was tried, on the validation images. The lines join the "
        "trials that no other of the same method beats in both; rings mark the chosen λ."
    )
    if left_out := len(every) - len(trials):
        caption += f" Not shown: {left_out} of {len(every)} trials, more than {100 * SHOWN:.0f} points below the best."
    return Figure(f"tuning-{dataset}-{family}", f"{DATASETS[dataset]}, {OURS[family]}", caption, tuple(panels))


def _tried(method: str, trials: list[TrialRow], counts: bool) -> Dots:
    def point(trial: TrialRow) -> tuple[float, float]:
        x = float(max(1, trial.nonzero_parameters)) if counts else 100 * trial.quaternion_sparsity
        return x, 100 * trial.val_accuracy

    points = tuple(map(point, trials))
    chosen = tuple(point(trial) for trial in trials if trial.chosen)
    return Dots(METHODS[method], method, points, front=pareto(points, counts), chosen=chosen)


def _panel(dots: tuple[Dots, ...], y_label: str, counts: bool) -> Scatter:
    if counts:
        return Scatter("Accuracy against size", "non-zero parameters", y_label, dots, counts)
    return Scatter("Accuracy against zero quaternions", "quaternion sparsity, %", y_label, dots)


def final_front(records: Records, dataset: str) -> Figure | None:
    """The means of all methods in both families, next to what the paper printed."""
    groups = [group for group in records.groups if group.dataset == dataset and group.family != "real"]
    if not groups:
        return None
    panels = []
    for counts in (False, True):
        dots = [_final(group, counts) for group in groups]
        if not counts:
            dots += _printed(dataset)
        dots.sort(key=lambda one: list(METHODS).index(one.style))
        panels.append(_panel(tuple(dots), "test accuracy, %", counts))
    caption = "Means over seeds on the test images; stars are the paper's printed means."
    if dataset not in PAPER:
        caption = "Means over seeds on the test images."
    return Figure(f"front-{dataset}", DATASETS[dataset], caption, tuple(panels))


def _final(group: Group, counts: bool) -> Dots:
    x = mean(
        [
            max(1, run.result.sparsity.nonzero_parameters) if counts else 100 * run.quaternion_sparsity
            for run in group.runs
        ]
    )
    point = (x, 100 * mean([run.result.test_accuracy for run in group.runs]))
    return Dots(METHODS[group.method], group.method, (point,), source=OURS[group.family])


def _printed(dataset: str) -> list[Dots]:
    table = PAPER.get(dataset)
    if table is None:
        return []
    points = {method: (table["quaternion_sparsity"][method], table["test_accuracy"][method]) for method in TABLE1}
    return [Dots(METHODS[method], method, (point,), source="the paper") for method, point in points.items()]


def layers(records: Records, dataset: str) -> Figure | None:
    """What is left of every layer, a panel per method; means over the seeds of the family quern."""
    groups = _with_penalty(records, dataset, "quern")
    panels = tuple(Bars(METHODS[group.method], bars) for group in groups if (bars := _bars(group)))
    if not panels:
        return None
    caption = "Quaternions and neurons left in every layer, means over the seeds of the family quern."
    if not _by_compaction(groups):
        caption += f" {OLDER_DEAD}"
    return Figure(f"layers-{dataset}", DATASETS[dataset], caption, panels)


def _with_penalty(records: Records, dataset: str, family: str) -> list[Group]:
    groups = [group for group in records.groups if (group.dataset, group.family) == (dataset, family)]
    return [group for group in groups if group.method != without_penalty(group.method)]


def _bars(group: Group) -> tuple[Bar, ...]:
    bars = []
    for same in zip(*(run.result.sparsity.layers for run in group.runs), strict=False):
        one = same[0]
        quaternions = mean([layer.quaternions - layer.zero_quaternions for layer in same])
        neurons = mean([layer.neurons - layer.dead_neurons for layer in same])
        label = f"{one.name} {one.kind}"
        bars.append(Bar(label, (quaternions, one.quaternions), (neurons, one.neurons)))
    return tuple(bars)


def moduli(records: Records, dataset: str, family: str) -> Figure | None:
    """How |w| is spread without a penalty and with each, a panel per method."""
    panels = []
    for group in _with_penalty(records, dataset, family):
        before = records.group(dataset, family, without_penalty(group.method))
        edges = group.runs[0].moduli.edges
        if before and all(run.moduli.edges == edges for run in (*before.runs, *group.runs)):
            pair = (_spread(before, "without penalty", "none"), _spread(group, "with penalty", "second"))
            panels.append(Spreads(METHODS[group.method], edges, *pair))
    if not panels:
        return None
    caption = (
        "Moduli of all quaternion weights of all seeds, of the same network without a penalty and with "
        "it. Bars at the left are weights that are exactly zero or were removed."
    )
    return Figure(f"moduli-{dataset}-{family}", f"{DATASETS[dataset]}, {OURS[family]}", caption, tuple(panels))


def _spread(group: Group, label: str, style: str) -> Spread:
    counts = [sum(column) for column in zip(*(run.moduli.counts for run in group.runs), strict=True)]
    zeros = sum(run.moduli.zeros for run in group.runs)
    whole = max(1, sum(counts) + zeros)
    shares = tuple(100 * count / whole for count in counts)
    return Spread(label, style, shares, 100 * zeros / whole)
