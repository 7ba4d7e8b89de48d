"""Packed networks (``.qrn``) run by the C runtime ``quern_rt``: time and bytes in proportion to what is not zero.

    network = quern.runtime.load("net.qrn")
    scores = network(images)              # numpy arrays or torch tensors, (batch, ...) as the network was packed for

:func:`quern.export.to_packed` makes such files. ``quern_rt.c`` and ``quern_rt.h`` stand alone: a device needs no more.
"""

import ctypes
import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from quern import _native
from quern.errors import NoRuntimeError, PackedError
from quern.runtime import format as qrn

__all__ = ["PackedNetwork", "Tensor", "builds", "check_built", "is_built", "library_path", "load"]

_DTYPES = {qrn.F32: np.float32, qrn.I8: np.int8, qrn.U8: np.uint8, qrn.I32: np.int32}


class _Tensor(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_uint32), ("axes", ctypes.c_uint32), ("size", ctypes.c_uint32 * qrn.AXES)]


@dataclass(frozen=True)
class Tensor:
    """An input or output of a packed network, without the batch."""

    dtype: np.dtype
    shape: tuple[int, ...]


def library_path(build: str = _native.BUILDS[0]) -> Path | None:
    """Where a build of the runtime is, None if it was not built when quern was installed."""
    return _native.library_path(__name__, build)


def builds() -> tuple[str, ...]:
    """The builds of the runtime that are there and that this processor runs, from slow to fast."""
    return _native.builds(__name__)


def _library() -> Any:
    """The fastest library that this processor runs."""
    check_built()
    return open_library(builds()[-1])


@cache
def open_library(name: str) -> Any:
    """The library of a build."""
    return typed_library(library_path(name))


def typed_library(path: Path | None) -> Any:
    """A library of the runtime, with the types of its functions."""
    library = ctypes.CDLL(str(path))
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "qrn_check": (ctypes.c_char_p, [pointer, size]),
        "qrn_arena": (size, [pointer, ctypes.c_int]),
        "qrn_inputs": (size, [pointer]),
        "qrn_outputs": (size, [pointer]),
        "qrn_input": (_Tensor, [pointer, size]),
        "qrn_output": (_Tensor, [pointer, size]),
        "quern_batch": (ctypes.c_int, [pointer, pointer, size, size, pointer, pointer]),
    }
    for function_name, (result, arguments) in signatures.items():
        function = getattr(library, function_name)
        function.restype, function.argtypes = result, arguments
    return library


def is_built() -> bool:
    """Whether packed networks can be run here."""
    return library_path() is not None


def check_built() -> None:
    """One sentence if packed networks cannot be run here."""
    if not is_built():
        raise NoRuntimeError


class PackedNetwork:
    """A packed network that was checked and can be run, by several threads at once.

    ``inputs`` and ``outputs`` are its :class:`Tensor` s, ``bytes`` the size of the file, ``arena`` the bytes of working
    memory it takes, ``least_arena`` those it could do with, more slowly; ``device_arena`` those on a microcontroller,
    and ``ram`` these and the most that the runtime takes of the stack there.
    """

    def __init__(self, content: bytes | memoryview | mmap.mmap, name: str = "the packed network") -> None:
        self._library, self._name = _library(), name
        self._content = np.frombuffer(content, np.uint8)
        self._blob = self._content.ctypes.data
        self.bytes = len(self._content)
        wrong = self._library.qrn_check(self._blob, self.bytes)
        if wrong is not None:
            raise PackedError(f"{name} cannot be run: {wrong.decode()}.")
        library = self._library
        self.arena: int = library.qrn_arena(self._blob, qrn.FASTEST)
        self.least_arena: int = library.qrn_arena(self._blob, qrn.LEAST)
        self.device_arena: int = library.qrn_arena(self._blob, qrn.LEAST_ON_DEVICE)
        self.ram = self.device_arena + qrn.STACK
        self.inputs = tuple(_tensor(library.qrn_input(self._blob, n)) for n in range(library.qrn_inputs(self._blob)))
        self.outputs = tuple(_tensor(library.qrn_output(self._blob, n)) for n in range(library.qrn_outputs(self._blob)))
        self._own = threading.local()

    def __call__(self, *inputs: Any) -> Any:
        """The outputs for a batch of each input: an array ``(batch, ...)``, or a tuple of several."""
        arrays = self._checked(inputs)
        count = len(arrays[0])
        outputs = [np.empty((count, *t.shape), t.dtype) for t in self.outputs]
        self.run_into(arrays, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run_into(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], arena: int | None = None) -> None:
        """Run on contiguous arrays of the right types, with ``arena`` bytes of working memory."""
        ins = (ctypes.c_void_p * len(inputs))(*map(_address, inputs))
        outs = (ctypes.c_void_p * len(outputs))(*map(_address, outputs))
        size = self.arena if arena is None else arena
        failed = self._library.quern_batch(self._blob, self._memory(size), size, len(inputs[0]), ins, outs)
        if failed == qrn.NO_SUCH_ENTRY:
            raise PackedError(f"{self._name} was given the number of an entry that its table does not have.")
        if failed:
            raise PackedError(f"{self._name} needs at least {self.least_arena} bytes to work with, not {size}.")

    def _memory(self, size: int) -> int:
        """Working memory of this thread, at a multiple of 64 bytes."""
        own = self._own
        if getattr(own, "size", -1) < size:
            own.memory, own.size = np.empty(size + 64, np.uint8), size
            own.address = own.memory.ctypes.data + -own.memory.ctypes.data % 64
        address: int = own.address
        return address

    def _checked(self, inputs: tuple[Any, ...]) -> list[np.ndarray]:
        if len(inputs) != len(self.inputs):
            raise PackedError(f"{self._name} takes {len(self.inputs)} inputs, but was given {len(inputs)}.")
        arrays = []
        for wanted, given in zip(self.inputs, inputs, strict=True):
            array = np.asarray(given)
            whole = wanted.dtype.kind == array.dtype.kind == "i" or wanted.dtype == array.dtype
            real = wanted.dtype.kind == array.dtype.kind == "f"
            if array.shape[1:] != wanted.shape or not array.ndim or not (whole or real):
                shape = ", ".join(map(str, ("batch", *wanted.shape)))
                raise PackedError(
                    f"{self._name} takes {wanted.dtype} of shape ({shape}), but was given {array.dtype} of shape "
                    f"{array.shape}."
                )
            fitting = np.ascontiguousarray(array, wanted.dtype)
            if whole and not np.array_equal(fitting, array):
                raise PackedError(f"{self._name} was given whole numbers that do not fit {wanted.dtype}.")
            arrays.append(fitting)
        if len({len(array) for array in arrays}) > 1:
            raise PackedError(f"{self._name} takes batches of the same size, but was given several.")
        return arrays


def _address(array: np.ndarray) -> int:
    """Where its numbers are. ``array.ctypes.data`` takes as long as a small network."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError):  # it must not be written to, or it is empty
        return int(array.ctypes.data)


def _tensor(t: _Tensor) -> Tensor:
    return Tensor(np.dtype(_DTYPES[t.dtype]), tuple(t.size[: t.axes]))


def load(path: Path | str) -> PackedNetwork:
    """The packed network in a file, checked, and executed where it lies: the file is mapped, not read."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as reason:  # an empty file
        raise PackedError(f"{path} cannot be run: it is empty.") from reason
    except OSError as reason:
        raise PackedError(f"{path} cannot be read: {reason.strerror or reason}.") from reason
    return PackedNetwork(content, str(path))
