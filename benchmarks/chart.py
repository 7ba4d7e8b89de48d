"""Draw ``docs/speed.svg`` and ``docs/widths.svg`` from ``benchmarks/layers.json``, ``docs/size.svg`` from runs of
``quern compress``, and ``docs/runtime.svg`` from ``benchmarks/runtime_avx2.json``."""

import json
import math
from pathlib import Path
from xml.sax.saxutils import escape

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


# Of the panels of docs/size.svg: title, lowest and highest accuracy, their step, fewest and most parameters.
SIZES = {"mnist": ("MNIST", 97.0, 99.5, 0.5, 1e3, 2e4), "cifar10": ("CIFAR-10", 70.0, 82.0, 2.0, 4e3, 1e6)}


def size() -> None:
    """Accuracy against parameters: every record of quern compress, dense and small."""
    side, top, high = 360, 40, 240
    parts = sheet(2 * side, top + high + 50, 12)
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("*/record.json"))]
    for n, (name, (title, low, best, step, fewest, most)) in enumerate(SIZES.items()):
        left, wide = n * side + 52, side - 74
        span = math.log(most / fewest)

        def at(
            network: dict,
            left: int = left,
            wide: int = wide,
            low: float = low,
            best: float = best,
            fewest: float = fewest,
            span: float = span,
        ) -> tuple[float, float]:
            x = left + wide * math.log(network["parameters"] / fewest) / span
            return x, top + high * (best - 100 * network["test_accuracy"]) / (best - low)

        parts.append(f'<text x="{left}" y="20" font-size="14" font-weight="bold" fill="#222222">{title}</text>')
        parts += legend(left, ((110, "#c0392b", "dense"), (180, "#2f6f8f", "quern compress")))
        for k in range(round((best - low) / step) + 1):
            accuracy = low + k * step
            _, y = at({"parameters": fewest, "test_accuracy": accuracy / 100})
            parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{accuracy:g} %</text>')
        ticks = [m * 10**e for e in range(3, 7) for m in (1, 2, 5) if fewest <= m * 10**e <= most]
        for count in ticks:
            x, _ = at({"parameters": count, "test_accuracy": low / 100})
            label = f"{count // 1000}k" if count < 1_000_000 else "1M"
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + high}" stroke="#f0f0f0"/>')
            parts.append(f'<text x="{x:.1f}" y="{top + high + 18}" text-anchor="middle" fill="#555555">{label}</text>')
        parts.append(
            f'<text x="{left + wide / 2}" y="{top + high + 38}" text-anchor="middle" fill="#222222">'
            "parameters (test accuracy upwards)</text>"
        )
        mine = [record for record in records if record["dataset"] == name]
        dense = {(r["dense"]["parameters"], r["dense"]["test_accuracy"]): r["dense"] for r in mine}
        points = [(network, "#c0392b") for network in dense.values()] + [(r["small"], "#2f6f8f") for r in mine]
        for network, colour in points:
            x, y = at(network)
            label = f"{100 * network['test_accuracy']:.1f}"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
            parts.append(f'<text x="{x + 9:.1f}" y="{y + 4:.1f}" fill="{colour}">{label}</text>')
    parts.append("</svg>")
    write_text(ROOT / "docs/size.svg", "\n".join(parts) + "\n")


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
