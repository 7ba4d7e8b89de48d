"""Where a network came from: what to build, and what to do to it, to get a network of the same structure.

Files hold it in place of code: a file is read by building the network anew, doing the same steps to it, and putting the
tensors in.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

__all__ = ["Origin", "origin", "set_origin"]


@dataclass(frozen=True)
class Origin:
    """``builder`` is a name in ``quern.models.BUILDERS`` with its ``arguments``, or None for a network of the user's
    own. ``steps`` were done to it since, in order: plain JSON, ``{"compact": a plan}`` or ``{"fold": names}``."""

    builder: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    steps: tuple[dict[str, Any], ...] = ()

    def then(self, step: dict[str, Any]) -> "Origin":
        return replace(self, steps=(*self.steps, step))


def origin(model: nn.Module) -> Origin:
    """Where ``model`` came from, as far as it was written down."""
    found = getattr(model, "_origin", None)
    return found if isinstance(found, Origin) else Origin()


def set_origin(model: nn.Module, value: Origin) -> None:
    model._origin = value  # pyright: ignore[reportArgumentType]
