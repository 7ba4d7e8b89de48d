"""Images resized and pooled; a sequence is an image of one row."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor

from quern.errors import ExportError
from quern.graph.packing.rearranging import reshape
from quern.graph.packing.values import Packed, Packer


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
