"""quern: build quaternion neural networks and make them small.

Submodules load on first use, so that ``import quern`` (and the command line) does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quern import (
        algebra,
        bench,
        compact,
        data,
        errors,
        experiments,
        export,
        folding,
        functional,
        io,
        models,
        nn,
        optim,
        penalties,
        pipeline,
        records,
        report,
        sparsity,
        steering,
        testing,
        train,
        tune,
    )
    from quern.pipeline import compress

__version__ = "0.1.0"
__all__ = [
    "algebra",
    "bench",
    "compact",
    "compress",
    "data",
    "errors",
    "experiments",
    "export",
    "folding",
    "functional",
    "io",
    "models",
    "nn",
    "optim",
    "penalties",
    "pipeline",
    "records",
    "report",
    "sparsity",
    "steering",
    "testing",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "compress":
        return importlib.import_module("quern.pipeline").compress
    if name in __all__:
        return importlib.import_module(f"quern.{name}")
    raise AttributeError(f"module 'quern' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
