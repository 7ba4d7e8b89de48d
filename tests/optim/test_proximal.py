"""What every proximal optimizer does: the minimum of the penalised loss, states, groups, refusals."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import LastPathWarning
from quern.optim import ProximalAdam, ProximalSGD
from quern.penalties import L1, L2, RQ, RQL, GammaL1, Penalty


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = (qnn.QConv2d(4, 8, 3), qnn.QBatchNorm2d(8), nn.ReLU(), nn.Flatten(), qnn.QLinear(8 * 4, 8), qnn.Modulus())
    return nn.Sequential(*layers, nn.Linear(2, 3)).double()


def descend(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    """Steps on random data, the same ones for the same numbers."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(6, 4, 4, 4, generator=generator, dtype=torch.float64)
        y = torch.randint(0, 3, (6,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def same(a: nn.Module, b: nn.Module) -> None:
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=1e-9, atol=1e-12)


OPTIMIZERS = {  # with the steps that each takes to arrive
    "adam": (lambda net, penalty: ProximalAdam(net, penalty, lr=0.02), 1500),
    "sgd": (lambda net, penalty: ProximalSGD(net, penalty, lr=0.5), 400),
    "momentum": (lambda net, penalty: ProximalSGD(net, penalty, lr=0.05, momentum=0.9), 400),
    "nesterov": (lambda net, penalty: ProximalSGD(net, penalty, lr=0.05, momentum=0.9, nesterov=True), 400),
}


@pytest.mark.parametrize(("make", "count"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("penalty", [L1(0.4), RQ(0.8), RQL(0.3), L2(0.5), RQ(1.2) + L2(0.2)], ids=repr)
def test_the_fixed_point_is_the_minimum_of_the_penalised_loss(make, count: int, penalty: Penalty) -> None:
    """One λ means the same for every optimizer: the loss is 0.5 |w - a|^2 / Q, whose minimum the proximal map gives."""
    layer = qnn.QLinear(16, 12, bias=False).double()
    wanted = copy.deepcopy(layer)
    wanted.weight.data.normal_()
    target, weights = wanted.weight.data.clone(), layer.weight[0].numel()
    optimizer = make(layer, penalty)
    for step in range(count):
        for group in optimizer.param_groups:
            group["lr"] *= 0.995 if step > 400 else 1.0  # Adam's rates do not go to zero by themselves
        layer.weight.grad = (layer.weight.detach() - target) / weights
        optimizer.step()
    penalty.prox(wanted, float(weights))
    torch.testing.assert_close(layer.weight.detach(), wanted.weight.detach(), atol=2e-3, rtol=0)
    assert torch.equal(layer.weight == 0, wanted.weight == 0)
    if penalty != L2(0.5):
        assert 0.02 < (wanted.weight == 0).double().mean() < 0.98


@pytest.mark.parametrize(
    "make", [ProximalAdam, lambda *a, **k: ProximalSGD(*a, momentum=0.9, **k)], ids=["adam", "sgd"]
)
def test_state_dict_goes_on_where_it_was(make) -> None:
    penalty = RQ(0.5) + GammaL1(0.3, with_beta=True)
    net = network()
    optimizer = make(net, penalty, lr=0.01)
    descend(net, optimizer, 4)
    optimizer.scale_penalty(0.5)
    other = copy.deepcopy(net)
    restored = make(other, penalty, lr=0.5)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert restored.param_groups[0]["penalty_scale"] == 0.5
    twin, copied = copy.deepcopy((net, optimizer))
    descend(net, optimizer, 4, first=4)
    descend(other, restored, 4, first=4)
    descend(twin, copied, 4, first=4)
    same(net, other)
    same(net, twin)


def test_groups_schedulers_and_closures() -> None:
    net = network()
    groups = [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[4].parameters()}]
    optimizer = ProximalAdam(net, RQ(1.0), lr=0.1, params=groups)
    optimizer.add_param_group({"params": net[1].parameters()})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    untouched = net.get_parameter("6.weight").detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(6, 4, 4, 4, dtype=torch.float64) * torch.arange(6).view(-1, 1, 1, 1)).square().mean()
        loss.backward()
        return loss.detach()

    first = optimizer.step(closure)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.01, 0.01])
    assert first.item() > 0
    assert torch.equal(net.get_parameter("6.weight"), untouched)


def test_a_penalty_acts_on_what_is_trained_here_only() -> None:
    net = network()
    optimizer = ProximalSGD(net, RQ(1000.0), lr=0.1, params=net[0].parameters())
    with pytest.warns(LastPathWarning):
        descend(net, optimizer, 1)
    assert (net.get_parameter("0.weight") == 0).float().mean() > 0.8
    assert not (net.get_parameter("4.weight") == 0).any()
    alone = network()
    penalised = ProximalAdam(alone, RQ(1000.0), lr=0.1)
    penalised.scale_penalty(0.0)
    descend(alone, penalised, 1)
    assert not (alone.get_parameter("0.weight") == 0).any()


def test_parameters_without_gradient_stay() -> None:
    net = network()
    optimizer = ProximalAdam(net, RQ(5.0), lr=0.1)
    before = net.get_parameter("0.weight").detach().clone()
    net.get_parameter("4.weight").grad = torch.ones_like(net.get_parameter("4.weight"))
    optimizer.step()
    assert torch.equal(net.get_parameter("0.weight"), before)
    assert optimizer.state[net.get_parameter("0.weight")] == {}


def test_refusals() -> None:
    net = network()
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="lr is"):
            ProximalAdam(net, lr=wrong)
        with pytest.raises(ValueError, match="lr is"):
            ProximalSGD(net, lr=wrong)
        with pytest.raises(ValueError, match="factor is"):
            ProximalAdam(net).scale_penalty(wrong)
    with pytest.raises(ValueError, match="betas are"):
        ProximalAdam(net, betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="eps is"):
        ProximalAdam(net, eps=0.0)
    with pytest.raises(ValueError, match="momentum is"):
        ProximalSGD(net, momentum=1.0)
    with pytest.raises(ValueError, match="nesterov needs"):
        ProximalSGD(net, nesterov=True)
    with pytest.raises(ValueError, match="leave share=True"):
        ProximalAdam(net, RQ(1.0), share=False)
    assert ProximalAdam(net, L1(1.0), share=False) is not None
    norm = net[1]
    apart = [{"params": [norm.weight]}, {"params": [norm.bias]}]
    with pytest.raises(ValueError, match="different parameter groups"):
        ProximalAdam(net, GammaL1(1.0, with_beta=True), params=apart)
