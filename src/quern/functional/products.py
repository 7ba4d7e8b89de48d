r"""Three ways to multiply by a quaternion weight with real arithmetic, and the choice between them.

*Block form*: expand every weight to its 4x4 real matrix and call one real operation, 16 real products per quaternion
product. *Hadamard form*: 8 real products (:mod:`quern.functional.hadamard`). *Stacked form*: the parameter itself is
the weight of one real operation on the four components of the input, stacked in the batch; their 16 products are added
up with their signs afterwards, so no weight is expanded. All are equal up to rounding. A weight is
``(4, out, in/groups, *kernel)``, an activation ``(batch, 4*channels, *space)``, component-major.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from quern.algebra import UNIT_SIGN, UNITS
from quern.functional import pointwise
from quern.functional.shapes import swap_channel_order

Form = Literal["block", "hadamard", "stacked", "winograd", "depthwise"]


@dataclass(frozen=True)
class Geometry:
    """What a real convolution needs to know besides its operands; one entry per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)

    def is_one_to_one(self) -> bool:
        """Whether a kernel of one position makes each position of the result from the same one of the input."""
        return not self.transposed and not any(self.padding) and all(step == 1 for step in self.stride)

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        # The functions by number of axes, not torch.convolution: autocast knows only those.
        space = len(self.stride)
        if self.transposed:
            function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[space - 1]
            return function(x, weight, bias, self.stride, self.padding, self.output_padding, groups, self.dilation)
        function = (F.conv1d, F.conv2d, F.conv3d)[space - 1]
        return function(x, weight, bias, self.stride, self.padding, self.dilation, groups)

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, groups: int, need: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            grad,
            x,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            groups,
            [*need, False],
        )


# --------------------------------------------------------------------------------------------------------- choice


NARROWEST_IN_TILES = 8  # channels of Winograd's form: with fewer, the transforms cost what the products save


def choose_conv_form(
    device: torch.device,
    channels_in: int,
    channels_out: int,
    groups: int,
    area: int,
    positions: int,
    native: Form | None,
) -> Form:
    """The faster form for a convolution of ``channels_in`` to ``channels_out`` quaternion channels.

    ``area`` is the number of kernel positions, ``positions`` how often it is applied in all, ``native`` the form
    in C that can be had, if any: :mod:`quern.functional.depthwise`, which leaves channels where they are, or
    :mod:`quern.functional.winograd`, which needs vectors of channels, whole ones if there are few, and enough positions
    to be worth its larger weights. The limits are read off ``benchmarks/forms.py`` on CPU; of Winograd's form next to
    the block form ``benchmarks/layers.json`` is the record. A large weight at few positions takes longer to expand, or
    to read expanded, than to apply: the stacked form, at more positions if the weight is larger than the cache. For the
    Hadamard form a real group must be wide enough to fill the vector units, and the products saved per output must
    outweigh the additions (sooner in a grouped convolution, whose channels the block form has to reorder). Elsewhere
    grouped real convolutions are slow, and the block form is right. An exported program must not depend on the batch it
    was traced with, and gets the block form too.
    """
    if torch.compiler.is_exporting() or device.type != "cpu":
        return "block"
    narrow, numbers = min(channels_in, channels_out) // groups, 4 * channels_in * channels_out // groups * area
    if native == "depthwise":
        return "depthwise"
    whole = channels_in % 4 == channels_out % 4 == 0
    in_vectors = narrow >= 16 or (narrow >= NARROWEST_IN_TILES and channels_in * channels_out >= 128 and whole)
    if native == "winograd" and in_vectors and positions >= 256:
        return "winograd"
    if narrow >= 16 and numbers >= 1 << 17 and positions <= (64 if numbers < 1 << 22 else 128):
        return "stacked"
    enough = narrow >= 16 and narrow * area >= (288 if groups == 1 else 144) and narrow * positions >= 8192
    return "hadamard" if enough else "block"


def choose_linear_form(device: torch.device, features_in: int, features_out: int, rows: int) -> Form:
    """The faster form for a linear map of ``rows`` quaternion vectors; as :func:`choose_conv_form`."""
    if torch.compiler.is_exporting() or device.type != "cpu":
        return "block"
    if min(features_in, features_out) < 256:
        return "block"
    return "hadamard" if rows >= 32 else "stacked"


# -------------------------------------------------------------------------------------------------- weights, cached


