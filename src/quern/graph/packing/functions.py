"""How torch's functions and methods are packed, in one table."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as TF
from torch import Tensor

from quern.errors import ExportError
from quern.graph.packing.images import interpolate
from quern.graph.packing.rearranging import cat, pad
from quern.graph.packing.values import Binary, Packed, Packer


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
