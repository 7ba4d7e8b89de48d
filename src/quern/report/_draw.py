"""Figures as pictures for the page, and as files. The same values give the same bytes."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quern.report._figures import Bars, Figure, Panel
from quern.report._panels import BAR, BLUE, INK, draw, margins, mathematics

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


_LOOK: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "legend.fontsize": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
}
WIDTH, HEIGHT = 4.7, 2.75  # inches of a panel without its legend: a phone shows its letters at about their size
ROW = 0.2  # of the legend


def pictures(figure: Figure) -> tuple[str, ...]:
    """A picture per panel, as SVG to be set into a page."""
    svgs = []
    for n, panel in enumerate(figure.panels):
        with _looking(f"{figure.name}-{n}"):
            canvas = _canvas((panel,), 1)
            svgs.append(_inline(_saved(canvas, "svg").decode(), f"{figure.title}: {panel.title}"))
    return tuple(svgs)


def files(figure: Figure) -> dict[str, bytes]:
    """The whole figure as ``NAME.svg``, ``NAME.png`` and ``NAME.pdf``, on white."""
    with _looking(figure.name):
        canvas = _canvas(figure.panels, 1 if len(figure.panels) == 1 else 2)
        canvas.set_facecolor("white")
        return {f"{figure.name}.{kind}": _saved(canvas, kind) for kind in ("svg", "png", "pdf")}


@contextmanager
def _looking(salt: str) -> Iterator[None]:
    """Our look, and names inside of the SVG that depend on ``salt`` alone."""
    from matplotlib import rc_context

    with rc_context({**_LOOK, "svg.hashsalt": salt}):
        yield


def _saved(canvas: "Canvas", kind: str) -> bytes:
    out = io.BytesIO()
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    canvas.savefig(out, format=kind, metadata=date, dpi=160)
    return out.getvalue()


def _canvas(panels: tuple[Panel, ...], columns: int) -> "Canvas":
    """Panels in rows, with one legend for all of them below."""
    from matplotlib.figure import Figure as Canvas

    canvas, handles = Canvas(dpi=72), {}
    for panel in panels:
        axes = canvas.add_axes((0, 0, 1, 1))
        handles |= draw(axes, panel)
        axes.set_title(mathematics(panel.title), loc="left", fontweight="bold", pad=72 * (margins(panel)[2] - 0.27))
    width, legend = WIDTH * columns, _legend(canvas, handles, columns)
    rows = [range(n, min(n + columns, len(panels))) for n in range(0, len(panels), columns)]
    heights = [max(_height(panels[n]) for n in row) for row in rows]
    height = bottom = sum(heights) + legend
    canvas.set_size_inches(width, height)
    for row, high in zip(rows, heights, strict=True):
        bottom -= high
        for column, n in enumerate(row):
            left, right, above, below = margins(panels[n])
            x, y, wide, tall = WIDTH * column + left, bottom + below, WIDTH - left - right, high - above - below
            canvas.axes[n].set_position((x / width, y / height, wide / width, tall / height))
    return canvas


def _legend(canvas: "Canvas", handles: dict[str, Any], columns: int) -> float:
    """Write the legend at the bottom; the inches it takes."""
    if not handles:
        return 0.0
    beside = 3 if columns == 1 and len(handles) != 4 else 2 if columns == 1 else 6
    labels = [mathematics(label) for label in handles]
    canvas.legend(list(handles.values()), labels, loc="lower center", ncols=beside, handlelength=3)
    return 0.08 + ROW * -(-len(handles) // beside)


def _height(panel: Panel) -> float:
    _, _, above, below = margins(panel)
    return above + below + BAR * len(panel.bars) if isinstance(panel, Bars) else HEIGHT


def _inline(svg: str, label: str) -> str:
    """SVG to be set into HTML: no prolog, no style sheet for the whole page, no names that panels share."""
    from markupsafe import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    svg = svg.replace(INK, "currentColor").replace(BLUE, "var(--left)")
    svg = svg.replace("font-family: 'DejaVu Sans'", "font-family: inherit")
    head, rest = svg.split(">", 1)
    size = re.search(r'viewBox="[^"]*"', head)
    assert size is not None
    return (
        f'<svg {size[0]} role="img" aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{rest}'
    )
