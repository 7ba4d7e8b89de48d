"""The memory of a layer that is not training: its expanded weight."""

import ctypes
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor


def _find_memcmp() -> Any:
    try:
        compare = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # no C library to be had by that name, as on Windows
        return None
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return compare


_memcmp = _find_memcmp()


def _same_values(a: Tensor, b: Tensor) -> bool:
    """Whether a fresh clone and a CPU tensor of the same shape, strides and dtype are still equal.

    A clone is dense in memory, so memcmp sees just the values; it is 4 times as fast as torch.equal.
    """
    if _memcmp is None:
        return torch.equal(a, b)
    return _memcmp(a.data_ptr(), b.data_ptr(), a.numel() * a.element_size()) == 0


class WeightCache:
    """The expanded weight of a layer that is not training, kept until the weight is no longer the one it came from.

    The comparison is with the values themselves: a version counter misses ``weight.data[...] = 0``, which is how much
    pruning code is written. Reading the weight once is cheap next to expanding it. On other devices than the CPU the
    comparison would wait for the device, so nothing is kept there.
    """

    def __init__(self) -> None:
        self._source: Tensor | None = None
        self._kept: dict[Hashable, Any] = {}

    def clear(self) -> None:
        self._source = None
        self._kept.clear()

    def get(self, key: Hashable, weight: Tensor, build: Callable[[], Any]) -> Any:
        """What ``build()`` returns for this ``weight``, from memory where that is sound."""
        if (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or weight.device.type != "cpu"
            or not isinstance(weight, torch.nn.Parameter)  # swapped in by torch.func
        ):
            return build()
        if not self._is_current(weight):
            self.clear()
        if key not in self._kept:
            with torch.inference_mode(False), torch.no_grad():
                self._source = weight.detach().clone() if self._source is None else self._source
                self._kept[key] = build()
        return self._kept[key]

    def _is_current(self, weight: Tensor) -> bool:
        old = self._source
        return (
            old is not None
            and (old.dtype, old.shape, old.stride()) == (weight.dtype, weight.shape, weight.stride())
            and _same_values(old, weight)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "WeightCache":
        return WeightCache()

    def __reduce__(self) -> tuple[type["WeightCache"], tuple[()]]:
        return WeightCache, ()


def cached(cache: WeightCache | None, key: Hashable, weight: Tensor, build: Callable[[], Any]) -> Any:
    return build() if cache is None else cache.get(key, weight, build)
