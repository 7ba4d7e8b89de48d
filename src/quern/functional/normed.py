r"""Convolutions between batch normalisations while training, as in depthwise + pointwise networks.

With :math:`a(z) = \mathrm{ReLU}(\gamma (z - \mu)/\sqrt{\sigma^2 + \varepsilon} + \beta)`, or without the ReLU, each
step is :math:`z_k = w_k \star a_{k-1}(z_{k-1}) + b_k`. Such convolutions have few products for each number, and most
of the time goes into taking numbers through memory. In C (``native/normed.c``, float32, channels-last) a step reads
:math:`z_{k-1}` and writes :math:`z_k`; normalisation and ReLU happen on the way, the sums for the next normalisation
too. Nothing but the :math:`z_k` is kept. The way back reads :math:`z_{k-1}, z_k` and the gradient of
:math:`a_k(z_k)`, and writes that of :math:`a_{k-1}(z_{k-1})`, both gradients of the convolution and of the
normalisations included.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quern.functional import native
from quern.functional.autograd import gradients_of, needs_gradients_by_autograd, needs_plain
from quern.functional.native import batch_norm as native_batch_norm
from quern.functional.norms import batch_norm_plain
from quern.functional.products import Geometry, block_convolution, block_weight

Kind = Literal["pointwise", "split", "quaternion"]
KINDS: tuple[Kind, ...] = ("pointwise", "split", "quaternion")  # numbers of C

SIDE = 3  # of the kernel of a depthwise convolution
LARGEST_WEIGHT = 1 << 15  # numbers of a pointwise weight: with larger ones products take longer than memory
PIECES = 16  # of images or rows: more than threads, and each long enough
NUMBERS_OF_A_THREAD = 1 << 15  # fewer are done before another thread has begun


class Convolution(NamedTuple):
    """With the parameter ``(4, out, in, 1, 1)`` if it is "pointwise", else ``(4, n, 1, 3, 3)``, of each component by
    itself ("split") or of quaternions."""

    kind: Kind
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)

    def target(self, height: int, width: int) -> tuple[int, int]:
        side, (down, right), (above, left) = 1 if self.kind == "pointwise" else SIDE, self.stride, self.padding
        return (height + 2 * above - side) // down + 1, (width + 2 * left - side) // right + 1


class Normalisation(NamedTuple):
    """Of the batch, with the ReLU behind it."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    relu: bool


class Chain(NamedTuple):
    """What there is besides tensors."""

    kinds: tuple[Kind, ...]
    geometries: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # stride and padding
    eps: tuple[float, ...]  # of all normalisations
    relu: tuple[bool, ...]
    first: bool  # whether there is one before the first convolution


