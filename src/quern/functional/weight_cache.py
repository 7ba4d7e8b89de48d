"""The memory of a layer that is not training: its expanded weight."""

import ctypes
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from quern.functional.autograd import is_traced


def _find_memcmp() -> Any:
    try:
        compare = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # no C library to be had by that name, as on Windows
        return None
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return compare


_memcmp = _find_memcmp()


def _is_copy(clone: Tensor, weight: Tensor) -> bool:
    """Whether a clone made earlier still equals the CPU tensor it was made from.

    A clone is dense in memory, so with equal strides memcmp sees just the values; it is 4 times as fast as torch.equal.
    """
    if (clone.dtype, clone.shape, clone.stride()) != (weight.dtype, weight.shape, weight.stride()):
        return False
    if _memcmp is None:
        return torch.equal(clone, weight)
    return _memcmp(clone.data_ptr(), weight.data_ptr(), clone.numel() * clone.element_size()) == 0


def _may_be_kept(weight: Tensor) -> bool:
    """Whether nobody differentiates or records, and the weight is the layer's own."""
    return not (
        torch.is_grad_enabled()
        or is_traced()
        or weight.device.type != "cpu"
        or type(weight) is not torch.nn.Parameter  # swapped in by torch.func or a parametrization
        or type(weight.data) is not Tensor
    )


class WeightCache:
    """The expanded weight of a layer that is not training, kept until the weight is no longer the one it came from.

    The comparison is with the values themselves: a version counter misses ``weight.data[...] = 0``, which is how much
    pruning code is written. Reading the weight once is cheap next to expanding it. On other devices than the CPU the
    comparison would wait for the device, so nothing is kept there.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        # One assignment, so that a thread sees either the old pair or the new one.
        self._state: tuple[Tensor | None, dict[Hashable, Any]] = (None, {})
        self._last: tuple[Tensor | None, Hashable, Any] = (None, None, None)

    def recall(self, weight: Tensor, x: Tensor, options: Hashable) -> Any:
        """The call that was remembered last, if it was for such an input, and the ``weight`` is still the same."""
        source, key, call = self._last
        if source is None or not _may_be_kept(weight) or key != (x.shape, x.dtype, options):
            return None
        return call if _is_copy(source, weight) else None

    def remember(self, weight: Tensor, key: Hashable, call: Any) -> None:
        """Keep how a call was made, for the next one. One is enough, as most calls of a layer are alike."""
        source, _ = self._state
        if source is not None and _may_be_kept(weight):
            self._last = (source, key, call)

    def get(self, key: Hashable, weight: Tensor, build: Callable[[], Any]) -> Any:
        """What ``build()`` returns for this ``weight``, from memory where that is sound."""
        if not _may_be_kept(weight):
            return build()
        source, kept = self._state
        if source is None or not _is_copy(source, weight):
            source, kept = None, {}
        if key not in kept:
            with torch.inference_mode(False), torch.no_grad():
                source = weight.detach().clone() if source is None else source
                value = build()
            kept = {**kept, key: value}
            self._state = (source, kept)
        return kept[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "WeightCache":
        return WeightCache()

    def __reduce__(self) -> tuple[type["WeightCache"], tuple[()]]:
        return WeightCache, ()


def cached(cache: WeightCache | None, key: Hashable, weight: Tensor, build: Callable[[], Any]) -> Any:
    return build() if cache is None else cache.get(key, weight, build)
