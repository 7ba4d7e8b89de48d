"""Intervals of shares, against scipy and against what they promise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from quern._intervals import wilson


@given(count=st.integers(1, 100_000), share=st.floats(0, 1))
def test_it_is_the_interval_of_wilson(count: int, share: float) -> None:
    right = round(share * count)
    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson(right / count, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("count", [100, 360, 10_000])
def test_it_holds_the_true_share_about_95_times_in_100(share: float, count: int) -> None:
    covered = 0.0
    for right in range(count + 1):
        low, high = wilson(right / count, count)
        covered += float(binom.pmf(right, count, share)) if low <= share <= high else 0.0
    assert 0.92 < covered < 0.98


@pytest.mark.parametrize(("share", "count"), [(0.5, 0), (-0.1, 10), (1.1, 10), (math.nan, 10)])
def test_what_is_no_share_is_refused(share: float, count: int) -> None:
    with pytest.raises(ValueError, match="no interval"):
        wilson(share, count)
