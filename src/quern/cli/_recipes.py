"""What ``quern compress`` does where an option is not given: network, epochs and steps, by the kind of images."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quern.data import ImageSet

SMALL = ("small_qcnn", "small_cnn")  # the networks that the recipes of gray and colour images are for


@dataclass(frozen=True)
class Recipe:
    """Epochs of the three stages and how they are trained; ``model`` and its ``options`` if none was named."""

    epochs: int
    grind: int
    heal: int
    lr: float
    batch: int
    schedule: str = "cosine"
    ema: float = 0.0
    crop: int = 0
    flip: bool = False
    model: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def stages(self) -> dict[str, Any]:
        """All but the network."""
        return {name: value for name, value in vars(self).items() if name not in ("model", "options")}


# Small sets need more epochs and larger steps.
NAMED = Recipe(epochs=12, grind=6, heal=24, lr=2e-3, batch=100)
DIGITS = Recipe(epochs=20, grind=20, heal=60, lr=5e-3, batch=64, model="digits_qcnn")


def recipe_of(images: "ImageSet | None", network: str | None) -> Recipe:
    """The recipe for ``images``, None for loaders of the user's own, and the ``network`` that was named, if one was.

    A mirrored figure or letter is another one, a mirrored photograph is none: gray images are shifted, those with
    colours mirrored too.
    """
    if images is not None and images.name == "digits":
        return DIGITS
    if images is None or network not in (None, *SMALL):
        return NAMED
    channels, height, width = images.shape
    gray = channels == 1
    return Recipe(
        epochs=12 if gray else 24,
        grind=6,
        heal=24,
        lr=1e-2,
        batch=128,
        schedule="one-cycle",
        ema=0.999,
        crop=min(height, width) // (14 if gray else 8),
        flip=not gray,
        model=SMALL[0],
        options={} if network else {"width": 20 if gray else 56, "depth": 2 if gray else 3},
    )
