"""How a training is set, how it goes epoch by epoch, and what it reaches, as it is written down."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from quern.records._metric import ACCURACY, Judged, Metric
from quern.records._penalty import Written
from quern.records._sparsity import Sparsity
from quern.records.schema import Between, Count, Measured, Seconds, Share, Text, check, to_plain

Phase = Literal["warmup", "train", "grind", "heal"]


def in_epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Course:
    """The settings of a training as they are written down; :class:`quern.train.Settings` says what they mean."""

    epochs: int = 20
    warmup: int = 0
    heal: int = 0
    penalty: Written | None = None
    seed: int = 0
    tol: float = 0.0
    ramp: float = 0.5
    batch: int = 400
    lr: float = 2e-3
    heal_lr: float | None = None
    heal_dropout: bool = True
    distill: float = 0.0
    compact_every: int = 0
    schedule: Literal["cosine", "one-cycle", "constant"] = "cosine"
    optimizer: Literal["proximal-adam", "proximal-sgd", "adam"] = "proximal-adam"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    ema: float = 0.0
    crop: int = 0
    flip: bool = False
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    curves: bool = False

    @property
    def total(self) -> int:
        return self.warmup + self.epochs + self.heal

    @property
    def phases(self) -> str:
        """The phases in words."""
        parts = [(self.warmup, "to warm up"), (self.epochs, f"with {self.penalty}" if self.penalty else "")]
        parts.append((self.heal, "to heal"))
        return ", ".join(f"{in_epochs(count)} {what}".strip() for count, what in parts if count)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for records."""
        return {name: to_plain(getattr(self, name)) for name in self.__dataclass_fields__}

    to_plain = to_dict


@dataclass(frozen=True, kw_only=True)
class Epoch(Judged):
    """A line of a history. A training that is judged by a ``metric`` of the user's own, whose name that is, has
    ``val_metric`` in place of ``val_accuracy``. ``test_accuracy`` or ``test_metric``, which nothing is chosen by, and
    ``compacted_neurons``, how many neurons compaction would leave, are there with ``curves`` in the settings; the
    latter not if compaction refuses. Older histories lack ``parameters``, ``images_per_second`` and
    ``peak_memory_mb``."""

    epoch: Count
    phase: Phase
    loss: Annotated[float, Between(-1e9, 1e9)]
    penalty: Measured
    strength: Measured
    lr: Measured
    val_loss: Measured
    val_accuracy: Share | None = None
    metric: Text | None = None
    val_metric: float | None = None
    component_sparsity: Share
    quaternion_sparsity: Share
    neuron_sparsity: Share
    neurons_left: Count
    parameters: Count | None = None
    seconds: Seconds
    images_per_second: Measured | None = None
    peak_memory_mb: Measured | None = None
    test_accuracy: Share | None = None
    test_metric: float | None = None
    compacted_neurons: Count | None = None

    def to_dict(self) -> dict[str, int | float | str]:
        """Plain values, for files, without what there is not."""
        return to_plain(self)


@dataclass(frozen=True)
class Result(Judged):
    """What a training reached: the kept epoch's validation accuracy, the test accuracy (None where there was nothing to
    test with), and the network's sparsity. Judged by another ``metric`` than accuracy, it has ``val_metric`` and
    ``test_metric`` in their place."""

    history: tuple[Epoch, ...]
    best_epoch: Count
    val_accuracy: Share | None
    test_accuracy: Share | None
    test_loss: Measured | None
    sparsity: Sparsity
    seconds: Seconds
    val_metric: float | None = None
    test_metric: float | None = None
    metric: Metric = ACCURACY

    @property
    def test(self) -> float | None:
        """The value for the inputs to test with, if there were any."""
        return self.test_metric if self.test_accuracy is None else self.test_accuracy

    def metrics(self) -> dict[str, float]:
        """The values there are, for the file of the network."""
        return {
            name: value for name, value in self.metric.keyed(test=self.test, val=self.val).items() if value is not None
        }

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    @staticmethod
    def from_dict(values: Any) -> "Result":
        """The reverse of :meth:`to_dict`; ValueError for anything else."""
        return check(values, Result)
