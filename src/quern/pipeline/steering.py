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

import copy
import hashlib
import math
import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from quern import io
from quern import nn as qnn
from quern.compact import Plan, census, compact, plan
from quern.errors import TrainingError
from quern.nn import batch_norms
from quern.nn.bases import QBatchNorm, QConvolution
from quern.penalties import Penalty
from quern.records import Budget
from quern.records.schema import Between, Count, Positive, Share, check
from quern.sparsity import measure, work
from quern.train import MILESTONES, Grinding

__all__ = ["Budget", "Size", "Steering", "check_possible"]

MOST = 1e12  # steps, in which a penalty does all it can
PROTECTED = 1e-6  # the cost of a layer's last neuron
SMALLEST = 1 / 128  # share of the parameters that a search by accuracy alone would end with
MARGIN = 1.05  # by how much a network must be faster than asked for, as times are never measured twice the same


@dataclass(frozen=True)
class Size:
    """How large a network is without what died: the numbers that budgets are about."""

    neurons: Count
    parameters: Annotated[int, Between(1.0, 1e15)]
    bytes: Count
    macs: Count


class _Tried(TypedDict):
    parameters: Count
    accuracy: Share


class _Memory(TypedDict):
    """What is remembered from milestone to milestone."""

    dense: Size
    macs_ratio: Positive | None
    trials: list[_Tried]
    counted: bool
    steps: NotRequired[Annotated[float, Between(1e-13, 1e13)]]


@torch.no_grad()
def check_possible(
    budget: Budget, model: nn.Module, penalty: Penalty, example: Tensor, images: dict[str, Any] | None = None
) -> None:
    """TrainingError if no network that ``penalty`` makes of ``model`` can meet ``budget`` and still depend on its
    input: one that has a single neuron left in every layer that the penalty reaches. Speed is known only later."""
    smallest = copy.deepcopy(model)
    reached = {id(p) for target in penalty.targets(smallest) if target.zeros for p in target.parameters}
    layers = [layer for layer in smallest.modules() if reached & {id(p) for p in layer.parameters(recurse=False)}]
    if not all(isinstance(layer, (qnn.QLinear, QConvolution, QBatchNorm)) for layer in layers):
        return  # of other layers it is not known what they can be reduced to
    for layer in layers:
        for p in layer.parameters(recurse=False):
            (p if p.dim() == 1 else p.transpose(0, 1))[1:] = 0
    found = Steering(replace(budget, min_speedup=None), example, images=images).size(smallest)
    if found is None:  # one neuron is not enough to live by, so this tells nothing
        return
    for what, limit, least in (
        ("max_neurons", budget.max_neurons, found.neurons),
        ("max_params", budget.max_params, found.parameters),
        ("max_bytes", budget.max_bytes, found.bytes),
    ):
        if limit is not None and least > limit:
            raise TrainingError(
                f"{what} is {limit:,}, but the smallest network that can come of this one has {least:,}, with one "
                "neuron left in each layer: ask for no less, or begin with other layers."
            )


