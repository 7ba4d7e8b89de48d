"""Draw ``docs/speed.svg`` and ``docs/widths.svg`` from ``benchmarks/layers.json``, ``docs/size.svg`` from runs in
``results`` and the cards of the zoo, and ``docs/runtime.svg`` from ``benchmarks/runtime_avx2.json``."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from quern import io, sparsity, zoo
from quern._files import write_text

ROOT = Path(__file__).parent.parent
SHOWN = {
    "CIFAR-10 training step, batch 400": "CIFAR-10 network, training step",
    "MNIST training step, batch 400": "MNIST network, training step",
    "CIFAR-10 conv 1 (3 -> 32 at 32) both ways": "first layer, RGB to 32 channels",
    "CIFAR-10 conv 5 (256 -> 512 at 4) both ways": "convolution 256 to 512",
    "512 -> 512, 3x3 at 8, batch 100, both ways": "convolution 512 to 512",
    "CIFAR-10 eval forward, batch 1": "CIFAR-10 network, inference, one image",
}
ROW, UNIT, LETTER = 34, 120, 8  # pixels; UNIT is the length of a bar of 1x, LETTER the most that one of a label takes


def sheet(width: int, height: int, letters: int) -> list[str]:
    """The first lines of a drawing."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f' font-family="sans-serif" font-size="{letters}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def legend(left: int, entries: tuple[tuple[int, str, str], ...]) -> list[str]:
    """Dots with their names, beside a panel's title."""
    parts = []
    for x, colour, name in entries:
        parts.append(f'<circle cx="{left + x}" cy="16" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{left + x + 10}" y="20" fill="{colour}">{name}</text>')
    return parts


# Of docs/size.svg: a row of panels for each data set, with title, lowest and highest accuracy, their step, and the
# fewest and most parameters and bytes.
NUMBERS, BYTES = "parameters that are not zero", "packed bytes (int8)"
SIZES = (
    ("cifar10", "CIFAR-10", 70.0, 92.0, 4.0, {NUMBERS: (4e3, 1e6), BYTES: (4e3, 1e6)}),
    ("mnist", "MNIST", 97.5, 99.5, 0.5, {NUMBERS: (1e3, 2e4), BYTES: (2e3, 2e4)}),
)
PAPER, CUT, SCRATCH, SMALL_CUT, OTHER = (
    ("the paper's network", "#c0392b"),
    ("the paper's, by quern compress", "#d98a1f"),
    ("small_qcnn, from scratch", "#2f6f8f"),
    ("small_qcnn, by quern compress", "#5b7f22"),
    ("ResNet-8 of MLPerf Tiny, as published", "#777777"),
)
RESNET_8 = 78_666  # parameters of the reference network, batch normalisation with its statistics included


@dataclass(frozen=True)
class Point:
    """A network: how large, how accurate, and what it comes from."""

    size: float
    accuracy: float
    kind: tuple[str, str]


def by_parameters(dataset: str) -> list[Point]:
    """Dense and small networks of ``quern compress``, and what ``quern train`` made for the zoo; zeros do not count."""
    points = []
    for path in sorted((ROOT / "results").glob("**/record.json")):
        record = json.loads(path.read_text())
        if record["dataset"] != dataset:
            continue
        is_small = "small_qcnn" in (record["model"] or "") or "zoo" in (record["start"] or "")
        dense, small = record["dense"], record["small"]
        if not (record["start"] or "").endswith("/small.safetensors"):  # else another run's small one
            points.append(Point(dense["parameters"], dense["test_accuracy"], SCRATCH if is_small else PAPER))
        left = sparsity.measure(io.load(path.parent / "small.safetensors")).nonzero_parameters
        points.append(Point(left, small["test_accuracy"], SMALL_CUT if is_small else CUT))
        if record.get("scratch") is not None:
            points.append(Point(record["small"]["parameters"], record["scratch"]["test_accuracy"], SCRATCH))
    for path in sorted((ROOT / "results" / "zoo").glob("*/result.json")):
        card = zoo.card(path.parent.name)
        if card.dataset == dataset:
            points.append(Point(card.parameters, json.loads(path.read_text())["test_accuracy"], SCRATCH))
    if dataset == "cifar10":
        points.append(Point(RESNET_8, published()["accuracy"], OTHER))
    return list(dict.fromkeys(points))


