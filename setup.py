"""The C runtime, built where there is a compiler; everything else about the package is in pyproject.toml.

The libraries are the same source: one for any processor of this kind, one for those with AVX2, one for the registers
of AVX-512; ``quern.runtime`` takes what the processor has. What cannot be built is left out. Without a compiler that is
all of them, and quern says so when a packed network is to be run.
"""

from setuptools import Extension, setup

SOURCES = ["src/quern/runtime/quern_rt.c", "src/quern/runtime/quern_native.c"]
HEADERS = ["src/quern/runtime/quern_rt.h"]
FLAGS = ["-std=c99", "-O2", "-ffp-contract=fast", "-fvisibility=default"]


def library(name: str, *flags: str) -> Extension:
    return Extension(
        f"quern.runtime.{name}",
        SOURCES,
        depends=HEADERS,
        extra_compile_args=[*FLAGS, *flags],
        extra_link_args=["-s"],
        optional=True,
    )


AVX2 = ["-mavx2", "-mfma"]
setup(ext_modules=[library("_any"), library("_avx2", *AVX2), library("_avx512", *AVX2, "-mavx512f", "-mavx512vl")])
