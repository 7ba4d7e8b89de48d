"""Functions of a user's own, named as ``package.module:function`` on the command line."""

import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from quern.errors import TrainingError

if TYPE_CHECKING:
    from torch import nn

    from quern.data import ImageSet
    from quern.train import Loaders

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_named(text: str | None) -> bool:
    """Whether this is ``package.module:function``."""
    return text is not None and _NAME.fullmatch(text) is not None


def function(text: str, option: str) -> Any:
    """The function of that name; modules are looked for in this folder too, as by ``python -m``. No other module than
    the one that is named is imported."""
    if not is_named(text):
        raise TrainingError(f"{option} is {text}, but must name a function, package.module:function.")
    module_name, _, name = text.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as reason:
        if f"{module_name}.".startswith(f"{reason.name}."):
            raise TrainingError(
                f"{option} {text}: there is no module {reason.name} in this folder or among installed packages."
            ) from reason
        raise TrainingError(f"{option} {text}: importing {module_name} fails, {_first_line(reason)}.") from reason
    except Exception as reason:  # whatever a user's own module does
        raise TrainingError(f"{option} {text}: importing {module_name} fails, {_first_line(reason)}.") from reason
    if not callable(made := getattr(module, name, None)):
        wrong = "is no function" if hasattr(module, name) else "is not there"
        raise TrainingError(f"{option} {text}: {name} {wrong} in {module_name}.")
    return made


def network(text: str, option: str = "--model") -> "nn.Module":
    """What the function gives: a network, trained or not."""
    from torch import nn

    made = _called(text, option)
    if not isinstance(made, nn.Module):
        raise TrainingError(f"{option} {text} gives a {type(made).__name__}, but must give a network, an nn.Module.")
    return made


def data(text: str) -> "ImageSet | Loaders":
    """What the function gives: an ImageSet, or loaders to train, to validate and maybe to test with."""
    from quern.data import ImageSet
    from quern.train import Loaders

    made = _called(text, "--dataset")
    if isinstance(made, tuple) and len(made) in (2, 3):
        return Loaders(*made)
    if not isinstance(made, ImageSet | Loaders):
        given = f"{len(made)} parts" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise TrainingError(
            f"--dataset {text} gives {given}, but must give loaders (train, val) or (train, val, test), or an ImageSet."
        )
    return made


def _called(text: str, option: str) -> Any:
    made = function(text, option)
    try:
        return made()
    except Exception as reason:  # whatever a user's own function does
        raise TrainingError(f"{option} {text} fails: {_first_line(reason)}.") from reason


def _first_line(reason: BaseException) -> str:
    lines = str(reason).strip().splitlines()
    return f"{type(reason).__name__}{': ' + lines[0].rstrip('.') if lines else ''}"
