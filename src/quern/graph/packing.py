"""Networks for the C runtime: what operations become there.

A value is a :class:`Packed`: some axes of a buffer, as torch's own strides describe them, with the batch as one axis of
an impossible stride. The runtime takes one sample at a time, so the batch is in none of its operations; an operation
that mixes it with other axes is refused. Moving axes costs nothing until somebody needs the numbers in order.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as TF
from torch import Tensor

from quern.errors import ExportError

BATCH = 1 << 40  # the stride of the batch
_EXAMPLES = 2  # its size, so that it is not taken for an axis that can be left out

Binary = Literal["ADD", "SUB", "MUL", "DIV"]


@dataclass(frozen=True)
class Packed:
    """``view`` is a tensor without memory: its shape, strides and offset are those of the value in ``buffer``."""

    buffer: Any
    view: Tensor

    @property
    def batch(self) -> int | None:
        """The axis of the batch; None of a value that is the same for all samples."""
        return next((n for n, stride in enumerate(self.view.stride()) if stride == BATCH), None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Without the batch."""
        return tuple(size for size, stride in zip(self.view.shape, self.view.stride(), strict=True) if stride != BATCH)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(stride for stride in self.view.stride() if stride != BATCH)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def moved(self, move: Callable[[Tensor], Any]) -> Any:
        """The value after an operation that moves axes and numbers, and makes none."""
        made = move(self.view)
        if isinstance(made, (tuple, list)):
            return tuple(self._after(view) for view in made)
        return self._after(made)

    def _after(self, view: Tensor) -> "Packed":
        value = Packed(self.buffer, view)
        whole = value.batch is not None and view.shape[value.batch] == _EXAMPLES
        if self.batch is not None and not whole:
            raise ExportError("it takes some samples of a batch, but a packed network takes one at a time.")
        return value


