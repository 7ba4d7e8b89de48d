"""A λ that rises."""

from hypothesis import given
from hypothesis import strategies as st

from quern.optim import ramp


@given(step=st.integers(0, 100), steps=st.integers(0, 50), delay=st.integers(0, 50))
def test_ramp(step: int, steps: int, delay: int) -> None:
    factor = ramp(step, steps, delay)
    assert 0 <= factor <= 1
    assert factor <= ramp(step + 1, steps, delay)
    assert (factor == 1) == (step >= delay + steps)
    if step <= delay and steps:
        assert factor == 0
