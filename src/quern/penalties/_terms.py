"""Penalties: single terms with their λ, and sums of them."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, SupportsFloat

import torch
from torch import Tensor, nn

from quern.errors import InputError
from quern.graph import Example, batch_norms, check_module, quaternion_costs, quaternion_weights, removable
from quern.penalties._maps import COMPONENTS, GROUPS, NEURONS, SQUARES, NeuronTarget, ProximalMap, Target, shrink_
from quern.records import Written, WrittenTerm


class Penalty(Written):
    """Abstract: a term such as ``RQ(1.0)``, or a sum of terms, which ``+`` makes."""

    @property
    def terms(self) -> tuple["Term", ...]:
        raise NotImplementedError

    def weighed(self, model: nn.Module, example: Example) -> "Penalty":
        """The same penalty, knowing what the weights of ``model`` cost: it runs once on ``example``, if a term asks for
        that by ``by_cost``. :func:`quern.train.fit` does this by itself."""
        raise NotImplementedError

    def check(self, model: nn.Module) -> None:
        """ValueError if a term has nothing to act on in ``model``."""
        check_module(model)
        for term in self.terms:
            if not any(True for _ in term.select(model)):
                raise ValueError(f"{term} has nothing to act on: {term.missing}.")

    def targets(self, model: nn.Module) -> list[Target]:
        """Every parameter that is penalised, with the factors that all terms together give it."""
        self.check(model)
        targets: dict[tuple[str, type[Target]], Target] = {}
        for term in self.terms:
            if not term.is_weighed:
                raise ValueError(
                    f"{term} does not know yet what it acts on, or what that costs: take penalty.weighed(network, "
                    "example), with an example of the network's inputs."
                )
            for new in term.select(model):
                key = (new.names[0], type(new))
                old = targets.get(key)
                targets[key] = new if old is None else old.merged(new)
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

    def weighed(self, model: nn.Module, example: Example) -> "Sum":
        return Sum(tuple(part.weighed(model, example) for part in self.parts))


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
            place = other.__module__.partition("._")[0]
            raise TypeError(f"there is a penalty {cls.__name__} already, in {place}: take another name.")
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

    @property
    def is_weighed(self) -> bool:
        """Whether it knows all that its factors depend on."""
        return True

    def weighed(self, model: nn.Module, example: Example) -> "Term":  # noqa: ARG002
        return self

    def select(self, model: nn.Module) -> Iterable[Target]:
        """The parameters of ``model`` that it acts on, each with its maps and their factors."""
        raise NotImplementedError

    def factor(self, count: int) -> float:
        """What each of ``count`` groups is multiplied by: λ/count, or λ without ``normalize``."""
        return self.weight / max(1, count) if self.normalize else self.weight

    def to_written(self) -> WrittenTerm:
        names = (field.name for field in dataclasses.fields(self) if not field.name.startswith("_"))
        options = tuple((name, getattr(self, name)) for name in names if name not in ("weight", "normalize"))
        return WrittenTerm(type(self).__name__, self.weight, self.normalize, options)

    @staticmethod
    def from_written(term: WrittenTerm) -> "Term":
        if term.kind not in _KINDS:
            known = ", ".join(kind for kind in _KINDS if not kind.startswith("Of"))
            raise ValueError(f"there is no penalty {term.kind}, only {known}: import the module that has it")
        if private := [name for name, _ in term.options if name.startswith("_")]:
            raise ValueError(f"{term.kind} has no option {private[0]}")
        try:
            return _KINDS[term.kind](term.weight, normalize=term.normalize, **dict(term.options))
        except TypeError as reason:
            raise ValueError(f"{term} cannot be made: {reason}") from reason


@dataclass(frozen=True, repr=False)
class OfWeights(Term):
    r"""Abstract: acts on all quaternion weights that are trained, by ``maps``.

    ``by_cost`` = p, from 0 to 1, weighs each quaternion by what it costs when the network runs. With
    :math:`c_w` the multiply-adds that a quaternion takes for one input (16 at each position that it is applied at: a
    convolution's height x width of output, once in a linear layer), :math:`|w|` becomes :math:`a_w |w|`, where

    .. math:: a_w = c_w^p \Big/ \frac1Q \sum_v c_v^p,

    so that the mean of :math:`a_w` over all quaternions is 1, and λ keeps its meaning. p = 0 weighs nothing, p = 1
    by the cost itself. What weights cost is found by :meth:`~Penalty.weighed`.
    """

    _: KW_ONLY
    by_cost: float = 0.0
    _costs: tuple[tuple[str, float], ...] = ()  # by the names of the weights

    maps: ClassVar[tuple[ProximalMap, ...]] = ()
    unit: ClassVar[str] = "quaternions"
    missing: ClassVar[str] = (
        "the model has no quaternion weights that are trained (requires_grad); build it from the layers of quern.nn"
    )

    def __post_init__(self) -> None:
        p = self.by_cost
        if isinstance(p, bool) or not isinstance(p, SupportsFloat) or not 0 <= float(p) <= 1:
            raise ValueError(f"by_cost is {p!r}, but it must be a number from 0 (all alike) to 1 (by cost).")
        object.__setattr__(self, "by_cost", float(p))
        super().__post_init__()

    @property
    def is_weighed(self) -> bool:
        return not self.by_cost or bool(self._costs)

    def weighed(self, model: nn.Module, example: Example) -> "OfWeights":
        if not self.by_cost:
            return self
        costs = quaternion_costs(model, example)
        if unknown := [name for name in _trained(model) if not costs.get(name)]:
            raise InputError(
                f"{self} cannot be weighed: running the network on the example does not tell what {unknown[0]} costs."
            )
        return dataclasses.replace(self, _costs=tuple(costs.items()))

    def select(self, model: nn.Module) -> Iterable[Target]:
        weights = _trained(model)
        count = sum(weight.numel() // 4 for weight in weights.values())
        factors = dict.fromkeys(weights, self.factor(count))
        if self._costs:
            costs = dict(self._costs)
            if unknown := [name for name in weights if name not in costs]:
                raise ValueError(f"{self} was weighed for another network, without {unknown[0]}: weigh it anew.")
            shares = {name: costs[name] ** self.by_cost for name in weights}
            mean = sum(shares[name] * (weight.numel() // 4) for name, weight in weights.items()) / max(1, count)
            factors = {name: factors[name] * shares[name] / mean for name in weights}
        for name, weight in weights.items():
            yield Target((name,), (weight,), tuple((map_, factors[name]) for map_ in self.maps))

    def to_written(self) -> WrittenTerm:
        """Without ``by_cost`` where it weighs nothing, as files had it before there was such a thing."""
        term = super().to_written()
        if self.by_cost:
            return term
        return dataclasses.replace(term, options=tuple(pair for pair in term.options if pair[0] != "by_cost"))


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in quaternion_weights(model).items() if weight.requires_grad}


class OfScales(Term):
    """Abstract: acts on the scales γ of all batch normalisations that are trained, by ``maps_of`` each: of those of
    quaternions, or in a network of real neurons of torch's."""

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


@dataclass(frozen=True, repr=False)
class NeuronNorm(Term):
    r""":math:`\frac\lambda N \sum_n \sqrt{d_n}\,|W_n|` with λ = ``weight``: whole neurons become zero, of quaternions
    or of real numbers.

    :math:`W_n` are all numbers that belong to one of the N neurons, :math:`d_n` how many these are: what a linear or
    convolutional layer has for an output channel, its bias included; all gates of a hidden unit, in all levels and
    directions of a recurrent layer; a column of an embedding. Layers that the output comes from are left out, as they
    cannot lose any: to find them the network is run once, by :meth:`~Penalty.weighed`.
    """

    _: KW_ONLY
    _layers: tuple[tuple[str, tuple[tuple[str, int, int], ...]], ...] | None = None

    unit: ClassVar[str] = "neurons"
    missing: ClassVar[str] = "the network has no neurons that could go: the layers that its output comes from stay"

    @property
    def is_weighed(self) -> bool:
        return self._layers is not None

    def weighed(self, model: nn.Module, example: Example) -> "NeuronNorm":
        layers = tuple(
            (name, tuple((own, *where) for own, where in axes.items()))
            for name, axes in removable(model, example).items()
        )
        return dataclasses.replace(self, _layers=layers)

    def check(self, model: nn.Module) -> None:
        if self.is_weighed:
            super().check(model)

    def select(self, model: nn.Module) -> Iterable[Target]:
        made = []
        for name, own in self._layers or ():
            layer = model.get_submodule(name)
            trained = [
                (f"{name}.{key}".lstrip("."), p, (axis, times))
                for key, axis, times in own
                if (p := layer.get_parameter(key)).requires_grad
            ]
            if len(trained) == len(own):
                names, parameters, axes = zip(*trained, strict=True)
                made.append(NeuronTarget(names, parameters, (), axes))
        factor = self.factor(sum(target.groups for target in made))
        for target in made:
            yield dataclasses.replace(target, maps=((NEURONS, factor * target.size**0.5),))
