"""The memory of one step, kept for the next.

glibc gives memory back to the system as soon as much of it is free at the end of the heap, and takes blocks of 32 MiB
or more from the system one by one. A training frees what a step took and asks for the same again; every page of it is
then new, and the system fills it with zeros, which took a fifth of a step of small networks.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # of mallopt
LARGEST = 32 << 20  # blocks that may come from the heap, and with it how much of it stays: where glibc itself ends up
BLOCKS = 65536  # that may come from the system one by one


def _allocator() -> Any:
    """The functions of glibc; None on other systems."""
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, TypeError, AttributeError):
        return None


@contextmanager
def kept_memory() -> Iterator[None]:
    """Freed memory stays with this process until the end of the block; then what is free is given back."""
    allocator = _allocator()
    if allocator is None:
        yield
        return
    allocator.mallopt(MMAP_THRESHOLD, LARGEST)
    allocator.mallopt(MMAP_MAX, 0)
    allocator.mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        allocator.mallopt(TRIM_THRESHOLD, 2 * LARGEST)
        allocator.mallopt(MMAP_MAX, BLOCKS)
        allocator.malloc_trim(0)
