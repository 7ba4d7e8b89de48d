"""Moduli: as scores, and as what an activation depends on."""

import pytest
import torch

from quern import nn as qnn


def test_mod_relu_commutes_with_rotation_and_is_zero_at_zero() -> None:
    from quern import algebra

    layer = qnn.QModReLU(4)
    layer.bias.data.fill_(-0.5)
    x, turn = torch.randn(50, 4), algebra.normalize(torch.randn(4))
    turned = algebra.hamilton(turn, x.T).T
    torch.testing.assert_close(layer(turned), algebra.hamilton(turn, layer(x).T).T)
    assert torch.equal(layer(torch.zeros(1, 4)), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="size 4 along dim 1"):
        layer(torch.ones(2, 8))


def test_modulus_of_a_size_that_is_no_multiple_of_four() -> None:
    with pytest.raises(ValueError, match=r"dim 1 is 6, but it must be a positive multiple of 4"):
        qnn.Modulus()(torch.ones(2, 6))
