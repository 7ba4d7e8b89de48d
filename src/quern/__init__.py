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
        convert,
        data,
        errors,
        export,
        functional,
        graph,
        io,
        models,
        nn,
        optim,
        paper,
        penalties,
        pipeline,
        records,
        report,
        runtime,
        sparsity,
        testing,
        train,
        zoo,
    )
    from quern.convert import from_orkis, quaternionize
    from quern.pipeline import compress

__version__ = "0.1.0"
__all__ = ["algebra", "bench", "compact", "compress", "convert", "data", "errors", "export", "from_orkis", "functional"]
__all__ += ["graph", "io", "models", "nn", "optim", "paper", "penalties", "pipeline", "quaternionize", "records"]
__all__ += ["report", "runtime", "sparsity", "testing", "train", "zoo"]

_FUNCTIONS = {"compress": "quern.pipeline", "from_orkis": "quern.convert", "quaternionize": "quern.convert"}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in __all__:
        return importlib.import_module(f"quern.{name}")
    raise AttributeError(f"module 'quern' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
