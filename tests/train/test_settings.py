"""Settings: schedules that follow from them, and what they refuse."""

import dataclasses
import json
import math
from typing import Any

import pytest

from quern.errors import TrainingError
from quern.penalties import RQ
from quern.train import Settings
from tests.train.short_runs import SHORT

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


def test_schedules() -> None:
    settings = Settings(warmup=2, epochs=4, heal=3, penalty=RQ(1.0), ramp=0.5, lr=0.1, heal_lr=0.01)
    assert [settings.phase(e) for e in (0, 2, 5, 6, 8)] == [
        ("warmup", 0, 2),
        ("grind", 0, 4),
        ("grind", 3, 4),
        ("heal", 0, 3),
        ("heal", 2, 3),
    ]
    assert [settings.strength_at(e, s, 10) for e, s in ((0, 0), (1, 9), (2, 0), (2, 9), (3, 9), (5, 9), (6, 0))] == [
        *(0, 0, 0.05, 0.5, 1, 1, 0)
    ]
    assert [settings.lr_at(e, 0.5) for e in (0, 3, 5)] == [0.1] * 3
    assert settings.lr_at(6, 0.0) == 0.01
    assert settings.lr_at(7, 0.5) == pytest.approx(0.005)
    assert settings.lr_at(8, 1.0) == pytest.approx(0, abs=1e-12)
    cycle = dataclasses.replace(settings, schedule="one-cycle")
    rates = [cycle.lr_at(6 + n // 10, n % 10 / 10) for n in range(30)]
    assert [cycle.lr_at(e, 0.5) for e in (0, 3, 5)] == [0.1] * 3
    assert rates[0] == pytest.approx(0.0005)
    assert rates[6] == max(rates) == pytest.approx(0.01)
    assert rates[:7] == sorted(rates[:7])
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert cycle.lr_at(8, 1.0) == pytest.approx(0, abs=1e-12)
    constant = dataclasses.replace(settings, schedule="constant")
    assert constant.lr_at(8, 1.0) == 0.01
    plain = Settings(epochs=4, lr=0.1)
    assert plain.phase(0)[0] == "train"
    assert plain.lr_at(2, 0.0) == pytest.approx(0.05)
    assert plain.strength_at(2, 3, 10) == 0
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": 0, "heal": 0, "warmup": 0}, "no epochs"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"heal_lr": -1.0}, "heal_lr is -1"),
        ({"ramp": 1.5}, "ramp is 1.5"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1"),
        ({"ema": 1.0}, "ema is 1"),
        ({"weight_decay": -1.0}, "weight_decay is -1"),
        ({"crop": -1}, "crop is -1"),
        ({"compact_every": -1}, "compact_every is -1"),
        ({"compact_every": 1, "optimizer": "adam"}, "compact_every needs exact zeros"),
        ({"compact_every": 1, "penalty": None}, "compact_every needs a penalty"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        dataclasses.replace(SHORT, **change)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": "20"}, "epochs is '20', but must be a whole number"),
        ({"epochs": 2.5}, "epochs is 2.5, but must be a whole number"),
        ({"lr": "fast"}, "lr is 'fast', but must be a number"),
        ({"heal_lr": True}, "heal_lr is True, but must be a number"),
        ({"penalty": "rql"}, r"penalty is 'rql', but must be one of quern\.penalties, such as RQL\(12\.0\)"),
    ],
    ids=str,
)
def test_settings_of_the_wrong_kind_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=rf"^{said}\.$"):
        dataclasses.replace(SHORT, **change)


@pytest.mark.parametrize("tol", [-1e-9, float("nan"), float("inf")])
def test_a_tol_that_is_none_is_one_sentence(tol: float) -> None:
    with pytest.raises(TrainingError, match=rf"tol is {tol}, but .*\.$"):
        Settings(tol=tol)
