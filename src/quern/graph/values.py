"""What is known of one tensor of a network, unit by unit."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Again = Callable[[Tensor], Tensor]  # what an operation does to constants (units, parts)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """All of ``model`` in eval mode while this lasts, without what ``eval()`` does besides."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def of_layer(layer: nn.Module, value: "Value", parts: int | None = None, space: Sequence[int] = ()) -> Again:
    """What ``layer`` does, in eval mode, to the constants of ``value``, the last axes of which get the sizes ``space``.
    It gives units of ``parts``, by default of as many as it takes."""
    axis, dims = value.axis, value.dims

    def again(constant: Tensor) -> Tensor:
        sizes = [1] * (dims - len(space)) + list(space)
        sizes[axis] = constant.numel()
        row = constant.T.reshape([-1 if n == axis else 1 for n in range(dims)])
        example = next((p for p in layer.parameters()), row)
        with evaluating(layer):
            out = layer(row.expand(sizes).to(example).clone())  # which may change it in place
        return out.detach().movedim(axis, 0).flatten(1)[:, 0].cpu().view(parts or value.parts, -1).T

    return again


@dataclass(eq=False)
class Value:
    """One tensor of the network. Along ``axis`` it has ``parts`` times as many entries as ``ids``, component-major.

    A unit that is not ``live`` has the same value for every input and at every position, ``constant (units, parts)``.
    A live one that is not ``heard`` differs from place to place, or with the size, but not with what the input is.
    ``needed`` units have to arrive with the value they had; others may be anything, or missing. ``ids`` is None where
    the units are not followed: nothing of such a value is ever removed. Where that is known, ``full`` says that all
    units are live and heard, and ``quiet`` that all the others are zero.
    """

    ids: Tensor | None = None
    axis: int = 0
    dims: int = 0
    parts: int = 1
    live: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    heard: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    constant: Tensor = field(default_factory=lambda: torch.empty(0, 1))
    needed: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    full: bool = False
    quiet: bool = False

    @property
    def followed(self) -> bool:
        return self.ids is not None

    @property
    def pushing(self) -> Tensor:
        """Units that are constant, and not zero."""
        return ~self.live & (self.constant != 0).any(1)

    def need(self, units: Tensor) -> None:
        self.needed |= units

    def need_all(self) -> None:
        self.needed[:] = True


@dataclass(frozen=True, eq=False)
class Number:
    """What is no tensor and no constant of the program either: a size, an input of the network that is a number, or
    whatever was computed from those. It differs from call to call, so what is computed with it is live.

    ``counts`` are the values whose units it counts, so it falls when some of those are removed: ``proportional`` says
    that it falls in proportion. ``axis`` is set if it is the size of that axis of some tensor, and nothing else.
    """

    counts: tuple[Value, ...] = ()
    proportional: bool = False
    axis: int | None = None


def dead(outputs: Sequence[Value]) -> bool:
    """Whether none of a network's outputs depends on an input."""
    return bool(outputs) and all(value.followed and not bool(value.heard.any()) for value in outputs)


def magnitude(tensor: Tensor) -> float:
    """The largest absolute value among the numbers that are finite; 0 if there are none."""
    if not tensor.numel():
        return 0.0
    largest = max(abs(float(end)) for end in tensor.detach().aminmax())
    return largest if math.isfinite(largest) else float(tensor.detach().abs().nan_to_num(0.0, 0.0).max())
