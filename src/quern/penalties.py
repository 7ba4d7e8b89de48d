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

A penalty of your own is a class: sums, optimizers and records take it as they take ours. ``maps`` are those below, or
a :class:`ProximalMap` of your own::

    class ElasticNet(OfWeights):
        maps = (COMPONENTS, SQUARES)
"""

# The operations on lists of tensors are documented, in spite of their names.
# pyright: reportPrivateImportUsage=false

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, SupportsFloat

import torch
from torch import Tensor, nn

from quern.graph import batch_norms, check_module, quaternion_weights
from quern.records import Written, WrittenTerm

__all__ = ["COMPONENTS", "GROUPS", "L1", "L2", "RQ", "RQL", "SQUARES", "GammaL1", "OfScales", "OfWeights", "Penalty"]
__all__ += ["ProximalMap", "Sum", "Target", "Term", "shrink_"]

Bound = float | Tensor


@dataclass(frozen=True)
class ProximalMap:
    """Abstract: a function of the numbers of a :class:`Target`, and its proximal map. Subclass it for one of your own:
    ``value`` and ``shrink_`` are all it takes.

    ``zeros`` says whether the map makes exact zeros, ``joint`` whether all numbers of a group must have one metric.
    Where a sum of penalties has several maps for one target, those of lower ``order`` come first.
    """

    order: ClassVar[int] = 3
    zeros: ClassVar[bool] = True
    joint: ClassVar[bool] = False

    def value(self, target: "Target", dtype: torch.dtype) -> Tensor:
        """The function's value with factor 1: a scalar of ``dtype`` with finite gradients."""
        raise NotImplementedError

    def shrink_(self, target: "Target", bound: Bound) -> None:
        """Replace the parameters by the minimum of ``bound · value + ½ distance²``, in place. ``bound`` is a number or
        has one for each group, ``(out, in, ...)`` or ``(n,)``."""
        raise NotImplementedError

    def shrink_all_(self, targets: Sequence["Target"], factors: Sequence[float], metrics: list[Tensor] | None) -> None:
        """The same for many targets, each with its factor and, unless it is 1, its metric."""
        for n, target in enumerate(targets):
            self.shrink_(target, factors[n] if metrics is None else factors[n] / metrics[n])


class Components(ProximalMap):
    r""":math:`\sum |x|` over the first parameter: each number moves towards zero by the bound, and stops there."""

    order: ClassVar[int] = 0

    def value(self, target: "Target", dtype: torch.dtype) -> Tensor:
        return target.parameters[0].abs().sum(dtype=dtype)

    def shrink_all_(self, targets: Sequence["Target"], factors: Sequence[float], metrics: list[Tensor] | None) -> None:
        firsts: list[Tensor] = [target.parameters[0] for target in targets]
        bounds: Sequence[Bound] = factors
        if metrics is not None:
            inverses = torch._foreach_reciprocal(metrics)
            torch._foreach_mul_(inverses, list(factors))
            bounds = inverses
        torch._foreach_sub_(firsts, [_within(first, bound) for first, bound in zip(firsts, bounds, strict=True)])


class Groups(ProximalMap):
    r""":math:`\sum |g|` over groups: each keeps its direction, and gets shorter by the bound until it is zero."""

    order: ClassVar[int] = 1
    joint: ClassVar[bool] = True

    def value(self, target: "Target", dtype: torch.dtype) -> Tensor:
        return _norms([row.to(dtype) for row in target.rows()]).sum()

    def shrink_all_(self, targets: Sequence["Target"], factors: Sequence[float], metrics: list[Tensor] | None) -> None:
        least = torch.finfo(torch.float32).tiny  # what is less may be rounded to 0, and 0 times infinity is nothing
        chosen = [n for n, factor in enumerate(factors) if factor > least]
        if not chosen:
            return
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
        negative = [-factors[n] for n in chosen]
        if metrics is None:
            torch._foreach_mul_(remaining, negative)
            torch._foreach_add_(remaining, 1)
        else:
            ones = [torch.ones((), dtype=total.dtype, device=total.device).expand_as(total) for total in remaining]
            remaining = torch._foreach_addcdiv(ones, remaining, [metrics[n] for n in chosen], negative)
        torch._foreach_clamp_min_(remaining, 0)
        pairs = [(p, kept) for n, kept in zip(chosen, remaining, strict=True) for p in targets[n].parameters]
        torch._foreach_mul_([p for p, _ in pairs], [kept for _, kept in pairs])


