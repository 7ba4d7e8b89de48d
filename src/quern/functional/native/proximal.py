"""Steps of the proximal optimizers in one pass over the numbers: proximal.c."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from quern.functional import native

NUMBERS_OF_A_THREAD = 1 << 15  # fewer are done before another thread has begun


def _fields(pointers: str, counts: str, numbers: str) -> list[tuple[str, Any]]:
    kinds = ((pointers, ctypes.c_void_p), (counts, ctypes.c_int64), (numbers, ctypes.c_float))
    return [(name, kind) for names, kind in kinds for name in names.split()]


class Moved(ctypes.Structure):
    """A parameter with its gradient, its moments and how they act; proximal.c says what the numbers are."""

    _fields_ = _fields(
        "w m v metric g partner",
        "count rows partner_rows",
        "decay beta1 one_minus_beta1 beta2 one_minus_beta2 step scale eps",
    )


class Shrunk(ctypes.Structure):
    """One or two parameters with the factors of their maps; proximal.c says what the numbers are."""

    _fields_ = _fields("w partner metric", "count rows partner_rows", "components groups squares")


def can_take(parameters: Sequence[Tensor]) -> bool:
    """Whether the kernels are here, and these are parameters for them."""
    return native.is_available() and all(
        type(p) in (Tensor, nn.Parameter)
        and p.dtype == torch.float32
        and p.device.type == "cpu"
        and p.layout == torch.strided
        for p in parameters
    )


def in_rows(p: Tensor, rows: int, row: Tensor) -> bool:
    """Whether ``p`` is so many rows of numbers, one after the other, each laid out as ``row`` and without gaps."""
    expected = 1
    for stride, size in sorted(zip(row.stride(), row.shape, strict=True)):
        if stride != expected and size != 1:
            return False
        expected *= size
    strides = p.stride()
    if rows > 1:
        return strides[0] * rows == p.numel() and strides[1:] == row.stride()
    return strides == row.stride()


@cache
def _functions(build: str) -> Any:
    library = native.open_build(build)
    for name in ("quern_move", "quern_shrink"):
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return library


class Pieces:
    """Parameters that are moved or shrunk together: an array in C, whose ``items`` can be changed before each run."""

    def __init__(self, pieces: Sequence[Moved] | Sequence[Shrunk]) -> None:
        self._name = "quern_move" if isinstance(pieces[0], Moved) else "quern_shrink"
        self._array = (type(pieces[0]) * len(pieces))(*pieces)
        self._numbers = sum(piece.count * (piece.rows + piece.partner_rows) for piece in pieces)
        self.items: list[Any] = list(self._array)

    def run(self) -> None:
        threads = max(1, min(torch.get_num_threads(), self._numbers // NUMBERS_OF_A_THREAD))
        getattr(_functions(native.build()), self._name)(self._array, len(self.items), threads, native.parallel())


def place(t: Tensor) -> tuple[Any, ...]:
    """Where the numbers of a tensor are; what the kernel was told of it holds as long as this is the same."""
    return t.data_ptr(), t.shape, t.stride(), t.dtype
