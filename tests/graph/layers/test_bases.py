"""Layers that mix the four components of a channel."""

import pytest
from torch import nn

from quern import nn as qnn
from tests.graph.neurons import dead


@pytest.mark.parametrize("mix", [qnn.QModReLU(4), qnn.QMaxPool1d(2), qnn.Modulus()], ids=lambda m: type(m).__name__)
def test_quaternion_operations_mix_four_real_channels(mix: nn.Module) -> None:
    last = nn.Conv1d(1 if isinstance(mix, qnn.Modulus) else 4, 1, 1)
    model = nn.Sequential(qnn.QConv1d(4, 16, 1), qnn.Modulus(), mix, last)
    last.weight.data[:, 1:] = 0
    assert dead(model, 4, 6) == {"0": [], "3": []}