class Squares(ProximalMap):
    r""":math:`\sum x^2` over the first parameter: all numbers get smaller by one factor, none becomes zero."""

    order: ClassVar[int] = 2
    zeros: ClassVar[bool] = False

    def value(self, target: "Target", dtype: torch.dtype) -> Tensor:
        return target.parameters[0].to(dtype).square().sum()

    def shrink_(self, target: "Target", bound: Bound) -> None:
        target.parameters[0].div_(1 + 2 * bound)


COMPONENTS, GROUPS, SQUARES = Components(), Groups(), Squares()


def _within(x: Tensor, bound: Bound) -> Tensor:
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

    ``parameters`` is ``(weight,)``, ``(γ,)`` or ``(γ, β)``, and ``names`` says which. ``maps`` are what shrinks them,
    each with its factor. Groups are the quaternions of a weight, or γ together with its β.
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    maps: tuple[tuple[ProximalMap, float], ...]

    def value(self) -> Tensor:
        first = self.parameters[0]
        at_least_single = torch.promote_types(first.dtype, torch.float32)
        total = torch.zeros((), dtype=at_least_single, device=first.device)
        for map_, factor in sorted(self.maps, key=lambda pair: pair[0].order):
            if factor:
                total = total + factor * map_.value(self, at_least_single)
        return total

    def rows(self) -> list[Tensor]:
        """The members of the groups: four components, γ alone, or γ and the four components of β."""
        first, *others = self.parameters
        return [*(first.unbind() if first.dim() > 1 else [first]), *(row for other in others for row in other.unbind())]

    @property
    def groups(self) -> int:
        """How many groups there are."""
        first = self.parameters[0]
        return first.numel() // 4 if first.dim() > 1 else first.numel()

    @property
    def zeros(self) -> bool:
        """Whether numbers of it become exactly zero."""
        return any(map_.zeros and factor for map_, factor in self.maps)

    @property
    def joint(self) -> bool:
        """Whether all numbers of a group must have one metric."""
        return any(map_.joint and factor for map_, factor in self.maps)

    def merged(self, other: "Target") -> "Target":
        """This and another one of the same parameter."""
        factors: dict[ProximalMap, float] = {}
        for map_, factor in (*self.maps, *other.maps):
            factors[map_] = factors.get(map_, 0.0) + factor
        wider = max(self, other, key=lambda target: len(target.names))
        return Target(wider.names, wider.parameters, tuple(factors.items()))


@torch.no_grad()
def shrink_(targets: Sequence[Target], steps: Sequence[float], metrics: Sequence[Tensor] | None = None) -> None:
    r"""Replace the parameters :math:`\theta` of each target by
    :math:`\arg\min_x \mathrm{step} \cdot P(x) + \frac12 \|x - \theta\|_D^2`, in place.

    ``metrics`` has the positive numbers on the diagonal of each D, one per group, ``(out, in, ...)`` or ``(n,)`` for γ;
    by default they are 1. Components first, then groups, then squares: for nested groups this order gives the proximal
    map of the sum. All operations are on lists, because for small networks it is their number that takes the time.
    """
    work: dict[ProximalMap, list[tuple[int, float]]] = {}
    for n, target in enumerate(targets):
        for map_, factor in target.maps:
            if steps[n] * factor > 0:
                work.setdefault(map_, []).append((n, steps[n] * factor))
    for map_ in sorted(work, key=lambda map_: map_.order):
        numbers, factors = zip(*work[map_], strict=True)
        chosen = None if metrics is None else [metrics[n] for n in numbers]
        map_.shrink_all_([targets[n] for n in numbers], factors, chosen)