class Steering:
    """Chooses λ for :func:`quern.train.fit` so that the network meets ``budget``.

    ``example`` is an input of the network. ``speedup`` times a small network against the dense one, for
    ``min_speedup``: multiply-adds lead there, the clock decides. ``trial`` heals a copy of a network for a while and
    gives its accuracy, and ``dense_accuracy`` is that of the dense one, for ``max_drop`` alone: the network is ground
    smaller from epoch to epoch until the next epoch would take too much.
    """

    def __init__(
        self,
        budget: Budget,
        example: Tensor,
        *,
        by_cost: bool = True,
        images: dict[str, Any] | None = None,
        speedup: Callable[[nn.Module], float] | None = None,
        trial: Callable[[nn.Module], float] | None = None,
        dense_accuracy: float = 0.0,
    ) -> None:
        self.budget, self.example, self.by_cost, self.images = budget, example, by_cost, images
        self.speedup, self.trial, self.dense_accuracy = speedup, trial, dense_accuracy
        self._counter: _Counter | None = None

    def remove(self, now: Grinding) -> Plan | None:
        """What stands between the network and this milestone: the weakest neurons by the penalty's own measure."""
        if now.memory:
            self._check(now.memory)
        elif (found := self.size(now.model)) is None:
            return None
        else:
            counted = self._counter_of(now.model).size()
            agree = counted is not None and replace(counted, macs=found.macs) == found
            now.memory.update(dense=asdict(found), macs_ratio=self.budget.min_speedup, trials=[], counted=agree)
        return self._planned(now, self._goal(now.memory, now.milestone))[1]

    def _planned(self, now: Grinding, goal: float) -> tuple[float, Plan | None]:
        """The steps to ``goal``, and the plan for what is dead then: by counts if the plan says the same."""
        while True:
            steps = self._steps(now, goal)
            if steps == 0:
                return 0.0, None
            with now.optimizer.ahead(steps):
                found, counted = plan(now.model, self.example), self._size(now) if now.memory["counted"] else None
            if not now.memory["counted"] or (counted is not None and self._agree(now, goal, counted, found)):
                return steps, found
            now.memory["counted"] = False

    def _agree(self, now: Grinding, goal: float, counted: Size, found: Plan) -> bool:
        """Whether a plan says the same; where the goal was missed, also that more would kill the network."""
        if found.dead or (counted.neurons, counted.parameters) != (found.neurons[1], found.parameters[1]):
            return False
        if self._excess(now.memory, counted) <= goal:
            return True
        with now.optimizer.ahead(now.memory["steps"]):
            return plan(now.model, self.example).dead

    def _check(self, memory: dict[str, Any]) -> None:
        """Memories come from a file where a training goes on."""
        try:
            found = check(memory, _Memory)
            if self.budget.min_speedup is not None and (not found["dense"].macs or found["macs_ratio"] is None):
                raise ValueError("there is nothing to be faster than")
        except ValueError as reason:
            raise TrainingError(
                f"the checkpoint does not say how λ was steered so far ({reason}): begin again."
            ) from reason

    def strength(self, now: Grinding) -> float | None:
        """The λ that would lead to the next milestone; 0 for a network that died, which comes back without it."""
        if not now.memory or self._is_dead(now):
            return 0.0
        if self._reached(now):
            return None
        if self.by_cost:
            now.optimizer.weigh(self._costs(now))
        goal = self._goal(now.memory, now.milestone + 1)
        # At first counts have shown nothing but that they are right for the dense network; then every removal shows it.
        return (self._planned(now, goal)[0] if now.milestone == 0 else self._steps(now, goal)) / now.steps

    def _is_dead(self, now: Grinding) -> bool:
        dead = self._size(now) is None
        if dead and now.memory["counted"]:
            dead = self.size(now.model) is None
            now.memory["counted"] = dead
        return dead

    def _goal(self, memory: dict[str, Any], milestone: int) -> float:
        return self._excess(memory, Size(**memory["dense"])) ** max(0.0, 1 - milestone / (MILESTONES - 1))

    def _reached(self, now: Grinding) -> bool:
        memory, found = now.memory, self._size(now)
        if found is None:
            return False
        if not self.budget.of_size:
            return now.milestone > 0 and now.milestone % 2 == 0 and self._tried(now, found)
        if self._excess(memory, found) > 1:
            return False
        if memory["counted"] and ((found := self.size(now.model)) is None or self._excess(memory, found) > 1):
            memory["counted"] = False
            return False
        if self.budget.min_speedup is None:
            return True
        assert self.speedup is not None
        faster = self.speedup(compact(now.model, self.example))
        memory["macs_ratio"] *= max(1.0, MARGIN * MARGIN * self.budget.min_speedup / faster)
        return faster >= MARGIN * self.budget.min_speedup

    def _tried(self, now: Grinding, found: Size) -> bool:
        """Whether the way to the next trial, if it takes as much as the way here, would take too much."""
        assert self.trial is not None
        assert self.budget.max_drop is not None
        trials = now.memory["trials"]
        before = trials[-1]["accuracy"] if trials else self.dense_accuracy
        accuracy = self.trial(compact(now.model, self.example))
        trials.append({"parameters": found.parameters, "accuracy": accuracy})
        return accuracy - max(0.0, before - accuracy) < self.dense_accuracy - self.budget.max_drop / 100

    def size(self, model: nn.Module) -> Size | None:
        """The size of what is left; None if nothing is: the output no longer depends on the input."""
        found = plan(model, self.example)
        if found.dead:
            return None
        small = None
        if self.budget.max_bytes is not None or self.budget.min_speedup is not None:
            small = compact(model, found)
        macs, stored = 0, 0
        if small is not None and self.budget.min_speedup is not None:
            macs = measure(small, self.example).macs or 0
        if small is not None and self.budget.max_bytes is not None:
            stored = _stored(small, self.images).bytes()
        return Size(found.neurons[1], found.parameters[1], stored, macs)

    def _size(self, now: Grinding) -> Size | None:
        """The same, counted as long as counts and plans agree."""
        if now.memory["counted"]:
            if (counter := self._counter_of(now.model)).counts:
                return counter.size()
            now.memory["counted"] = False
        return self.size(now.model)

    def _counter_of(self, model: nn.Module) -> "_Counter":
        if self._counter is None or not self._counter.fits(model):
            self._counter = _Counter(model, self.example, self.budget, self.images, self._counter)
        return self._counter

    def _excess(self, memory: dict[str, Any], found: Size) -> float:
        """How many times larger than it may be."""
        dense, budget = Size(**memory["dense"]), self.budget
        if not budget.of_size:
            return found.parameters / (SMALLEST * dense.parameters)
        each = [0.0]
        if budget.max_neurons is not None:
            each.append(found.neurons / budget.max_neurons)
        if budget.max_params is not None:
            each.append(found.parameters / budget.max_params)
        if budget.max_bytes is not None:
            each.append(found.bytes / budget.max_bytes)
        if budget.min_speedup is not None:
            each.append(memory["macs_ratio"] * found.macs / dense.macs)
        return max(each)

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
                    found = self._size(now)
                    known[zeros] = None if found is None else self._excess(now.memory, found)
            return known[zeros]

        def too_few(steps: float) -> bool:
            found = excess(steps)
            return found is not None and found > goal

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
        """What the weakest neuron of every batch normalisation takes, relative to the mean over all neurons. The last
        one of its layer is not to be had: without it the network may be dead."""
        found = self._size(now)
        assert found is not None
        here = self._excess(now.memory, found)
        saved, count, kept_alive = {}, {}, {}
        for name, norm in batch_norms(now.model).items():
            if norm.weight is None or not norm.weight.any():
                continue
            key = f"{name}.weight".lstrip(".")
            if norm.weight.count_nonzero() == 1:
                kept_alive[key] = PROTECTED
                continue
            alive = norm.weight.abs().masked_fill(norm.weight == 0, math.inf)
            weakest = int(alive.argmin())
            kept = [(p, p.clone()) for p in (norm.weight, norm.bias) if p is not None]
            for p, _ in kept:
                p[..., weakest] = 0
            less = self._size(now)
            for p, value in kept:
                p.copy_(value)
            if less is not None:
                saved[key] = here - self._excess(now.memory, less)
                count[key] = int(norm.weight.count_nonzero())
        mean = sum(saved[k] * count[k] for k in saved) / max(1, sum(count.values()))
        return {key: max(cost / mean, 0.01) if mean > 0 else 1.0 for key, cost in saved.items()} | kept_alive