def strided(shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Tensor:
    """A tensor without memory."""
    return torch.empty_strided(tuple(shape), tuple(strides), device="meta").as_strided(shape, strides, offset)


def in_order(shape: Sequence[int], batch: int | None = 0) -> Tensor:
    """The view of a new buffer ``shape`` with the batch at an axis."""
    strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    sizes = list(shape)
    if batch is not None:
        sizes.insert(batch, _EXAMPLES)
        strides.insert(batch, BATCH)
    return strided(sizes, strides)


@runtime_checkable
class Packer(Protocol):
    """Operations of the runtime in the making. What it returns are values too. ``name`` is that of the layer."""

    def constant(self, numbers: Tensor) -> Packed:
        """Numbers that belong to the network."""
        ...

    def contiguous(self, x: Packed, batch: int = 0) -> Packed:
        """The same numbers in the order of their axes, the batch first."""
        ...

    def fill(self, shape: Sequence[int], number: float) -> Packed: ...

    def copy(self, x: Packed, to: Packed) -> None:
        """Put ``x`` in the place of ``to``, a part of a value that was made by :meth:`fill`."""

    def unary(self, kind: str, x: Packed, a: float = 0.0, b: float = 0.0) -> Packed:
        """``kind`` is a name among the activations of ``quern_rt.h``."""
        ...

    def binary(self, kind: Binary, a: Packed, b: Packed) -> Packed: ...

    def reduce(self, kind: Literal["SUM", "MAX", "MIN"], x: Packed, dims: Sequence[int], keepdim: bool) -> Packed: ...

    def matmul(self, a: Packed, b: Packed) -> Packed: ...

    def argmax(self, x: Packed, dim: int, keepdim: bool) -> Packed: ...

    def pool(self, kind: Literal["MAX", "MEAN", "MODULUS"], x: Packed, **sizes: Any) -> Packed:
        """Over the last two axes of ``(batch, channels, height, width)``: ``out``, ``kernel``, ``stride``, ``padding``,
        ``dilation``, ``divisor`` as ``quern_rt.h`` has them."""
        ...

    def resize(self, x: Packed, out: Sequence[int], scale: Sequence[float], corners: bool) -> Packed: ...

    def conv(
        self,
        name: str,
        x: Packed,
        weight: Tensor,
        bias: Tensor | None,
        constant: Tensor | None,
        *,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        stuffing: Sequence[int],
        groups: int,
        parts: int,
    ) -> Packed:
        """``weight (components, out, in/groups, height, width)`` on ``x (batch, channels, height, width)``; ``padding``
        is top, left, bottom, right; ``parts`` has a bit for each component that the input has."""
        ...

    def linear(self, name: str, x: Packed, weight: Tensor, bias: Tensor | None, parts: int) -> Packed:
        """``weight (components, out, in)`` on the last axis."""
        ...

    def recurrent(
        self,
        name: str,
        kind: str,
        x: Packed,
        weight: Tensor,
        bias: Tensor,
        states: Sequence[Packed | None],
        reverse: bool,
    ) -> tuple[Packed, list[Packed]]:
        """What the gates get from the input, ``(batch, steps, gates)``, and the weight from state to gates, to the
        states of all steps and the last ones; those to begin with are zero where they are None."""
        ...

    def embed(self, name: str, x: Packed, table: Tensor) -> Packed: ...


# ------------------------------------------------------------------------------------------------ values, rearranged


def reshape(packer: Packer, x: Packed, shape: Sequence[int]) -> Packed:
    """``shape`` has the batch, which must stay an axis of its own."""
    for value in (x, None):
        value = packer.contiguous(x) if value is None else value
        try:
            moved = value.moved(lambda t: t.view(tuple(shape)))
        except RuntimeError:
            continue
        if (moved.batch is None) == (x.batch is None):
            return moved
    raise ExportError("an operation mixes the samples of a batch, but a packed network takes one at a time.")


def cat(packer: Packer, parts: Sequence[Packed], dim: int = 0) -> Packed:
    like = next((part for part in parts if part.batch is not None), parts[0])
    dim %= like.view.dim()
    if dim == like.batch:
        raise ExportError("an operation joins batches, but a packed network takes one sample at a time.")
    sizes = list(like.view.shape)
    sizes[dim] = sum(part.view.shape[dim] for part in parts)
    samples = [size for n, size in enumerate(sizes) if n != like.batch]
    whole = packer.fill(samples, math.nan)
    whole = Packed(whole.buffer, in_order(samples, like.batch))
    start = 0
    for part in parts:
        size = part.view.shape[dim]
        packer.copy(part, _narrow(whole, dim, start, size))
        start += size
    return whole


def pad(packer: Packer, x: Packed, sides: Sequence[int], mode: str = "constant", value: float | None = None) -> Packed:
    """As ``torch.nn.functional.pad``: sides of the last axis first, near and far."""
    for n in range(len(sides) // 2):
        x = _pad_axis(packer, x, x.view.dim() - 1 - n, sides[2 * n], sides[2 * n + 1], mode, value or 0.0)
    return x


# Which place inside stands for one outside, of an axis of a size.
_BORDERS: dict[str, Callable[[int, int], int]] = {
    "reflect": lambda place, size: size - 1 - abs(size - 1 - abs(place)),
    "replicate": lambda place, size: min(max(place, 0), size - 1),
    "circular": lambda place, size: place % size,
}


def _pad_axis(packer: Packer, x: Packed, dim: int, near: int, far: int, mode: str, value: float) -> Packed:
    size = x.view.shape[dim]
    if dim == x.batch or near < -size or far < -size:
        raise ExportError("an operation pads the batch, or takes away more than there is.")
    x = _narrow(x, dim, max(-near, 0), size - max(-near, 0) - max(-far, 0))
    near, far, size = max(near, 0), max(far, 0), x.view.shape[dim]
    if near == far == 0:
        return x
    if mode == "constant":
        number = packer.constant(torch.full((1,) * x.view.dim(), float(value)))

        def border(width: int) -> list[Packed]:
            shape = [width if n == dim else one for n, one in enumerate(x.view.shape)]
            return [number.moved(lambda t: t.expand(shape))] if width else []

        return cat(packer, [*border(near), x, *border(far)], dim)
    if mode not in _BORDERS:
        raise ExportError(f"padding of mode {mode} cannot be packed.")

    def columns(places: range) -> list[Packed]:
        return [_narrow(x, dim, _BORDERS[mode](place, size), 1) for place in places]

    return cat(packer, [*columns(range(-near, 0)), x, *columns(range(size, size + far))], dim)


def _narrow(x: Packed, dim: int, start: int, size: int) -> Packed:
    return x.moved(lambda t: t.narrow(dim, start, size))


# ---------------------------------------------------------------------------------------------------- torch's functions


def _mean(packer: Packer, x: Packed, dim: Any = None, keepdim: bool = False, **_: Any) -> Packed:
    dims = _dims(x, dim)
    total = packer.reduce("SUM", x, dims, keepdim)
    return packer.unary("AFFINE", total, 1 / math.prod(x.view.shape[n] for n in dims))


def _dims(x: Packed, dim: Any) -> tuple[int, ...]:
    every = tuple(n for n in range(x.view.dim()) if n != x.batch)
    dims = every if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(n % x.view.dim() for n in dims)


def _reduce(kind: Literal["SUM", "MAX", "MIN"]) -> Callable[..., Packed]:
    return lambda packer, x, dim=None, keepdim=False, **_: packer.reduce(kind, x, _dims(x, dim), keepdim)


def _softmax(packer: Packer, x: Packed, dim: int = -1, log: bool = False, **_: Any) -> Packed:
    peak = packer.reduce("MAX", x, _dims(x, dim), True)
    shifted = packer.binary("SUB", x, peak)
    powers = packer.unary("EXP", shifted)
    total = packer.reduce("SUM", powers, _dims(x, dim), True)
    if log:
        return packer.binary("SUB", shifted, packer.unary("LOG", total))
    return packer.binary("DIV", powers, total)


def _norm(packer: Packer, x: Packed, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Packed:
    if ord != 2:
        raise ExportError(f"a norm of order {ord} cannot be packed: only that of order 2.")
    return packer.unary("SQRT", packer.reduce("SUM", packer.binary("MUL", x, x), _dims(x, dim), keepdim))


def number_or_value(packer: Packer, x: Any) -> Packed:
    return x if isinstance(x, Packed) else packer.constant(torch.as_tensor(x, dtype=torch.float32))


def _join(kind: Binary) -> Callable[..., Packed]:
    def pack(packer: Packer, a: Any, b: Any, alpha: float = 1, **_: Any) -> Packed:
        a, b = (number_or_value(packer, side) for side in (a, b))
        if alpha != 1:
            b = packer.unary("AFFINE", b, float(alpha))
        return packer.binary(kind, a, b)

    return pack


def activation(kind: str, **defaults: float) -> Callable[..., Packed]:
    """An activation with up to two numbers, in the order of ``defaults``."""

    def pack(packer: Packer, x: Packed, *args: float, inplace: bool = False, **options: float) -> Packed:  # noqa: ARG001
        numbers = defaults | dict(zip(defaults, args, strict=False)) | options
        return packer.unary(kind, x, *(float(numbers[name]) for name in defaults))

    return pack


def gelu(packer: Packer, x: Packed, approximate: str = "none") -> Packed:
    return packer.unary("GELU_TANH" if approximate == "tanh" else "GELU", x)


def _same(_: Packer, x: Packed, *args: Any, **kwargs: Any) -> Packed:  # noqa: ARG001
    return x


def _moved(function: Any) -> Callable[..., Any]:
    call = getattr(Tensor, function) if isinstance(function, str) else function
    return lambda _, x, *args, **kwargs: x.moved(lambda t: call(t, *args, **kwargs))


def _cat(packer: Packer, tensors: Sequence[Packed], dim: int = 0, **_: Any) -> Packed:
    return cat(packer, tensors, dim)


def _chunk(_: Packer, x: Packed, chunks: int, dim: int = 0) -> Any:
    return x.moved(lambda t: t.chunk(chunks, dim))


def _split(_: Packer, x: Packed, split_size_or_sections: Any, dim: int = 0) -> Any:
    return x.moved(lambda t: t.split(split_size_or_sections, dim))


def _argmax(packer: Packer, x: Packed, dim: int | None = None, keepdim: bool = False) -> Packed:
    if dim is None:
        raise ExportError("argmax over everything cannot be packed: name the axis.")
    return packer.argmax(x, dim, keepdim)


def _matmul(packer: Packer, a: Packed, b: Packed) -> Packed:
    return packer.matmul(a, b)


def interpolate(
    packer: Packer,
    x: Packed,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,  # noqa: ARG001
    antialias: bool = False,
) -> Packed:
    """Images twice as large and so on: whole numbers for ``nearest``, any for ``bilinear``."""
    if x.view.dim() == 3 and mode in ("nearest", "linear"):  # a sequence is an image of one row
        times = scale_factor if isinstance(scale_factor, (int, float)) or scale_factor is None else scale_factor[0]
        out = size if isinstance(size, int) or size is None else size[0]
        row, mode = x.moved(lambda t: t.unsqueeze(2)), {"linear": "bilinear"}.get(mode, mode)
        sizes: dict[str, Any] = {"scale_factor": (1, times)} if out is None else {"size": (1, out)}
        return interpolate(packer, row, **sizes, mode=mode, align_corners=align_corners).moved(lambda t: t.squeeze(2))
    height, width = x.view.shape[2:] if x.view.dim() == 4 else (0, 0)
    if not height or antialias or mode not in ("nearest", "bilinear"):
        raise ExportError(f"resizing of mode {mode} cannot be packed for {x.view.dim() - 2} axes.")
    pair = (scale_factor,) * 2 if isinstance(scale_factor, (int, float)) else scale_factor
    if size is None:
        out = tuple(math.floor(n * s) for n, s in zip((height, width), pair, strict=True))
    else:
        out = (size, size) if isinstance(size, int) else tuple(size)
    if mode == "nearest":
        times = [o // n for o, n in zip(out, (height, width), strict=True)]
        if [n * t for n, t in zip((height, width), times, strict=True)] != list(out):
            raise ExportError("resizing to the nearest can be packed for whole multiples of the size alone.")
        wide = x.moved(lambda t: t[:, :, :, None, :, None].expand(*t.shape[:3], times[0], t.shape[3], times[1]))
        return reshape(packer, packer.contiguous(wide), (*x.view.shape[:2], *out))
    corners = bool(align_corners)
    if corners:
        scale = [(n - 1) / (o - 1) if o > 1 else 0.0 for n, o in zip((height, width), out, strict=True)]
    elif pair is not None and size is None:
        scale = [1 / s for s in pair]
    else:
        scale = [n / o for n, o in zip((height, width), out, strict=True)]
    return packer.resize(x, out, scale, corners)


# ------------------------------------------------------------------------------------------------------------ pooling


def _image(x: Packed, space: int) -> Packed:
    """A sequence as an image of one row."""
    return x if space == 2 else x.moved(lambda t: t.unsqueeze(2))


def _two(value: Any, space: int, one: int) -> tuple[int, int]:
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,) * space
    if space == 1:
        return (one, sizes[0])
    return (sizes[0], sizes[-1])


def pool(
    packer: Packer,
    kind: Literal["MAX", "MEAN", "MODULUS"],
    space: int,
    x: Packed,
    out: Sequence[int],
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    divisor: int = 0,
) -> Packed:
    """Pooling over ``space`` axes to the sizes ``out`` of the result."""
    if space == 3 or x.view.dim() != space + 2:
        raise ExportError(
            f"pooling of {tuple(x.view.shape[1:])} cannot be packed: it must be (channels, height, width)."
        )
    stride = kernel if stride is None or stride == [] or stride == () else stride
    y = packer.pool(
        kind,
        _image(x, space),
        out=_two(tuple(out), space, 1),
        kernel=(0, 0) if kernel == 0 else _two(kernel, space, 1),  # 0: adaptive
        stride=_two(stride, space, 1),
        padding=_two(padding, space, 0),
        dilation=_two(dilation, space, 1),
        divisor=divisor,
    )
    return y if space == 2 else y.moved(lambda t: t.squeeze(2))


def maximum(space: int, kind: Literal["MAX", "MODULUS"] = "MAX") -> Callable[..., Packed]:
    """Max-pooling, given what it gave on an example."""

    def pack(
        packer: Packer,
        out: Tensor,
        x: Packed,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,  # noqa: ARG001, it shows in the result
        return_indices: bool = False,
    ) -> Packed:
        if return_indices:
            raise ExportError("the places of the maxima are asked for, which the runtime does not keep.")
        return pool(packer, kind, space, x, out.shape[2:], kernel_size, stride, padding, dilation)

    return pack


def average(space: int) -> Callable[..., Packed]:
    def pack(
        packer: Packer,
        out: Tensor,
        x: Packed,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,  # noqa: ARG001
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Packed:
        divisor = divisor_override or (-1 if count_include_pad else 0)
        return pool(packer, "MEAN", space, x, out.shape[2:], kernel_size, stride, padding, divisor=divisor)

    return pack


def adaptive(kind: Literal["MAX", "MEAN"], space: int) -> Callable[..., Packed]:
    def pack(packer: Packer, out: Tensor, x: Packed, output_size: Any = None) -> Packed:  # noqa: ARG001
        return pool(packer, kind, space, x, out.shape[2:], 0, 1)

    return pack


# --------------------------------------------------------------------------------------------------------------- table

_JOINS: tuple[tuple[Binary, tuple[Any, ...]], ...] = (
    ("ADD", (operator.add, operator.iadd, torch.add, "add", "add_")),
    ("SUB", (operator.sub, torch.sub, "sub")),
    ("MUL", (operator.mul, operator.imul, torch.mul, "mul", "mul_")),
    ("DIV", (operator.truediv, torch.div, "div")),
)
_MOVES = ("permute", "transpose", "movedim", "swapaxes", "t", "unsqueeze", "squeeze", "expand", "narrow", "select")
_MOVES += ("unflatten", "expand_as", "chunk", "unbind")

# How functions, and methods by their names, are packed; views are by the shape that they gave on the example.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{name: _moved(name) for name in _MOVES},
    **{f: _moved(f) for f in (torch.permute, torch.transpose, torch.movedim, torch.swapaxes, torch.unsqueeze)},
    **{f: _moved(f) for f in (torch.squeeze, torch.unbind, torch.narrow, torch.select)},
    **{target: _join(kind) for kind, targets in _JOINS for target in targets},
    operator.getitem: lambda _, x, index: x.moved(lambda t: t[index]) if isinstance(x, Packed) else x[index],
    operator.matmul: lambda packer, a, b: packer.matmul(a, b),
    operator.neg: lambda packer, x: packer.unary("AFFINE", x, -1.0),
    **dict.fromkeys((torch.chunk,), _chunk),
    **dict.fromkeys((torch.split, "split"), _split),
    **dict.fromkeys((torch.cat, torch.concat), _cat),
    **dict.fromkeys(("contiguous", "clone", "detach", "float", "to", "double", "type_as"), _same),
    **dict.fromkeys((TF.dropout, TF.dropout1d, TF.dropout2d), _same),
    **dict.fromkeys((torch.mean, "mean"), _mean),
    **dict.fromkeys((torch.sum, "sum"), _reduce("SUM")),
    **dict.fromkeys((torch.amax, "amax"), _reduce("MAX")),
    **dict.fromkeys((torch.amin, "amin"), _reduce("MIN")),
    **dict.fromkeys((torch.softmax, TF.softmax, "softmax"), _softmax),
    **dict.fromkeys(
        (torch.log_softmax, TF.log_softmax, "log_softmax"), lambda *args, **kwargs: _softmax(*args, **kwargs, log=True)
    ),
    **dict.fromkeys((torch.argmax, "argmax"), _argmax),
    **dict.fromkeys((torch.matmul, torch.bmm, "matmul", "bmm"), _matmul),
    **dict.fromkeys((torch.linalg.vector_norm,), _norm),
    **dict.fromkeys((TF.pad,), pad),
    **dict.fromkeys((TF.interpolate,), interpolate),
    **dict.fromkeys((torch.relu, TF.relu, "relu", "relu_", torch.relu_), activation("RELU")),
    **dict.fromkeys((torch.tanh, TF.tanh, "tanh", "tanh_"), activation("TANH")),
    **dict.fromkeys((torch.sigmoid, TF.sigmoid, "sigmoid", "sigmoid_"), activation("SIGMOID")),
    **dict.fromkeys((torch.exp, "exp"), activation("EXP")),
    **dict.fromkeys((torch.sqrt, "sqrt"), activation("SQRT")),
    **dict.fromkeys((torch.rsqrt, "rsqrt"), activation("RSQRT")),
    **dict.fromkeys((torch.log, "log"), activation("LOG")),
    **dict.fromkeys((torch.neg, "neg"), lambda packer, x: packer.unary("AFFINE", x, -1.0)),
    TF.gelu: gelu,
    TF.silu: activation("SILU"),
    TF.elu: activation("ELU", alpha=1.0),
    TF.selu: activation("SELU"),
    TF.leaky_relu: activation("LEAKY_RELU", negative_slope=0.01),
    TF.relu6: lambda packer, x, **_: packer.unary("CLAMP", x, 0.0, 6.0),
    TF.hardtanh: activation("CLAMP", min_val=-1.0, max_val=1.0),
    TF.softplus: activation("SOFTPLUS", beta=1.0, threshold=20.0),
}
