"""What the figures show, as plain values. :mod:`quern.report._draw` draws them."""

from dataclasses import dataclass

# What a figure says whose records count dead neurons as they were counted before compaction decided.
OLDER_DEAD = (
    "Neurons are counted here by an older definition of a dead one; in the tables, dead is what compaction removes."
)


@dataclass(frozen=True)
class Line:
    """One line of a panel; ``spread`` is the band of ± around it. ``style`` is a method, or another of the styles."""

    label: str
    style: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Curves:
    """Lines over epochs. ``phases`` are first epochs and names of what the epochs were for."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    phases: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Dots:
    """Points of one method from one source. ``front`` are joined by steps, ``chosen`` have a ring around them."""

    label: str
    style: str
    points: tuple[tuple[float, float], ...]
    source: str = ""
    front: tuple[tuple[float, float], ...] = ()
    chosen: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Scatter:
    """Points; higher is better, and so is further right, unless x are ``counts``, of which fewer are better."""

    title: str
    x_label: str
    y_label: str
    dots: tuple[Dots, ...]
    counts: bool = False


@dataclass(frozen=True)
class Bar:
    """What is left of the quaternions and of the neurons of a layer, and how many there were."""

    label: str
    quaternions: tuple[float, int]
    neurons: tuple[float, int]


@dataclass(frozen=True)
class Bars:
    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Spread:
    """How |w| is spread: shares of all weights between powers of ten, and the share that is zero, in percent."""

    label: str
    style: str
    shares: tuple[float, ...]
    zeros: float


@dataclass(frozen=True)
class Spreads:
    title: str
    edges: tuple[float, ...]
    before: Spread
    after: Spread


Panel = Curves | Scatter | Bars | Spreads


@dataclass(frozen=True)
class Figure:
    """Panels that belong together. On the page each is a picture of its own, so that a phone can stack them."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
