"""Drawing one panel with matplotlib: lines, points, bars, distributions."""

from typing import TYPE_CHECKING, Any

from quern.report._figures import Bars, Curves, Dots, Panel, Scatter, Spread, Spreads
from quern.report._tables import MATHEMATICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# The colours of Okabe and Ito, which all can tell apart, with grey for yellow; lines differ in dashes and marks, too.
# On the page INK becomes the colour of the text around it, and BLUE a lighter one if the page is dark.
INK, BLUE = "#010203", "#0072b2"
STYLES: dict[str, tuple[str, str, Any]] = {
    "none": ("#808080", "o", (0, (1, 1.2))),
    "l2": ("#e69f00", "s", (0, (5, 1.5))),
    "l1": ("#56b4e9", "^", (0, (4, 1.5, 1, 1.5))),
    "rq": ("#d55e00", "D", "solid"),
    "rql": (BLUE, "v", (0, (7, 1.5, 1, 1.5, 1, 1.5))),
    "none-bn": ("#808080", "p", (0, (1, 2.4))),
    "rq-bn": ("#009e73", "P", (0, (3, 1))),
    "rql-bn": ("#cc79a7", "X", (0, (9, 2))),
    "gamma-bn": (INK, "h", (0, (2, 1, 6, 1))),
    "gamma-beta-bn": ("#8c510a", "d", (0, (1, 1, 4, 1, 4, 1))),
    "first": (BLUE, "o", "solid"),
    "second": ("#d55e00", "s", (0, (5, 1.5))),
}
BAR = 0.36  # inches for a layer


def margins(panel: Panel) -> tuple[float, float, float, float]:
    """Inches around the axes: left, right, above and below. Fixed, since to measure text takes longer than to draw."""
    if isinstance(panel, Bars):
        labels = max(len(bar.label) for bar in panel.bars)
        counts = max(len(_count(pair)) for bar in panel.bars for pair in (bar.quaternions, bar.neurons))
        return 0.2 + 0.085 * labels, 0.12 + 0.068 * counts, 0.34, 0.5
    above = 0.34
    if isinstance(panel, Curves) and panel.phases:
        above += 0.13 + 0.14 * max(_levels(panel))
    return 0.64, 0.14, above, 0.5


def mathematics(text: str) -> str:
    """R_Q and ℓ1 with their letters set low; all else as it is."""
    return MATHEMATICS.sub(lambda match: f"{match[1]}$_{{\\mathrm{{{match[2]}}}}}$", text.replace("$", r"\$"))


def draw(axes: "Axes", panel: Panel) -> dict[str, Any]:
    """Draw a panel; what its legend is to show."""
    if isinstance(panel, Curves):
        return _curves(axes, panel)
    if isinstance(panel, Scatter):
        return _scatter(axes, panel)
    if isinstance(panel, Bars):
        return _bars(axes, panel)
    return _spreads(axes, panel)


def _curves(axes: "Axes", panel: Curves) -> dict[str, Any]:
    from matplotlib.ticker import MaxNLocator

    handles = {}
    for line in panel.lines:
        colour, mark, dashes = STYLES[line.style]
        every = max(1, len(line.x) // 8)
        (handles[line.label],) = axes.plot(
            line.x, line.y, color=colour, marker=mark, linestyle=dashes, markevery=every, markersize=4, linewidth=1.6
        )
        if line.spread:
            low = [y - s for y, s in zip(line.y, line.spread, strict=True)]
            high = [y + s for y, s in zip(line.y, line.spread, strict=True)]
            axes.fill_between(line.x, low, high, color=colour, alpha=0.18, linewidth=0)
    _phases(axes, panel)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    return handles if len(panel.lines) > 1 else {}


def _phases(axes: "Axes", panel: Curves) -> None:
    """Where phases begin, with their names above the axes, where no line can be."""
    for n, ((start, name), level) in enumerate(zip(panel.phases, _levels(panel), strict=True)):
        if n:
            axes.axvline(start - 0.5, color=INK, alpha=0.45, linewidth=0.8, linestyle=(0, (2, 2)))
        axes.annotate(
            name,
            (start - 0.35, 1),
            (0, 2 + 10 * level),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            annotation_clip=False,
            fontsize=8,
            alpha=0.85,
        )


def _levels(panel: Curves) -> list[int]:
    """How high each name of a phase stands: one up if there is no room beside the one before."""
    total = max((line.x[-1] for line in panel.lines if line.x), default=1.0)
    levels: list[int] = []
    for n, (start, _) in enumerate(panel.phases):
        near = n and start - panel.phases[n - 1][0] < 0.11 * total
        levels.append(1 - levels[-1] if near else 0)
    return levels


# How points of a source look: their mark (None: the method's), whether they are filled, their size.
_SOURCES: dict[str, tuple[str | None, bool, float]] = {
    "": (None, True, 5.0),
    "quern": (None, True, 6.5),
    "paper's way": (None, False, 6.5),
    "the paper": ("*", False, 11.0),
}


def _scatter(axes: "Axes", panel: Scatter) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    for dots in panel.dots:
        colour, mark, dashes = STYLES[dots.style]
        axes.plot(*zip(*dots.points, strict=True), **_dot(dots.source, colour, mark), zorder=3)
        line = dashes if dots.front else "none"
        handles.setdefault(dots.label, _handle(color=colour, marker=mark, linestyle=line, markersize=5))
        if dots.source:
            sources[dots.source] = _handle(**_dot(dots.source, INK, "o"))
        if dots.front:
            where = "post" if panel.counts else "pre"
            axes.step(*zip(*dots.front, strict=True), where=where, color=colour, linestyle=dashes, linewidth=1.3)
        if dots.chosen:
            ring: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 11, "markerfacecolor": "none"}
            axes.plot(*zip(*dots.chosen, strict=True), **ring, markeredgecolor=INK, zorder=4)
            sources["chosen λ"] = _handle(**ring, markeredgecolor=INK)
    _names(axes, [dots for dots in panel.dots if dots.source == "the paper"])
    if panel.counts:
        axes.set_xscale("log")
        _plain_ticks(axes)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.margins(x=0.09, y=0.14)
    return handles | sources


