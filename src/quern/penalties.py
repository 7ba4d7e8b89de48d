r"""Penalties that see a quaternion weight, or a whole neuron, as one thing: their values and their proximal maps.

With :math:`w` over the :math:`Q` quaternion weights of a network and :math:`\gamma` over the scales :math:`\Gamma` of
its quaternion batch normalisations:

=================================  ===========================================================================
``L2(λ)``                          :math:`\frac\lambda Q \sum_w |w|^2`
``L1(λ)``                          :math:`\frac\lambda Q \sum_w |w_r| + |w_i| + |w_j| + |w_k|`
``RQ(λ)``                          :math:`\frac\lambda Q \sum_w |w|`
``RQL(λ)``                         ``RQ(λ) + L1(λ)``
``GammaL1(λ)``                     :math:`\frac\lambda{|\Gamma|} \sum_\gamma |\gamma|`
``GammaL1(λ, with_beta=True)``     :math:`\frac\lambda{|\Gamma|} \sum_\gamma \sqrt{\gamma^2 + |\beta|^2}`
=================================  ===========================================================================

``normalize=False`` leaves out the :math:`1/Q` or :math:`1/|\Gamma|`. Penalties add up: ``RQ(1e-2) + GammaL1(1e-3)``.
Biases and real-valued layers are left out, and so are parameters that are not trained (``requires_grad`` is False).

Use one as a term of the loss, ``loss + penalty(model)``, with any optimizer; or give it to an optimizer of
:mod:`quern.optim`, which applies its proximal map and so reaches exact zeros.
"""

# The operations on lists of tensors are documented, in spite of their names.
# pyright: reportPrivateImportUsage=false

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from quern.graph import batch_norms, check_module, quaternion_weights
from quern.records import Term, Terms

__all__ = ["L1", "L2", "RQ", "RQL", "GammaL1", "Penalty", "Target", "shrink_"]

Step = float | Tensor


def _within(x: Tensor, bound: Step) -> Tensor:
    return torch.clamp(x, -bound, bound)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _norms(rows: Sequence[Tensor]) -> Tensor:
    """The norms of groups whose members are ``rows``, with gradient 0 at 0.

    Torch's norm over a few numbers that lie far apart, such as the components of a weight, takes 100 times longer.
    """
    squares = rows[0].square()
    for row in rows[1:]:
        squares = squares.addcmul_(row, row)
    zero = squares == 0
    return torch.where(zero, 0, torch.where(zero, 1, squares).sqrt())


