"""What the proximal optimizers share: a gradient step, then the proximal map of the penalty."""

# The operations on lists of tensors are documented, in spite of their names.
# pyright: reportPrivateImportUsage=false

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quern.errors import LastPathWarning
from quern.optim._dead_neurons import DeadNeurons
from quern.optim._last_path import LastPath
from quern.penalties import NeuronTarget, Penalty, Shrinking, Target, shrink_

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


def check_positive(name: str, value: float, zero: bool = False) -> None:
    if not (value > 0 or (zero and value == 0)) or not math.isfinite(value):
        raise ValueError(f"{name} is {value}, but it must be {'zero or ' if zero else ''}a positive finite number.")


class Proximal(torch.optim.Optimizer):
    """Abstract: an optimizer that knows which of its parameters the penalty acts on."""

    def __init__(
        self, model: nn.Module, penalty: Penalty | None, params: Parameters | None, defaults: dict[str, Any]
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"{type(self).__name__} takes the network itself, not {type(model).__name__}: "
                "ProximalAdam(network, penalty), with params= for some of its parameters."
            )
        if not (penalty is None or isinstance(penalty, Penalty)):
            raise TypeError(f"the penalty is {penalty!r}, but must be one of quern.penalties, such as RQL(12.0).")
        self._targets: list[Target] = []
        self._penalty = penalty
        self._shrinking = Shrinking()
        self._clipped = 1.0  # by how much the gradients of the next step were made smaller
        self.costs: dict[str, float] = {}  # by which `weigh` multiplied
        super().__init__(model.parameters() if params is None else params, {**defaults, "penalty_scale": 1.0})
        group_of = {id(p): n for n, group in enumerate(self.param_groups) for p in group["params"]}
        for target in penalty.targets(model) if penalty is not None else []:
            groups = {group_of.get(id(p)) for p in target.parameters}
            if len(groups) > 1:
                raise ValueError(
                    f"{' and '.join(target.names)} are penalised together, but stand in different parameter groups."
                )
            if groups != {None}:  # what is not trained here is not shrunk here
                self._targets.append(target)
        self._path, self._dead = LastPath(model, self._targets), DeadNeurons(model)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_targets", "_penalty", "_clipped", "_path", "_dead", "costs")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._shrinking = Shrinking()

    def scale_penalty(self, factor: float) -> None:
        """Multiply the penalty by ``factor`` from now on (a λ schedule); 0 switches it off. Saved with the state."""
        check_positive("factor", factor, zero=True)
        for group in self.param_groups:
            group["penalty_scale"] = float(factor)

    @property
    def targets(self) -> list[Target]:
        """What the penalty acts on."""
        return list(self._targets)

    @property
    def shrunk(self) -> list[nn.Parameter]:
        """The parameters that the penalty acts on."""
        return [p for target in self._targets for p in target.parameters]

    def penalty(self) -> Tensor:
        """The penalty's value, at its full strength; not normalised anew for a network that was made smaller."""
        return sum((self._cost(target) * target.value() for target in self._targets), torch.zeros(()))

    def weigh(self, costs: dict[str, float]) -> None:
        """Multiply the penalty of each parameter by its cost, by name; those without a name here keep theirs. A second
        call takes the place of the first."""
        for name, cost in costs.items():
            check_positive(f"the cost of {name}", cost)
        self.costs = {**self.costs, **costs}

    def _cost(self, target: Target) -> float:
        return self.costs.get(target.names[0], 1.0)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        r"""Clip the gradients of all parameters, as :func:`torch.nn.utils.clip_grad_norm_`, and the penalty of the next
        step by as much. Returns their norm from before.

        Gradients clipped by a factor c are those of c times the loss. A penalty that stays as it was weighs 1/c times
        as much against it: Adam's threshold is :math:`\eta\lambda/(c\sqrt{\hat v})`. Clipped alike, λ means what it
        means without clipping.
        """
        norm = torch.nn.utils.clip_grad_norm_(
            [p for group in self.param_groups for p in group["params"]], max_norm, norm_type
        )
        factor = max_norm / (float(norm) + 1e-6)  # as torch has it
        self._clipped = min(1.0, factor) if math.isfinite(factor) else 0.0
        return norm

    def state_dict(self) -> dict[str, Any]:
        """That of any optimizer, with the costs of :meth:`weigh` and the path that keeps the network alive."""
        return {**super().state_dict(), "costs": dict(self.costs), "path": self.path}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.costs = dict(state_dict.get("costs", self.costs))
        if (path := state_dict.get("path")) is not None:
            self.restore_path(path)

    @property
    def path(self) -> dict[str, Any]:
        """The path that keeps the network alive, as plain values for :meth:`restore_path`."""
        return self._path.to_dict()

    def restore_path(self, path: dict[str, Any]) -> None:
        """Go on with an earlier ``path`` of the same network."""
        self._path.restore(path)

    def replace_parameters(
        self, new: dict[int, nn.Parameter], model: nn.Module, selected: Mapping[str, Callable[[Tensor], Tensor]]
    ) -> None:
        """Shrink the parameters ``new[id(old)]`` in place of the old ones, as strongly as those; ``model`` has them.
        ``selected`` has, by name, which numbers of an old one that changed are those of the new one."""
        self._targets = [
            replace(target, parameters=tuple(new.get(id(p), p) for p in target.parameters)) for target in self._targets
        ]
        earlier_path = self._path
        self._path, self._dead = LastPath(model, self._targets), DeadNeurons(model)
        self._path.follow(earlier_path, selected)
        self._replaced(new)

    def _replaced(self, new: dict[int, nn.Parameter]) -> None:
        """Called after :meth:`replace_parameters`, for what a subclass knows of single parameters."""

    @contextmanager
    def ahead(self, steps: float) -> Iterator[None]:
        """Inside the block, the parameters are where the penalty alone would lead them in ``steps`` steps at full
        strength, as if the loss did not pull. What Adam never moved has no pace, and stays where it is."""
        check_positive("steps", steps, zero=True)
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        targets = [target for target in self._targets if self._has_a_pace(target)]
        rates: dict[int, tuple[float, Tensor | None]] = {}
        for group in self.param_groups:
            firsts = [t.parameters[0] for t in targets if group_of[id(t.parameters[0])] is group]
            if firsts:
                pace, metrics = self._rates(group, firsts)
                rates |= {id(p): (pace, m) for p, m in zip(firsts, metrics or [None] * len(firsts), strict=True)}
        target_rates = [rates[id(target.parameters[0])] for target in targets]
        metrics = [metric for _, metric in target_rates if metric is not None]
        parameters = [p.detach() for target in targets for p in target.parameters]
        kept = [p.clone() for p in parameters]
        try:
            paces = [self._cost(target) * pace for target, (pace, _) in zip(targets, target_rates, strict=True)]
            shrink_(targets, [steps * pace for pace in paces], metrics or None)
            yield
        finally:
            if parameters:
                torch._foreach_copy_(parameters, kept)

    def _has_a_pace(self, target: Target) -> bool:  # noqa: ARG002
        """Whether it is known how fast the target shrinks."""
        return True

    def _rates(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> tuple[float, list[Tensor] | None]:
        """The step by which parameters of a group shrink, and, if it is not 1, the metric that each shrinks in."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; ``closure``, if given, computes the loss anew and is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved: dict[int, tuple[float, Tensor | None]] = {}
        dead_values = self._dead.values()
        for group in self.param_groups:
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if parameters:
                step, metrics = self._move(group, parameters)
                step *= group["penalty_scale"] * self._clipped
                metrics_or_none = metrics or [None] * len(parameters)
                moved.update({id(p): (step, metric) for p, metric in zip(parameters, metrics_or_none, strict=True)})
        targets = [target for target in self._targets if id(target.parameters[0]) in moved]
        if targets:
            target_rates = [moved[id(target.parameters[0])] for target in targets]
            metrics = [metric for _, metric in target_rates if metric is not None]
            steps = [self._cost(target) * step for target, (step, _) in zip(targets, target_rates, strict=True)]
            if self._path.groups is None and any(steps):
                self._path.look(self.ahead)
            path_values = self._path.values()
            of_neurons = [target for target in targets if isinstance(target, NeuronTarget)]
            whole = [(t, t.strengths(), [p.detach().clone() for p in t.parameters]) for t in of_neurons]
            self._shrinking.shrink_(targets, steps, metrics or None)
            kept_last = [_keep_last_(target, before, values) for target, before, values in whole]
            first = any(kept_last) and not self._path.held
            self._path.held |= first
            if self._path.put_back_(path_values, self.ahead) or first:
                self._warn_of_last_path()
        self._dead.put_back_(dead_values)
        self._clipped = 1.0
        return loss

    def _warn_of_last_path(self) -> None:
        assert self._penalty is not None
        scaled = self._penalty * max(group["penalty_scale"] for group in self.param_groups)
        warnings.warn(
            f"the penalty {scaled} was about to take the last path from the network's input to its output, which is "
            "kept: nothing smaller still answers. Take a smaller λ, or let it rise more slowly (quern.optim.ramp); if "
            f"you clip gradients, do it by {type(self).__name__}.clip_grad_norm_, so that λ keeps its meaning.",
            LastPathWarning,
            stacklevel=5,
        )

    def _move(self, group: dict[str, Any], parameters: list[Tensor]) -> tuple[float, list[Tensor] | None]:
        """Follow the gradients. Returns the step and, if it is not 1, the metric of every parameter to shrink in."""
        raise NotImplementedError


def _keep_last_(target: NeuronTarget, before: Tensor, values: list[Tensor]) -> bool:
    """A layer of whose neurons none is left keeps the strongest as it was; whether it was one."""
    if target.strengths().any() or not before.any():
        return False
    for p, value in zip(target.parameters, values, strict=True):
        p.detach().copy_(value)
    target.scale_(torch.nn.functional.one_hot(before.argmax(), len(before)))
    return True
