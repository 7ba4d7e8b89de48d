"""Proximal optimizers: torch's own where there is no penalty, the minimum of the penalised loss where there is one."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import models
from quern import nn as qnn
from quern.algebra import hamilton, normalize
from quern.errors import LastPathWarning
from quern.optim import ProximalAdam, ProximalSGD, freeze_zeros, ramp
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


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adam_without_penalty_and_sharing_is_torch_adam(weight_decay: float, dtype: torch.dtype) -> None:
    ours, theirs = network(), network()
    options = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-6}
    left = ProximalAdam(ours, share=False, weight_decay=weight_decay, **options)
    right = torch.optim.AdamW(theirs.parameters(), weight_decay=weight_decay, **options)
    if weight_decay == 0:
        right = torch.optim.Adam(theirs.parameters(), **options)
    for step in range(8):
        descend(ours, left, 1, step)
        descend(theirs, right, 1, step)
        same(ours, theirs)


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


@given(seed=st.integers(0, 1000), lam=st.sampled_from([0.0, 0.01, 1.0]), decay=st.sampled_from([0.0, 0.1]))
@settings(max_examples=20)
def test_steps_are_the_formula(seed: int, lam: float, decay: float) -> None:
    """Three steps of one weight, written out with numpy."""
    layer = qnn.QLinear(8, 8, bias=False).double()
    optimizer = ProximalAdam(layer, RQL(lam, normalize=False), lr=0.01, weight_decay=decay)
    random = np.random.default_rng(seed)
    w, m, v = layer.weight.detach().numpy().copy(), 0.0, 0.0
    for step in (1, 2, 3):
        g = random.normal(size=w.shape)
        layer.weight.grad = torch.tensor(g)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * (g**2).mean(0)
        rate = 0.01 / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        w = (1 - 0.01 * decay) * w - rate * m / (1 - 0.9**step)
        w = np.sign(w) * np.maximum(np.abs(w) - rate * lam, 0)
        size = np.sqrt((w**2).sum(0))
        w = w * np.where(size > rate * lam, 1 - rate * lam / np.maximum(size, 1e-300), 0)
        np.testing.assert_allclose(layer.weight.detach().numpy(), w, rtol=1e-9, atol=1e-12)


def test_a_step_turns_with_the_quaternions() -> None:
    """Weights and gradients multiplied by one unit quaternion stay multiplied by it: no direction is special."""
    unit = normalize(torch.randn(4, 1, 1, dtype=torch.float64))
    one, other = qnn.QLinear(12, 8, bias=False).double(), qnn.QLinear(12, 8, bias=False).double()
    other.weight.data = hamilton(unit, one.weight.data)
    first, second = ProximalAdam(one, RQ(0.3), lr=0.05), ProximalAdam(other, RQ(0.3), lr=0.05)
    for _ in range(10):
        one.weight.grad = torch.randn_like(one.weight)
        other.weight.grad = hamilton(unit, one.weight.grad)
        first.step()
        second.step()
        torch.testing.assert_close(other.weight.detach(), hamilton(unit, one.weight.detach()))


OPTIMIZERS = {
    "adam": lambda net, penalty: ProximalAdam(net, penalty, lr=0.02),
    "sgd": lambda net, penalty: ProximalSGD(net, penalty, lr=0.5),
    "momentum": lambda net, penalty: ProximalSGD(net, penalty, lr=0.05, momentum=0.9),
    "nesterov": lambda net, penalty: ProximalSGD(net, penalty, lr=0.05, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("penalty", [L1(0.4), RQ(0.8), RQL(0.3), L2(0.5), RQ(1.2) + L2(0.2)], ids=repr)
def test_the_fixed_point_is_the_minimum_of_the_penalised_loss(optimizer, penalty: Penalty) -> None:
    """One λ means the same for every optimizer: the loss is 0.5 |w - a|^2 / Q, whose minimum the proximal map gives."""
    layer = qnn.QLinear(16, 12, bias=False).double()
    wanted = copy.deepcopy(layer)
    wanted.weight.data.normal_()
    target, count = wanted.weight.data.clone(), layer.weight[0].numel()
    steps = optimizer(layer, penalty)
    for step in range(1500):
        for group in steps.param_groups:
            group["lr"] *= 0.995 if step > 400 else 1.0  # Adam's rates do not go to zero by themselves
        layer.weight.grad = (layer.weight.detach() - target) / count
        steps.step()
    penalty.prox(wanted, float(count))
    torch.testing.assert_close(layer.weight.detach(), wanted.weight.detach(), atol=2e-3, rtol=0)
    assert torch.equal(layer.weight == 0, wanted.weight == 0)
    if penalty != L2(0.5):
        assert 0.02 < (wanted.weight == 0).double().mean() < 0.98


def test_gamma_and_beta_go_together() -> None:
    norm = qnn.QBatchNorm1d(16).double()
    optimizer = ProximalAdam(norm, GammaL1(20.0, with_beta=True), lr=0.01)
    assert norm.weight is not None
    assert norm.bias is not None
    for step in range(300):
        generator = torch.Generator().manual_seed(step)
        strong = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)  # two neurons that the loss wants
        norm.weight.grad = 30 * (norm.weight.detach() - 1) * strong + 0.01 * torch.randn(
            4, generator=generator, dtype=torch.float64
        )
        norm.bias.grad = 0.01 * torch.randn(4, 4, generator=generator, dtype=torch.float64)
        optimizer.step()
    assert torch.equal(norm.weight == 0, torch.tensor([False, False, True, True]))
    assert torch.equal((norm.bias == 0).all(0), torch.tensor([False, False, True, True]))
    second = [optimizer.state[p]["exp_avg_sq"].flatten() for p in (norm.weight, norm.bias)]
    torch.testing.assert_close(second[0], second[1])


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


def test_second_moment_takes_a_quarter() -> None:
    net = network()
    optimizer = ProximalAdam(net, lr=0.01)
    descend(net, optimizer, 1)
    shapes = {name: tuple(optimizer.state[p]["exp_avg_sq"].shape) for name, p in net.named_parameters()}
    assert shapes["0.weight"] == (2, 1, 3, 3)
    assert shapes["0.bias"] == (2,)
    assert shapes["1.weight"] == (2,)
    assert shapes["6.weight"] == (3, 2)


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


def test_memory_layout_is_kept() -> None:
    net = models.cifar_qcnn(widths=(8, 8, 8, 8, 8))
    optimizer = ProximalAdam(net, RQ(1.0), lr=0.01)
    strides = net.get_parameter("3.weight").stride()
    net(torch.randn(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    assert net.get_parameter("3.weight").stride() == strides
    assert optimizer.state[net.get_parameter("3.weight")]["exp_avg"].stride() == strides


@given(step=st.integers(0, 100), steps=st.integers(0, 50), delay=st.integers(0, 50))
def test_ramp(step: int, steps: int, delay: int) -> None:
    factor = ramp(step, steps, delay)
    assert 0 <= factor <= 1
    assert factor <= ramp(step + 1, steps, delay)
    assert (factor == 1) == (step >= delay + steps)
    if step <= delay and steps:
        assert factor == 0


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
