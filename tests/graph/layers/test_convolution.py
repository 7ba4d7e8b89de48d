"""Neurons of convolutions."""

from typing import Any

import pytest
from torch import nn

from quern import nn as qnn
from tests.graph.neurons import dead, kill, layer


@pytest.mark.parametrize("make", [qnn.QConv2d, qnn.QConvTranspose2d])
def test_groups_hear_only_their_channels(make: Any) -> None:
    model = nn.Sequential(qnn.QConv2d(4, 16, 1), make(16, 16, 3, groups=2), qnn.QConv2d(16, 4, 1))
    kill(layer(model, "0"), rows=(0, 1))  # all that the first group hears
    kill(layer(model, "1"), columns=(1,))  # the second input of both groups
    assert dead(model, 4, 5, 5) == {"0": [0, 1, 3], "1": [0, 1], "2": []}
