"""The C library of the training kernels, if it was built and is wanted: ``QUERN_NATIVE=0`` turns it off."""

import ctypes
import os
from functools import cache
from typing import Any

from torch import Tensor

from quern import _native

PACKAGE = __name__


class Convolution(ctypes.Structure):
    """What winograd.c has to know of a convolution; it says there what the numbers are."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("images", "height", "width", "padding", "units_in", "units_out")),
        *((name, ctypes.c_int64) for name in ("block", "threads")),
        *((name, ctypes.c_int32 * 4) for name in ("target", "flip")),
    ]


def is_available() -> bool:
    """Whether there are kernels here, and they are wanted."""
    return os.environ.get("QUERN_NATIVE") != "0" and bool(_native.builds(PACKAGE))


def build() -> str:
    """The fastest build that runs here."""
    return _native.builds(PACKAGE)[-1]


def open_build(build: str) -> Any:
    return _native.open_library(PACKAGE, build)


@cache
def _library(build: str) -> Any:
    library = open_build(build)
    library.quern_winograd_scratch.restype = ctypes.c_int64
    library.quern_winograd_scratch.argtypes = [ctypes.POINTER(Convolution), ctypes.c_int32]
    for name, pointers in (("quern_winograd_forward", 6), ("quern_winograd_weight", 5)):
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [ctypes.POINTER(Convolution), *[ctypes.c_void_p] * (pointers + 1)]
    return library


@cache
def parallel() -> int | None:
    """The function by which the OpenMP that torch has loaded starts its threads. Without it there is one thread."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, TypeError, AttributeError):
        return None


def scratch_numbers(convolution: Convolution, of_weight: bool) -> int:
    """How many numbers of scratch memory a pass takes."""
    return _library(build()).quern_winograd_scratch(convolution, int(of_weight))


def run(function: str, convolution: Convolution, *tensors: Tensor | None) -> None:
    """Call a function of winograd.c."""
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    getattr(_library(build()), function)(convolution, *pointers, parallel())
