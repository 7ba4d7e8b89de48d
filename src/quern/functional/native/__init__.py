"""The C library of the training kernels, if it was built and is wanted: ``QUERN_NATIVE=0`` turns it off."""

import ctypes
import os
from functools import cache
from typing import Any

from torch import Tensor

from quern import _native

PACKAGE = __name__


class Winograd(ctypes.Structure):
    """What winograd.c has to know of a convolution; it says there what the numbers are."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("images", "height", "width", "padding", "units_in", "units_out")),
        *((name, ctypes.c_int64) for name in ("block", "threads")),
        *((name, ctypes.c_int32 * 4) for name in ("target", "flip")),
    ]


class Depthwise(ctypes.Structure):
    """What depthwise.c has to know of a convolution; it says there what the numbers are."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("images", "units")),
        *((name, ctypes.c_int64 * 2) for name in ("source", "target", "kernel", "stride", "padding", "dilation")),
        *((name, ctypes.c_int64) for name in ("transposed", "pieces", "threads")),
    ]


class BatchNorm(ctypes.Structure):
    """What batch_norm.c has to know of a normalisation; it says there what the numbers are."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "units", "side", "pieces", "threads", "relu")),
        ("eps", ctypes.c_double),
    ]


class Norm(ctypes.Structure):
    """What normed.c has to know of a normalisation; it says there what the numbers are."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("mean", "var", "weight", "bias", "along", "total")),
        ("eps", ctypes.c_double),
        ("relu", ctypes.c_int64),
    ]


class Normed(ctypes.Structure):
    """What normed.c has to know of a convolution; it says there what the numbers are."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("images", "inner", "out")),
        *((name, ctypes.c_int64 * 2) for name in ("source", "target", "stride", "padding")),
        *((name, ctypes.c_int64) for name in ("kind", "pieces", "threads")),
        *((name, Norm) for name in ("before", "after")),
    ]


class Pointwise(ctypes.Structure):
    """What pointwise.c has to know of a convolution; it says there what the numbers are."""

    _fields_ = [(name, ctypes.c_int64) for name in ("rows", "inner", "out", "pieces", "threads")]


class MaxPool(ctypes.Structure):
    """What max_pool.c has to know of the images; it says there what the numbers are."""

    _fields_ = [(name, ctypes.c_int64) for name in ("images", "height", "width", "channels", "threads")]


# What the functions take besides their description and the way to start threads: so many pointers.
POINTERS = {
    "quern_winograd_forward": 6,
    "quern_winograd_weight": 5,
    "quern_winograd_spread_taps": 3,
    "quern_winograd_gather_taps": 3,
    "quern_depthwise_forward": 5,
    "quern_depthwise_weight": 5,
    "quern_batch_norm_statistics": 4,
    "quern_batch_norm_apply": 8,
    "quern_batch_norm_sums": 11,
    "quern_batch_norm_gradient": 10,
    "quern_normed_forward": 7,
    "quern_normed_backward": 7,
    "quern_pointwise_backward": 6,
    "quern_max_pool_forward": 3,
    "quern_max_pool_backward": 3,
}


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
    for name in ("quern_winograd_scratch", "quern_normed_scratch"):
        function = getattr(library, name)
        function.restype = ctypes.c_int64
        function.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    for name in ("quern_depthwise_sums", "quern_batch_norm_scratch", "quern_pointwise_sums"):
        function = getattr(library, name)
        function.restype = ctypes.c_int64
        function.argtypes = [ctypes.c_void_p]
    for name, pointers in POINTERS.items():
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * (pointers + 2)
    return library


@cache
def parallel() -> int | None:
    """The function by which the OpenMP that torch has loaded starts its threads. Without it there is one thread."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, TypeError, AttributeError):
        return None


def ask(function: str, what: ctypes.Structure, *numbers: int) -> int:
    """Call a function of the library that says how much memory a pass takes."""
    return getattr(_library(build()), function)(ctypes.byref(what), *numbers)


def run(function: str, what: ctypes.Structure, *tensors: Tensor | None) -> None:
    """Call a function of the library that makes a pass."""
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    getattr(_library(build()), function)(ctypes.byref(what), *pointers, parallel())
