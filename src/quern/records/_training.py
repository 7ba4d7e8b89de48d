"""How a training went: its penalty, its phases and its result, as they are written down."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from quern.records._kinds import Epoch
from quern.records._sparsity import Sparsity
from quern.records.schema import Count, Measured, Seconds, Share, check

Sum = TypeVar("Sum", bound="Terms")


@dataclass(frozen=True)
class Term:
    kind: Literal["L1", "L2", "RQ", "RQL", "GammaL1", "GammaL1 with_beta=True"]
    weight: float
    normalize: bool

    def __post_init__(self) -> None:
        if not (self.weight >= 0 and math.isfinite(self.weight)):
            said = f"the weight of a penalty is {self.weight}, but it must be a finite number that is not negative."
            raise ValueError(said)

    def __repr__(self) -> str:
        name, _, option = self.kind.partition(" ")
        options = [f"{self.weight:g}", *([option] if option else []), *([] if self.normalize else ["normalize=False"])]
        return f"{name}({', '.join(options)})"


@dataclass(frozen=True, repr=False)
class Terms:
    """A sum of penalties by name; :class:`quern.penalties.Penalty` knows what they do."""

    terms: tuple[Term, ...]

    def to_list(self) -> list[dict[str, Any]]:
        """The terms as plain values, for records; see :meth:`from_list`."""
        return [asdict(term) for term in self.terms]

    @classmethod
    def from_list(cls: type[Sum], terms: Any) -> Sum:
        """The reverse of :meth:`to_list`; ValueError for anything else."""
        return cls(tuple(check(terms, list[Term])))

    from_plain = from_list

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


@dataclass(frozen=True)
class Course:
    """What one who reads of a training wants to know of its settings, :class:`quern.train.Settings`."""

    epochs: int = 20
    warmup: int = 0
    heal: int = 0
    penalty: Terms | None = None
    seed: int = 0
    tol: float = 0.0

    @property
    def total(self) -> int:
        return self.warmup + self.epochs + self.heal

    @property
    def phases(self) -> str:
        """The phases in words."""
        parts = [(self.warmup, "to warm up"), (self.epochs, f"with {self.penalty}" if self.penalty else "")]
        parts.append((self.heal, "to heal"))
        return ", ".join(f"{count} epochs {what}".strip() for count, what in parts if count)


@dataclass(frozen=True)
class Result:
    """What a training reached: the kept epoch's validation accuracy, the test accuracy (None where there was nothing to
    test with), and the network's sparsity."""

    history: tuple[Epoch, ...]
    best_epoch: Count
    val_accuracy: Share
    test_accuracy: Share | None
    test_loss: Measured | None
    sparsity: Sparsity
    seconds: Seconds

    def accuracies(self) -> dict[str, float]:
        """Those there are, for the file of the network."""
        tested = {} if self.test_accuracy is None else {"test_accuracy": self.test_accuracy}
        return {**tested, "val_accuracy": self.val_accuracy}

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "history": list(self.history), "sparsity": self.sparsity.to_dict()}

    @staticmethod
    def from_dict(values: Any) -> "Result":
        """The reverse of :meth:`to_dict`; ValueError for anything else."""
        return check(values, Result)
