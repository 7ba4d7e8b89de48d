"""Image sets, whole in memory as bytes: MNIST, CIFAR-10, digits, a folder of images, an npz file, a set of your own.

``load("mnist")`` fetches a set on first use and checks it against pinned SHA-256 sums. Every set has the same fixed
split into training, validation and test images; normalisation happens per batch, by ``ImageSet.normalize``.
``register("mine", load)`` gives a set of your own a name. ``NAMES`` are all that have one.

The sets themselves load torch on first use; what is in the cache can be asked without.
"""

import importlib
from typing import TYPE_CHECKING, Any

from quern.data._registry import fetch, names, register, verify
from quern.data._sources import Source, cache_file, cache_folder

if TYPE_CHECKING:
    from quern.data._digits import digits
    from quern.data._images import Images, ImageSet
    from quern.data._load import cifar10, load, mnist
    from quern.data._own import image_folder, npz

    NAMES: tuple[str, ...]

__all__ = ["NAMES", "ImageSet", "Images", "Source", "cache_file", "cache_folder", "cifar10", "digits", "fetch"]
__all__ += ["image_folder", "load", "mnist", "npz", "register", "verify"]

_WITH_TORCH = {"ImageSet": "_images", "Images": "_images", "cifar10": "_load", "load": "_load", "mnist": "_load"}
_WITH_TORCH |= {"digits": "_digits", "image_folder": "_own", "npz": "_own"}


def __getattr__(name: str) -> Any:
    if name == "NAMES":
        return names()
    if name in _WITH_TORCH:
        return getattr(importlib.import_module(f"quern.data.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module 'quern.data' has no attribute {name!r}")
