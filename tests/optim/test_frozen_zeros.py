"""Zeros stay zero under any optimizer, and nothing else is held."""

import torch

from quern import models
from quern import nn as qnn
from quern.optim import ProximalAdam, freeze_zeros
from quern.penalties import RQL, GammaL1
from tests.optim.test_proximal import descend, network


def test_training_reaches_exact_zeros_and_healing_keeps_them() -> None:
    net = network()
    descend(net, ProximalAdam(net, RQL(0.2) + GammaL1(0.05), lr=0.02), 60)
    conv, norm = net[0], net[1]
    assert isinstance(conv, qnn.QConv2d)
    assert isinstance(norm, qnn.QBatchNorm2d)
    zero = {name: p == 0 for name, p in net.named_parameters()}
    assert zero["0.weight"].any()
    for optimizer in (
        torch.optim.Adam(net.parameters(), lr=0.01),
        torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1),
        ProximalAdam(net, lr=0.01),
    ):
        descend(net, optimizer, 3, first=50)  # momentum is at work when the zeros are frozen
        with torch.no_grad():
            for name, p in net.named_parameters():
                p[zero[name]] = 0
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        with freeze_zeros(net) as frozen:
            assert frozen.zeros == sum(int(zero[n].sum()) for n in ("0.weight", "4.weight", "1.weight")) + 4 * int(
                (zero["1.weight"] & zero["1.bias"].all(0)).sum()
            )
            descend(net, optimizer, 5)
        for name in ("0.weight", "4.weight", "1.weight"):
            assert torch.equal(net.get_parameter(name) == 0, zero[name]), name
            assert not torch.equal(net.get_parameter(name), before[name]), name
        assert conv.weight.grad is not None
        assert (conv.weight.grad[zero["0.weight"]] == 0).all()
    descend(net, torch.optim.Adam(net.parameters(), lr=0.01), 1)
    assert not torch.equal(conv.weight == 0, zero["0.weight"])  # free again after the block


def test_freezing_holds_what_was_removed_and_nothing_else() -> None:
    net = models.digits_qcnn(norm="after_conv")
    norm = net[1]
    assert isinstance(norm, qnn.QBatchNorm2d)
    assert norm.weight is not None
    assert norm.bias is not None
    assert freeze_zeros(net).zeros == 0  # fresh biases are zero, but were not removed
    norm.weight.data[1] = norm.weight.data[2] = 0
    norm.bias.data[:, 1] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    frozen = freeze_zeros(net)
    assert set(frozen.state_dict()) == {"1.weight", "1.bias"}
    assert frozen.zeros == 2 + 4  # both scales; the whole shift of neuron 2, nothing of the live constant of neuron 1
    again = freeze_zeros(net, frozen.state_dict())
    assert again.zeros == frozen.zeros
    norm.weight.data.fill_(1)
    torch.optim.SGD(net.parameters(), lr=0.0).step()
    assert torch.equal(norm.weight == 0, torch.tensor([False, True, True, False]))
    frozen.remove()
    again.remove()
    norm.weight.data.fill_(1)
    torch.optim.SGD(net.parameters(), lr=0.0).step()
    assert (norm.weight == 1).all()
