"""Draw ``docs/speed.svg`` from ``benchmarks/layers.json``: one bar per headline ratio."""

import json
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
SHOWN = {
    "CIFAR-10 training step, batch 400": "CIFAR-10 network, training step",
    "MNIST training step, batch 400": "MNIST network, training step",
    "CIFAR-10 conv 1 (3 -> 32 at 32) both ways": "first layer, RGB to 32 channels",
    "CIFAR-10 conv 5 (256 -> 512 at 4) both ways": "convolution 256 to 512",
    "512 -> 512, 3x3 at 8, batch 100, both ways": "convolution 512 to 512",
    "CIFAR-10 eval forward, batch 1": "CIFAR-10 network, inference, one image",
}
LEFT, WIDTH, ROW, UNIT = 280, 700, 34, 120  # pixels; UNIT is the length of a bar of 1x


def main() -> None:
    ratios = {row["what"]: row["ratio"] for row in json.loads((ROOT / "benchmarks/layers.json").read_text())["rows"]}
    height = 46 + ROW * len(SHOWN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for n, (what, label) in enumerate(SHOWN.items()):
        y = 30 + ROW * n
        parts += [
            f'<text x="{LEFT - 12}" y="{y + 16}" text-anchor="end" fill="#222222">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{ratios[what] * UNIT:.1f}" height="22" rx="2" fill="#2f6f8f"/>',
            f'<text x="{LEFT + ratios[what] * UNIT + 8:.1f}" y="{y + 16}" fill="#222222">{ratios[what]:.2f}x</text>',
        ]
    x = LEFT + UNIT
    parts += [
        f'<line x1="{x}" y1="22" x2="{x}" y2="{height - 12}" stroke="#c0392b" stroke-dasharray="4 3"/>',
        f'<text x="{x}" y="16" text-anchor="middle" fill="#c0392b" font-size="12">the common way = 1x</text>',
        "</svg>",
    ]
    (ROOT / "docs/speed.svg").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