class Penalty(Written):
    """Abstract: a term such as ``RQ(1.0)``, or a sum of terms, which ``+`` makes."""

    @property
    def terms(self) -> tuple["Term", ...]:
        raise NotImplementedError

    def targets(self, model: nn.Module) -> list[Target]:
        """Every parameter that is penalised, with the factors that all terms together give it."""
        check_module(model)
        targets: dict[str, Target] = {}
        for term in self.terms:
            selected = list(term.select(model))
            if not selected:
                raise ValueError(f"{term} has nothing to act on: {term.missing}.")
            for new in selected:
                old = targets.get(new.names[0])
                targets[new.names[0]] = new if old is None else old.merged(new)
        return list(targets.values())

    def __call__(self, model: nn.Module) -> Tensor:
        """The value at the parameters of ``model``: a scalar, at least in float32, with finite gradients everywhere."""
        values = [target.value() for target in self.targets(model)]
        return torch.stack([v.to(values[0].device) for v in values]).sum()

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
            targets = list(term.select(model))
            lines.append(f"{term}: {sum(target.groups for target in targets):,} {term.unit}")
            for target in targets:
                covered.update(target.names)
                shape = "x".join(str(n) for n in target.parameters[0].shape)
                lines.append(f"  {' with '.join(target.names)} ({shape})")
        left = [name for name, _ in model.named_parameters() if name not in covered]
        lines.append(f"left out: {', '.join(left) if left else 'nothing'}")
        return "\n".join(lines)

    def written(self) -> tuple[WrittenTerm, ...]:
        return tuple(term.to_written() for term in self.terms)

    @classmethod
    def from_list(cls, terms: Any) -> "Penalty":
        """The reverse of :meth:`to_list`; ValueError for anything else."""
        made = tuple(Term.from_written(term) for term in Written.from_plain(terms).written())
        return made[0] if len(made) == 1 else Sum(made)

    @classmethod
    def from_plain(cls, terms: Any) -> "Penalty":
        return cls.from_list(terms)

    def __add__(self, other: "Penalty") -> "Penalty":
        return Sum(self.terms + other.terms) if isinstance(other, Penalty) else NotImplemented

    def __radd__(self, other: int) -> "Penalty":
        return self if other == 0 else NotImplemented  # so that sum() works

    def __mul__(self, factor: float) -> "Penalty":
        scaled = tuple(dataclasses.replace(term, weight=float(term.weight * factor)) for term in self.terms)
        return scaled[0] if len(scaled) == 1 else Sum(scaled)

    __rmul__ = __mul__


@dataclass(frozen=True, repr=False)
class Sum(Penalty):
    """Terms added up."""

    parts: tuple["Term", ...]

    @property
    def terms(self) -> tuple["Term", ...]:
        return self.parts


_KINDS: dict[str, type["Term"]] = {}


@dataclass(frozen=True, repr=False)
class Term(Penalty):
    r"""Abstract: one penalty with its λ, ``weight``. Subclass :class:`OfWeights` or :class:`OfScales`, or this and say
    what it selects. The class's name is that in records; arguments of its own, if any, are fields of a dataclass.
    ``unit`` is what it counts, ``missing`` what to say where there is nothing to act on.
    """

    weight: float
    _: KW_ONLY
    normalize: bool = True

    unit: ClassVar[str] = "groups"
    missing: ClassVar[str] = "the model has none of its parameters"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        other = _KINDS.setdefault(cls.__name__, cls)
        if other.__module__ != cls.__module__:
            raise TypeError(f"there is a penalty {cls.__name__} already, in {other.__module__}: take another name.")
        _KINDS[cls.__name__] = cls

    def __post_init__(self) -> None:
        weight = self.weight
        if isinstance(weight, bool) or not isinstance(weight, SupportsFloat):  # float() would read a text
            kind = type(weight).__name__
            raise TypeError(f"the weight of a penalty is {weight!r} ({kind}), but it must be a number: RQL(12.0).")
        object.__setattr__(self, "weight", float(weight))
        self.to_written()  # says what is wrong with the weight

    @property
    def terms(self) -> tuple["Term", ...]:
        return (self,)

    def select(self, model: nn.Module) -> Iterable[Target]:
        """The parameters of ``model`` that it acts on, each with its maps and their factors."""
        raise NotImplementedError

    def factor(self, count: int) -> float:
        """What each of ``count`` groups is multiplied by: λ/count, or λ without ``normalize``."""
        return self.weight / max(1, count) if self.normalize else self.weight

    def to_written(self) -> WrittenTerm:
        own = [field.name for field in dataclasses.fields(self) if field.name not in ("weight", "normalize")]
        options = tuple((name, getattr(self, name)) for name in own)
        return WrittenTerm(type(self).__name__, self.weight, self.normalize, options)

    @staticmethod
    def from_written(term: WrittenTerm) -> "Term":
        if term.kind not in _KINDS:
            known = ", ".join(kind for kind in _KINDS if not kind.startswith("Of"))
            raise ValueError(f"there is no penalty {term.kind}, only {known}: import the module that has it")
        try:
            return _KINDS[term.kind](term.weight, normalize=term.normalize, **dict(term.options))
        except TypeError as reason:
            raise ValueError(f"{term} cannot be made: {reason}") from reason


