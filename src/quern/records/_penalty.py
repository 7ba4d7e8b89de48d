"""A penalty as it is written down: a list of terms, each with its kind, its weight and its options."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

from quern.records.schema import check

Option = bool | int | float | str

# Older files have no field with_beta: they say it in the kind.
_OLD_KINDS = {"GammaL1": ("GammaL1", False), "GammaL1 with_beta=True": ("GammaL1", True)}


class _Fields(TypedDict):
    kind: str
    weight: float
    normalize: bool


@dataclass(frozen=True)
class WrittenTerm:
    """One term: the name of its class in :mod:`quern.penalties`, its λ, and the other arguments of that class."""

    kind: str
    weight: float
    normalize: bool = True
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        if not (self.weight >= 0 and math.isfinite(self.weight)):
            wrong = f"the weight of a penalty is {self.weight}, but it must be a finite number that is not negative."
            raise ValueError(wrong)

    @staticmethod
    def from_plain(value: Any) -> "WrittenTerm":
        """A term from a file, in this spelling or an older one; ValueError for anything else."""
        fields = check(value, _Fields)
        options = check({k: v for k, v in value.items() if k not in fields}, dict[str, Option])
        kind = fields["kind"]
        if "with_beta" not in options and kind in _OLD_KINDS:
            kind, options["with_beta"] = _OLD_KINDS[kind]
        return WrittenTerm(kind, fields["weight"], fields["normalize"], tuple(options.items()))

    def to_dict(self) -> dict[str, Option]:
        return {"kind": self.kind, "weight": self.weight, "normalize": self.normalize, **dict(self.options)}

    def __repr__(self) -> str:
        options = [f"{name}={value}" for name, value in self.options if value is not False]
        last = [] if self.normalize else ["normalize=False"]
        return f"{self.kind}({', '.join([f'{self.weight:g}', *options, *last])})"


class Written:
    """Abstract: a penalty that can be written down. :class:`quern.penalties.Penalty` also knows what it does."""

    def written(self) -> tuple[WrittenTerm, ...]:
        """Its terms as they stand in files."""
        raise NotImplementedError

    def to_list(self) -> list[dict[str, Option]]:
        """The terms as plain values, for records; ``from_list`` is the reverse."""
        return [term.to_dict() for term in self.written()]

    def to_plain(self) -> list[dict[str, Option]]:
        return self.to_list()

    @classmethod
    def from_plain(cls, terms: Any) -> "Written":
        return WrittenPenalty(tuple(check(terms, list[WrittenTerm])))

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.written()))


@dataclass(frozen=True, repr=False)
class WrittenPenalty(Written):
    """A penalty from a file, read without torch."""

    terms: tuple[WrittenTerm, ...]

    def written(self) -> tuple[WrittenTerm, ...]:
        return self.terms


def respelled(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings from a file, those of several stages or of one, with penalties as they would be written now, so that
    they can be compared."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        plain[name] = respelled(value) if isinstance(value, dict) else value
        if name == "penalty" and value:
            with suppress(ValueError):  # what is no penalty stays as it is, and is unlike any
                plain[name] = Written.from_plain(value).to_list()
    return plain