Stages = Sequence[tuple[Convolution, Normalisation]]
Statistics = list[tuple[Tensor, Tensor]]


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether these are tensors that the kernels take, with nobody watching but eager autograd."""
    return all(t is None or native_batch_norm.is_plain(t) for t in tensors) and not needs_plain(*tensors)


def can_take(x: Tensor) -> bool:
    """Whether these are images that the kernels take, and those are here."""
    return x.dim() == 4 and x.numel() > 0 and native_batch_norm.can_take(x, None, None) and not needs_plain(x)


def can_convolve(convolution: Convolution) -> bool:
    """Whether there is a kernel for this convolution, between normalisations."""
    _, weight, bias, stride, padding = convolution
    if not is_plain(weight, bias):
        return False
    if convolution.kind == "pointwise":
        return (
            (stride, padding) == ((1, 1), (0, 0))
            and weight.shape[3:] == (1, 1)
            and 4 * weight.numel() <= LARGEST_WEIGHT
        )
    return weight.shape[2:] == (1, SIDE, SIDE) and max(padding) < SIDE


def can_normalise(normalisation: Normalisation) -> bool:
    return is_plain(normalisation.weight, normalisation.bias)


def normed_convolutions(
    x: Tensor, first: Normalisation | None, stages: Stages, added: Tensor | None, relu: bool
) -> tuple[Tensor, Statistics]:
    """``x`` through normalisations and convolutions in turn, plus what is ``added``, through a ``relu``; and mean
    ``(4, n)`` and variance ``(n,)`` of every normalisation. Without an addition the last one's own ReLU is meant."""
    norms = [norm for norm in (first, *(norm for _, norm in stages)) if norm is not None]
    chain = Chain(
        tuple(convolution.kind for convolution, _ in stages),
        tuple((convolution.stride, convolution.padding) for convolution, _ in stages),
        tuple(norm.eps for norm in norms),
        (*(norm.relu for norm in norms[:-1]), relu),
        first is not None,
    )
    tensors: list[Tensor | None] = [] if first is None else [first.weight, first.bias]
    for convolution, norm in stages:
        weight = block_weight(convolution.weight) if convolution.kind == "pointwise" else convolution.weight
        tensors += [weight, convolution.bias, norm.weight, norm.bias]
    y, *statistics = _NormedConvolutions.apply(chain, x, added, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
    return y, list(zip(statistics[::2], statistics[1::2], strict=True))


def _parameters(chain: Chain, tensors: Sequence[Any]) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """Weight and bias of the convolutions, and of the normalisations."""
    lead = 2 if chain.first else 0
    pairs = list(zip(tensors[lead::2], tensors[lead + 1 :: 2], strict=True))
    return pairs[::2], [*([(tensors[0], tensors[1])] if lead else []), *pairs[1::2]]


def _plain(chain: Chain, x: Tensor, added: Tensor | None, *tensors: Tensor | None) -> Tensor:
    """The same by ordinary differentiable operations."""
    convolutions, norms = _parameters(chain, tensors)
    norms, ends = list(zip(norms, chain.eps, chain.relu, strict=True)), len(norms) - 1

    def normalised(x: Tensor, n: int) -> Tensor:
        (weight, bias), eps, relu = norms[n]
        y = batch_norm_plain(x, weight, bias, eps)[0]
        y = y if added is None or n < ends else y + added
        return F.relu(y) if relu else y

    x = normalised(x, 0) if chain.first else x
    for n, (kind, (stride, padding), (weight, bias)) in enumerate(
        zip(chain.kinds, chain.geometries, convolutions, strict=True)
    ):
        flat = None if bias is None else bias.flatten()
        if kind == "quaternion":
            geometry = Geometry(stride, padding, (1, 1), weight.shape[1])
            x = block_convolution(x, block_weight(weight, groups=geometry.groups), flat, geometry)
        elif kind == "split":
            x = F.conv2d(x, weight.flatten(0, 1), flat, stride, padding, groups=x.shape[1])
        else:
            x = F.conv2d(x, weight, flat)
        x = normalised(x, n + chain.first)
    return x


def _as_taps(weight: Tensor, kind: Kind) -> Tensor:
    """A weight as C reads it."""
    return weight.reshape(weight.shape[:2]) if kind == "pointwise" else weight.permute(3, 4, 0, 1, 2).contiguous()


def _described(chain: Chain, n: int, x: Tensor, out: int) -> tuple[native.Normed, tuple[int, int]]:
    """A convolution for C, without its normalisations, and the size of its result."""
    images, inner, height, width = x.shape
    convolution = Convolution(chain.kinds[n], x, None, *chain.geometries[n])
    target = convolution.target(height, width)
    numbers = images * (inner * height * width + out * target[0] * target[1])
    threads = max(1, min(torch.get_num_threads(), numbers // NUMBERS_OF_A_THREAD))
    sizes = (images, inner, out, (height, width), target, convolution.stride, convolution.padding)
    return native.Normed(*sizes, KINDS.index(convolution.kind), PIECES, threads), target


def _norm(mean: Tensor, var: Tensor, pair: tuple[Tensor | None, Tensor | None], eps: float, relu: bool) -> native.Norm:
    return native.Norm(*(None if t is None else t.data_ptr() for t in (mean, var, *pair)), None, None, eps, relu)


def _contiguous(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [tuple(None if t is None else t.contiguous() for t in pair) for pair in pairs]  # pyright: ignore


class _NormedConvolutions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, x: Tensor, added: Tensor | None, *tensors: Tensor | None) -> Any:
        convolutions, norms = _parameters(chain, tensors)
        norms = _contiguous(norms)
        statistics = [native_batch_norm.statistics(x)] if chain.first else []
        written, numbers = [], x
        for n, (kind, (weight, bias)) in enumerate(zip(chain.kinds, convolutions, strict=True)):
            out = weight.shape[0] if kind == "pointwise" else x.shape[1]
            convolution, target = _described(chain, n, x, out)
            before = n - 1 + chain.first
            if before >= 0:
                given = *statistics[before], norms[before], chain.eps[before], chain.relu[before]
                convolution.before = _norm(*given)
            z = torch.empty((x.shape[0], out, *target), memory_format=torch.channels_last)
            mean, var = torch.empty(4, out // 4), torch.empty(out // 4)
            scratch = torch.empty(native.ask("quern_normed_scratch", convolution, 0))
            taps, flat = _as_taps(weight, kind), None if bias is None else bias.flatten()
            native.run("quern_normed_forward", convolution, x, taps, flat, z, mean, var, scratch)
            statistics.append((mean, var))
            written.append(z)
            x = z
        y = native_batch_norm.apply(x, *norms[-1], added, *statistics[-1], chain.eps[-1], chain.relu[-1])
        flat_statistics = [t for pair in statistics for t in pair]
        # Without an addition, where the last ReLU gave 0 is told from what was normalised.
        kept = y if added is not None and chain.relu[-1] else None
        ctx.save_for_backward(numbers, added, *tensors, *written, *flat_statistics, kept)
        ctx.chain, ctx.count = chain, len(tensors)
        ctx.mark_non_differentiable(*flat_statistics)
        return y, *flat_statistics

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        chain: Chain = ctx.chain
        grad, (x, added, *saved) = grads[0], ctx.saved_tensors
        tensors, saved, y = saved[: ctx.count], saved[ctx.count : -1], saved[-1]
        if needs_gradients_by_autograd(grad):

            def plain(*inputs: Tensor | None) -> Tensor:
                return _plain(chain, *inputs)  # pyright: ignore[reportArgumentType]

            return None, *gradients_of(plain, (x, added, *tensors), ctx.needs_input_grad[1:], grad)
        convolutions, norms = _parameters(chain, tensors)
        norms, steps = _contiguous(norms), len(chain.kinds)
        read, flat = [x, *saved[:steps]], saved[steps:]
        statistics = list(zip(flat[::2], flat[1::2], strict=True))
        relu = chain.relu[-1] and y is None  # whether the gradient is not masked yet
        given = read[-1], *norms[-1], *statistics[-1]
        along, total, grad = native_batch_norm.sums(grad, *given, y, chain.eps[-1], chain.relu[-1])
        grad_added = grad if added is not None else None
        of_norms, of_convolutions = [(along, total)], []
        for n in reversed(range(steps)):
            x, z, after = read[n], read[n + 1], n + chain.first
            (weight, bias), kind = convolutions[n], chain.kinds[n]
            convolution, _ = _described(chain, n, x, z.shape[1])
            convolution.after = _norm(*statistics[after], norms[after], chain.eps[after], relu)
            convolution.after.along, convolution.after.total = (t.data_ptr() for t in of_norms[-1])
            if after:
                given = *statistics[after - 1], norms[after - 1], chain.eps[after - 1], chain.relu[after - 1]
                convolution.before = _norm(*given)
                mean, var = statistics[after - 1]
                of_norms.append((torch.empty_like(var), torch.empty_like(mean)))
                convolution.before.along, convolution.before.total = (t.data_ptr() for t in of_norms[-1])
            taps, grad_x = _as_taps(weight, kind), torch.empty_like(x)
            of_weight = torch.empty(taps.shape)
            scratch = torch.empty(native.ask("quern_normed_scratch", convolution, 1))
            native.run("quern_normed_backward", convolution, x, z, grad, taps, grad_x, of_weight, scratch)
            of_weight = of_weight.view_as(weight) if kind == "pointwise" else of_weight.permute(2, 3, 4, 0, 1)
            # What a bias adds, the normalisation behind it takes away.
            of_convolutions.append((of_weight, None if bias is None else torch.zeros_like(bias)))
            grad, relu = grad_x, False
        if chain.first:
            grad = native_batch_norm.gradient(grad, x, *norms[0], *statistics[0], *of_norms[-1], chain.eps[0], False)
        result: list[Tensor | None] = []
        for n, pair in enumerate(reversed(of_norms)):
            if n or not chain.first:
                result += of_convolutions[-1 - (n - chain.first)]
            (weight, bias), (along, total) = norms[n], pair
            result += [None if weight is None else along, None if bias is None else total]
        return None, grad, grad_added, *result