class OfWeights(Term):
    """Abstract: acts on all quaternion weights that are trained, by ``maps``."""

    maps: ClassVar[tuple[ProximalMap, ...]] = ()
    unit: ClassVar[str] = "quaternions"
    missing: ClassVar[str] = (
        "the model has no quaternion weights that are trained (requires_grad); build it from the layers of quern.nn"
    )

    def select(self, model: nn.Module) -> Iterable[Target]:
        weights = {name: weight for name, weight in quaternion_weights(model).items() if weight.requires_grad}
        factor = self.factor(sum(weight.numel() // 4 for weight in weights.values()))
        for name, weight in weights.items():
            yield Target((name,), (weight,), tuple((map_, factor) for map_ in self.maps))


class OfScales(Term):
    """Abstract: acts on the scales γ of all quaternion batch normalisations that are trained, by ``maps_of`` each."""

    unit: ClassVar[str] = "scales"
    missing: ClassVar[str] = (
        "the model has no quaternion batch normalisation with a trainable scale; add QBatchNorm layers"
    )

    def select(self, model: nn.Module) -> Iterable[Target]:
        norms = {
            f"{name}.".lstrip("."): (norm.weight, norm.bias)
            for name, norm in batch_norms(model).items()
            if norm.weight is not None and norm.weight.requires_grad
        }
        factor = self.factor(sum(scale.numel() for scale, _ in norms.values()))
        for prefix, (scale, shift) in norms.items():
            if shift is not None and not shift.requires_grad:
                shift = None
            yield self.target(prefix, scale, shift, factor)

    def target(self, prefix: str, scale: nn.Parameter, shift: nn.Parameter | None, factor: float) -> Target:
        """What it asks of γ ``scale`` and β ``shift``, None if that is not trained."""
        raise NotImplementedError


class L2(OfWeights):
    r""":math:`\frac\lambda Q \sum |w|^2` with λ = ``weight``: small weights, no zeros."""

    maps: ClassVar[tuple[ProximalMap, ...]] = (SQUARES,)


class L1(OfWeights):
    r""":math:`\frac\lambda Q \sum |w_r| + |w_i| + |w_j| + |w_k|` with λ = ``weight``: zero components."""

    maps: ClassVar[tuple[ProximalMap, ...]] = (COMPONENTS,)


class RQ(OfWeights):
    r""":math:`\frac\lambda Q \sum |w|` with λ = ``weight``: zero quaternions."""

    maps: ClassVar[tuple[ProximalMap, ...]] = (GROUPS,)


class RQL(OfWeights):
    """``RQ(weight) + L1(weight)``: zero quaternions, and zero components in those that stay."""

    maps: ClassVar[tuple[ProximalMap, ...]] = (COMPONENTS, GROUPS)


@dataclass(frozen=True, repr=False)
class GammaL1(OfScales):
    r""":math:`\frac\lambda{|\Gamma|} \sum |\gamma|` with λ = ``weight``: whole neurons become constant.

    ``with_beta`` groups each γ with its β, :math:`\sqrt{\gamma^2 + |\beta|^2}`, so that a neuron that goes takes its
    constant with it.
    """

    _: KW_ONLY
    with_beta: bool = False

    def target(self, prefix: str, scale: nn.Parameter, shift: nn.Parameter | None, factor: float) -> Target:
        if shift is None or not self.with_beta:
            return Target((f"{prefix}weight",), (scale,), ((COMPONENTS, factor),))
        return Target((f"{prefix}weight", f"{prefix}bias"), (scale, shift), ((GROUPS, factor),))
