"""What may watch or steer a training."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn

from quern.compact import Plan
from quern.optim import ProximalAdam, ProximalSGD
from quern.records import Epoch, Phase
from quern.train._settings import Settings


@runtime_checkable
class Watcher(Protocol):
    """Something that is told how the training goes: a progress bar, a log, event files."""

    def start(self, settings: Settings, epoch: int, steps: int) -> None: ...
    def step(self, epoch: int, phase: Phase, step: int, steps: int, loss: float) -> None: ...
    def epoch(self, line: Epoch) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Grinding:
    """A training under its penalty, as a :class:`Steer` sees it: the network and its optimizer, the number of this
    milestone (from 0), how many there are, the steps to the next one, and what the steering wants to remember (plain
    values; they are saved with the training)."""

    model: nn.Module
    optimizer: ProximalAdam | ProximalSGD
    milestone: int
    milestones: int
    steps: float
    memory: dict[str, Any]


@runtime_checkable
class Steer(Protocol):
    """Steers a grinding at each of the milestones that part it into equal parts, and at its end. First it says what
    to ``remove`` at once, besides what died; then the ``strength``, the factor of λ from here on. None as strength ends
    the grinding: what is zero stays so, and its epochs go on without the penalty. Of several processes all ask, and do
    what the leading one's says."""

    def remove(self, now: Grinding) -> Plan | None: ...
    def strength(self, now: Grinding) -> float | None: ...
