"""ProximalAdam: torch's own without a penalty, else the formula; one rate for all of a group."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quern import models
from quern import nn as qnn
from quern.algebra import hamilton, normalize
from quern.optim import ProximalAdam
from quern.penalties import RQ, RQL, GammaL1
from tests.optim.test_proximal import descend, network, same


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


@given(
    seed=st.integers(0, 1000),
    lam=st.sampled_from([0.0, 0.01, 1.0]),
    decay=st.sampled_from([0.0, 0.1]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
@settings(max_examples=20)
def test_steps_are_the_formula(seed: int, lam: float, decay: float, dtype: torch.dtype) -> None:
    """Three steps of one weight, written out with numpy."""
    layer = qnn.QLinear(8, 8, bias=False).to(dtype)
    rtol, atol = (1e-9, 1e-12) if dtype == torch.float64 else (1e-5, 1e-6)
    optimizer = ProximalAdam(layer, RQL(lam, normalize=False), lr=0.01, weight_decay=decay)
    random = np.random.default_rng(seed)
    w, m, v = layer.weight.detach().double().numpy().copy(), 0.0, 0.0
    for step in (1, 2, 3):
        g = random.normal(size=w.shape)
        layer.weight.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * (g**2).mean(0)
        rate = 0.01 / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        w = (1 - 0.01 * decay) * w - rate * m / (1 - 0.9**step)
        w = np.sign(w) * np.maximum(np.abs(w) - rate * lam, 0)
        size = np.sqrt((w**2).sum(0))
        w = w * np.where(size > rate * lam, 1 - rate * lam / np.maximum(size, 1e-300), 0)
        np.testing.assert_allclose(layer.weight.detach().numpy(), w, rtol=rtol, atol=atol)


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


def test_gamma_and_beta_go_together() -> None:
    norm = qnn.QBatchNorm1d(16).double()
    optimizer = ProximalAdam(norm, GammaL1(20.0, with_beta=True), lr=0.01)
    assert norm.weight is not None
    assert norm.bias is not None
    torch.nn.init.constant_(norm.weight, 0.5)  # so that the loss pulls from the first step on
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


def test_second_moment_takes_a_quarter() -> None:
    net = network()
    optimizer = ProximalAdam(net, lr=0.01)
    descend(net, optimizer, 1)
    shapes = {name: tuple(optimizer.state[p]["exp_avg_sq"].shape) for name, p in net.named_parameters()}
    assert shapes["0.weight"] == (2, 1, 3, 3)
    assert shapes["0.bias"] == (2,)
    assert shapes["1.weight"] == (2,)
    assert shapes["6.weight"] == (3, 2)


def test_memory_layout_is_kept() -> None:
    net = models.cifar_qcnn(widths=(8, 8, 8, 8, 8))
    optimizer = ProximalAdam(net, RQ(1.0), lr=0.01)
    strides = net.get_parameter("3.weight").stride()
    net(torch.randn(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    assert net.get_parameter("3.weight").stride() == strides
    assert optimizer.state[net.get_parameter("3.weight")]["exp_avg"].stride() == strides
