"""Proximal maps, and what they act on: one weight, or one batch normalisation."""

# The operations on lists of tensors are documented, in spite of their names.
# pyright: reportPrivateImportUsage=false

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quern.functional.native import proximal as native

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

    order: ClassVar[int] = 3
    zeros: ClassVar[bool] = False

    def value(self, target: "Target", dtype: torch.dtype) -> Tensor:
        return target.parameters[0].to(dtype).square().sum()

    def shrink_(self, target: "Target", bound: Bound) -> None:
        target.parameters[0].div_(1 + 2 * bound)


class Neurons(ProximalMap):
    r""":math:`\sum_n |W_n|` over the neurons of a :class:`NeuronTarget`: each keeps its direction, and gets shorter
    until it is zero. In a metric it is the mean over the neuron that counts."""

    order: ClassVar[int] = 2

    def value(self, target: "Target", dtype: torch.dtype) -> Tensor:
        assert isinstance(target, NeuronTarget)
        squares = target.squares(dtype)
        zero = squares == 0
        return torch.where(zero, 0, torch.where(zero, 1, squares).sqrt()).sum()

    def shrink_(self, target: "Target", bound: Bound) -> None:
        assert isinstance(target, NeuronTarget)
        if isinstance(bound, Tensor):
            bound = target.mean(bound.reciprocal()).reciprocal()
        lengths = target.strengths()
        target.scale_((1 - bound / lengths.where(lengths > 0, 1)).clamp(min=0))


COMPONENTS, GROUPS, SQUARES, NEURONS = Components(), Groups(), Squares(), Neurons()


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
        """The members of the groups: four components, γ alone, or γ and the components of β."""
        return [row for p in self.parameters for row in (p.unbind() if p.dim() > 1 else [p])]

    def strengths(self) -> Tensor | None:
        """How much there is of each neuron, where this is about whole neurons: of scales γ."""
        first = self.parameters[0].detach()
        return None if first.dim() > 1 else first.abs()

    def clear_(self, neuron: int) -> None:
        """Let there be nothing of a neuron."""
        for p in self.parameters:
            p.detach()[..., neuron] = 0

    @property
    def apart(self) -> bool:
        """Whether single groups of it can be kept where all others go."""
        return True

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


@dataclass(frozen=True)
class NeuronTarget(Target):
    """Groups are whole neurons: for each parameter the axis that they stand on, and how many times, as of gates."""

    axes: tuple[tuple[int, int], ...] = ()

    @property
    def groups(self) -> int:
        axis, times = self.axes[0]
        return self.parameters[0].shape[axis] // times

    @property
    def size(self) -> int:
        """The numbers of one neuron."""
        return sum(p.numel() for p in self.parameters) // max(1, self.groups)

    def squares(self, dtype: torch.dtype) -> Tensor:
        """The squared norm of each neuron."""
        total = 0
        for p, (axis, times) in self._placed:
            own = p.to(dtype).square().movedim(axis, 0).unflatten(0, (times, -1)).transpose(0, 1)
            total = total + own.flatten(1).sum(1)
        assert isinstance(total, Tensor)
        return total

    def mean(self, metric: Tensor) -> Tensor:
        """Of a metric of the first parameter, which its components may share, the mean over each neuron."""
        axis, times = self.axes[0]
        axis -= self.parameters[0].dim() - metric.dim()
        return metric.movedim(axis, 0).unflatten(0, (times, -1)).transpose(0, 1).flatten(1).mean(1)

    def strengths(self) -> Tensor:
        return self.squares(torch.promote_types(self.parameters[0].dtype, torch.float32)).detach().sqrt()

    def spread(self, numbers: Tensor) -> list[Tensor]:
        """One number for each neuron, in the shape of each parameter."""
        shapes = [[-1 if n == axis % p.dim() else 1 for n in range(p.dim())] for p, (axis, _) in self._placed]
        return [
            numbers.repeat(times).view(shape).expand_as(p)
            for (p, (_, times)), shape in zip(self._placed, shapes, strict=True)
        ]

    @property
    def _placed(self) -> list[tuple[nn.Parameter, tuple[int, int]]]:
        return list(zip(self.parameters, self.axes, strict=True))

    def scale_(self, factors: Tensor) -> None:
        """Multiply each neuron by its factor."""
        for p, own in zip(self.parameters, self.spread(factors), strict=True):
            p.detach().mul_(own.to(p.dtype))

    def clear_(self, neuron: int) -> None:
        factors = torch.ones(self.groups, device=self.parameters[0].device)
        factors[neuron] = 0
        self.scale_(factors)

    @property
    def apart(self) -> bool:
        return False


