"""Penalties of whole neurons, of quaternions and of real numbers, against loops over them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import nn as qnn
from quern.compact import plan
from quern.errors import LastPathWarning
from quern.optim import ProximalAdam, ProximalSGD, freeze_zeros
from quern.penalties import GammaL1, NeuronNorm, NeuronTarget, Penalty


class Words(nn.Module):
    """A table, a recurrent layer of two levels and directions, and a layer that the output comes from."""

    def __init__(self, quaternions: bool) -> None:
        super().__init__()
        options: dict[str, Any] = {"num_layers": 2, "batch_first": True, "bidirectional": True}
        self.words = (qnn.QEmbedding if quaternions else nn.Embedding)(5, 8)
        self.states = (qnn.QLSTM if quaternions else nn.LSTM)(8, 12, **options)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.states(self.words(x))[0].mean(1))


def images(quaternions: bool) -> nn.Sequential:
    conv = qnn.QConv2d if quaternions else nn.Conv2d
    up: Any = (qnn.QConvTranspose2d if quaternions else nn.ConvTranspose2d)(8, 12, 2, bias=False)
    return nn.Sequential(conv(4, 8, 2), nn.ReLU(), up, nn.Tanh(), nn.Flatten(), nn.Linear(108, 2))


CASES = {
    "words": (lambda: Words(False), torch.randint(5, (2, 4))),
    "words of quaternions": (lambda: Words(True), torch.randint(5, (2, 4))),
    "images": (lambda: images(False), torch.randn(2, 4, 3, 3)),
    "images of quaternions": (lambda: images(True), torch.randn(2, 4, 3, 3)),
}
every_case = pytest.mark.parametrize("case", sorted(CASES))


def by_hand(network: Any) -> list[list[tuple[str, Any]]]:
    """Layer by layer and neuron by neuron: the parameters that it has, and its numbers in them."""
    layers = []
    if isinstance(network, Words):
        quaternions, names = isinstance(network.states, qnn.QLSTM), [n for n, _ in network.states.named_parameters()]
        first = (slice(None),) if quaternions else ()
        units, columns = (3, 2) if quaternions else (12, 8)
        layers.append([[("words.weight", (..., n))] for n in range(columns)])
        rows = [[gate * units + n for gate in range(4)] for n in range(units)]
        layers.append([[(f"states.{name}", (*first, own)) for name in names] for own in rows])
    else:
        quaternions = isinstance(network[0], qnn.QConv2d)
        first = (slice(None),) if quaternions else ()
        outs = (2, 3) if quaternions else (8, 12)
        layers.append([[("0.weight", (*first, n)), ("0.bias", (*first, n))] for n in range(outs[0])])
        layers.append([[("2.weight", (slice(None), n))] for n in range(outs[1])])
    return layers


def drawn(case: str, seed: int) -> tuple[nn.Module, Tensor, Penalty]:
    torch.manual_seed(seed)
    build, x = CASES[case]
    network = build().double()
    with torch.no_grad():
        for p in network.parameters():
            p.normal_()
    x = x if x.dtype == torch.long else x.double()
    return network.eval(), x, NeuronNorm(0.7).weighed(network, x)


@every_case
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_value_and_the_proximal_map_are_those_of_each_neuron(case: str, seed: int) -> None:
    network, _, penalty = drawn(case, seed)
    neurons = by_hand(network)
    count, total, step = sum(map(len, neurons)), 0.0, 0.4
    wanted = {name: p.detach().numpy().copy() for name, p in network.named_parameters()}
    for layer in neurons:
        for neuron in layer:
            numbers = np.concatenate([wanted[name][index].ravel() for name, index in neuron])
            weight, length = 0.7 / count * len(numbers) ** 0.5, float(np.sqrt(numbers @ numbers))
            total += weight * length
            for name, index in neuron:
                wanted[name][index] *= max(0.0, 1 - step * 20 * weight / length)
    assert float(penalty(network).detach()) == pytest.approx(total)
    gradients = torch.autograd.grad(penalty(network), list(network.parameters()), allow_unused=True)
    assert gradients[-1] is None  # of the layer that the output comes from
    (20.0 * penalty).prox(network, step)
    for name, p in network.named_parameters():
        np.testing.assert_allclose(p.detach().numpy(), wanted[name], atol=1e-12)


@every_case
def test_the_gradient_is_finite_at_zero_and_right_elsewhere(case: str) -> None:
    network, _, penalty = drawn(case, 1)
    targets = penalty.targets(network)
    targets[0].clear_(1)
    first = targets[0].parameters[0]
    (gradient,) = torch.autograd.grad(penalty(network), [first])
    assert gradient.isfinite().all()
    with torch.no_grad():
        direction = torch.randn_like(first) * (first != 0)
        values = []
        for sign in (1, -1):
            first.add_(sign * 1e-6 * direction)
            values.append(float(penalty(network).detach()))
            first.sub_(sign * 1e-6 * direction)
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float((gradient * direction).sum()), rel=1e-4)


@every_case
def test_a_neuron_that_is_zero_is_one_that_compaction_removes(case: str) -> None:
    network, x, penalty = drawn(case, 2)
    for target in penalty.targets(network):
        assert isinstance(target, NeuronTarget)
        before = plan(network, x).after.parameters
        target.clear_(0)
        assert plan(network, x).after.parameters < before
        assert int((target.strengths() == 0).sum()) == 1


@pytest.mark.parametrize("optimizer", [ProximalAdam, ProximalSGD])
@every_case
def test_a_layer_keeps_its_strongest_neuron(case: str, optimizer: Any) -> None:
    network, x, penalty = drawn(case, 3)
    steps = optimizer(network, 1e9 * penalty, lr=1e-3)
    network(x).square().mean().backward()
    with pytest.warns(LastPathWarning, match="which is kept"):
        steps.step()
    steps.step()  # and it is said once
    for target in steps.targets:
        assert int(target.strengths().count_nonzero()) == 1
    assert not plan(network, x).dead


def test_neurons_that_are_zero_stay_so_while_a_network_heals() -> None:
    network, x, penalty = drawn("words", 4)
    for target in penalty.targets(network):
        target.clear_(1)
    head = network.get_submodule("head")
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    with freeze_zeros(network):
        for _ in range(2):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
    for target in penalty.targets(network):
        assert isinstance(target, NeuronTarget)
        assert (target.strengths() == 0).nonzero().flatten().tolist() == [1]
    assert not torch.equal(head.get_parameter("weight"), before["head.weight"])


def test_real_scales_are_grouped_with_their_shifts() -> None:
    network = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).double()
    norm: Any = network[1]
    for p in norm.parameters():
        p.data.normal_()
    gamma, beta = (p.detach().numpy().copy() for p in (norm.weight, norm.bias))
    lengths = np.sqrt(gamma**2 + beta**2)
    penalty = GammaL1(3.0, with_beta=True)
    assert float(penalty(network).detach()) == pytest.approx(3 / 5 * lengths.sum())
    penalty.prox(network, 0.8)
    kept = np.maximum(0, 1 - 0.8 * 3 / 5 / lengths)
    np.testing.assert_allclose(norm.weight.detach().numpy(), gamma * kept)
    np.testing.assert_allclose(norm.bias.detach().numpy(), beta * kept)
    # In single precision the native passes do both, and Adam has one rate for a scale and its shift.
    single = network.float()
    norm.weight.data[2] = norm.bias.data[2] = 0
    optimizer = ProximalAdam(single, GammaL1(1e-9, with_beta=True), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        (single(torch.randn(8, 6)) - 1).square().mean().backward()
        optimizer.step()
    held = optimizer.state[norm.weight]["exp_avg_sq"], optimizer.state[norm.bias]["exp_avg_sq"]
    torch.testing.assert_close(*held)
    norm.weight.data[1] = norm.bias.data[1] = 0
    with freeze_zeros(single):
        for _ in range(2):
            (single(torch.randn(8, 6)) - 1).square().mean().backward()
            torch.optim.Adam(single.parameters(), lr=0.1).step()
    assert norm.weight[1] == norm.bias[1] == 0
    mixed = nn.Sequential(qnn.QLinear(8, 8), qnn.QBatchNorm1d(8), nn.Linear(8, 4), nn.BatchNorm1d(4))
    assert [target.names for target in penalty.targets(mixed)] == [("1.weight", "1.bias")]


def test_the_optimizers_steps_with_real_scales_are_the_same_by_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr("quern.functional.native.proximal.can_take", lambda _: False)
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
        x, optimizer = torch.randn(8, 6), ProximalAdam(network, GammaL1(0.5, with_beta=True), lr=1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
        results.append(network.state_dict())
    torch.testing.assert_close(*results)


def test_what_has_no_neurons_to_lose_is_refused() -> None:
    network, x = nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), torch.randn(3, 6)
    penalty = NeuronNorm(1.0).weighed(network, x)
    with pytest.raises(ValueError, match="no neurons that could go"):
        penalty.check(network)
    with pytest.raises(ValueError, match="does not know yet"):
        NeuronNorm(1.0).targets(network)
    assert Penalty.from_list(penalty.to_list()) == NeuronNorm(1.0)
