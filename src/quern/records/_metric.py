"""What networks are judged by: the name of a number, which way is better, and how it is written."""

from dataclasses import dataclass
from typing import Any

from quern.records.schema import Text, visible


@dataclass(frozen=True)
class Metric:
    """A number that says how good a network is. ``percent`` is for shares, which are shown, and lost, in points of a
    hundred; other metrics are in their own unit."""

    name: Text
    lower_is_better: bool = False
    percent: bool = False

    def keyed(self, **values: float | None) -> dict[str, Any]:
        """Values by the names of the fields that hold them: ``val_accuracy`` for ``val`` if this is accuracy, else
        ``val_metric``."""
        kind = "accuracy" if self == ACCURACY else "metric"
        return {f"{part}_{kind}": value for part, value in values.items()}

    def better(self, one: float, other: float) -> bool:
        """Whether a network is at least as good as another."""
        return one <= other if self.lower_is_better else one >= other

    def lost(self, before: float, after: float) -> float:
        """How much worse ``after`` is, in the metric's unit; negative if it is better."""
        lost = after - before if self.lower_is_better else before - after
        return 100 * lost if self.percent else lost

    def text(self, value: float) -> str:
        return f"{100 * value:.2f} %" if self.percent else f"{value:.5g}"

    def change(self, before: float, after: float) -> str:
        return f"{100 * (after - before):+.2f} points" if self.percent else f"{after - before:+.5g}"

    @property
    def title(self) -> str:
        """Its name, safe to print."""
        return visible(self.name)

    @property
    def unit(self) -> str:
        """What is counted where some of it is lost."""
        return "points of accuracy" if self.percent else self.title


ACCURACY = Metric("accuracy", percent=True)


class Judged:
    """Mixin: something that has either accuracies or, where networks were judged by another metric, its values."""

    val_accuracy: float | None
    val_metric: float | None

    def __post_init__(self) -> None:
        if (self.val_accuracy is None) == (self.val_metric is None):
            raise ValueError("it should have either a val_accuracy or a val_metric")

    @property
    def val(self) -> float:
        """The value for the inputs to validate with."""
        value = self.val_metric if self.val_accuracy is None else self.val_accuracy
        assert value is not None
        return value


class Tested(Judged):
    """Mixin: something that may also have been tested."""

    test_accuracy: float | None
    test_metric: float | None

    @property
    def judged_by(self) -> str:
        """The inputs that ``value`` is about."""
        return "validation" if self._test is None else "test"

    @property
    def value(self) -> float:
        """The accuracy, or the value of another metric: of a test, if there was one."""
        return self.val if self._test is None else self._test

    @property
    def _test(self) -> float | None:
        return self.test_metric if self.val_accuracy is None else self.test_accuracy