def by_bytes(dataset: str) -> list[Point]:
    """Packed networks in int8: those of the zoo, and trained ones of ``benchmarks/runtime_avx2.json``."""
    cards = [card for card in map(zoo.card, zoo.names()) if card.dataset == dataset]
    points, papers = [], set[str]()
    for card in cards:
        is_small, is_cut = "small_qcnn" in card.command or "zoo" in card.command, "quern compress" in card.command
        kind = (SMALL_CUT if is_cut else SCRATCH) if is_small else (CUT if is_cut else PAPER)
        points.append(Point(card.packed_bytes, card.packed_accuracy, kind))
        if not is_small:
            papers.add(f"({card.name})")
    title = next(title for name, title, *_ in SIZES if name == dataset)
    for row in json.loads((ROOT / "benchmarks/runtime_avx2.json").read_text())["rows"]:
        packed, what = row.get("int8", {}), row["what"]
        is_new = "against dense" not in what and not any(name in what for name in papers)
        if is_new and "accuracy" in packed and what.startswith(title):
            points.append(Point(packed["bytes"], packed["accuracy"], CUT))
    if dataset == "cifar10":
        points.append(Point(published()["network"], published()["accuracy"], OTHER))
    return points


def published() -> dict[str, Any]:
    """The row of ``benchmarks/mcu.json`` that was not measured but published."""
    rows = json.loads((ROOT / "benchmarks/mcu.json").read_text())["rows"]
    return next(row for row in rows if "as published" in row["what"])


def size() -> None:
    """Accuracy against parameters and against packed bytes, from records."""
    side, top, high, foot = 400, 64, 240, 60
    parts = sheet(2 * side, len(SIZES) * (top + high + foot) + 24, 12)
    shown = {point.kind for dataset, *_ in SIZES for point in (*by_parameters(dataset), *by_bytes(dataset))}
    for n, (name, colour) in enumerate(kind for kind in (PAPER, CUT, SCRATCH, SMALL_CUT, OTHER) if kind in shown):
        x, y = 60 + 260 * (n % 3), 14 + 18 * (n // 3)
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 10}" y="{y + 4}" fill="{colour}">{escape(name)}</text>')
    for row, (dataset, title, low, best, step, ranges) in enumerate(SIZES):
        for column, (what, (fewest, most)) in enumerate(ranges.items()):
            points = (by_parameters, by_bytes)[column](dataset)
            left, upper = column * side + 52, 24 + row * (top + high + foot) + top
            panel = Panel(left, upper, side - 74, high, (fewest, most), (low, best))
            parts += panel.grid(f"{title}: test accuracy", step, what)
            parts += panel.dots(points)
    parts.append("</svg>")
    write_text(ROOT / "docs/size.svg", "\n".join(parts) + "\n")


@dataclass(frozen=True)
class Panel:
    """One diagram: sizes on a logarithmic scale to the right, accuracies in per cent upwards."""

    left: int
    top: int
    wide: int
    high: int
    sizes: tuple[float, float]
    accuracies: tuple[float, float]

    def at(self, size: float, accuracy: float) -> tuple[float, float]:
        (fewest, most), (low, best) = self.sizes, self.accuracies
        x = self.left + self.wide * math.log(size / fewest) / math.log(most / fewest)
        return x, self.top + self.high * (best - accuracy) / (best - low)

    def grid(self, title: str, step: float, what: str) -> list[str]:
        (fewest, most), (low, best) = self.sizes, self.accuracies
        left, right, floor = self.left, self.left + self.wide, self.top + self.high
        parts = [f'<text x="{left}" y="{self.top - 14}" font-weight="bold" fill="#222222">{title}</text>']
        for k in range(int((best - low) / step + 1e-9) + 1):
            _, y = self.at(fewest, low + k * step)
            parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
            label = f"{low + k * step:g} %"
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{label}</text>')
        for count in (m * 10**e for e in range(3, 7) for m in (1, 2, 5)):
            if not fewest <= count <= most:
                continue
            x, _ = self.at(count, low)
            label = f"{count // 1000}k" if count < 1_000_000 else "1M"
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{floor}" stroke="#f0f0f0"/>')
            parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle" fill="#555555">{label}</text>')
        middle = left + self.wide / 2
        return [*parts, f'<text x="{middle}" y="{floor + 36}" text-anchor="middle" fill="#222222">{what}</text>']

    def dots(self, points: list[Point]) -> list[str]:
        """Points with their accuracies, and a point outside of the panel is a mistake in its limits."""
        parts, labels = list[str](), list[tuple[float, float]]()  # the middles of those that are there
        for point in sorted(points, key=lambda point: point.size, reverse=True):
            (fewest, most), (low, best) = self.sizes, self.accuracies
            assert fewest <= point.size <= most, point
            assert low <= 100 * point.accuracy <= best, point
            x, y = self.at(point.size, 100 * point.accuracy)
            beyond = x > self.left + self.wide - 40
            over = any(abs(x + 24 - middle) < 32 and abs(y - height) < 14 for middle, height in labels)
            anchor, shift = ("end", -9) if beyond or over else ("start", 9)
            labels.append((x - 24 if beyond or over else x + 24, y))
            place = f'x="{x + shift:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}" fill="{point.kind[1]}"'
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{point.kind[1]}"/>')
            parts.append(f"<text {place}>{100 * point.accuracy:.1f}</text>")
        return parts


