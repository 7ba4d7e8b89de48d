"""Normalisation as functions: derivatives."""

import pytest
import torch
from torch import Tensor

from quern import functional


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [(True, True), (True, False), (False, True), (False, False)])
def test_first_and_second_derivatives_match_finite_differences(parameters: tuple[bool, bool]) -> None:
    x = torch.randn(3, 8, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, dtype=torch.float64, requires_grad=True) if parameters[0] else None
    bias = torch.randn(4, 2, dtype=torch.float64, requires_grad=True) if parameters[1] else None
    given = [t for t in (x, weight, bias) if t is not None]

    def function(*arguments: Tensor) -> Tensor:
        rest = list(arguments[1:])
        w = rest.pop(0) if parameters[0] else None
        b = rest.pop(0) if parameters[1] else None
        return functional.batch_norm(arguments[0], None, None, w, b, training=True)

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)
