"""Scales of normalisations, and the neurons before them."""

from typing import Any

import pytest
from torch import nn

from quern import nn as qnn
from tests.graph.neurons import dead, layer, random_values


@pytest.mark.parametrize(
    ("convolution", "norm"),
    [
        (qnn.QConv1d, qnn.QBatchNorm1d),
        (qnn.QConv2d, qnn.QBatchNorm2d),
        (qnn.QConv3d, qnn.QBatchNorm3d),
        (qnn.QConv2d, qnn.QWhiteningBatchNorm2d),
        (qnn.QConvTranspose1d, qnn.QBatchNorm1d),
        (qnn.QConv2d, nn.BatchNorm2d),
    ],
)
def test_a_zero_scale_kills_whatever_the_shift(convolution: Any, norm: Any) -> None:
    model = random_values(nn.Sequential(convolution(4, 12, 1), norm(12), nn.ReLU(), convolution(12, 8, 1)))
    size = [2] * len(layer(model, "0").kernel_size)
    assert dead(model, 4, *size) == {"0": [], "3": []}
    scale = layer(model, "1").weight.data.unflatten(-1, (-1, 3))[..., 1]
    scale.zero_()
    assert dead(model, 4, *size) == {"0": [1], "3": []}
    scale.view(-1)[-1] = 1e-9
    assert dead(model, 4, *size) == {"0": [], "3": []}


def test_a_zero_scale_after_the_activation_and_after_flattening() -> None:
    model = random_values(
        nn.Sequential(qnn.QConv1d(4, 8, 1), nn.ReLU(), nn.Flatten(), qnn.QBatchNorm1d(24), qnn.QLinear(24, 8))
    )
    layer(model, "3").weight.data[:2] = 0
    assert dead(model, 4, 3) == {"0": [], "4": []}
    layer(model, "3").weight.data[2] = 0  # now all three places of the first neuron
    assert dead(model, 4, 3) == {"0": [0], "4": []}


@pytest.mark.parametrize("norm", [qnn.QBatchNorm1d(12, fixed_scale=True), nn.BatchNorm1d(12, affine=False)])
def test_norms_without_a_scale_keep_all(norm: nn.Module) -> None:
    assert dead(nn.Sequential(qnn.QLinear(8, 12), norm, qnn.QLinear(12, 4)), 8) == {"0": [], "2": []}