@dataclass(frozen=True)
class Target:
    """What a penalty asks of one weight, or of one batch normalisation.

    ``parameters`` is ``(weight,)``, ``(γ,)`` or ``(γ, β)``, and ``names`` says which. ``l1`` is the factor of the
    absolute values in the first of them, ``square`` that of its squares, ``group`` that of the norms of groups: the
    quaternions of a weight, or γ together with its β.
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    l1: float = 0.0
    group: float = 0.0
    square: float = 0.0

    def value(self) -> Tensor:
        first = self.parameters[0]
        at_least_single = torch.promote_types(first.dtype, torch.float32)
        total = torch.zeros((), dtype=at_least_single, device=first.device)
        if self.l1:
            total = total + self.l1 * first.abs().sum(dtype=at_least_single)
        if self.group:
            total = total + self.group * _norms([row.to(at_least_single) for row in self.rows()]).sum()
        if self.square:
            total = total + self.square * first.to(at_least_single).square().sum()
        return total

    def rows(self) -> list[Tensor]:
        """The members of the groups: four components, γ alone, or γ and the four components of β."""
        first, *others = self.parameters
        return [*(first.unbind() if first.dim() > 1 else [first]), *(row for other in others for row in other.unbind())]


@torch.no_grad()
def shrink_(targets: Sequence[Target], steps: Sequence[float], metrics: Sequence[Tensor] | None = None) -> None:
    r"""Replace the parameters :math:`\theta` of each target by
    :math:`\arg\min_x \mathrm{step} \cdot P(x) + \frac12 \|x - \theta\|_D^2`, in place.

    ``metrics`` has the positive numbers on the diagonal of each D, one per group, ``(out, in, ...)`` or ``(n,)`` for γ;
    by default they are 1. Components first, then groups, then squares: for nested groups this order gives the proximal
    map of the sum. All operations are on lists, because for small networks it is their number that takes the time.
    """
    chosen = [n for n, target in enumerate(targets) if steps[n] > 0 and target.l1]
    if chosen:
        firsts: list[Tensor] = [targets[n].parameters[0] for n in chosen]
        factors = [steps[n] * targets[n].l1 for n in chosen]
        bounds: Sequence[Step] = factors
        if metrics is not None:
            inverses = torch._foreach_reciprocal([metrics[n] for n in chosen])
            torch._foreach_mul_(inverses, factors)
            bounds = inverses
        torch._foreach_sub_(firsts, [_within(first, bound) for first, bound in zip(firsts, bounds, strict=True)])
    least = torch.finfo(torch.float32).tiny  # what is less may be rounded to 0, and 0 times infinity is nothing at all
    chosen = [n for n, target in enumerate(targets) if steps[n] * target.group > least]
    if chosen:
        rows = [targets[n].rows() for n in chosen]
        if any(row[0].dtype not in (torch.float32, torch.float64) for row in rows):  # half a float has no squares
            rows = [[part.float() for part in row] for row in rows]
        firsts = [row[0] for row in rows]
        remaining = torch._foreach_mul(firsts, firsts)
        for k in range(1, max(map(len, rows))):
            longer = [(total, row[k]) for total, row in zip(remaining, rows, strict=True) if len(row) > k]
            parts = [part for _, part in longer]
            torch._foreach_addcmul_([total for total, _ in longer], parts, parts)
        torch._foreach_rsqrt_(remaining)  # infinite for zeros, which then are kept at zero
        factors = [-steps[n] * targets[n].group for n in chosen]
        if metrics is None:
            torch._foreach_mul_(remaining, factors)
            torch._foreach_add_(remaining, 1)
        else:
            ones = [torch.ones((), dtype=total.dtype, device=total.device).expand_as(total) for total in remaining]
            remaining = torch._foreach_addcdiv(ones, remaining, [metrics[n] for n in chosen], factors)
        torch._foreach_clamp_min_(remaining, 0)
        pairs = [(p, kept) for n, kept in zip(chosen, remaining, strict=True) for p in targets[n].parameters]
        torch._foreach_mul_([p for p, _ in pairs], [kept for _, kept in pairs])
    for n, target in enumerate(targets):
        if steps[n] > 0 and target.square:
            target.parameters[0].div_(1 + 2 * steps[n] * target.square / (1 if metrics is None else metrics[n]))


class Penalty(Terms):
    """A sum of the penalties of this module, made by ``L1``, ``L2``, ``RQ``, ``RQL``, ``GammaL1`` and ``+``."""

    def __call__(self, model: nn.Module) -> Tensor:
        """The value at the parameters of ``model``: a scalar, at least in float32, with finite gradients everywhere."""
        values = [target.value() for target in self.targets(model)]
        return torch.stack([v.to(values[0].device) for v in values]).sum()

    def targets(self, model: nn.Module) -> list[Target]:
        """Every parameter that is penalised, with the factors that all terms together give it."""
        check_module(model)
        found: dict[str, Target] = {}
        for term in self.terms:
            targets = list(_targets(term, model))
            if not targets:
                raise ValueError(f"{term} has nothing to act on: {_nothing(term)}.")
            for new in targets:
                old = found.get(new.names[0])
                found[new.names[0]] = new if old is None else _merged(old, new)
        return list(found.values())

    def prox(self, model: nn.Module, step: float = 1.0) -> None:
        r"""Replace the parameters :math:`\theta` of ``model`` by
        :math:`\arg\min_x \; \mathrm{step} \cdot \mathrm{penalty}(x) + \frac12 \|x - \theta\|^2`, exactly, in place.
        """
        if not (step >= 0 and math.isfinite(step)):
            raise ValueError(f"step is {step}, but it must be a finite number that is not negative.")
        targets = self.targets(model)
        shrink_(targets, [step] * len(targets))

    def describe(self, model: nn.Module) -> str:
        """What each term covers in ``model``, parameter by parameter, and what is left out."""
        lines, covered = [], set()
        for term in self.terms:
            targets = list(_targets(term, model))
            count = sum(_groups_of(target) for target in targets)
            unit = "scales" if term.kind.startswith("Gamma") else "quaternions"
            lines.append(f"{term}: {count:,} {unit}")
            for target in targets:
                covered.update(target.names)
                shape = "x".join(str(n) for n in target.parameters[0].shape)
                lines.append(f"  {' with '.join(target.names)} ({shape})")
        left = [name for name, _ in model.named_parameters() if name not in covered]
        lines.append(f"left out: {', '.join(left) if left else 'nothing'}")
        return "\n".join(lines)

    def __add__(self, other: "Penalty") -> "Penalty":
        if not isinstance(other, Penalty):
            return NotImplemented
        return Penalty(self.terms + other.terms)

    def __radd__(self, other: int) -> "Penalty":
        return self if other == 0 else NotImplemented  # so that sum() works

    def __mul__(self, factor: float) -> "Penalty":
        return Penalty(tuple(replace(term, weight=float(term.weight * factor)) for term in self.terms))

    __rmul__ = __mul__


def _groups_of(target: Target) -> int:
    first = target.parameters[0]
    return first.numel() // 4 if first.dim() > 1 else first.numel()


def _merged(a: Target, b: Target) -> Target:
    names, parameters = max((a.names, a.parameters), (b.names, b.parameters), key=lambda pair: len(pair[0]))
    return Target(names, parameters, a.l1 + b.l1, a.group + b.group, a.square + b.square)


def _targets(term: Term, model: nn.Module) -> Iterator[Target]:
    if term.kind.startswith("Gamma"):
        scales = [
            (f"{name}.".lstrip("."), norm.weight, norm.bias)
            for name, norm in batch_norms(model).items()
            if norm.weight is not None and norm.weight.requires_grad
        ]
        count = sum(scale.numel() for _, scale, _ in scales)
        factor = term.weight / max(1, count) if term.normalize else term.weight
        for prefix, scale, shift in scales:
            if term.kind == "GammaL1" or shift is None or not shift.requires_grad:
                yield Target((f"{prefix}weight",), (scale,), l1=factor)
            else:
                yield Target((f"{prefix}weight", f"{prefix}bias"), (scale, shift), group=factor)
        return
    weights = {name: weight for name, weight in quaternion_weights(model).items() if weight.requires_grad}
    count = sum(w.numel() // 4 for w in weights.values())
    factor = term.weight / max(1, count) if term.normalize else term.weight
    for name, weight in weights.items():
        yield Target(
            (name,),
            (weight,),
            l1=factor if term.kind in ("L1", "RQL") else 0.0,
            group=factor if term.kind in ("RQ", "RQL") else 0.0,
            square=factor if term.kind == "L2" else 0.0,
        )


def _nothing(term: Term) -> str:
    if term.kind.startswith("Gamma"):
        return "the model has no quaternion batch normalisation with a trainable scale; add QBatchNorm layers"
    return "the model has no quaternion weights that are trained (requires_grad); build it from the layers of quern.nn"


def _term(kind: Any, weight: float, normalize: bool) -> Penalty:
    if isinstance(weight, bool) or not isinstance(weight, SupportsFloat):  # float() would read a text
        said = f"the weight of a penalty is {weight!r} ({type(weight).__name__}), but it must be a number: RQL(12.0)."
        raise TypeError(said)
    return Penalty((Term(kind, float(weight), normalize),))


def L2(weight: float, *, normalize: bool = True) -> Penalty:
    r""":math:`\frac\lambda Q \sum |w|^2` with λ = ``weight``: small weights, no zeros."""
    return _term("L2", weight, normalize)


def L1(weight: float, *, normalize: bool = True) -> Penalty:
    r""":math:`\frac\lambda Q \sum |w_r| + |w_i| + |w_j| + |w_k|` with λ = ``weight``: zero components."""
    return _term("L1", weight, normalize)


def RQ(weight: float, *, normalize: bool = True) -> Penalty:
    r""":math:`\frac\lambda Q \sum |w|` with λ = ``weight``: zero quaternions."""
    return _term("RQ", weight, normalize)


def RQL(weight: float, *, normalize: bool = True) -> Penalty:
    """``RQ(weight) + L1(weight)``: zero quaternions, and zero components in those that stay."""
    return _term("RQL", weight, normalize)


def GammaL1(weight: float, *, with_beta: bool = False, normalize: bool = True) -> Penalty:
    r""":math:`\frac\lambda{|\Gamma|} \sum |\gamma|` with λ = ``weight``: whole neurons become constant.

    ``with_beta`` groups each γ with its β, :math:`\sqrt{\gamma^2 + |\beta|^2}`, so that a neuron that goes takes its
    constant with it.
    """
    return _term("GammaL1 with_beta=True" if with_beta else "GammaL1", weight, normalize)
