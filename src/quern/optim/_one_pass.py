"""Adam's step by the kernel in C."""

from collections.abc import Sequence
from operator import is_

import torch
from torch import Tensor

from quern.functional.native import proximal as native


class OnePass:
    """Adam's step for some parameters in one pass over their numbers.

    What the kernel has to know of them is put together once. It holds until a parameter or a moment is another tensor,
    or lies elsewhere in memory: :meth:`is_of`. ``metrics`` are those of the last step.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        moments: Sequence[tuple[Tensor, Tensor]],
        rows: Sequence[int],
        pairs: Sequence[tuple[Tensor, ...]],
    ) -> None:
        self._parameters = list(parameters)
        self._m, self._v = ([pair[k] for pair in moments] for k in range(2))
        self._places = [native.place(t) for t in (*self._parameters, *self._m, *self._v)]
        self.metrics = [torch.empty_like(v) for v in self._v]
        number = {id(p): n for n, p in enumerate(parameters)}
        self._partners: list[tuple[int, int]] = []  # numbers of parameters whose squared gradients are added up
        partner_rows = [0] * len(rows)
        for scale, shift in pairs:
            a, b = number.get(id(scale)), number.get(id(shift))
            if a is not None and b is not None:
                self._partners += [(a, b), (b, a)]
                partner_rows[a], partner_rows[b] = rows[b], rows[a]
        pieces = []
        for n, p in enumerate(parameters):
            pointers = [t.data_ptr() for t in (p, self._m[n], self._v[n], self.metrics[n])]
            pieces.append(native.Moved(*pointers, None, None, self._v[n].numel(), rows[n], partner_rows[n]))
        self._pieces = native.Pieces(pieces)

    @classmethod
    def of(
        cls,
        parameters: Sequence[Tensor],
        moments: Sequence[tuple[Tensor, Tensor]],
        rows: Sequence[int],
        pairs: Sequence[tuple[Tensor, ...]],
    ) -> "OnePass | None":
        """One for these parameters, of so many rows each, with their moments; None if they do not lie in memory as the
        kernel needs it. ``pairs`` are those of γ and β that have one second moment."""
        for p, (m, v), number in zip(parameters, moments, rows, strict=True):
            fits = native.can_take([p, m, v]) and m.shape == p.shape and m.stride() == p.stride()
            if not fits or v.shape != p.shape[number > 1 :] or not native.in_rows(p, number, v):
                return None
        return cls(parameters, moments, rows, pairs)

    def is_of(self, parameters: Sequence[Tensor], m: Sequence[Tensor], v: Sequence[Tensor]) -> bool:
        """Whether this is for just these tensors, and they are where they were."""
        tensors, kept = (*parameters, *m, *v), (*self._parameters, *self._m, *self._v)
        return (
            len(tensors) == len(kept)
            and all(map(is_, tensors, kept))
            and [native.place(t) for t in tensors] == self._places
        )

    def move(
        self,
        gradients: Sequence[Tensor],
        factors: tuple[float, float, float, float, float],
        paces: Sequence[float],
        scales: Sequence[float],
        eps: float,
    ) -> None:
        """A step: ``factors`` are decay, β1, 1 - β1, β2 and 1 - β2; each parameter has its pace and scale."""
        # Copies, if there are any, have to live until the kernel is done.
        gradients = [laid_out_as(p, g) for p, g in zip(self._parameters, gradients, strict=True)]
        items = self._pieces.items
        for piece, g, pace, scale in zip(items, gradients, paces, scales, strict=True):
            piece.g, piece.step, piece.scale, piece.eps = g.data_ptr(), pace, scale, eps
            piece.decay, piece.beta1, piece.one_minus_beta1, piece.beta2, piece.one_minus_beta2 = factors
        for n, other in self._partners:
            items[n].partner = gradients[other].data_ptr()
        self._pieces.run()


def laid_out_as(p: Tensor, t: Tensor) -> Tensor:
    """``t``, or a copy of it in the memory layout of ``p``, if that has one without gaps."""
    same = t.stride() == p.stride() and t.shape == p.shape
    return t if same else torch.empty_like(p, memory_format=torch.preserve_format).copy_(t)
