"""The page of all experiments: its sections in order, and what there are no records for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quern.records import DATASETS, FAMILIES
from quern.report import _claims, _plots, _rows
from quern.report._figures import Figure
from quern.report._headlines import headline
from quern.report._load import Records, load
from quern.report._tables import Table

Part = Table | Figure
Maker = Callable[[Records, str], Part | None]


@dataclass(frozen=True)
class Section:
    """One heading with what stands under it, the main number of it in ``headline``; ``missing`` is what there are no
    records of."""

    name: str
    title: str
    headline: str
    text: str
    parts: tuple[Part, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    families: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]

    def tables(self) -> tuple[Table, ...]:
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Table))

    def figures(self) -> tuple[Figure, ...]:
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Figure))


def read_experiments(folder: Path) -> Page:
    """The page of all records in ``folder``."""
    records = load(folder)
    datasets, both = records.datasets() or ("mnist", "cifar10"), ("paper", "quern")

    def per_dataset(*makers: Maker) -> list[tuple[str, Part | None]]:
        return [(DATASETS[dataset], make(records, dataset)) for dataset in datasets for make in makers]

    parts: dict[str, list[tuple[str, Part | None]]] = {
        "claims": [("experiments", _claims.table(records))],
        "table1": per_dataset(_rows.table1),
        "table2": per_dataset(_rows.table2),
        "curves": per_dataset(*(partial(_plots.curves, family=one, number=n) for n in (1, 2) for one in both)),
        "neurons": per_dataset(_rows.neurons),
        "compress": [("quern compress", _rows.compressed(records))],
        "front": per_dataset(_plots.final_front),
        "tuning": per_dataset(*(partial(_plots.tuning_front, family=one) for one in both), _rows.tuned),
        "layers": per_dataset(_plots.layers),
        "moduli": per_dataset(*(partial(_plots.moduli, family=one) for one in both)),
        "runs": [("experiments", _rows.provenance(records)), ("experiments", _rows.sums(records))],
    }
    return Page(tuple(FAMILIES.items()), tuple(_section(name, records, some) for name, some in parts.items()))


def _section(name: str, records: Records, parts: Iterable[tuple[str, Part | None]]) -> Section:
    parts = list(parts)
    there = {of for of, part in parts if part is not None}
    missing = dict.fromkeys(of for of, _ in parts if of not in there)
    title, text = _HEADINGS[name]
    shown = tuple(part for _, part in parts if part is not None)
    return Section(name, title, headline(name, records), text, shown, tuple(missing))


# Of every section, its title and what it shows.
_HEADINGS = {
    "claims": (
        "The paper's claims, and what came out",
        "Each claim of the paper with a verdict, in both families of runs.",
    ),
    "table1": (
        "Table 1: accuracy and sparsity",
        "In the paper's family a weight below 0.001 is only called zero; the accuracy with it cut is given, too.",
    ),
    "table2": (
        "Table 2: what a penalty costs in time",
        "The time of a step of training, as a ratio to the same step without a penalty.",
    ),
    "curves": ("Figures 1 and 2: epoch by epoch", "How the zeros come about while training."),
    "neurons": (
        "Whole neurons removed",
        "Networks with batch normalisation, after what is dead in them was taken out.",
    ),
    "compress": (
        "Networks within a budget",
        "One command each: a network is trained, made small within a budget, exported, and compared.",
    ),
    "front": ("Accuracy against sparsity and size", "Up is better. So is right for sparsity, and left for parameters."),
    "tuning": ("The search for λ", "λ is the weight of the penalty: the larger, the more zeros."),
    "layers": ("What was removed, layer by layer", "Which layers lose quaternions, and which lose whole neurons."),
    "moduli": (
        "Distribution of |w|",
        "|w| is the length of a quaternion weight. Weights that are small but not zero cannot be left out for free.",
    ),
    "runs": ("Where the numbers come from", "All runs that this report is made from, and the data they saw."),
}
