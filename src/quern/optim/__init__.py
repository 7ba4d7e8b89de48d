r"""Optimizers that apply the proximal map of a penalty after every step, and so reach exact zeros.

A penalty under plain gradient descent only makes weights small. A proximal step minimises the penalty and the distance
to where the gradient step led, measured as the optimizer measures it; for the penalties of :mod:`quern.penalties` the
answer is a threshold: what lies below it becomes zero. The fixed points are those of the penalised loss, whatever the
optimizer, so one λ means the same for all of them.

    optimizer = ProximalAdam(model, RQL(0.1), lr=2e-3)
    ...                                                   # an ordinary loop: loss.backward(), optimizer.step()
    with freeze_zeros(model):                             # healing: any torch optimizer, the zeros stay
        ...
"""

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
from torch.optim.optimizer import register_optimizer_step_post_hook

from quern.errors import LastPathWarning
from quern.graph import check_module
from quern.nn import batch_norms, quaternion_shifts, quaternion_weights
from quern.optim._dead_neurons import DeadNeurons
from quern.optim._last_path import LastPath
from quern.penalties import Penalty, Target, shrink_

__all__ = ["FrozenZeros", "ProximalAdam", "ProximalSGD", "freeze_zeros", "ramp"]

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


def ramp(step: int, steps: int, delay: int = 0) -> float:
    """The factor of a λ that is 0 up to step ``delay``, rises linearly over ``steps`` steps, and then stays at 1.

    Use it in any loop: ``optimizer.scale_penalty(ramp(n, 1000))`` or ``loss + ramp(n, 1000) * penalty(model)``.
    ``steps=0`` gives a constant λ.
    """
    return 1.0 if steps <= 0 and step >= delay else min(1.0, max(0.0, (step - delay) / max(1, steps)))


def _positive(name: str, value: float, zero: bool = False) -> None:
    if not (value > 0 or (zero and value == 0)) or not math.isfinite(value):
        raise ValueError(f"{name} is {value}, but it must be {'zero or ' if zero else ''}a positive finite number.")


class _Proximal(torch.optim.Optimizer):
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

    def scale_penalty(self, factor: float) -> None:
        """Multiply the penalty by ``factor`` from now on (a λ schedule); 0 switches it off. Saved with the state."""
        _positive("factor", factor, zero=True)
        for group in self.param_groups:
            group["penalty_scale"] = float(factor)

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
            _positive(f"the cost of {name}", cost)
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
        self,
        new: dict[int, nn.Parameter],
        model: nn.Module,
        selected: Mapping[str, Callable[[Tensor], Tensor]],
    ) -> None:
        """Shrink the parameters ``new[id(old)]`` in place of the old ones, as strongly as those; ``model`` has them.
        ``selected`` has, by name, which numbers of an old one that changed are those of the new one."""
        self._targets = [
            replace(target, parameters=tuple(new.get(id(p), p) for p in target.parameters)) for target in self._targets
        ]
        path = self._path
        self._path, self._dead = LastPath(model, self._targets), DeadNeurons(model)
        self._path.follow(path, selected)

    @contextmanager
    def ahead(self, steps: float) -> Iterator[None]:
        """Inside the block, the parameters are where the penalty alone would lead them in ``steps`` steps at full
        strength, as if the loss did not pull. What Adam never moved has no pace, and stays where it is."""
        _positive("steps", steps, zero=True)
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        found = [target for target in self._targets if self._has_a_pace(target)]
        rates: dict[int, tuple[float, Tensor | None]] = {}
        for group in self.param_groups:
            firsts = [t.parameters[0] for t in found if group_of[id(t.parameters[0])] is group]
            if firsts:
                pace, metrics = self._rates(group, firsts)
                rates |= {id(p): (pace, m) for p, m in zip(firsts, metrics or [None] * len(firsts), strict=True)}
        of_targets = [rates[id(target.parameters[0])] for target in found]
        metrics = [metric for _, metric in of_targets if metric is not None]
        parameters = [p.detach() for target in found for p in target.parameters]
        kept = [p.clone() for p in parameters]
        try:
            paces = [self._cost(target) * pace for target, (pace, _) in zip(found, of_targets, strict=True)]
            shrink_(found, [steps * pace for pace in paces], metrics or None)
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
        of_dead = self._dead.values()
        for group in self.param_groups:
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if parameters:
                step, metrics = self._move(group, parameters)
                how = metrics or [None] * len(parameters)
                step *= group["penalty_scale"] * self._clipped
                moved.update({id(p): (step, metric) for p, metric in zip(parameters, how, strict=True)})
        found = [
            (target, moved[id(target.parameters[0])]) for target in self._targets if id(target.parameters[0]) in moved
        ]
        if found:
            metrics = [metric for _, (_, metric) in found if metric is not None]
            steps = [self._cost(target) * step for target, (step, _) in found]
            if self._path.groups is None and any(steps):
                self._path.look(self.ahead)
            of_path = self._path.values()
            shrink_([target for target, _ in found], steps, metrics or None)
            if self._path.put_back_(of_path, self.ahead):
                self._tell()
        self._dead.put_back_(of_dead)
        self._clipped = 1.0
        return loss

    def _tell(self) -> None:
        assert self._penalty is not None
        now = self._penalty * max(group["penalty_scale"] for group in self.param_groups)
        warnings.warn(
            f"the penalty {now} was about to take the last path from the network's input to its output, which is kept: "
            "nothing smaller still answers. Take a smaller λ, or let it rise more slowly (quern.optim.ramp); if you "
            f"clip gradients, do it by {type(self).__name__}.clip_grad_norm_, so that λ keeps its meaning.",
            LastPathWarning,
            stacklevel=5,
        )

    def _move(self, group: dict[str, Any], parameters: list[Tensor]) -> tuple[float, list[Tensor] | None]:
        """Follow the gradients. Returns the step and, if it is not 1, the metric of every parameter to shrink in."""
        raise NotImplementedError


