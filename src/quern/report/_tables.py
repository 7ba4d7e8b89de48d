"""Tables as plain values, and the four forms they are written in."""

import csv
import io
import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

# How a number stands to the paper's: a sign to see, and words for those who hear the page.
SIGNS = {"better": "▲", "equal": "=", "worse": "▼", "yes": "✓", "no": "✗"}
WORDS = {"better": "above the paper", "equal": "equal to the paper", "worse": "below the paper"}
WORDS |= {"yes": "yes", "no": "no"}


@dataclass(frozen=True)
class Cell:
    """What a table shows; ``value`` and ``spread`` are the same as numbers, ``sign`` is one of :data:`SIGNS`."""

    text: str
    value: float | None = None
    spread: float | None = None
    sign: str = ""

    def __str__(self) -> str:
        return f"{self.text} {SIGNS[self.sign]}".strip() if self.sign else self.text


NONE = Cell("–")


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns. ``name`` is that of its files; rows with one first cell belong together."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def numeric(self, column: int) -> bool:
        """Whether a column has numbers, and is set to the right."""
        return any(row[column].value is not None for row in self.rows)

    def groups(self) -> tuple[tuple[tuple[Cell, ...], ...], ...]:
        """Rows next to each other with the same first cell, together."""
        return tuple(tuple(rows) for _, rows in itertools.groupby(self.rows, key=lambda row: row[0].text))


Number = int | float  # the checks at run time tell them apart


def word(text: object) -> Cell:
    return Cell(str(text))


def number(value: Number | None, digits: int = 2) -> Cell:
    """A number with so many digits after the point; a dash for none."""
    if value is None or not math.isfinite(value):
        return NONE
    return Cell(f"{value:,.{digits}f}", float(value))


def counted(value: int) -> Cell:
    return Cell(f"{value:,}", float(value))


def judged(cell: Cell, good: bool) -> Cell:
    """The cell with a sign of whether it is as it should be."""
    return replace(cell, sign="yes" if good else "no")


def mean(values: Sequence[Number]) -> float:
    return statistics.fmean(values)


def measured(values: Sequence[Number], digits: int = 2, times: float = 100.0) -> Cell:
    """Mean ± sample standard deviation, in percent unless told otherwise; of one value there is no deviation."""
    scaled = [times * value for value in values]
    middle = mean(scaled)
    if len(scaled) == 1:
        return Cell(f"{middle:,.{digits}f}", middle)
    spread = statistics.stdev(scaled)
    return Cell(f"{middle:,.{digits}f} ± {spread:,.{digits}f}", middle, spread)


def marked(cell: Cell, paper: float | None) -> Cell:
    """The cell with the sign of how it stands to the paper's mean, both as printed: to two digits."""
    if cell.value is None or paper is None:
        return cell
    ours, theirs = round(cell.value, 2), round(paper, 2)
    sign = "better" if ours > theirs else "equal" if ours == theirs else "worse"
    return replace(cell, sign=sign)


def ratio(before: Number | None, after: Number | None, digits: int = 1) -> Cell:
    """How many times smaller or faster: ``before / after``."""
    if before is None or after is None or not after:
        return NONE
    return Cell(f"{before / after:,.{digits}f}×", before / after)


def amount(value: Number) -> str:
    """A whole number in groups of three, any other with two digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def to_markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        plain = (re.sub(r"([\\|`*<\[])", r"\\\1", " ".join(cell.split())) for cell in cells)
        return f"| {' | '.join(plain)} |"

    rules = ["---:" if table.numeric(n) else "---" for n in range(len(table.columns))]
    rows = [line([str(cell) for cell in row]) for row in table.rows]
    notes = [f"\n{note}" for note in table.notes]
    return "\n".join([f"**{table.title}**\n", line(table.columns), f"| {' | '.join(rules)} |", *rows, *notes]) + "\n"


def to_csv(table: Table) -> str:
    """Numbers to ten digits; a column with deviations becomes two."""
    spreads = [any(row[n].spread is not None for row in table.rows) for n in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head: list[str] = []
    for name, split in zip(table.columns, spreads, strict=True):
        head += [name, f"{name} (std)"] if split else [name]
    writer.writerow(head)
    for row in table.rows:
        line: list[str] = []
        for cell, split in zip(row, spreads, strict=True):
            line.append(str(cell) if cell.value is None else f"{cell.value:.10g}")
            if split:
                line.append("" if cell.spread is None else f"{cell.spread:.10g}")
        writer.writerow(line)
    return out.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\to$",
    "≤": r"$\le$",
    "λ": r"$\lambda$",
    "γ": r"$\gamma$",
    "–": r"\textendash{}",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "✓": r"$\checkmark$",
    "✗": r"$\boxtimes$",
    "ℓ": r"$\ell$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_SIGNS_OF_LATEX = re.compile("|".join(map(re.escape, _LATEX)))
# Signs of the paper: R_Q, R_QL, ℓ1, ℓ2.
MATHEMATICS = re.compile(r"(?<!\w)([Rℓ])_?(QL|Q|1|2)(?!\w)")


def latex(text: str) -> str:
    """Text as LaTeX sets it, with nothing in it that LaTeX would obey."""

    def plain(part: str) -> str:
        # The two signs before a command's option would be set as a dash.
        return re.sub("-(?=-)", "-{}", _SIGNS_OF_LATEX.sub(lambda match: _LATEX[match[0]], part))

    parts, end = [], 0
    for match in MATHEMATICS.finditer(text):
        letter = "R" if match[1] == "R" else r"\ell"
        parts += [plain(text[end : match.start()]), f"${letter}_{{{match[2]}}}$"]
        end = match.end()
    return "".join([*parts, plain(text[end:])])


def to_latex(table: Table) -> str:
    """A ``tabular`` between rules; it needs the packages booktabs and amssymb."""
    sides = "".join("r" if table.numeric(n) else "l" for n in range(len(table.columns)))
    lines = ["% needs \\usepackage{booktabs,amssymb}", f"\\begin{{tabular}}{{{sides}}}", "\\toprule"]
    lines += [" & ".join(map(latex, table.columns)) + r" \\", "\\midrule"]
    groups = table.groups()
    for n, group in enumerate(groups):
        if n and len(groups) < len(table.rows):
            lines.append("\\midrule")
        lines += [" & ".join(latex(" ".join(str(cell).split())) for cell in row) + r" \\" for row in group]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"