def _stored(model: nn.Module, images: dict[str, Any] | None, before: io.Stored | None = None) -> io.Stored:
    """The file that a training writes of its network: accuracies such as 2/3 take more digits than most."""
    return io.Stored(model, metrics={"test_accuracy": 2 / 3, "val_accuracy": 2 / 3}, images=images, before=before)


class _Counter:
    """The size of a network without what died, counted: in milliseconds, as often as weights become zero."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        budget: Budget,
        images: dict[str, Any] | None,
        before: "_Counter | None",
    ) -> None:
        self._parameters = list(model.parameters())
        self._census = census(model, example[:1])
        self._stored = None
        if budget.max_bytes is not None:
            self._stored = _stored(model, images, before and before._stored)
        self._macs: dict[str, int] = {}
        if budget.min_speedup is not None:
            self._macs = {name: macs for name, (macs, _) in work(model, example).items()}
        self._weights: dict[str, int] = {}
        for name, layer in model.named_modules():
            weights = (p for key, p in layer.named_parameters(recurse=False) if key in ("weight", "constant"))
            self._weights[name] = sum(p.numel() for p in weights)

    def fits(self, model: nn.Module) -> bool:
        """Whether this is still the network that was read: compaction gives it other parameters."""
        own = list(model.parameters())
        return len(own) == len(self._parameters) and all(map(operator.is_, own, self._parameters))

    @property
    def counts(self) -> bool:
        return self._census is not None

    def size(self) -> Size | None:
        """None if the network is dead, or if there is no count of it."""
        found = None if self._census is None else self._census.count()
        if self._census is None or found is None:
            return None
        stored = 0 if self._stored is None else self._stored.bytes(self._census.plan())
        # A layer's multiply-adds are in proportion to its weights; one that is never narrowed keeps them.
        now, left = self._weights, self._weights | found.weights
        macs = sum(macs * left[name] // now[name] for name, macs in self._macs.items())
        return Size(found.neurons, found.parameters, stored, macs)
