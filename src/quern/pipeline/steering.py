"""Budgets, and the choice of λ that meets them in one run.

Users think in parameters, bytes, speed and accuracy; a penalty has a λ. Milestones lead from the size of the dense
network to the budget in equal ratios. At each one λ is chosen anew: the smallest by which, if the loss did not pull
back, the penalty alone would bring the network to the next milestone in time. The loss does pull back; what is still
too much at a milestone, the weakest neurons by the penalty's own measure, is then removed. So the budget is met, and λ
does what it can for that not to hurt.

How much a neuron saves depends on its layer. Its part of the penalty is weighed by that: by how much the network
shrinks without it, in the budget's own unit, found by leaving one out.

All this asks many times how large the network would be, which :func:`quern.compact.census` counts. Nothing is removed,
and no budget taken to be met, without a plan that says the same; once one does not, plans take the place of counts.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated, Any, NotRequired, TypedDict

import torch
from torch import nn

from quern.compact import Plan, compact, plan
from quern.errors import TrainingError
from quern.graph import Example
from quern.pipeline._sizes import Packs, Size, SizeCounter, planned_size
from quern.records import ACCURACY, Budget, Metric
from quern.records.schema import Between, Count, Positive, check
from quern.train import Grinding
from quern.train.team import Team

__all__ = ["Steering"]

MOST = 1e12  # steps, in which a penalty does all it can
PROTECTED = 1e-6  # the cost of a layer's last neuron
SMALLEST = 1 / 128  # share of the parameters that a search by accuracy alone would end with
MARGIN = 1.05  # by how much a network must be faster than asked for, as times are never measured twice the same


class _Trial(TypedDict):
    parameters: Count
    value: float


class _Memory(TypedDict):
    """What is remembered from milestone to milestone."""

    dense: Size
    macs_ratio: Positive | None
    trials: list[_Trial]
    counted: bool
    steps: NotRequired[Annotated[float, Between(1e-13, 1e13)]]


class Steering:
    """Chooses λ for :func:`quern.train.fit` so that the network meets ``budget``.

    ``example`` is an input of the network. ``speedup`` times a small network against the dense one, for
    ``min_speedup``: multiply-adds lead there, the clock decides. ``packs`` says what a network takes when it is packed,
    for ``max_flash`` and ``max_ram``. ``trial`` heals a copy of a network for a while and
    gives its value by ``metric``, and ``dense_value`` is that of the dense one, for ``max_drop`` alone: it is ground
    smaller from epoch to epoch until the next epoch would take too much. Of the processes of a ``crew`` the leading one
    decides; trials are trainings of all.
    """

    def __init__(
        self,
        budget: Budget,
        example: Example,
        *,
        images: dict[str, Any] | None = None,
        speedup: Callable[[nn.Module], float] | None = None,
        trial: Callable[[nn.Module], float] | None = None,
        packs: Packs | None = None,
        metric: Metric = ACCURACY,
        dense_value: float = 0.0,
        crew: Team | None = None,
    ) -> None:
        self.budget, self.example, self.images = budget, example, images
        self.speedup, self.trial, self.packs = speedup, trial, packs
        self.metric, self.dense_value, self.crew = metric, dense_value, crew or Team()
        self._counter: SizeCounter | None = None

    def remove(self, now: Grinding) -> Plan | None:
        """What stands between the network and this milestone: the weakest neurons by the penalty's own measure."""
        return self.crew.led(lambda: self._remove(now))

    def _remove(self, now: Grinding) -> Plan | None:
        if now.memory:
            self._check(now.memory)
        elif (dense := self._planned_size(now.model)) is None:
            return None
        else:
            counter = self._counter_of(now.model)
            counted = counter.size() if counter.counts else None
            agree = counted is not None and replace(counted, macs=dense.macs, flash=dense.flash) == dense
            now.memory.update(dense=asdict(dense), macs_ratio=self.budget.min_speedup, trials=[], counted=agree)
        steps, removal = self._steps_and_plan(now, self._goal(now, now.milestone))
        if removal is not None and (self.budget.min_speedup is not None or self.budget.max_flash is not None):
            self._zero(now, steps)  # zeros between neurons that stay count too
        return removal

    def _zero(self, now: Grinding, steps: float) -> None:
        """Make zero what the penalty alone would make so in ``steps`` steps, and nothing else."""
        with now.optimizer.ahead(steps):
            zeros = [p.detach() == 0 for p in now.optimizer.shrunk]
        for p, zero in zip(now.optimizer.shrunk, zeros, strict=True):
            p.detach().masked_fill_(zero, 0)

    def _steps_and_plan(self, now: Grinding, goal: float) -> tuple[float, Plan | None]:
        """The steps to ``goal``, and the plan for what is dead then: by counts if the plan says the same."""
        while True:
            steps = self._steps(now, goal)
            if steps == 0:
                return 0.0, None
            with now.optimizer.ahead(steps):
                removal, counted = plan(now.model, self.example), self._size(now) if now.memory["counted"] else None
            if not now.memory["counted"] or (counted is not None and self._agree(now, goal, counted, removal)):
                return steps, removal
            now.memory["counted"] = False

    def _agree(self, now: Grinding, goal: float, counted: Size, removal: Plan) -> bool:
        """Whether a plan says the same; where the goal was missed, also that more would kill the network."""
        if removal.dead or (counted.neurons, counted.parameters) != (removal.neurons[1], removal.parameters[1]):
            return False
        if self._excess(now.memory, counted) <= goal:
            return True
        with now.optimizer.ahead(now.memory["steps"]):
            return plan(now.model, self.example).dead

    def _check(self, memory: dict[str, Any]) -> None:
        """Memories come from a file where a training goes on."""
        try:
            checked = check(memory, _Memory)
            if self.budget.min_speedup is not None and (not checked["dense"].macs or checked["macs_ratio"] is None):
                raise ValueError("there is nothing to be faster than")
        except ValueError as reason:
            raise TrainingError(
                f"the checkpoint does not say how λ was steered so far ({reason}): begin again."
            ) from reason

    def strength(self, now: Grinding) -> float | None:
        """The λ that would lead to the next milestone; 0 for a network that died, which comes back without it."""
        tried = self.crew.led(lambda: self._plan_of_trial(now))
        value = None
        if tried is not None:
            assert self.trial is not None
            value = self.trial(compact(now.model, tried))
        return self.crew.led(lambda: self._strength(now, value))

    def _plan_of_trial(self, now: Grinding) -> Plan | None:
        """What is left out of a copy of the network that is to be tried, if it is time for that."""
        if self.budget.of_size or now.milestone == 0 or now.milestone % 2 or not now.memory or self._is_dead(now):
            return None
        return plan(now.model, self.example)

    def _strength(self, now: Grinding, value: float | None) -> float | None:
        """The same, where a trial had this value."""
        if not now.memory or self._is_dead(now):
            return 0.0
        if self._reached(now, value):
            return None
        now.optimizer.weigh(self._costs(now))
        goal = self._goal(now, now.milestone + 1)
        # At first counts have shown nothing but that they are right for the dense network; then every removal shows it.
        return (self._steps_and_plan(now, goal)[0] if now.milestone == 0 else self._steps(now, goal)) / now.steps

    def _is_dead(self, now: Grinding) -> bool:
        dead = self._size(now) is None
        if dead and now.memory["counted"]:
            dead = self._planned_size(now.model) is None
            now.memory["counted"] = dead
        return dead

    def _goal(self, now: Grinding, milestone: int) -> float:
        dense = self._excess(now.memory, Size(**now.memory["dense"]))
        return dense ** max(0.0, 1 - milestone / (now.milestones - 1))

    def _reached(self, now: Grinding, value: float | None) -> bool:
        memory, size = now.memory, self._size(now)
        if size is None:
            return False
        if not self.budget.of_size:
            return value is not None and self._next_takes_too_much(now, size, value)
        if self._excess(memory, size) > 1:
            return False
        if memory["counted"] and ((size := self._planned_size(now.model)) is None or self._excess(memory, size) > 1):
            memory["counted"] = False
            return False
        if self.budget.min_speedup is None:
            return True
        assert self.speedup is not None
        speedup = self.speedup(compact(now.model, self.example))
        memory["macs_ratio"] *= max(1.0, MARGIN * MARGIN * self.budget.min_speedup / speedup)
        return speedup >= MARGIN * self.budget.min_speedup

    def _next_takes_too_much(self, now: Grinding, size: Size, value: float) -> bool:
        """Whether the ``value`` of the network as it is says: the way to the next trial would lose too much, if it
        loses as much as the way here."""
        assert self.budget.max_drop is not None
        trials = now.memory["trials"]
        before = trials[-1]["value"] if trials else self.dense_value
        trials.append({"parameters": size.parameters, "value": value})
        lost = self.metric.lost(self.dense_value, value) + max(0.0, self.metric.lost(before, value))
        return lost > self.budget.max_drop

    def _planned_size(self, model: nn.Module) -> Size | None:
        return planned_size(model, self.example, self.budget, self.images, self.packs)

    def _size(self, now: Grinding) -> Size | None:
        """The size of what is left, None if nothing is; counted as long as counts and plans agree."""
        if now.memory["counted"]:
            if (counter := self._counter_of(now.model)).counts:
                return counter.size()
            now.memory["counted"] = False
        return self._planned_size(now.model)

    def _counter_of(self, model: nn.Module) -> SizeCounter:
        if self._counter is None or not self._counter.fits(model):
            self._counter = SizeCounter(model, self.example, self.budget, self.images, self._counter, self.packs)
        return self._counter

    def _excess(self, memory: dict[str, Any], size: Size) -> float:
        """How many times larger than it may be."""
        dense, budget = Size(**memory["dense"]), self.budget
        if not budget.of_size:
            return size.parameters / (SMALLEST * dense.parameters)
        ratios = [0.0]
        if budget.max_neurons is not None:
            ratios.append(size.neurons / budget.max_neurons)
        if budget.max_params is not None:
            ratios.append(size.parameters / budget.max_params)
        if budget.max_bytes is not None:
            ratios.append(size.bytes / budget.max_bytes)
        if budget.max_flash is not None:
            ratios.append(size.flash / budget.max_flash)
        if budget.max_ram is not None:
            ratios.append(size.ram / budget.max_ram)
        if budget.min_speedup is not None:
            ratios.append(memory["macs_ratio"] * size.macs / dense.macs)
        return max(ratios)

    def _steps(self, now: Grinding, goal: float) -> float:
        """The fewest steps at full strength by which the penalty alone would reach ``goal``, within 0.3 %. Where it
        cannot without killing the whole network, the most that leave it alive."""

        known: dict[str, float | None] = {}  # by which weights are zero

        def excess(steps: float) -> float | None:
            with now.optimizer.ahead(steps):
                digest = hashlib.sha256()
                for p in now.optimizer.shrunk:
                    digest.update((p.detach() == 0).cpu().numpy().tobytes())
                zeros = digest.hexdigest()
                if zeros not in known:
                    size = self._size(now)
                    known[zeros] = None if size is None else self._excess(now.memory, size)
            return known[zeros]

        def too_few(steps: float) -> bool:
            ratio = excess(steps)
            return ratio is not None and ratio > goal

        # None at 0 or not too few: the goal is reached. Too few at the most: no penalty gets there, or none acts yet.
        if not too_few(0.0) or too_few(MOST):
            return 0.0
        few, many, steps = 0.0, math.inf, now.memory.get("steps", 1.0)
        while few == 0 or many == math.inf or many > 1.003 * few or (many > 1.00001 * few and excess(many) is None):
            few, many = (steps, many) if too_few(steps) else (few, steps)
            steps = 2 * few if many == math.inf else many / 2 if few == 0 else math.sqrt(few * many)
            if steps < 1 / MOST:
                return 0.0
        now.memory["steps"] = many
        return few if excess(many) is None else many

    @torch.no_grad()
    def _costs(self, now: Grinding) -> dict[str, float]:
        """What the weakest neuron of every batch normalisation, or of every layer where the penalty is of neurons,
        takes, relative to the mean over all neurons. The last one of its layer is not to be had: without it the network
        may be dead."""
        size = self._size(now)
        assert size is not None
        excess = self._excess(now.memory, size)
        saved, count, kept_alive = {}, {}, {}
        for target in now.optimizer.targets:
            strengths, key = target.strengths(), target.names[0]
            if strengths is None or not strengths.any():
                continue
            alive = int(strengths.count_nonzero())
            if alive == 1:
                kept_alive[key] = PROTECTED
                continue
            values = [(p, p.detach().clone()) for p in target.parameters]
            target.clear_(int(strengths.masked_fill(strengths == 0, math.inf).argmin()))
            size_without = self._size(now)
            for p, value in values:
                p.copy_(value)
            if size_without is not None:
                saved[key] = excess - self._excess(now.memory, size_without)
                count[key] = alive
        mean = sum(saved[k] * count[k] for k in saved) / max(1, sum(count.values()))
        return {key: max(cost / mean, 0.01) if mean > 0 else 1.0 for key, cost in saved.items()} | kept_alive
