"""The checks that run beside all other tests."""

import jaxtyping
import pytest
import torch

from quern import functional, nn


def test_types_and_shapes_are_checked_and_one_name_is_one_size() -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 3, 2)
    assert functional.linear(x, weight, torch.randn(4, 3)).shape == (2, 12)
    for wrong in (torch.randn(4, 5), torch.randn(3, 3), torch.zeros(4, 3, dtype=torch.long), [0.0] * 3):
        with pytest.raises(jaxtyping.TypeCheckError):
            functional.linear(x, weight, wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxtyping.TypeCheckError):
        nn.QLinear(8, "8")  # pyright: ignore[reportArgumentType]