def speed() -> None:
    ratios = {row["what"]: row["ratio"] for row in json.loads((ROOT / "benchmarks/layers.json").read_text())["rows"]}
    left, height = 20 + LETTER * max(map(len, SHOWN.values())), 46 + ROW * len(SHOWN)
    width = left + round(UNIT * max(ratios[what] for what in SHOWN)) + 80
    parts = sheet(width, height, 14)
    for n, (what, label) in enumerate(SHOWN.items()):
        y = 30 + ROW * n
        parts += [
            f'<text x="{left - 12}" y="{y + 16}" text-anchor="end" fill="#222222">{escape(label)}</text>',
            f'<rect x="{left}" y="{y}" width="{ratios[what] * UNIT:.1f}" height="22" rx="2" fill="#2f6f8f"/>',
            f'<text x="{left + ratios[what] * UNIT + 8:.1f}" y="{y + 16}" fill="#222222">{ratios[what]:.2f}x</text>',
        ]
    x = left + UNIT
    parts += [
        f'<line x1="{x}" y1="22" x2="{x}" y2="{height - 12}" stroke="#c0392b" stroke-dasharray="4 3"/>',
        f'<text x="{x}" y="16" text-anchor="middle" fill="#c0392b" font-size="12">the common way = 1x</text>',
        "</svg>",
    ]
    write_text(ROOT / "docs/speed.svg", "\n".join(parts) + "\n")


def widths() -> None:
    """Time against width, both on logarithmic scales."""
    rows = json.loads((ROOT / "benchmarks/layers.json").read_text())["rows"]
    rows = [row for row in rows if row["part"] == "widths"]
    left, top, wide, high = 70, 40, 510, 260
    lines = (
        ("#c0392b", "the common way", "baseline"),
        ("#777777", "real, as wide", "real"),
        ("#2f6f8f", "quern", "quern"),
    )
    times = [row[key] for row in rows for _, _, key in lines]
    least, most = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    parts = sheet(left + wide + 30, top + high + 50, 12)
    parts += legend(left, tuple((n * 160, colour, name) for n, (colour, name, _) in enumerate(lines)))
    for power in range(least, most + 1):
        y = top + high * (most - power) / (most - least)
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{10.0**power:g} ms</text>')
    columns = [left + wide * n / (len(rows) - 1) for n in range(len(rows))]  # widths are doubled from row to row
    for x, row in zip(columns, rows, strict=True):
        width = row["what"].split()[0]
        parts.append(f'<text x="{x:.1f}" y="{top + high + 18}" text-anchor="middle" fill="#555555">{width}</text>')
    for colour, _, key in lines:
        heights = [top + high * (most - math.log10(row[key])) / (most - least) for row in rows]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(columns, heights, strict=True))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
            for x, y in zip(columns, heights, strict=True)
        ]
    parts.append(
        f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle" fill="#222222">'
        "channels in and out, 3x3 at 8x8 positions (time of forward and backward upwards)</text>"
    )
    parts.append("</svg>")
    write_text(ROOT / "docs/widths.svg", "\n".join(parts) + "\n")


def runtime() -> None:
    """Time against the share of quaternions that are not zero: a line through the origin is the goal."""
    rows = json.loads((ROOT / "benchmarks/runtime_avx2.json").read_text())["rows"]
    rows = [row for row in rows if row["what"].startswith("CIFAR-10 at ")]
    left, top, wide, high = 60, 40, 520, 260
    most = 0.25 * math.ceil(max(row["onnxruntime_ms"] for row in rows) / 0.25)
    lines = (
        ("#c0392b", "onnxruntime, float32", [row["onnxruntime_ms"] for row in rows]),
        ("#2f6f8f", "C runtime, float32", [row["float32"]["ms"] for row in rows]),
        ("#6b8e23", "C runtime, int8", [row["int8"]["ms"] for row in rows]),
    )
    parts = sheet(left + wide + 30, top + high + 50, 12)
    parts += legend(left, tuple((n * 180, colour, name) for n, (colour, name, _) in enumerate(lines)))
    for k in range(round(most / 0.25) + 1):
        y = top + high * (1 - k * 0.25 / most)
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{k * 0.25:g} ms</text>')
    for share in range(0, 101, 20):
        x = left + wide * share / 100
        parts.append(f'<text x="{x:.1f}" y="{top + high + 18}" text-anchor="middle" fill="#555555">{share} %</text>')
    for colour, _, times in lines:
        places = [
            (left + wide * row["stored"] / row["units"], top + high * (1 - ms / most))
            for row, ms in zip(rows, times, strict=True)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
    parts.append(
        f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle" fill="#222222">'
        "quaternions of the CIFAR-10 network that are not zero (time for one image upwards)</text>"
    )
    parts.append("</svg>")
    write_text(ROOT / "docs/runtime.svg", "\n".join(parts) + "\n")


def main() -> None:
    speed()
    widths()
    size()
    runtime()


if __name__ == "__main__":
    main()
