r"""Three ways to multiply by a quaternion weight with real arithmetic, and the choice between them.

*Block form*: expand every weight to its 4x4 real matrix and call one real operation, 16 real products per quaternion
product. *Hadamard form*: 8 real products. With :math:`H` the 4x4 Walsh-Hadamard matrix and :math:`c = a \otimes b`

.. math:: f_m c_m = \tfrac14 [H (Ha \circ Hb)]_m - 2\, a_{p(m)} b_{q(m)}, \qquad f = (-1, 1, 1, 1),

which is two real operations with four groups each and a few additions (docs/math.md derives it). *Stacked form*: the
parameter itself is the weight of one real operation on the four components of the input, stacked in the batch; their 16
products are added up with their signs afterwards, so no weight is expanded. All are equal up to rounding. A weight is
``(4, out, in/groups, *kernel)``, an activation ``(batch, 4*channels, *space)``, component-major.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from quern.algebra import UNIT_SIGN, UNITS
from quern.functional.autograd import gradients_of, needs_gradients_by_autograd, needs_plain
from quern.functional.shapes import swap_channel_order

Form = Literal["block", "hadamard", "stacked", "winograd", "depthwise"]


def _signed_terms() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The signs f_m, and for each input component q the component p(q) of the weight in the product to subtract.

    Row m of the sign table must have one minus sign for the identity above; f_m makes it so. Where that minus stands is
    the product that the all-plus convolution H(Ha o Hb)/4 counts with the wrong sign.
    """
    flips, partner = [], [0, 0, 0, 0]
    for m in range(4):
        signs = [UNIT_SIGN[p][p ^ m] for p in range(4)]
        flip = 1 if signs.count(-1) == 1 else -1
        p = [flip * s for s in signs].index(-1)
        partner[p ^ m] = p
        flips.append(flip)
    return tuple(flips), tuple(partner)


# The product of input component q and weight component PARTNER[q] belongs to output component TARGET[q].
FLIP, PARTNER = _signed_terms()
TARGET = tuple(p ^ q for q, p in enumerate(PARTNER))

# One slice of the batch, input and output together, should stay in the cache between the additions and the products,
# and its scratch memory should be small enough for the allocator to hand out again without new pages.
SLICE_BYTES = 4 << 20


@dataclass(frozen=True)
class Geometry:
    """What a real convolution needs to know besides its operands; one entry per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)

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
    in_vectors = narrow >= 16 or (narrow >= 8 and channels_in * channels_out >= 128 and whole)
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
        blocks = signed[pick]
    blocks = blocks.reshape(len(columns), 4, groups, out // groups, inner, *kernel)
    order = (2, 0, 4, 1, 3) if transposed else (2, 1, 3, 0, 4)
    real = blocks.permute(*order, *range(5, blocks.dim()))
    rows = groups * len(columns) * inner if transposed else 4 * out
    return real.reshape(rows, -1, *kernel).contiguous(memory_format=layout)


def hadamard_weights(
    weight: Float[Tensor, "4 out in ..."],
    groups: int = 1,
    transposed: bool = False,
    layout: torch.memory_format = torch.contiguous_format,
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""The weights of the two real operations with ``4 * groups`` groups: :math:`\frac14 Hw` and :math:`-2 f w_p`."""
    first = walsh(weight, 0) * 0.25
    parts = weight.unbind(0)
    second = torch.stack([parts[p] * (-2 * FLIP[m]) for p, m in zip(PARTNER, TARGET, strict=True)])
    if transposed:
        first, second = (w.unflatten(1, (groups, -1)).transpose(2, 3).flatten(0, 1) for w in (first, second))
    first, second = (w.flatten(0, 1).contiguous(memory_format=layout) for w in (first, second))
    return first, second


def hadamard_bias(bias: Tensor | None) -> Tensor | None:
    """The bias ``(4, out)`` in the order in which the second operation's groups leave it."""
    return None if bias is None else torch.cat([bias[m] for m in TARGET])


# ------------------------------------------------------------------------------------------------------ arithmetic


def walsh(x: Tensor, dim: int) -> Tensor:
    """H applied along ``dim``, whose size is 4 times anything (component-major): eight additions."""
    r, i, j, k = x.unflatten(dim, (4, -1)).unbind(dim)
    a, b, c, d = r + i, r - i, j + k, j - k
    return torch.cat([a + c, b + d, a - c, b - d], dim)


