r"""Eight real products per quaternion product: the Hadamard form.

With :math:`H` the 4x4 Walsh-Hadamard matrix and :math:`c = a \otimes b`

.. math:: f_m c_m = \tfrac14 [H (Ha \circ Hb)]_m - 2\, a_{p(m)} b_{q(m)}, \qquad f = (-1, 1, 1, 1),

which is two real operations with four groups each and a few additions (docs/math.md derives it).
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from quern.algebra import UNIT_SIGN
from quern.functional.autograd import gradients_of, needs_gradients_by_autograd, needs_plain
from quern.functional.products import Geometry, components


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


def _combine(first: Tensor, second: Tensor, out: Tensor) -> None:
    """``out_m = f_m (H first)_m + second_q``; overwrites ``first``."""
    _walsh_into(first, torch.empty_like(first), first)
    total, correction, target = components(first), components(second), components(out)
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
    out, parts = torch.empty_like(g), components(g)
    for m, target in zip(TARGET, components(out), strict=True):
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
    total = components(walsh(geometry.apply(walsh(x, 1), first, None, groups), 1))
    correction = components(geometry.apply(x, second, bias, groups))
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
