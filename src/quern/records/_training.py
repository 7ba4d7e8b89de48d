"""How a training went: its phases and its result, as they are written down."""

from dataclasses import asdict, dataclass
from typing import Any

from quern.records._kinds import Epoch
from quern.records._penalty import Written
from quern.records._sparsity import Sparsity
from quern.records.schema import Count, Measured, Seconds, Share, check


@dataclass(frozen=True)
class Course:
    """What one who reads of a training wants to know of its settings, :class:`quern.train.Settings`."""

    epochs: int = 20
    warmup: int = 0
    heal: int = 0
    penalty: Written | None = None
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
