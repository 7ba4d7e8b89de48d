"""Budgets: what they are about, and impossible ones."""

import math
from typing import Any

import pytest

from quern.errors import TrainingError
from quern.records import ACCURACY, Budget, Metric


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_neurons": 0}, "max_neurons is 0"),
        ({"max_params": 0}, "max_params is 0"),
        ({"max_bytes": -5}, "max_bytes is -5"),
        ({"min_speedup": 0.5}, "min_speedup is 0.5"),
        ({"min_speedup": math.nan}, "min_speedup is nan"),
        ({"min_speedup": math.inf}, "min_speedup is inf"),
        ({"max_drop": -1.0}, "max_drop is -1"),
        ({"max_drop": math.inf}, "max_drop is inf"),
        ({"max_drop": math.nan}, "max_drop is nan"),
    ],
    ids=str,
)
def test_impossible_budgets_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=rf"^{said}[^.]*(\.0)?, but .*\.$"):
        Budget(**wrong)


def test_a_budget_knows_what_it_is_about() -> None:
    assert not Budget()
    assert not Budget().of_size
    assert Budget(max_drop=0.0)
    assert not Budget(max_drop=0.0).of_size
    limits: list[dict[str, Any]] = [{"max_neurons": 1}, {"max_params": 1}, {"max_bytes": 1}, {"min_speedup": 1.0}]
    for limit in limits:
        assert Budget(**limit)
        assert Budget(**limit, max_drop=1.0).of_size
    assert {k: v for k, v in Budget(max_bytes=7).to_dict().items() if v is not None} == {"max_bytes": 7}


def test_of_accuracy_no_more_can_be_lost_than_there_is() -> None:
    with pytest.raises(
        TrainingError, match=r"^max_drop is 100\.0, but must be points of .*, at least 0 and below 100\.$"
    ):
        Budget(max_drop=100.0).check_drop(ACCURACY)
    Budget(max_drop=250.0).check_drop(Metric("mm", lower_is_better=True))
