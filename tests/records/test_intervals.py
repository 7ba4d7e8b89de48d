"""Intervals of shares and of differences, against scipy and against what they promise."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import xlogy
from scipy.stats import binom, binomtest, multinomial, ttest_ind

from quern.records.intervals import Z, tango, welch, wilson

counts = st.integers(1, 20_000).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda g: st.tuples(st.just(g), st.integers(0, n - g), st.just(n)))
)


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


def score(gained: int, lost: int, count: int, delta: float) -> float:
    """By how many standard deviations a difference of ``delta`` misses what was counted; the share of lost examples
    that the deviation takes is the most likely one, found by search."""

    def unlikely(q: float) -> float:
        rest = count - gained - lost
        return -float(xlogy(gained, q + delta) + xlogy(lost, q) + xlogy(rest, max(0.0, 1 - 2 * q - delta)))

    least, most = max(0.0, -delta), (1 - delta) / 2
    best: Any = minimize_scalar(unlikely, bounds=(least, most), method="bounded", options={"xatol": 1e-13})
    return (gained - lost - count * delta) / math.sqrt(count * (2 * best.x + delta * (1 - delta)))


@given(counts)
def test_the_bounds_of_a_difference_are_where_the_score_test_begins_to_reject(case: tuple[int, int, int]) -> None:
    gained, lost, count = case
    low, high = tango(*case)
    assert -1 <= low <= (gained - lost) / count <= high <= 1
    for bound, sign in ((low, 1), (high, -1)):
        if abs(bound) < 1:
            assert score(*case, bound) == pytest.approx(sign * Z, rel=1e-3)


@given(counts)
def test_networks_that_change_places_change_the_sign(case: tuple[int, int, int]) -> None:
    gained, lost, count = case
    low, high = tango(gained, lost, count)
    assert tango(lost, gained, count) == pytest.approx((-high, -low), abs=1e-9)


@given(st.integers(1, 100_000))
def test_without_differing_examples_a_difference_is_as_sure_as_a_share_of_none(count: int) -> None:
    _, most = wilson(0.0, count)
    assert tango(0, 0, count) == pytest.approx((-most, most), abs=1e-12)


@pytest.mark.parametrize("count", [40, 80])
@pytest.mark.parametrize("truth", [(0.02, 0.02), (0.1, 0.05), (0.05, 0.3), (0.3, 0.3)])
def test_it_holds_the_true_difference_about_95_times_in_100(count: int, truth: tuple[float, float]) -> None:
    gains, losses = truth
    parts = np.array([(a, b, count - a - b) for a in range(count + 1) for b in range(count + 1 - a)])
    chances = multinomial.pmf(parts, count, [gains, losses, 1 - gains - losses])
    covered = 0.0
    for (gained, lost, _), chance in zip(parts.tolist(), chances.tolist(), strict=True):
        if chance > 1e-6:
            low, high = tango(gained, lost, count)
            covered += chance if low <= gains - losses <= high else 0.0
    assert 0.93 < covered < 0.995


@pytest.mark.parametrize("case", [(0, 0, 0), (-1, 0, 10), (0, -1, 10), (6, 5, 10)])
def test_what_are_no_parts_is_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no interval"):
        tango(*case)


numbers = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 6)), min_size=2, max_size=8)


@given(numbers, numbers)
def test_it_is_the_interval_of_welch(one: list[float], other: list[float]) -> None:
    low, high = welch(one, other)
    if min(len({*one}), len({*other})) == 1:  # of numbers that are all the same scipy warns
        middle = np.mean(one) - np.mean(other)
        assert low - 1e-9 <= middle <= high + 1e-9
        assert (low == high) == (len({*one}) == len({*other}))
        return
    expected = ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    reach = 1e-7 * max(1.0, high - low)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=reach)


def test_one_number_has_no_spread() -> None:
    for pair in (([1.0], [1.0, 2.0]), ([1.0, 2.0], []), ([], [])):
        with pytest.raises(ValueError, match="at least two each"):
            welch(*pair)