def _dot(source: str, colour: str, mark: str) -> dict[str, Any]:
    own, filled, size = _SOURCES[source]
    look: dict[str, Any] = {"color": colour, "marker": own or mark, "markersize": size, "linestyle": "none"}
    return look if filled else {**look, "markerfacecolor": "none", "markeredgewidth": 1.3}


def _handle(**look: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def _names(axes: "Axes", stars: list[Dots]) -> None:
    """Stars differ by colour alone, so each has its name: below and above in turns, that neighbours have room."""
    for n, dots in enumerate(sorted(stars, key=lambda dots: dots.points[0])):
        side = 1 if n % 2 else -1
        label = mathematics(dots.label)
        above = "bottom" if n % 2 else "top"
        axes.annotate(
            label, dots.points[0], (0, 6 * side), textcoords="offset points", ha="center", va=above, fontsize=8
        )


def _plain_ticks(axes: "Axes") -> None:
    """Counts on a logarithmic axis as 500, 2k, 1M, not as powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def short(value: float, _: object) -> str:
        return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"

    low, high = axes.get_xlim()
    subs = (1.0,) if high / low > 200 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _count(pair: tuple[float, int]) -> str:
    return f"{pair[0]:,.0f} / {pair[1]:,}"


def _bars(axes: "Axes", panel: Bars) -> dict[str, Any]:
    from matplotlib.patches import Patch

    gone = {"color": "#808080", "alpha": 0.25, "linewidth": 0}
    kinds = {"quaternions left": (BLUE, -0.2), "neurons left": ("#e69f00", 0.2)}
    for n, bar in enumerate(panel.bars):
        for (left, whole), (colour, shift) in zip((bar.quaternions, bar.neurons), kinds.values(), strict=True):
            share = 100 * left / whole if whole else 0.0
            axes.barh(n + shift, share, color=colour, height=0.34)
            axes.barh(n + shift, 100 - share, left=share, height=0.34, **gone)
            axes.text(102, n + shift, _count((left, whole)), va="center", fontsize=7.5)
    axes.set_yticks(range(len(panel.bars)), [bar.label.replace("$", r"\$") for bar in panel.bars])
    axes.set_xlim(0, 100)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.set_xlabel("left, %")
    axes.grid(visible=False, axis="y")
    return {**{name: Patch(color=colour) for name, (colour, _) in kinds.items()}, "removed": Patch(**gone)}


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _spreads(axes: "Axes", panel: Spreads) -> dict[str, Any]:
    handles = {}
    low, high = panel.edges[0], panel.edges[-1]
    step = (high - low) / 14
    for n, spread in enumerate((panel.before, panel.after)):
        colour, _, dashes = STYLES[spread.style]
        handles[spread.label] = axes.stairs(
            spread.shares, panel.edges, color=colour, linestyle=dashes, linewidth=1.6, fill=False
        )
        axes.stairs(spread.shares, panel.edges, color=colour, alpha=0.15, fill=True)
        _zero_bar(axes, low - (3 - 1.3 * n) * step, step, spread, colour)
    axes.axvline(low - 0.4 * step, color=INK, alpha=0.45, linewidth=0.8, linestyle=(0, (2, 2)))
    ticks = [edge for edge in range(round(low), round(high) + 1) if low <= edge <= high]
    axes.set_xticks([low - 1.9 * step, *ticks], ["zero", *(f"10{str(tick).translate(_RAISED)}" for tick in ticks)])
    axes.set(xlabel="|w|", ylabel="% of all quaternion weights")
    axes.margins(x=0.02, y=0.14)
    return handles


def _zero_bar(axes: "Axes", place: float, width: float, spread: Spread, colour: str) -> None:
    axes.bar(place, spread.zeros, width=width, color=colour, alpha=0.8)
    axes.annotate(
        f"{spread.zeros:.0f}", (place, spread.zeros), (0, 2), textcoords="offset points", ha="center", fontsize=8
    )