def block_weight(
    weight: Float[Tensor, "4 out in ..."],
    input_parts: str = UNITS,
    groups: int = 1,
    transposed: bool = False,
    layout: torch.memory_format = torch.contiguous_format,
) -> Float[Tensor, "..."]:
    r"""The real weight :math:`L(w)` of shape ``(4*out, parts*in, *kernel)``, columns only for the parts the input has.

    With ``groups > 1`` its rows are group-major, as a grouped real operation wants them; ``transposed`` gives the
    ``(in, out)`` order of a real transposed convolution.
    """
    out, inner, *kernel = weight.shape[1:]
    columns = [UNITS.index(part) for part in input_parts]
    if columns == [0]:
        blocks = weight.unsqueeze(0)  # L(w) applied to a real number: w itself
    else:
        signed = torch.cat([weight, -weight])
        pick = [(m ^ q) + (0 if UNIT_SIGN[m ^ q][q] > 0 else 4) for q in columns for m in range(4)]
        blocks = signed.index_select(0, torch.tensor(pick, device=weight.device))
    blocks = blocks.reshape(len(columns), 4, groups, out // groups, inner, *kernel)
    order = (2, 0, 4, 1, 3) if transposed else (2, 1, 3, 0, 4)
    positions = range(5, blocks.dim())
    rows = groups * len(columns) * inner if transposed else 4 * out
    if layout != torch.contiguous_format:  # with the positions in front of the columns it is copied only once
        real = blocks.permute(*order[:-2], *positions, *order[-2:]).reshape(rows, *kernel, -1).movedim(-1, 1)
        return real.contiguous(memory_format=layout)
    return blocks.permute(*order, *positions).reshape(rows, -1, *kernel).contiguous()  # of one quaternion it is a view


def nearest_weight(
    real: Float[Tensor, "4 out parts in ..."], input_parts: str = UNITS
) -> Float[Tensor, "4 out in ..."]:
    r"""The weight w whose block form :math:`L(w)` is nearest to ``real`` in least squares: of p ``input_parts``,
    :math:`w = \frac1p \sum_b m_b \otimes \bar e_b`, where the quaternions :math:`m_b` are what ``real`` gives for the
    unit :math:`e_b`. The columns of :math:`L(w)` are as long as w, so the share of the squared norm that is kept is
    :math:`p |w|^2 / |\mathrm{real}|^2`.
    """
    columns = [UNITS.index(part) for part in input_parts]
    rows = [sum(UNIT_SIGN[m][q] * real[m ^ q, :, n] for n, q in enumerate(columns)) for m in range(4)]
    return torch.stack(rows) / len(columns)  # pyright: ignore[reportArgumentType, reportCallIssue]


def components(x: Tensor) -> tuple[Tensor, ...]:
    return x.unflatten(1, (4, -1)).unbind(1)


def block_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, input_parts: str = UNITS
) -> Float[Tensor, "..."]:
    """``W (x) x + b`` from :func:`block_weight`, with one real convolution."""
    flat = None if bias is None else bias.flatten()
    if geometry.groups == 1:
        if geometry.is_one_to_one() and pointwise.can_convolve(x, weight, flat):
            return pointwise.pointwise_convolution(x, weight, flat)
        return geometry.apply(x, weight, flat, 1)
    # A real grouped convolution wants the channels of a group side by side: group-major in, component-major out again.
    x = swap_channel_order(x, len(input_parts), geometry.groups)
    y = swap_channel_order(geometry.apply(x, weight, None, geometry.groups), geometry.groups, 4)
    return y if flat is None else y + flat.view(-1, *[1] * (y.dim() - 2))


def _sum_of_products(parts: Sequence[Sequence[Tensor]], bias: Tensor | None, dim: int) -> Tensor:
    """The quaternions along ``dim`` whose components are signed sums of ``parts[q][p]``, the products of component q of
    the input and component p of the weight."""
    rows = []
    for m in range(4):
        total = parts[m][0] if bias is None else parts[m][0] + bias[m]  # the unit r is 1: a plus sign
        for p in range(1, 4):
            total = torch.add(total, parts[p ^ m][p], alpha=UNIT_SIGN[p][p ^ m])
        rows.append(total)
    return torch.cat(rows, dim)


def stacked_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Float[Tensor, "..."]:
    """``W (x) x + b`` from the parameter ``(4, out, in/groups, *kernel)`` as it is, with 16 real products each."""
    groups = geometry.groups
    real = weight.flatten(0, 1)
    if groups > 1 or geometry.transposed:  # the outputs of a group side by side
        real = weight.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1, 2)
        real = (real.transpose(1, 2) if geometry.transposed else real).flatten(0, 1)
    y = geometry.apply(torch.cat(components(x)), real, None, groups)
    y = y if groups == 1 else swap_channel_order(y, groups, 4)
    parts = [components(component) for component in y.unflatten(0, (4, -1)).unbind(0)]
    return _sum_of_products(parts, None if bias is None else bias.view(*bias.shape, *[1] * (x.dim() - 2)), 1)


def stacked_linear(x: Float[Tensor, "... n"], weight: Float[Tensor, "4 out in"], bias: Tensor | None) -> Tensor:
    """The stacked form of a linear map of the last axis."""
    stacked = torch.stack(x.unflatten(-1, (4, -1)).unbind(-2))
    products = F.linear(stacked, weight.flatten(0, 1)).unflatten(-1, (4, -1))
    return _sum_of_products([component.unbind(-2) for component in products.unbind(0)], bias, -1)
