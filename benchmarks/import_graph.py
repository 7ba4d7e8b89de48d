"""Draw ``docs/architecture.svg``: the folders of quern in the rows of import-linter's contract, and who imports whom.

Run it with ``make graph``. An arrow that a longer way implies is left out.
"""

import itertools
import random
import tomllib
from pathlib import Path

import grimp
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

ROOT = Path(__file__).parent.parent
COLUMNS, WIDE, HIGH = 11, 1.6, 0.5  # two boxes of a row are at least two columns apart

Edges = set[tuple[str, str]]
Places = dict[str, tuple[int, int]]


def rows() -> list[list[str]]:
    """The modules of each layer, from the top down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in layers if "__main__" not in layer]


def imports(modules: list[str]) -> Edges:
    """Who imports whom, without what follows from other imports."""
    graph = grimp.build_graph("quern", cache_dir=None)
    pairs = {(a, b) for a in modules for b in modules if a != b}
    edges = {(a, b) for a, b in pairs if graph.direct_import_exists(importer=a, imported=b, as_packages=True)}
    reached: dict[str, set[str]] = {}
    for module in reversed(modules):  # those below come first
        direct = {b for a, b in edges if a == module}
        reached[module] = direct.union(*(reached.get(b, set()) for b in direct))
    return {(a, b) for a, b in edges if not any(b in reached[c] for x, c in edges if x == a and c != b)}


def cost(places: Places, edges: Edges) -> float:
    """How hard the picture is to read: arrows through boxes above all, then crossings, then how far they lean."""
    total = 0.0
    lines = [(*places[a], *places[b]) for a, b in edges]
    for n, (x0, y0, x1, y1) in enumerate(lines):
        lean = (x1 - x0) / (y1 - y0)
        total += 0.1 * abs(x1 - x0)
        for x, y in places.values():
            if y0 < y < y1:
                total += 20 * (abs(x0 + lean * (y - y0) - x) < WIDE / 2 + HIGH / 2 * abs(lean) + 0.1)
        for u0, v0, u1, v1 in lines[:n]:
            top, low, other = max(y0, v0), min(y1, v1), (u1 - u0) / (v1 - v0)
            if top < low:
                apart = [x0 + lean * (y - y0) - u0 - other * (y - v0) for y in (top, low)]
                total += apart[0] * apart[1] < 0
    return total


def arrange(layers: list[list[str]], edges: Edges, steps: int = 8_000) -> Places:
    """A column for each module, found by trying: always the same for the same modules."""
    chance = random.Random(0)
    places = {
        name: (COLUMNS // 2 + 2 * k - (len(layer) - 1), row)
        for row, layer in enumerate(layers)
        for k, name in enumerate(layer)
    }
    best, least = dict(places), cost(places, edges)
    now = least
    for step in range(steps):
        layer = chance.choice(layers)
        tried = dict(places)
        row = places[layer[0]][1]
        columns = sorted(chance.sample(range(COLUMNS), len(layer)))
        if any(b - a < 2 for a, b in itertools.pairwise(columns)):
            continue
        for name, column in zip(chance.sample(layer, len(layer)), columns, strict=True):
            tried[name] = (column, row)
        new = cost(tried, edges)
        if new <= now or chance.random() < 2.718 ** ((now - new) / (5 * (1 - step / steps) + 0.01)):
            places, now = tried, new
        if now < least:
            best, least = dict(places), now
    return best


def main() -> None:
    *layers, lowest = rows()
    edges = imports([name for layer in layers for name in layer])
    places = arrange(layers, edges)
    pyplot.rcParams.update({"svg.hashsalt": "quern", "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(figsize=(10, 0.7 * len(layers)))
    colours = {name: pyplot.get_cmap("Dark2")(n % 8) for n, name in enumerate(places)}
    for a, b in sorted(edges):
        (x0, y0), (x1, y1) = places[a], places[b]
        end = x1 + 0.4 * ((x0 > x1) - (x0 < x1))
        style = {"arrowstyle": "-|>", "color": colours[a], "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (end, y1 - HIGH / 2), (x0, y0 + HIGH / 2), arrowprops=style)
    for name, (x, y) in places.items():
        _box(axes, x, y, WIDE, _label(name))
    below = f"{', '.join(map(_label, lowest))}: below everything"
    _box(axes, (COLUMNS - 1) / 2, len(layers), COLUMNS - 1 + WIDE, below)
    axes.set(xlim=(-1, COLUMNS), ylim=(len(layers) + 0.4, -0.4))
    axes.axis("off")
    path = ROOT / "docs/architecture.svg"
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    print(path)


def _label(name: str) -> str:
    place = Path("src", *name.split("."))
    return f"{place.name}/" if (ROOT / place).is_dir() else f"{place.name}.py"


def _box(axes: Axes, x: float, y: float, wide: float, label: str) -> None:
    corner = (x - wide / 2, y - HIGH / 2)
    axes.add_patch(Rectangle(corner, wide, HIGH, facecolor="#eef4f7", edgecolor="#2f6f8f", zorder=3))
    axes.text(x, y, label, ha="center", va="center", fontsize=10, zorder=4)


if __name__ == "__main__":
    main()
