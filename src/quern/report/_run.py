"""The page of one run of ``quern compress``: its record, and samples if there are any, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quern.errors import PackedError
from quern.records import (
    ACCURACY,
    DATASETS,
    Answers,
    Compression,
    Epoch,
    Histories,
    LayerSizes,
    Metric,
    Network,
    SampleRow,
    Samples,
    Scratch,
    Verdict,
    read_compression,
    schema,
)
from quern.records.schema import visible
from quern.report._figures import OLDER_DEAD, Curves, Figure, Line
from quern.report._live import Live, read_live
from quern.report._tables import Cell, Table, amount, counted, number, ratio, word

# What is compared, and with how many digits after the point.
ROWS = (
    ("neurons", "neurons", 0),
    ("parameters", "parameters", 0),
    ("bytes", "file, bytes", 0),
    ("onnx_bytes", "ONNX file, bytes", 0),
    ("macs", "multiply-adds, one input", 0),
    ("latency_ms", "onnxruntime, one input, one thread, ms", 3),
)
PACKED_ROWS = (
    ("bytes", "packed file, bytes", 0),
    ("ram", "its working memory, bytes", 0),
    ("latency_ms", "C runtime, one input, one thread, ms", 4),
)

LIVE_BYTES = 4 << 20  # of both packed networks: a page with more takes long to open

# Who is right, as a field of Answers and in words; what was lost comes first.
KINDS = (
    ("only_dense", "Only the dense network is right"),
    ("only_small", "Only the compacted network is right"),
    ("neither", "Neither is right"),
    ("both", "Both are right"),
)


@dataclass(frozen=True)
class Answer:
    """What a network says of an image."""

    who: str
    name: str
    confidence: str
    right: bool


@dataclass(frozen=True)
class Sample:
    """An image, as base64 of a PNG file, what it is, and what the networks say."""

    png: str
    label: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Kind:
    """Some images on which the same networks are right."""

    title: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class RunPage:
    title: str
    summary: str
    table: Table
    lost: str
    classes: Table | None
    limits: tuple[Verdict, ...]
    live: Live | None
    no_live: str
    layers: tuple[LayerSizes, ...]
    curves: Figure | None
    choice: str
    samples: tuple[Kind, ...]
    command: str | None
    facts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def read_run(folder: Path) -> RunPage:
    """The page of a run in ``folder``; parts that its record does not have are empty."""
    record = read_compression(folder / "record.json")
    dense, small, command = record["dense"], record["small"], record.get("command")
    answers, metric = record.get("answers", ()), record.get("metric", ACCURACY)
    total = Answers.total(answers) if answers else None
    live, no_live = _live(folder, record)
    return RunPage(
        title=_title(record),
        summary=_summary(dense, small, total, metric),
        table=_compared(dense, small, record.get("scratch"), total, metric),
        lost=_lost(answers) if metric.percent else "",
        classes=_classes(answers) if answers else None,
        limits=tuple(record.get("budget", ())),
        live=live,
        no_live=no_live,
        layers=tuple(record["layers"]),
        curves=_curves(record["history"], dense, record.get("dead_by"), metric),
        choice="Up to six test images of each kind, evenly spaced in the order of the test images." if total else "",
        samples=_samples(folder / "samples.json", total),
        command=None if command is None else visible(command),
        facts=_facts(record),
    )


def _live(folder: Path, record: Compression) -> tuple[Live | None, str]:
    """Both packed networks, to be run in the page; or why they cannot be."""
    packed = {name: folder / part / "model.qrn" for name, part in (("dense", "dense"), ("compacted", "small"))}
    try:
        return read_live(packed, record.get("images"), LIVE_BYTES), ""
    except PackedError as reason:
        return None, f"The networks cannot be tried in this page: {visible(str(reason))}"


def _compared(dense: Network, small: Network, scratch: Scratch | None, total: Answers | None, metric: Metric) -> Table:
    """Both networks next to each other."""
    first = (
        word(f"{small.judged_by} {metric.title}"),
        *(Cell(metric.text(n.value), n.value) for n in (dense, small)),
        Cell(metric.change(dense.value, small.value), small.value - dense.value),
    )
    rows = []
    if total is not None:
        *each, difference = total.intervals()
        rows.append((word("its 95\u00a0% interval"), *(word(_span(one)) for one in each), word(_span(difference, "+"))))
    if scratch is not None:
        change = metric.change(small.value, scratch.value)
        shown = Cell(metric.text(scratch.value), scratch.value), Cell(change, scratch.value - small.value)
        rows.append((word(scratch.title), word(""), *shown))
    compared = [(name, digits, getattr(dense, key), getattr(small, key)) for key, name, digits in ROWS]
    if dense.packed is not None and small.packed is not None:
        for key, name, digits in PACKED_ROWS:
            compared.append((name, digits, getattr(dense.packed, key), getattr(small.packed, key)))
    for name, digits, before, after in compared:
        rows.append((word(name), number(before, digits), number(after, digits), ratio(before, after)))
    return Table("compared", "Dense and compacted", ("what", "dense", "compacted", "ratio"), (first, *rows))


def _span(bounds: tuple[float, float], sign: str = "") -> str:
    return " to ".join(f"{100 * bound:{sign}.2f}" for bound in bounds)


def _lost(answers: Sequence[Answers]) -> str:
    """What the class that lost the largest share of its inputs has lost."""
    worst = min(answers, key=lambda one: one.small - one.dense, default=None)
    if worst is None or worst.only_dense <= worst.only_small:
        return "No class lost any."
    before, after = worst.both + worst.only_dense, worst.both + worst.only_small
    return (
        f"Class {visible(worst.name)} lost the most: {amount(after)} of its {amount(worst.inputs)} inputs are "
        f"answered right, where the dense network has {amount(before)}."
    )


def _classes(answers: Sequence[Answers]) -> Table:
    """Both networks in every class, the class that lost the most first."""
    rows = tuple(_class(one) for one in sorted(answers, key=lambda one: one.small - one.dense))
    columns = ("class", "inputs", "dense right", "compacted right", "change (points)")
    note = "What lost the most comes first. It is also the unluckiest: where inputs are few, part of a loss is chance."
    return Table("classes", "Class by class", columns, rows, (note,))


def _class(one: Answers) -> tuple[Cell, ...]:
    points = 100 * (one.small - one.dense)
    right = (counted(one.both + one.only_dense), counted(one.both + one.only_small))
    difference = Cell(f"{one.only_small - one.only_dense:+,} ({points:+.1f})" if points else "0", points)
    return word(visible(one.name)), counted(one.inputs), *right, difference


def _title(record: Compression) -> str:
    dataset, network = record.get("dataset"), record.get("model") or "A network"
    name = "" if dataset is None else f" for {DATASETS.get(dataset, Path(dataset).name)}"
    return visible(f"{network}{name}, made small")


def _summary(dense: Network, small: Network, total: Answers | None, metric: Metric) -> str:
    way = "higher" if small.value >= dense.value else "lower"
    change = f"{metric.change(dense.value, small.value)[1:]} {way}"
    shown, sure = metric.text(small.value).replace(" ", "\u00a0"), "."
    if total is not None:
        *_, (low, high) = total.intervals()
        zero = "which holds zero: these inputs cannot tell the two apart" if low <= 0 <= high else "without zero"
        sure = f" on the same {amount(total.inputs)} inputs (95\u00a0% interval {_span((low, high), '+')}, {zero})."
    return (
        f"{amount(small.neurons)} of {amount(dense.neurons)} neurons and {amount(small.parameters)} of "
        f"{amount(dense.parameters)} parameters are left. "
        f"{small.judged_by.capitalize()} {metric.title} is {shown}, {change} than that of the "
        f"dense network{sure}"
    )


def _curves(history: Histories, dense: Network, dead_by: str | None, metric: Metric) -> Figure | None:
    """The metric, size and loss over all epochs, those of the dense network first; None without any epoch."""
    lines: list[tuple[str, Epoch]] = [("dense", line) for line in history["dense"]] + [
        (line.phase, line) for line in history["small"]
    ]
    if not lines:
        return None
    x = tuple(float(n) for n in range(1, len(lines) + 1))
    names = [name for name, _ in lines]
    phases = tuple((x[n], name) for n, name in enumerate(names) if not n or names[n - 1] != name)

    def curve(label: str, style: str, key: str, times: float = 1.0) -> Line:
        return Line(label, style, x, tuple(times * float(getattr(line, key)) for _, line in lines))

    left = [curve("neurons", "first", "neurons_left", 100 / max(1, dense.neurons))]
    if all(line.parameters is not None for _, line in lines):
        left.append(curve("parameters", "second", "parameters", 100 / max(1, dense.parameters)))
    unit, times = ("%", 100.0) if metric.percent else (metric.title, 1.0)
    caption = "The dense network is trained, then ground under the penalty, then what is left heals without it."
    return Figure(
        "curves",
        "Epoch by epoch",
        caption if dead_by else f"{caption} {OLDER_DEAD}",
        (
            Curves(f"Validation {metric.title}", "epoch", unit, (curve(metric.title, "first", "val", times),), phases),
            Curves("Left of the dense network", "epoch", "%", tuple(left), phases),
            Curves("Loss", "epoch", "loss while training", (curve("loss", "first", "loss"),), phases),
        ),
    )


def _samples(path: Path, total: Answers | None) -> tuple[Kind, ...]:
    if not path.exists():
        return ()
    samples = schema.read(path, Samples, "samples of quern compress", "go on with --resume to make it again")
    kinds = []
    for name, title in KINDS:
        rows = [row for row in samples["samples"] if _kind(row) == name]
        if total is not None:
            title += f": {amount(getattr(total, name))} of {amount(total.inputs)}"
        if rows:
            kinds.append(Kind(title, tuple(_sample(row, samples["classes"]) for row in rows)))
    return tuple(kinds)


def _kind(row: SampleRow) -> str:
    """The field of :class:`Answers` that counts it."""
    dense, small = (row[who] == row["label"] for who in ("dense", "small"))
    return ("both" if small else "only_dense") if dense else "only_small" if small else "neither"


def _sample(sample: SampleRow, classes: Sequence[str]) -> Sample:
    def name(number: int) -> str:
        return visible(classes[number]) if number < len(classes) else str(number)  # a network may have scores for more

    label = sample["label"]
    answers = tuple(
        Answer(who, name(answer), f"{100 * sure:.0f}\u00a0%", answer == label)
        for who, answer, sure in (
            ("dense", sample["dense"], sample["dense_confidence"]),
            ("compacted", sample["small"], sample["small_confidence"]),
        )
    )
    return Sample(sample["png"].data, name(label), answers)


def _facts(record: Compression) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """All that says how it was made: lists of names and values under their headings."""
    settings = record["settings"]
    given = {k: record.get(k) for k in ("dataset", "data_dir", "image_size", "model", "start", "loss")}
    parts: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("Data and network", {k: v for k, v in given.items() if v} | record.get("options", {})),
        ("Budget", {k: v for k, v in settings["budget"].items() if v is not None}),
        ("Training of the dense network", settings["dense"] or {}),
        ("Grinding and healing", settings["small"]),
        ("The same from scratch", settings.get("scratch", {})),
        ("Program and machine", record.get("environment", {})),
        ("Data, SHA-256", record.get("sums", {})),
    )
    return tuple(
        (name, tuple((visible(k), visible(_plain(v))) for k, v in part.items())) for name, part in parts if part
    )


def _plain(value: Any) -> str:
    """A setting in words: penalties as sums, switches as yes and no."""
    if isinstance(value, list):
        return " + ".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)