@torch.no_grad()
def shrink_(targets: Sequence[Target], steps: Sequence[float], metrics: Sequence[Tensor] | None = None) -> None:
    r"""Replace the parameters :math:`\theta` of each target by
    :math:`\arg\min_x \mathrm{step} \cdot P(x) + \frac12 \|x - \theta\|_D^2`, in place.

    ``metrics`` has the positive numbers on the diagonal of each D, one per group, ``(out, in, ...)`` or ``(n,)`` for γ;
    by default they are 1. Components first, then groups, then squares: for nested groups this order gives the proximal
    map of the sum. All operations are on lists, because for small networks it is their number that takes the time.
    """
    Shrinking().shrink_(targets, steps, metrics)


class Shrinking:
    """:func:`shrink_` again and again: what the kernel has to know of targets holds while they are where they were."""

    def __init__(self) -> None:
        self._targets: list[Target] = []
        self._places: list[Any] | None = None
        self._pieces: native.Pieces | None = None
        self._factors: list[tuple[int, list[float]]] = []  # of each piece: the target's number, and the maps' factors
        self._others: list[int] = []  # what torch's operations do

    def shrink_(self, targets: Sequence[Target], steps: Sequence[float], metrics: Sequence[Tensor] | None) -> None:
        tensors = [*(p for target in targets for p in target.parameters), *(metrics or ())]
        places = [native.place(t) for t in tensors] if native.can_take(tensors) else None
        same = len(targets) == len(self._targets) and all(map(is_, targets, self._targets))
        if not same or places is None or places != self._places:
            self._targets, self._places = list(targets), places
            self._describe(metrics)
        if self._pieces is not None:
            for piece, (n, factors) in zip(self._pieces.items, self._factors, strict=True):
                piece.components, piece.groups, piece.squares = (max(0.0, steps[n] * factor) for factor in factors)
            self._pieces.run()
        work: dict[ProximalMap, list[tuple[int, float]]] = {}
        for n in self._others:
            for map_, factor in targets[n].maps:
                if steps[n] * factor > 0:
                    work.setdefault(map_, []).append((n, steps[n] * factor))
        for map_ in sorted(work, key=lambda map_: map_.order):
            numbers, factors = zip(*work[map_], strict=True)
            chosen = None if metrics is None else [metrics[n] for n in numbers]
            map_.shrink_all_([targets[n] for n in numbers], factors, chosen)

    def _describe(self, metrics: Sequence[Tensor] | None) -> None:
        """Divide the targets into those for the kernel and the others."""
        pieces, self._factors, self._others = [], [], []
        for n, target in enumerate(self._targets):
            piece = None if self._places is None else _piece(target, None if metrics is None else metrics[n])
            if piece is None:
                self._others.append(n)
                continue
            pieces.append(piece)
            factors = dict(target.maps)
            self._factors.append((n, [factors.get(map_, 0.0) for map_ in (COMPONENTS, GROUPS, SQUARES)]))
        self._pieces = native.Pieces(pieces) if pieces else None


def _piece(target: Target, metric: Tensor | None) -> native.Shrunk | None:
    """What the kernel has to know of a target but the factors of its maps, which go in one pass. None if it cannot be
    done there."""
    first, *others = target.parameters
    known = all(map_ in (COMPONENTS, GROUPS, SQUARES) for map_, factor in target.maps if factor)
    if not known:
        return None
    row = metric if metric is not None else first if first.dim() == 1 else first[0]
    rows = 1 if row.shape == first.shape else 4
    partner = others[0] if others else None
    partner_rows = 0 if partner is None else partner.numel() // row.numel() if row.numel() else 1
    if not native.in_rows(first, rows, row) or (partner is not None and not native.in_rows(partner, partner_rows, row)):
        return None
    pointers = [None if t is None else t.data_ptr() for t in (first, partner, metric)]
    return native.Shrunk(*pointers, row.numel(), rows, partner_rows)
