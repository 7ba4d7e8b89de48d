"""Libraries in C, built when quern was installed if there was a compiler.

Of each there are several builds of the same source, in a package of its own. The processor decides which is taken.
"""

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BUILDS = (
    "_any",
    "_avx2",
    "_avx512",
    "_vnni",
)  # from slow to fast; the last for products of bytes, the runtime's


def library_path(package: str, build: str = BUILDS[0]) -> Path | None:
    """Where a build of the library of a package is, None if it was not built."""
    spec = find_spec(f"{package}.{build}")
    return None if spec is None or spec.origin is None else Path(spec.origin)


@cache
def builds(package: str) -> tuple[str, ...]:
    """Those of ``BUILDS`` that are there and that this processor runs."""
    if library_path(package) is None:
        return ()
    level = open_library(package, BUILDS[0]).quern_cpu_level()
    return tuple(build for build in BUILDS[: level + 1] if library_path(package, build) is not None)


@cache
def open_library(package: str, build: str) -> Any:
    return ctypes.CDLL(str(library_path(package, build)))