def _halves(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, 2, -1))


def _walsh_into(x: Tensor, scratch: Tensor, out: Tensor) -> None:
    """``out = H x`` along the channels, in two butterfly stages; ``out`` may be ``x``."""
    v, s, o = _halves(x), _halves(scratch), _halves(out)
    torch.add(v[:, :, 0], v[:, :, 1], out=s[:, :, 0])
    torch.sub(v[:, :, 0], v[:, :, 1], out=s[:, :, 1])
    torch.add(s[:, 0], s[:, 1], out=o[:, 0])
    torch.sub(s[:, 0], s[:, 1], out=o[:, 1])


def _components(x: Tensor) -> tuple[Tensor, ...]:
    return x.unflatten(1, (4, -1)).unbind(1)


def _combine(first: Tensor, second: Tensor, out: Tensor) -> None:
    """``out_m = f_m (H first)_m + second_q``; overwrites ``first``."""
    _walsh_into(first, torch.empty_like(first), first)
    total, correction, target = _components(first), _components(second), _components(out)
    for q, m in enumerate(TARGET):
        torch.add(correction[q], total[m], alpha=FLIP[m], out=target[m])


def _empty_batch(like: Tensor, batch: int) -> Tensor:
    """An uninitialised tensor of another batch size in the memory layout of ``like``.

    Not a view of anything: autograd forbids in-place activations on a view that a custom function returns.
    """
    strides = (math.prod(like.shape[1:]), *like.stride()[1:])
    return torch.empty_strided((batch, *like.shape[1:]), strides, dtype=like.dtype, device=like.device)


