"""The libraries in C, built where there is a compiler; everything else about the package is in pyproject.toml.

Each is built several times from the same source: for any processor of this kind, for those with AVX2, for the
registers of AVX-512, and where bytes are multiplied for its products of them; ``quern._native`` takes what the
processor has. What cannot be built is left out. Without a compiler that is all of them: training is slower then, and
quern says so when a packed network is to be run.
"""

from setuptools import Extension, setup

FLAGS = [
    *("-std=c99", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=default"),
    "-fno-asynchronous-unwind-tables",  # nothing is thrown in C
]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl"]
BUILDS = {"_any": [], "_avx2": AVX2, "_avx512": AVX512}
CPU_LEVEL = "src/quern/cpu_level.c"
RUNTIME, KERNELS = "src/quern/runtime", "src/quern/functional/native"


def libraries(
    package: str, sources: list[str], headers: list[str], optimize: str, builds: dict[str, list[str]]
) -> list[Extension]:
    return [
        Extension(
            f"{package}.{build}",
            [*sources, *([] if flags else [CPU_LEVEL])],  # the build for any processor says which one to take
            depends=headers,
            extra_compile_args=[*FLAGS, optimize, *flags],
            extra_link_args=["-s"],
            optional=True,
        )
        for build, flags in builds.items()
    ]


runtime = libraries(
    "quern.runtime",
    [f"{RUNTIME}/quern_rt.c", f"{RUNTIME}/quern_native.c"],
    [f"{RUNTIME}/quern_rt.h"],
    "-O2",
    {**BUILDS, "_vnni": [*AVX512, "-mavx512vnni"]},
)
kernels = libraries(
    "quern.functional.native",
    [
        f"{KERNELS}/{name}.c"
        for name in ("batch_norm", "depthwise", "max_pool", "normed", "pointwise", "proximal", "winograd")
    ],
    [
        f"{KERNELS}/{name}.h"
        for name in (
            *("depthwise_taps", "each_width", "normed_loops", "product_blocks", "products", "quaternion_products"),
            *("threads", "vectors", "winograd_tiles"),
        )
    ],
    "-O3",
    BUILDS,
)
setup(ext_modules=[*runtime, *kernels])
