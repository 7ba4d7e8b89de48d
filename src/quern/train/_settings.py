"""How to train, and what follows from it for every step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from quern.errors import TrainingError
from quern.optim import ramp
from quern.penalties import Penalty
from quern.records import Course, Phase
from quern.records.schema import check

RISE, FIRST = 0.2, 0.05  # of one cycle: the share in which the learning rate rises, and what it begins with


@dataclass(frozen=True)
class Settings(Course):
    """How to train. Epochs are counted as ``warmup + epochs + heal``.

    ``warmup`` epochs go without the penalty, ``epochs`` with it (λ rises linearly over the share ``ramp`` of them),
    ``heal`` without it and with every zero frozen. With ``schedule="cosine"`` the learning rate falls to zero along
    half a cosine in the last of these phases; with "one-cycle" it first rises, over a fifth of that phase; "constant"
    leaves it. ``heal_lr`` is the rate to heal with, if not ``lr``; ``heal_dropout=False`` switches dropout layers off
    while healing. ``distill`` is the share of the loss, while healing or training without a penalty, that asks for a
    teacher's answers in place of the labels (softened by a temperature of 4). ``optimizer`` is "proximal-adam" or
    "proximal-sgd" (exact zeros), or "adam" (the penalty's gradient, as in the paper).

    ``ema`` is the decay of a running mean of weights and statistics: where there is no penalty, it is the mean that is
    judged and kept. It begins anew when healing does, so what is dead stays dead in it. ``crop`` shifts each image at
    random by up to that many pixels, ``flip`` mirrors half of them. ``batch`` counts images over all processes. ``tol``
    is the magnitude up to which a number counts as zero in what is reported: 0 for a proximal optimizer, 1e-3 to
    compare with the paper; it changes nothing in the network. ``compact_every`` so many epochs of grinding, and before
    healing, what died is removed from the network, so that training gets faster; 0 leaves it until
    :func:`quern.compact.compact` is called. ``curves`` adds to each line of the history what figures show and nothing
    is chosen by: the accuracy on test images, and how many neurons compaction would leave.
    """

    penalty: Penalty | None = None

    def __post_init__(self) -> None:
        wrong = next((sentence for holds, sentence in self._rules() if not holds), None)
        if wrong:
            raise TrainingError(f"{wrong}.")

    def _rules(self) -> Iterator[tuple[bool, str]]:
        kinds: dict[str, Any] = {field.name: field.type for field in fields(self)}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if kind in (int, float, float | None) and value is not None:
                number = Integral if kind is int else Real
                wanted = "a whole number" if kind is int else "a number"
                fits = isinstance(value, number) and not isinstance(value, bool)
                yield fits, f"{name} is {value!r}, but must be {wanted}"
        fits = self.penalty is None or isinstance(self.penalty, Penalty)
        yield fits, f"penalty is {self.penalty!r}, but must be one of quern.penalties, such as RQL(12.0)"
        for name in ("epochs", "warmup", "heal", "crop", "compact_every"):
            yield getattr(self, name) >= 0, f"{name} is {getattr(self, name)}, but cannot be negative"
        yield self.warmup + self.epochs + self.heal > 0, "there are no epochs to train for"
        yield -(1 << 63) <= self.seed < 1 << 64, f"seed is {self.seed}, but must be a number of 64 bits"
        yield self.batch >= 1, f"the batch is {self.batch}, but needs at least one image"
        yield 0 < self.lr < math.inf, f"lr is {self.lr}, but must be a positive number"
        yield self.heal_lr is None or 0 < self.heal_lr < math.inf, f"heal_lr is {self.heal_lr}, but must be positive"
        yield 0 <= self.weight_decay < math.inf, f"weight_decay is {self.weight_decay}, but cannot be negative"
        yield 0 <= self.label_smoothing < 1, f"label_smoothing is {self.label_smoothing}, but must be in 0..1"
        yield 0 <= self.ema < 1, f"ema is {self.ema}, but must be a decay from 0 (no mean) to below 1, such as 0.999"
        yield 0 <= self.distill <= 1, f"distill is {self.distill}, but must be a share of the loss, from 0 to 1"
        yield 0 <= self.tol < math.inf, f"tol is {self.tol}, but cannot be negative"
        yield 0 <= self.ramp <= 1, f"ramp is {self.ramp}, but must be a share of the epochs, from 0 to 1"
        exact = self.optimizer != "adam" or not self.compact_every
        yield self.penalty is not None or not self.compact_every, "compact_every needs a penalty: nothing dies without"
        yield exact, "compact_every needs exact zeros, which adam does not give: take a proximal optimizer"
        for name in ("schedule", "optimizer", "precision"):
            choices = kinds[name].__args__
            yield getattr(self, name) in choices, f"{name} is {getattr(self, name)}, but must be {' or '.join(choices)}"

    def phase(self, epoch: int) -> tuple[Phase, int, int]:
        """The phase of an epoch (from 0), where in it the epoch is, and how long it is."""
        if epoch < self.warmup:
            return "warmup", epoch, self.warmup
        if epoch < self.warmup + self.epochs:
            return "grind" if self.penalty else "train", epoch - self.warmup, self.epochs
        return "heal", epoch - self.warmup - self.epochs, self.heal

    def compacts_before(self, epoch: int) -> bool:
        """Whether what died is removed before ``epoch``."""
        phase, place, _ = self.phase(epoch)
        if not self.compact_every or phase not in ("grind", "heal"):
            return False
        return place == 0 if phase == "heal" else place > 0 and place % self.compact_every == 0

    def lr_at(self, epoch: int, progress: float) -> float:
        """The learning rate in ``epoch`` after the share ``progress`` of it."""
        phase, place, length = self.phase(epoch)
        lr = self.heal_lr if phase == "heal" and self.heal_lr is not None else self.lr
        if self.schedule == "constant" or epoch - place + length < self.total:
            return lr
        share = (place + progress) / length
        if self.schedule == "one-cycle":
            if share < RISE:
                return lr * (FIRST + (1 - FIRST) * share / RISE)
            share = (share - RISE) / (1 - RISE)
        return lr * (1 + math.cos(math.pi * share)) / 2

    def averages(self, epoch: int) -> bool:
        """Whether a mean of the weights goes along in ``epoch``: not where zeros are made, which it would not have."""
        return self.ema > 0 and self.phase(epoch)[0] in ("train", "heal")

    def teaches(self, epoch: int) -> bool:
        """Whether a teacher is asked in ``epoch``."""
        return self.distill > 0 and self.phase(epoch)[0] in ("train", "heal")

    def strength_at(self, epoch: int, step: int, steps: int) -> float:
        """The factor of the penalty at a step of ``epoch``: the ramp while grinding, 0 before and after."""
        phase, place, _ = self.phase(epoch)
        return ramp(place * steps + step + 1, round(self.ramp * self.epochs * steps)) if phase == "grind" else 0.0

    @staticmethod
    def from_dict(values: Any, path: Path | None = None) -> "Settings":
        """The reverse of :meth:`to_dict`; one sentence for anything else, about the file ``path`` they stand in."""
        try:
            return check(values, Settings)
        except (ValueError, TrainingError) as reason:
            wrong = str(reason).rstrip(".")
            if path is not None:
                raise TrainingError(f"{path} does not hold settings of quern ({wrong}): begin again.") from reason
            if isinstance(reason, TrainingError):
                raise
            raise TrainingError(f"these are not settings of quern: {wrong}.") from reason