def _hadamard_slices(x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The Hadamard form a slice of the batch at a time."""
    groups = 4 * geometry.groups
    step, out = _slice_length(x, first, geometry), None
    for start in range(0, max(1, x.shape[0]), step):
        part = x[start : start + step]
        y = geometry.apply(_walsh_of(part), first, None, groups)
        z = geometry.apply(part, second, bias, groups)
        if out is None:
            out = y if x.shape[0] <= step else _empty_batch(y, x.shape[0])
        _combine(y, z, out[start : start + step])
        del y, z  # before the next slice asks for as much again
    assert out is not None
    return out


def _walsh_of(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _walsh_into(x, torch.empty_like(x), out)
    return out


def _slice_length(x: Tensor, weight: Tensor, geometry: Geometry) -> int:
    """How many samples to take at a time: slices of equal length near SLICE_BYTES, input and output together."""
    positions = math.prod(geometry.stride) ** (1 if geometry.transposed else -1)
    channels_out = weight.shape[1] * 4 * geometry.groups if geometry.transposed else weight.shape[0]
    per_sample = x[:1].numel() * (1 + channels_out / x.shape[1] * positions) * x.element_size()
    slices = math.ceil(x.shape[0] * per_sample / SLICE_BYTES)
    return max(1, math.ceil(x.shape[0] / max(1, slices)))


def _flipped_walsh(g: Tensor) -> Tensor:
    """``H (f o g)``: the gradient of the output, seen by the first operation."""
    flip = g.new_tensor(FLIP).view(4, *[1] * (g.dim() - 1))
    out = torch.empty_like(g)
    torch.mul(g.unflatten(1, (4, -1)), flip, out=out.unflatten(1, (4, -1)))
    _walsh_into(out, torch.empty_like(g), out)
    return out


def _in_group_order(g: Tensor) -> Tensor:
    """The gradient of the output in the order of the second operation's groups."""
    out, parts = torch.empty_like(g), _components(g)
    for m, target in zip(TARGET, _components(out), strict=True):
        target.copy_(parts[m])
    return out


class _HadamardConvolution(torch.autograd.Function):
    """The sliced Hadamard form with a sliced backward: nothing but its inputs is kept for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, first, second, bias)
        ctx.geometry = geometry
        return _hadamard_slices(x, first, second, bias, geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, first, second, _ = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        need_x, need_first, need_second, need_bias, _ = ctx.needs_input_grad
        if needs_gradients_by_autograd(grad):

            def plain(x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
                return hadamard_convolution_plain(x, first, second, bias, geometry)

            return *gradients_of(plain, ctx.saved_tensors, ctx.needs_input_grad[:4], grad), None

        grad_x = torch.empty_like(x) if need_x else None
        grad_first = grad_second = None
        step = _slice_length(x, first, geometry)
        for start in range(0, max(1, x.shape[0]), step):
            part, g = x[start : start + step], grad[start : start + step]
            groups = 4 * geometry.groups
            x1, w1, _ = geometry.backward(_flipped_walsh(g), _walsh_of(part), first, groups, [need_x, need_first])
            x2, w2, _ = geometry.backward(_in_group_order(g), part, second, groups, [need_x, need_second])
            if grad_x is not None:
                _walsh_into(x1, torch.empty_like(x1), x1)
                torch.add(x1, x2, out=grad_x[start : start + step])
            grad_first = w1 if grad_first is None else grad_first.add_(w1)
            grad_second = w2 if grad_second is None else grad_second.add_(w2)
            del x1, x2, w1, w2  # before the next slice asks for as much again
        grad_bias = None
        if need_bias:
            sums = grad.sum([0, *range(2, grad.dim())]).view(4, -1)
            grad_bias = torch.cat([sums[m] for m in TARGET])
        return grad_x, grad_first, grad_second, grad_bias, None


def hadamard_convolution_plain(
    x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    """The Hadamard form as ordinary differentiable operations: for compilers, function transforms and derivatives."""
    groups = 4 * geometry.groups
    total = _components(walsh(geometry.apply(walsh(x, 1), first, None, groups), 1))
    correction = _components(geometry.apply(x, second, bias, groups))
    return torch.cat([correction[TARGET.index(m)] + FLIP[m] * total[m] for m in range(4)], 1)


def hadamard_convolution(
    x: Tensor, weights: tuple[Tensor, Tensor], bias: Tensor | None, geometry: Geometry
) -> Float[Tensor, "..."]:
    """``W (x) x + b`` from :func:`hadamard_weights`, with 8 real products per quaternion product."""
    first, second = weights
    bias = hadamard_bias(bias)
    if needs_plain(x, first, second, bias):
        return hadamard_convolution_plain(x, first, second, bias, geometry)
    return _HadamardConvolution.apply(x, first, second, bias, geometry)  # pyright: ignore[reportReturnType]


def block_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, input_parts: str = UNITS
) -> Float[Tensor, "..."]:
    """``W (x) x + b`` from :func:`block_weight`, with one real convolution."""
    flat = None if bias is None else bias.flatten()
    if geometry.groups == 1:
        return geometry.apply(x, weight, flat, 1)
    # A real grouped convolution wants the channels of a group side by side: group-major in, component-major out again.
    x = swap_channel_order(x, len(input_parts), geometry.groups)
    y = swap_channel_order(geometry.apply(x, weight, None, geometry.groups), geometry.groups, 4)
    return y if flat is None else y + flat.view(-1, *[1] * (y.dim() - 2))


def hadamard_linear(x: Float[Tensor, "... n"], weights: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
    """The Hadamard form of a linear map of the last axis: two batched matrix products, batched over the components."""
    first, second = (w.unflatten(0, (4, -1)).mT for w in weights)
    rows = x.reshape(math.prod(x.shape[:-1]), 4, x.shape[-1] // 4).transpose(0, 1)
    total = walsh(torch.bmm(walsh(rows, 0), first), 0)
    flat = hadamard_bias(bias)
    start = rows.new_zeros(()) if flat is None else flat.view(4, 1, -1)
    correction = torch.baddbmm(start, rows, second)
    parts = [correction[TARGET.index(m)] + FLIP[m] * total[m] for m in range(4)]
    return torch.cat(parts, -1).view(*x.shape[:-1], 4 * first.shape[-1])


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
    y = geometry.apply(torch.cat(_components(x)), real, None, groups)
    y = y if groups == 1 else swap_channel_order(y, groups, 4)
    parts = [_components(component) for component in y.unflatten(0, (4, -1)).unbind(0)]
    return _sum_of_products(parts, None if bias is None else bias.view(*bias.shape, *[1] * (x.dim() - 2)), 1)


def stacked_linear(x: Float[Tensor, "... n"], weight: Float[Tensor, "4 out in"], bias: Tensor | None) -> Tensor:
    """The stacked form of a linear map of the last axis."""
    stacked = torch.stack(x.unflatten(-1, (4, -1)).unbind(-2))
    products = F.linear(stacked, weight.flatten(0, 1)).unflatten(-1, (4, -1))
    return _sum_of_products([component.unbind(-2) for component in products.unbind(0)], bias, -1)
