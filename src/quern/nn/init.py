r"""Initialisation of quaternion weights ``(4, out, in/groups, *kernel)``, in place, from torch's generator.

Fans count real numbers: a quaternion input is 4 of them (fewer if the layer's ``input_parts`` are fewer). With
component variance :math:`E|w|^2/4 = s^2`, an output component of a layer has the variance
:math:`s^2 \cdot \mathrm{fan\_in} \cdot E[x^2]`, so the formulas are those of real layers.
"""

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from quern import algebra
from quern.functional import products


def _fans(weight: Tensor, parts: int) -> tuple[int, int]:
    if weight.dim() < 3 or weight.shape[0] != 4:
        raise ValueError(f"a quaternion weight is (4, out, in, *kernel), but this one is {tuple(weight.shape)}.")
    positions = math.prod(weight.shape[3:])
    return parts * weight.shape[2] * positions, 4 * weight.shape[1] * positions


def _randn(weight: Tensor, rows: int, generator: Generator | None) -> Tensor:
    return torch.randn((rows, *weight.shape[1:]), dtype=weight.dtype, device=weight.device, generator=generator)


@torch.no_grad()
def _polar_(weight: Tensor, std: float, generator: Generator | None) -> Tensor:
    # A normal vector in 4 dimensions: its length has the chi distribution with 4 degrees of freedom, its direction is
    # uniform on the sphere. Drawing the angle of the polar form uniformly instead, as is often done, gives the real
    # part three times the variance of each imaginary one, and unequal outputs if the input has only some components.
    if weight.is_meta:  # there is nothing to fill; files are read by building networks there
        return weight
    return weight.copy_(_randn(weight, 4, generator) * std)


def he_(weight: Float[Tensor, "..."], parts: int = 4, generator: Generator | None = None) -> Float[Tensor, "..."]:
    r"""Quaternion polar form with :math:`s^2 = 2/\mathrm{fan\_in}`: keeps the variance through a ReLU layer.

    The modulus is drawn from the chi distribution with 4 degrees of freedom, the direction uniformly. ``parts`` is the
    number of components the layer's input has.
    """
    return _polar_(weight, math.sqrt(2 / max(1, _fans(weight, parts)[0])), generator)


def glorot_(weight: Float[Tensor, "..."], parts: int = 4, generator: Generator | None = None) -> Float[Tensor, "..."]:
    r"""As :func:`he_` with :math:`s^2 = 2/(\mathrm{fan\_in} + \mathrm{fan\_out})`: for layers without a ReLU."""
    return _polar_(weight, math.sqrt(2 / max(1, sum(_fans(weight, parts)))), generator)


@torch.no_grad()
def unitary_(
    weight: Float[Tensor, "..."], gain: float = 1.0, generator: Generator | None = None
) -> Float[Tensor, "..."]:
    """Every weight is ``gain`` times a unit quaternion of uniform direction."""
    _fans(weight, 4)
    return weight.copy_(gain * algebra.normalize(_randn(weight, 4, generator)))


@torch.no_grad()
def orthogonal_(
    weight: Float[Tensor, "..."], gain: float = 1.0, generator: Generator | None = None
) -> Float[Tensor, "..."]:
    r"""The real block matrix ``(4*out, 4*in*kernel)`` has orthonormal rows or columns, times ``gain``.

    It is the orthogonal factor of the polar decomposition of a random block matrix. That factor is unique, so it is a
    quaternion matrix again; its first block column holds the components.
    """
    _fans(weight, 4)
    draw = _randn(weight, 4, generator).flatten(2).double()
    u, _, vh = torch.linalg.svd(products.block_weight(draw), full_matrices=False)
    column = (u @ vh)[:, : draw.shape[2]]
    return weight.copy_(gain * column.reshape(weight.shape).to(weight.dtype))
