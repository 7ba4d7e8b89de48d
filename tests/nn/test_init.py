"""Initialisation: the right spread, the right structure, torch's generator."""

import math

import pytest
import torch
from torch import nn

from quern import algebra
from quern import nn as qnn
from quern.nn import init
from tests import oracle


@pytest.mark.parametrize("parts", ["r", "ijk", "rijk"])
def test_he_keeps_the_variance_through_a_relu_layer(parts: str) -> None:
    """After ReLU a component has the second moment 1/2; He's rule brings the output's variance back to 1."""
    width = 128 * len(parts)
    layer = qnn.QLinear(width, 1024, bias=False, input_parts=parts)
    x = torch.randn(500, width).relu()
    for component in layer(x).detach().chunk(4, 1):
        assert abs(float(component.var()) - 1) < 0.12


def test_he_through_a_convolution_and_glorot_without_relu() -> None:
    conv = qnn.QConv2d(64, 128, 3, padding=1, bias=False)
    x = torch.randn(8, 64, 12, 12).relu()
    assert abs(float(conv(x).detach()[..., 1:-1, 1:-1].var()) - 1) < 0.08
    layer = qnn.QLinear(256, 768, bias=False)
    init.glorot_(layer.weight)
    assert abs(float(layer(torch.randn(300, 256)).detach().var()) - 2 * 256 / (256 + 768)) < 0.03


def test_he_through_many_layers() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*[m for _ in range(10) for m in (qnn.QLinear(512, 512, bias=False), nn.ReLU())])
    y = network(torch.randn(200, 512)).detach()
    assert 0.2 < float(y.square().mean()) < 1.5  # started at 1; ReLU leaves half of a variance of 1


def test_modulus_has_the_chi_distribution_with_four_degrees_of_freedom() -> None:
    weight = torch.empty(4, 300, 200, dtype=torch.float64)
    init.he_(weight)
    scaled = weight.norm(dim=0) / math.sqrt(2 / (4 * 200))
    # chi(4): mean sqrt(2) Gamma(5/2) / Gamma(2), second moment 4, median about 1.832
    assert abs(float(scaled.mean()) - math.sqrt(2) * math.gamma(2.5)) < 0.01
    assert abs(float(scaled.square().mean()) - 4) < 0.04
    assert abs(float(scaled.median()) - 1.832) < 0.01
    assert abs(float(weight.mean())) < 1e-4


def test_unitary() -> None:
    weight = torch.empty(4, 50, 40, 3)
    init.unitary_(weight, gain=2.0)
    torch.testing.assert_close(algebra.modulus(weight), torch.full((50, 40, 3), 2.0))


@pytest.mark.parametrize("shape", [(4, 6, 6), (4, 3, 8), (4, 8, 2), (4, 5, 2, 3, 3)])
def test_orthogonal_in_the_block(shape: tuple[int, ...]) -> None:
    weight = torch.empty(shape, dtype=torch.float64)
    init.orthogonal_(weight, gain=3.0)
    block = torch.from_numpy(oracle.block(weight.flatten(2).numpy())) / 3
    gram = block @ block.T if block.shape[0] <= block.shape[1] else block.T @ block
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("fill", [init.he_, init.glorot_, init.unitary_, init.orthogonal_])
def test_drawn_from_torchs_generator(fill) -> None:
    weight = torch.empty(4, 3, 5)
    torch.manual_seed(7)
    first = fill(weight.clone())
    second = fill(weight.clone())
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    assert torch.equal(fill(weight.clone()), first)
    mine = [fill(weight.clone(), generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*mine)
    assert fill(weight) is weight
    with pytest.raises(ValueError, match=r"a quaternion weight is \(4, out, in"):
        fill(torch.empty(3, 4, 5))


def test_two_layers_of_a_network_start_differently() -> None:
    a, b = qnn.QLinear(8, 8), qnn.QLinear(8, 8)
    assert not torch.equal(a.weight, b.weight)
