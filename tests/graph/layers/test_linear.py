"""Neurons of linear layers, quaternion and real."""

from typing import Any

import pytest
import torch
from torch import nn

from quern import nn as qnn
from tests.graph.neurons import dead, kill, layer, mlp, random_values
from tests.networks import Wired


def test_a_zero_row_kills_and_a_zero_column_before_it() -> None:
    model = mlp(2, 4, 3)
    kill(layer(model, "0"), rows=(1,))
    kill(layer(model, "1"), columns=(3,))
    assert dead(model, 8) == {"0": [1, 3], "1": []}


def test_one_component_keeps_a_neuron() -> None:
    for component in range(4):
        model = mlp(2, 2, 1)
        kill(layer(model, "0"), rows=(0,))
        layer(model, "0").weight.data[component, 0, 1] = 1e-30
        assert dead(model, 8) == {"0": [], "1": []}


def test_biases_do_not_count_as_life() -> None:
    model = random_values(mlp(2, 3, 2))
    kill(layer(model, "0"), rows=(0, 1))
    kill(layer(model, "1"), columns=(2,))
    assert dead(model, 8) == {"0": [1, 2], "1": []}  # a layer keeps one neuron, and the network its outputs


def test_death_spreads_forward_and_backward() -> None:
    model = mlp(2, 3, 3, 3, 2)
    for name in ("1", "2"):  # neuron n hears only neuron n
        layer(model, name).weight.data.mul_(torch.eye(3))
    assert dead(model, 8) == {"0": [], "1": [], "2": [], "3": []}
    kill(layer(model, "0"), rows=(0,))
    kill(layer(model, "3"), columns=(2,))
    assert dead(model, 8) == {"0": [0, 2], "1": [0, 2], "2": [0, 2], "3": []}


def test_a_shared_layer_keeps_what_any_use_needs() -> None:
    layers = {"first": qnn.QLinear(8, 12), "twice": qnn.QLinear(12, 12), "last": qnn.QLinear(12, 4)}
    model = Wired(lambda m, x: m.last(m.twice(torch.relu(m.twice(m.first(x))))), **layers)
    kill(layer(model, "last"), columns=(0, 1))
    assert dead(model, 8) == {"first": [], "twice": [], "last": []}
    kill(layer(model, "twice"), columns=(0,))
    assert dead(model, 8) == {"first": [0], "twice": [0], "last": []}
    kill(layer(model, "twice"), columns=(1,))
    assert dead(model, 8) == {"first": [0, 1], "twice": [0, 1], "last": []}


def test_real_layers_after_a_readout() -> None:
    model = nn.Sequential(qnn.QLinear(4, 12), qnn.Modulus(), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    layer(model, "3").weight.data[:, 0] = 0
    layer(model, "3").weight.data.mul_(torch.eye(3))
    layer(model, "5").weight.data[:, 2] = 0
    assert dead(model, 4) == {"0": [0, 2], "3": [0, 2], "5": []}
    model = nn.Sequential(
        *(
            qnn.QConv2d(4, 8, 1),
            qnn.Modulus(),
            nn.BatchNorm2d(2),
            nn.ConvTranspose2d(2, 4, 2, groups=2),
            nn.Conv2d(4, 1, 1),
        )
    )
    layer(model, "4").weight.data[:, :2] = 0  # all that came of the first neuron
    assert dead(model, 4, 3, 3) == {"0": [0], "3": [0, 1], "4": []}
    layer(model, "2").weight.data[1] = 0
    assert dead(model, 4, 3, 3) == {"0": [1], "3": [1, 2, 3], "4": []}  # one stays


@pytest.mark.parametrize("real", [nn.Linear(12, 5), nn.Conv1d(12, 5, 1)])
def test_real_layers_on_quaternions_need_any_of_four_components(real: Any) -> None:
    before = qnn.QLinear(4, 12) if isinstance(real, nn.Linear) else qnn.QConv1d(4, 12, 1)
    model = nn.Sequential(before, real)
    shape = (4,) if isinstance(real, nn.Linear) else (4, 3)
    for component in (0, 1, 3):
        real.weight.data[:, 3 * component + 2] = 0
        assert dead(model, *shape) == {"0": [], "1": []}
    real.weight.data[:, 3 * 2 + 2] = 0
    assert dead(model, *shape) == {"0": [2], "1": []}


def test_quaternion_layers_on_real_channels() -> None:
    real = nn.Conv2d(4, 8, 1)
    model = nn.Sequential(qnn.QConv2d(4, 16, 1), qnn.Modulus(), real, qnn.QConv2d(8, 8, 1), qnn.QConv2d(8, 4, 1))
    real.weight.data[[1, 3, 5, 7], :] = 0  # the components of quaternion 1
    kill(layer(model, "3"), columns=(0,))
    assert dead(model, 4, 2, 2) == {"0": [], "2": [], "3": [], "4": []}  # quaternions out of real channels
