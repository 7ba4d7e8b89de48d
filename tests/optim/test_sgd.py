"""ProximalSGD without a penalty is torch's own."""

import pytest
import torch

from quern.optim import ProximalSGD
from tests.optim.test_proximal import descend, network, same


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True}], ids=str)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_without_penalty_is_torch_sgd(options: dict, weight_decay: float) -> None:
    ours, theirs = network(), network()
    left = ProximalSGD(ours, lr=0.05, weight_decay=weight_decay, **options)
    right = torch.optim.SGD(theirs.parameters(), lr=0.05, weight_decay=weight_decay, **options)
    for step in range(8):
        descend(ours, left, 1, step)
        descend(theirs, right, 1, step)
        same(ours, theirs)
