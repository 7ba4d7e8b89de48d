"""Adam with a proximal step."""

# The operations on lists of tensors are documented, in spite of their names.
# pyright: reportPrivateImportUsage=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern.functional.native import proximal as native
from quern.graph import quaternion_shifts, quaternion_weights
from quern.optim._one_pass import OnePass, laid_out_as
from quern.optim._proximal import Parameters, Proximal, check_positive
from quern.penalties import Penalty, Target


class ProximalAdam(Proximal):
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
        check_positive("lr", lr, zero=True)
        check_positive("eps", eps)
        check_positive("weight_decay", weight_decay, zero=True)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas are {betas}, but both must be at least 0 and below 1.")
        super().__init__(
            model, penalty, params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        )
        quaternions = {**quaternion_weights(model), **quaternion_shifts(model)} if share else {}
        self._shared = {id(p) for p in quaternions.values()}
        self._passes: dict[int, OnePass] = {}
        if not share and any(target.joint for target in self._targets):
            raise ValueError(
                f"{penalty} acts on whole groups, which needs one rate for all of a group: "
                "leave share=True, or take L1, L2 or GammaL1."
            )

    @property
    def _pairs(self) -> list[tuple[nn.Parameter, ...]]:
        """γ with the β that the penalty groups it with."""
        return [target.parameters for target in self._targets if target.apart and len(target.parameters) == 2]

    def __getstate__(self) -> dict[str, Any]:
        parameters = [p for group in self.param_groups for p in group["params"]]
        return {**super().__getstate__(), "_shared": [p for p in parameters if id(p) in self._shared]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_shared" in state:  # a copy; load_state_dict leaves it as it is
            state = {**state, "_shared": {id(p) for p in state["_shared"]}}
        super().__setstate__(state)
        self._passes = {}

    def _replaced(self, new: dict[int, nn.Parameter]) -> None:
        self._passes = {}
        self._shared = {id(new[p]) if p in new else p for p in self._shared}

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
        torch._foreach_add_(counts, 1)
        decay = 1 - lr * group["weight_decay"]
        steps, scales = self._steps_and_scales(group, parameters)
        paces = [lr / (1 - beta1**n) for n in steps]
        if native.can_take(gradients):
            one_pass = self._one_pass(parameters, m, v)
            if one_pass is not None:
                one_pass.move(gradients, (decay, beta1, 1 - beta1, beta2, 1 - beta2), paces, scales, group["eps"])
                return lr, one_pass.metrics
        squares = self._squares(parameters, gradients)
        if decay != 1:
            torch._foreach_mul_(parameters, decay)
        torch._foreach_lerp_(m, gradients, 1 - beta1)
        torch._foreach_lerp_(v, squares, 1 - beta2)
        metrics = self._metrics(group, parameters, scales)
        torch._foreach_addcdiv_(parameters, m, metrics, [-pace for pace in paces])
        return lr, metrics

    def _one_pass(self, parameters: list[Tensor], m: list[Tensor], v: list[Tensor]) -> OnePass | None:
        """The same by the kernel; None if a parameter does not lie in memory as the kernel needs it."""
        known = self._passes.get(id(parameters[0]))
        if known is not None and known.is_of(parameters, m, v):
            return known
        rows = [4 if id(p) in self._shared else 1 for p in parameters]
        moments = [  # what was loaded may have another layout
            (laid_out_as(p, first), laid_out_as(p[0] if number > 1 else p, second))
            for p, first, second, number in zip(parameters, m, v, rows, strict=True)
        ]
        made = OnePass.of(parameters, moments, rows, self._pairs)
        if made is None:
            return None
        for p, (first, second) in zip(parameters, moments, strict=True):
            self.state[p].update(exp_avg=first, exp_avg_sq=second)
        self._passes[id(parameters[0])] = made
        return made

    def _steps_and_scales(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> tuple[list[float], list[float]]:
        """How often each parameter was moved, and what the root of its second moment is to be multiplied by."""
        beta2 = group["betas"][1]
        steps = [self.state[p]["step"].item() for p in parameters]
        pairs = [pair for pair in self._pairs if all(self.state.get(q) for q in pair)]
        paired = {id(p): sum(4 if id(q) in self._shared else 1 for q in pair) for pair in pairs for p in pair}
        sizes = [paired.get(id(p), 4 if id(p) in self._shared else 1) for p in parameters]
        return steps, [(size * (1 - beta2**n)) ** -0.5 for size, n in zip(sizes, steps, strict=True)]

    def _metrics(self, group: dict[str, Any], parameters: Sequence[Tensor], scales: Sequence[float]) -> list[Tensor]:
        """The root of the mean squared gradients of every parameter."""
        metrics = torch._foreach_sqrt([self.state[p]["exp_avg_sq"] for p in parameters])
        torch._foreach_mul_(metrics, list(scales))
        torch._foreach_add_(metrics, group["eps"])
        return list(metrics)

    def _has_a_pace(self, target: Target) -> bool:
        return all(self.state.get(p) for p in target.parameters)

    def _rates(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        return float(group["lr"]), self._metrics(group, parameters, self._steps_and_scales(group, parameters)[1])

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
        position = {id(p): n for n, p in enumerate(parameters)} if (pairs := self._pairs) else {}
        for scale, shift in pairs:
            a, b = position.get(id(scale)), position.get(id(shift))
            if a is not None and b is not None:
                squares[a] = squares[b] = squares[a] + squares[b]
        return squares
