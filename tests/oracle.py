"""Quaternion operations by other means: numpy, 2x2 complex matrices, plain loops. Nothing here comes from quern.

The matrices [[a+bi, c+di], [-c+di, a-bi]] multiply as the quaternions a + bi + cj + dk do, so no sign table is needed.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def to_matrix(q: Array) -> NDArray[np.complex128]:
    """(4, ...) to (..., 2, 2)."""
    a, b, c, d = q
    top = np.stack([a + 1j * b, c + 1j * d], -1)
    bottom = np.stack([-c + 1j * d, a - 1j * b], -1)
    return np.stack([top, bottom], -2)


def from_matrix(m: NDArray[np.complex128]) -> Array:
    return np.stack([m[..., 0, 0].real, m[..., 0, 0].imag, m[..., 0, 1].real, m[..., 0, 1].imag])


def hamilton(a: Array, b: Array) -> Array:
    return from_matrix(to_matrix(a) @ to_matrix(b))


def channels_apart(x: Array, axis: int) -> Array:
    """Component-major activations: size 4*C at ``axis`` becomes a leading axis of 4 and C at ``axis``."""
    return np.stack(np.split(x, 4, axis))


def channels_joined(q: Array, axis: int) -> Array:
    return np.concatenate(list(q), axis)


def fill_parts(x: Array, parts: str, axis: int) -> Array:
    """An activation that has only ``parts``, with zeros for the others."""
    given = dict(zip(parts, np.split(x, len(parts), axis), strict=True))
    zero = np.zeros_like(next(iter(given.values())))
    return np.concatenate([given.get(part, zero) for part in "rijk"], axis)


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """x (rows, 4*in), weight (4, out, in)."""
    q = channels_apart(x, -1)
    y = np.zeros((4, x.shape[0], weight.shape[1]))
    for o, c in itertools.product(range(weight.shape[1]), range(weight.shape[2])):
        y[:, :, o] += hamilton(weight[:, o, c, None], q[:, :, c])
    if bias is not None:
        y += bias[:, None, :]
    return channels_joined(y, -1)


def conv(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
    mode: str = "constant",
) -> Array:
    """x (batch, 4*in, *space), weight (4, out, in/groups, *kernel); one Hamilton product per weight and position."""
    padded = np.pad(x, [(0, 0), (0, 0), *pads], mode=mode)  # pyright: ignore
    q = channels_apart(padded, 1)
    kernel = weight.shape[3:]
    size = [
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(padded.shape[2:], kernel, stride, dilation, strict=True)
    ]
    outs, inner = weight.shape[1], weight.shape[2]
    y = np.zeros((4, x.shape[0], outs, *size))
    for o, c in itertools.product(range(outs), range(inner)):
        channel = o // (outs // groups) * inner + c
        for place in itertools.product(*map(range, kernel)):
            window = tuple(
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(place, dilation, size, stride, strict=True)
            )
            w = weight[(slice(None), o, c, *place)].reshape(4, *[1] * (x.ndim - 1))
            y[:, :, o] += hamilton(w, q[(slice(None), slice(None), channel, *window)])
    if bias is not None:
        y += bias.reshape(4, 1, -1, *[1] * len(kernel))
    return channels_joined(y, 1)


def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    extra: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Every input quaternion, multiplied from the left by every weight, added where the kernel puts it."""
    q = channels_apart(x, 1)
    kernel = weight.shape[3:]
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, k, s, d, e in zip(x.shape[2:], kernel, stride, dilation, extra, strict=True)
    ]
    outs, inner = weight.shape[1], weight.shape[2]
    y = np.zeros((4, x.shape[0], outs, *full))
    for o, c in itertools.product(range(outs), range(inner)):
        channel = o // (outs // groups) * inner + c
        for place in itertools.product(*map(range, kernel)):
            window = tuple(
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(place, dilation, x.shape[2:], stride, strict=True)
            )
            w = weight[(slice(None), o, c, *place)].reshape(4, *[1] * (x.ndim - 1))
            y[(slice(None), slice(None), o, *window)] += hamilton(w, q[:, :, channel])
    crop = tuple(slice(p, n - p) for p, n in zip(padding, full, strict=True))
    y = y[(slice(None), slice(None), slice(None), *crop)]
    if bias is not None:
        y = y + bias.reshape(4, 1, -1, *[1] * len(kernel))
    return channels_joined(y, 1)


def block(w: Array) -> Array:
    """The real matrix of left multiplication: (4, out, in) to (4*out, 4*in), column by column from unit vectors."""
    out, inner = w.shape[1:]
    real = np.zeros((4 * out, 4 * inner))
    for q, c in itertools.product(range(4), range(inner)):
        unit = np.zeros((4, 1))
        unit[q] = 1
        real[:, q * inner + c] = hamilton(w[:, :, c], unit).reshape(-1)
    return real
