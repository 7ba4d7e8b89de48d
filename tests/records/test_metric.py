"""What networks are judged by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern.records import ACCURACY, Metric

numbers = st.floats(-1e6, 1e6)


@given(before=numbers, after=numbers, lower=st.booleans())
def test_what_is_lost_is_what_is_worse(before: float, after: float, lower: bool) -> None:
    metric = Metric("mm", lower_is_better=lower)
    assert (metric.lost(before, after) <= 0) == metric.better(after, before)
    assert metric.lost(before, after) == -metric.lost(after, before)
    assert metric.lost(before, after) == -Metric("mm", lower_is_better=not lower).lost(before, after)


def test_accuracies_are_in_points_and_other_metrics_in_their_unit() -> None:
    assert (ACCURACY.text(0.9876), ACCURACY.change(0.98, 0.97)) == ("98.76 %", "-1.00 points")
    assert ACCURACY.lost(0.98, 0.97) == pytest.approx(1.0)
    mae = Metric("mae", lower_is_better=True)
    assert (mae.text(0.031), mae.change(0.031, 0.041)) == ("0.031", "+0.01")
    assert ACCURACY.keyed(val=0.5) == {"val_accuracy": 0.5}
    assert mae.keyed(val=0.5, test=None) == {"val_metric": 0.5, "test_metric": None}
    assert Metric("accuracy").keyed(val=0.5) == {"val_metric": 0.5}  # a user's own is in no known unit
