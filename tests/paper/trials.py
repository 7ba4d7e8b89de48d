"""Trials that take no time."""

from typing import Any

import pytest

from quern.data import ImageSet
from quern.paper import tune
from quern.paper.tune import Short, Trial

SHORT = Short(images=128, batch=64, epochs=1)


def trial(
    accuracy: float,
    sparsity: float,
    method: str = "rq",
    weight: float | None = 1.0,
    family: str = "quern",
    died: str | None = None,
) -> Trial:
    return Trial(family, method, weight, accuracy, sparsity, sparsity, sparsity / 2, 100, died)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The λs of the trials that are really run from here on."""
    tried: list[float | None] = []
    real = tune.try_weight

    def spy(images: ImageSet, run: Any, weight: float | None, *rest: Any) -> Trial:
        tried.append(weight)
        return real(images, run, weight, *rest)

    monkeypatch.setattr(tune, "try_weight", spy)
    return tried