class ProximalAdam(_Proximal):
    r"""Adam, then the proximal map of ``penalty`` in Adam's own metric.

    .. math::
        m &= \beta_1 m + (1-\beta_1) g, \qquad v = \beta_2 v + (1-\beta_2) \overline{g^2} \\
        w &\leftarrow \mathrm{prox}_{\eta P / (\sqrt{\hat v} + \varepsilon)}
            \big( (1 - \eta\,d)\, w - \eta\, \hat m / (\sqrt{\hat v} + \varepsilon) \big)

    :math:`\overline{g^2}` is the mean over the four components of a quaternion (over γ and its β where the penalty
    groups them), so that all of a group moves at one rate: the threshold keeps its closed form, the step does not
    depend on how quaternions are rotated, and v takes a quarter of the memory. ``share=False`` gives each component its
    own v, as ``torch.optim.Adam`` does; then a penalty of whole quaternions has no such threshold and is refused.

    ``weight_decay`` d is decoupled, as in AdamW. ``params`` takes parameters or groups of ``model`` as any optimizer
    does; by default all of them.
    """

    def __init__(
        self,
        model: nn.Module,
        penalty: Penalty | None = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        share: bool = True,
        params: Parameters | None = None,
    ) -> None:
        _positive("lr", lr, zero=True)
        _positive("eps", eps)
        _positive("weight_decay", weight_decay, zero=True)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas are {betas}, but both must be at least 0 and below 1.")
        super().__init__(
            model, penalty, params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        )
        quaternions = {**quaternion_weights(model), **quaternion_shifts(model)} if share else {}
        self._shared = {id(p) for p in quaternions.values()}
        if not share and any(target.joint for target in self._targets):
            raise ValueError(
                f"{penalty} acts on whole groups, which needs one rate for all of a group: "
                "leave share=True, or take L1, L2 or GammaL1."
            )
        self._pairs = [t.parameters for t in self._targets if len(t.parameters) == 2]

    def __getstate__(self) -> dict[str, Any]:
        parameters = [p for group in self.param_groups for p in group["params"]]
        return {**super().__getstate__(), "_shared": [p for p in parameters if id(p) in self._shared]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_shared" in state:  # a copy; load_state_dict leaves it as it is
            state = {**state, "_shared": {id(p) for p in state["_shared"]}}
            state["_pairs"] = [t.parameters for t in state["_targets"] if len(t.parameters) == 2]
        super().__setstate__(state)

    def replace_parameters(
        self,
        new: dict[int, nn.Parameter],
        model: nn.Module,
        selected: Mapping[str, Callable[[Tensor], Tensor]],
    ) -> None:
        super().replace_parameters(new, model, selected)
        self._shared = {id(new[p]) if p in new else p for p in self._shared}
        self._pairs = [t.parameters for t in self._targets if len(t.parameters) == 2]

    def _move(self, group: dict[str, Any], parameters: list[Tensor]) -> tuple[float, list[Tensor]]:
        beta1, beta2 = group["betas"]
        lr = float(group["lr"])
        gradients, m, v, counts = [], [], [], []
        for p in parameters:
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                like = p[0] if id(p) in self._shared else p
                state["exp_avg_sq"] = torch.zeros_like(like, memory_format=torch.preserve_format)
            gradients.append(p.grad)
            m.append(state["exp_avg"])
            v.append(state["exp_avg_sq"])
            counts.append(state["step"])
        if any(g.is_sparse for g in gradients):
            raise ValueError("ProximalAdam does not take sparse gradients.")
        squares = self._squares(parameters, gradients)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        torch._foreach_add_(counts, 1)
        torch._foreach_lerp_(m, gradients, 1 - beta1)
        torch._foreach_lerp_(v, squares, 1 - beta2)
        metrics, steps = self._metrics(group, parameters)
        torch._foreach_addcdiv_(parameters, m, metrics, [-lr / (1 - beta1**n) for n in steps])
        return lr, metrics

    def _metrics(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[float]]:
        """The root of the mean squared gradients of every parameter, and how often it was moved."""
        beta2, states = group["betas"][1], [self.state[p] for p in parameters]
        steps = [state["step"].item() for state in states]
        paired = {id(p) for pair in self._pairs if all(self.state.get(q) for q in pair) for p in pair}
        sizes = [5 if id(p) in paired else 4 if id(p) in self._shared else 1 for p in parameters]
        metrics = torch._foreach_sqrt([state["exp_avg_sq"] for state in states])
        torch._foreach_mul_(metrics, [(size * (1 - beta2**n)) ** -0.5 for size, n in zip(sizes, steps, strict=True)])
        torch._foreach_add_(metrics, group["eps"])
        return list(metrics), steps

    def _has_a_pace(self, target: Target) -> bool:
        return all(self.state.get(p) for p in target.parameters)

    def _rates(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        return float(group["lr"]), self._metrics(group, parameters)[0]

    def _squares(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """The squared gradients, summed where they are shared."""
        shared = [n for n, p in enumerate(parameters) if id(p) in self._shared]
        rows = [gradients[n].unbind() for n in shared]
        sums: Sequence[Tensor] = []
        if rows:
            r, i, j, k = ([row[part] for row in rows] for part in range(4))
            sums = torch._foreach_mul(r, r)
            for part in (i, j, k):
                torch._foreach_addcmul_(sums, part, part)
        summed = dict(zip(shared, sums, strict=True))
        squares = [summed[n] if n in summed else g * g for n, g in enumerate(gradients)]
        place = {id(p): n for n, p in enumerate(parameters)} if self._pairs else {}
        for scale, shift in self._pairs:
            a, b = place.get(id(scale)), place.get(id(shift))
            if a is not None and b is not None:
                squares[a] = squares[b] = squares[a] + squares[b]
        return squares


class ProximalSGD(_Proximal):
    r"""Stochastic gradient descent with momentum, then the proximal map of ``penalty``.

    As ``torch.optim.SGD`` with the same arguments. The threshold is :math:`\eta\lambda/(1-\mu)`: with momentum a steady
    gradient moves the weights by :math:`\eta g/(1-\mu)`, and the penalty has to keep pace for λ to mean what it says.
    """

    def __init__(
        self,
        model: nn.Module,
        penalty: Penalty | None = None,
        lr: float = 1e-2,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        params: Parameters | None = None,
    ) -> None:
        _positive("lr", lr, zero=True)
        _positive("weight_decay", weight_decay, zero=True)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}, but it must be at least 0 and below 1.")
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0.")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(model, penalty, params, defaults)

    def _move(self, group: dict[str, Any], parameters: list[Tensor]) -> tuple[float, None]:
        lr, momentum = float(group["lr"]), group["momentum"]
        directions: Any = [p.grad for p in parameters]
        if group["weight_decay"]:
            directions = torch._foreach_add(directions, parameters, alpha=group["weight_decay"])
        if momentum:
            new = [p for p in parameters if "momentum_buffer" not in self.state[p]]
            for p in new:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            buffers = [self.state[p]["momentum_buffer"] for p in parameters]
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, directions)
            directions = torch._foreach_add(directions, buffers, alpha=momentum) if group["nesterov"] else buffers
        torch._foreach_add_(parameters, directions, alpha=-lr)
        return lr / (1 - momentum), None

    def _rates(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> tuple[float, None]:  # noqa: ARG002
        return float(group["lr"]) / (1 - group["momentum"]), None


class FrozenZeros:
    """What :func:`freeze_zeros` returns: ``remove()`` lets the zeros move again, as does leaving a ``with`` block."""

    def __init__(
        self, kept: dict[str, tuple[nn.Parameter, Tensor]], still: Sequence[tuple[nn.Parameter, Tensor]]
    ) -> None:
        self._kept = kept
        self._still = [(p, mask, p.detach().clone()) for p, mask in still]
        held = [*kept.values(), *still]
        self._ids = {id(parameter) for parameter, _ in held}
        self._handles: list[Any] = [p.register_hook(mask.mul) for p, mask in held if p.requires_grad]
        # Momentum moves weights whose gradient is zero, so they are put back after every step of any torch optimizer.
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            for parameter, mask in self._kept.values():
                parameter.mul_(mask)
            for parameter, mask, value in self._still:
                parameter.copy_(torch.where(mask, parameter, value))

    @property
    def zeros(self) -> int:
        """How many numbers are held at zero."""
        return sum(int((mask == 0).sum()) for _, mask in self._kept.values())

    def state_dict(self) -> dict[str, Tensor]:
        """What is free to move, by parameter; everything is where a parameter is not named."""
        return {name: mask.bool() for name, (_, mask) in self._kept.items()}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> "FrozenZeros":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@torch.no_grad()
def freeze_zeros(model: nn.Module, state: dict[str, Tensor] | None = None) -> FrozenZeros:
    """Keep every exact zero of ``model`` at zero ("healing"), under any optimizer of torch, until ``remove()``.

    Held are the zero components of quaternion weights, γ = 0 of quaternion batch normalisations, and β = 0 where γ = 0
    too. Other biases may be zero without having been removed, and stay free. Where a neuron without weights ends in a
    batch normalisation, its bias and γ are held as they are: they have no effect while training, and steps made of
    rounding errors would show in eval mode. Gradients of what is held are zero.
    ``state`` is an earlier ``state_dict()``, to hold the same zeros as then. Copies of ``model`` are not held.
    """
    check_module(model)
    parameters = dict(model.named_parameters())
    if state is None:
        free = {name: weight != 0 for name, weight in quaternion_weights(model).items()}
        for name, norm in batch_norms(model).items():
            prefix = f"{name}." if name else ""
            assert norm.weight is not None
            free[f"{prefix}weight"] = norm.weight != 0
            if norm.bias is not None:
                gone = (norm.weight == 0) & (norm.bias == 0).all(0)
                free[f"{prefix}bias"] = (~gone).expand_as(norm.bias)
        state = {name: mask for name, mask in free.items() if not mask.all()}
    kept = {}
    for name, mask in state.items():
        parameter = parameters[name]
        layout = torch.empty_like(parameter, memory_format=torch.preserve_format, requires_grad=False)
        kept[name] = (parameter, layout.copy_(mask))
    return FrozenZeros(kept, DeadNeurons(model).masks())
