"""Image sets, whole in memory as bytes: MNIST, CIFAR-10, digits, a folder of images, an npz file.

``load("mnist")`` fetches a set on first use and checks it against pinned SHA-256 sums. Every set has the same fixed
split into training, validation and test images; normalisation happens per batch, by ``ImageSet.normalize``.

The sets themselves load torch on first use; what is in the cache can be asked without.
"""

import importlib
from typing import TYPE_CHECKING, Any

from quern.data._sources import NAMES, cache_file, cache_folder, fetch, verify

if TYPE_CHECKING:
    from quern.data._sets import Images, ImageSet, cifar10, digits, image_folder, load, mnist, npz

__all__ = ["NAMES", "ImageSet", "Images", "cache_file", "cache_folder", "cifar10", "digits", "fetch", "image_folder"]
__all__ += ["load", "mnist", "npz", "verify"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("quern.data._sets"), name)
    raise AttributeError(f"module 'quern.data' has no attribute {name!r}")
