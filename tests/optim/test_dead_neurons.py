"""A neuron without weights in front of a batch normalisation is the same in train and eval mode, whoever trains it."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from quern import nn as qnn
from quern.graph import quaternion_weights
from quern.graph.paths import norms_behind
from quern.optim import ProximalAdam, ProximalSGD, freeze_zeros
from quern.penalties import RQ

DEAD = 1  # the number of the dead neuron, of four


def network(norm: nn.Module, between: nn.Module | None = None, behind: nn.Module | None = None) -> Any:
    """A convolution with one dead neuron whose bias is 0.7, a normalisation, and a layer that makes scores of it."""
    torch.manual_seed(0)
    conv = qnn.QConv2d(4, 16, 3, padding=1)
    net = nn.Sequential(
        conv,
        between or nn.Identity(),
        norm,
        behind or nn.ReLU(),
        nn.Flatten(),
        qnn.QLinear(16 * 36, 12),
        qnn.Modulus(),
    )
    with torch.no_grad():
        conv.weight[:, DEAD] = 0
        assert conv.bias is not None
        conv.bias[:, DEAD] = 0.7
        assert isinstance(norm.bias, Tensor)
        norm.bias.fill_(0.5)  # so that gradients come through the ReLU
    return net


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 4, 6, 6, generator=generator), torch.randint(0, 3, (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


@torch.no_grad()
def difference(net: Any) -> float:
    """Of what the normalisation makes of the dead neuron in train and in eval mode."""
    h = net[1](net[0](torch.randn(16, 4, 6, 6)))
    norm = net[2]
    norm.eval()
    judged = norm(h)
    norm.train()
    return float((norm(h) - judged).unflatten(1, (4, 4))[:, :, DEAD].abs().max())


NORMS: dict[str, Callable[[], nn.Module]] = {
    "quaternion": lambda: qnn.QBatchNorm2d(16),
    "whitening": lambda: qnn.QWhiteningBatchNorm2d(16),
    "real": lambda: nn.BatchNorm2d(16),
}
BETWEEN: dict[str, Callable[[], nn.Module]] = {
    "nothing": nn.Identity,
    "relu": nn.ReLU,
    "pooling": lambda: nn.Sequential(nn.Tanh(), nn.MaxPool2d(3, 1, 1)),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "Adam": lambda net: torch.optim.Adam(net.parameters(), lr=2e-3),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.1),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=2e-3),
    "ProximalAdam": lambda net: ProximalAdam(net, RQ(1e-6), lr=2e-3),
    "ProximalSGD": lambda net: ProximalSGD(net, RQ(1e-6), lr=0.05, momentum=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("between", BETWEEN)
def test_a_frozen_dead_neuron_is_the_same_in_eval_mode(between: str, optimizer: str) -> None:
    net = network(qnn.QBatchNorm2d(16), BETWEEN[between]())
    with freeze_zeros(net):
        train(net, OPTIMIZERS[optimizer](net), 250)
    assert difference(net) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_any_batch_normalisation_will_do(norm: str) -> None:
    net = network(NORMS[norm]())
    with freeze_zeros(net):
        train(net, OPTIMIZERS["Adam"](net), 250)
    assert difference(net) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_a_proximal_optimizer_holds_dead_neurons_still(norm: str) -> None:
    """As long as a neuron is dead: here its weights have no gradient that would bring it back."""
    net = network(NORMS[norm]())
    net[0].weight.register_hook(lambda gradient: gradient * (torch.arange(4) != DEAD).view(1, 4, 1, 1, 1))
    before = [p.detach().clone() for p in (net[0].bias, net[2].weight)]
    train(net, ProximalAdam(net, RQ(1e-6), lr=2e-3), 250)
    assert not net[0].weight[:, DEAD].any()
    assert torch.equal(net[0].bias[:, DEAD], before[0][:, DEAD])
    dead = torch.tensor([DEAD]) if norm != "real" else DEAD + 4 * torch.arange(4)
    assert torch.equal(net[2].weight[..., dead], before[1][..., dead])
    assert not torch.equal(net[2].bias, torch.full_like(net[2].bias, 0.5))  # the shift does matter, and is trained
    assert difference(net) < 1e-3


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("conv", [qnn.QConv2d, nn.Conv2d])
@pytest.mark.parametrize("optimizer", ["ProximalAdam", "ProximalSGD"])
def test_a_bias_right_in_front_of_a_normalisation_is_held_still(norm: str, conv: Any, optimizer: str) -> None:
    """It has no effect, unless the normalisation takes running statistics; in front of an activation it has one."""
    first, second = conv(4, 16, 3), qnn.QConv2d(16, 8, 1)
    net = nn.Sequential(first, NORMS[norm](), nn.ReLU(), second, nn.ReLU(), qnn.QBatchNorm2d(8))
    before = [layer.get_parameter("bias").detach().clone() for layer in (first, second)]
    x, moving = torch.randn(4, 4, 6, 6), OPTIMIZERS[optimizer](net)

    def step() -> None:
        moving.zero_grad()
        (net(x) * torch.linspace(0, 1, 4).view(4, 1, 1, 1)).square().sum().backward()
        moving.step()

    step()
    assert torch.equal(first.bias, before[0])
    assert not torch.equal(second.get_parameter("bias"), before[1])
    net[1].eval()
    step()
    assert not torch.equal(first.bias, before[0])


@pytest.mark.parametrize("frozen", [True, False])
def test_a_bias_that_matters_is_trained(frozen: bool) -> None:
    """Without a normalisation, with dropout before it, or with a second use of the value, a constant has an effect."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = qnn.QConv2d(4, 16, 3, padding=1), qnn.QBatchNorm2d(16)
            self.last = nn.Sequential(nn.Flatten(), qnn.QLinear(16 * 36, 12), qnn.Modulus())

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.last(self.norm(y) + y)

    plain = network(qnn.QBatchNorm2d(16))
    plain[2], plain[3] = nn.Identity(), nn.Tanh()
    dropped = network(qnn.QBatchNorm2d(16), nn.Dropout(0.5))
    twice: Any = Twice()
    with torch.no_grad():
        twice.conv.weight[:, DEAD] = 0
    for net, conv in ((plain, plain[0]), (dropped, dropped[0]), (twice, twice.conv)):
        before = conv.bias.detach().clone()
        with freeze_zeros(net) if frozen else contextlib.nullcontext():  # pyright: ignore
            train(net, ProximalAdam(net, RQ(1e-6), lr=2e-3), 3)
        assert (conv.bias != before)[:, DEAD].all()


def test_what_is_held_is_let_go() -> None:
    net = network(qnn.QBatchNorm2d(16))
    frozen, before = freeze_zeros(net), net[0].bias.detach().clone()
    train(net, OPTIMIZERS["Adam"](net), 2)
    assert torch.equal(net[0].bias[:, DEAD], before[:, DEAD])
    assert not net[0].bias.grad[:, DEAD].any()
    assert (net[0].bias != before)[:, [0, 2, 3]].all()
    frozen.remove()
    train(net, OPTIMIZERS["Adam"](net), 2)
    assert (net[0].bias != before)[:, DEAD].any()


@pytest.mark.slow
def test_a_network_that_cannot_be_traced_is_held_still_too() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(qnn.QBatchNorm2d(16))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if x.sum() < 1e9 else self.inner(-x)

    net: Any = Branching()
    assert norms_behind(net) is None
    with freeze_zeros(net):
        train(net, OPTIMIZERS["Adam"](net), 250)
    assert difference(net.inner) < 1e-3


def test_which_layers_end_in_a_normalisation() -> None:
    class Two(nn.Module):
        """One value that two normalisations take, one that a layer takes too, one that goes through a sum."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (qnn.QLinear(8, 8) for _ in range(3))
            self.n, self.m, self.o = (qnn.QBatchNorm1d(8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            a, b, c = self.a(x), self.b(x), self.c(x)
            return self.n(a) + self.m(torch.relu(a)) + self.o(b) + b + self.o(c + 1)

    assert norms_behind(Two()) == {"a": ("m", "n")}
    assert norms_behind(qnn.QLinear(8, 8)) == {}


def test_an_average_begun_while_healing_has_the_zeros_and_the_same_eval_mode() -> None:
    net = network(qnn.QBatchNorm2d(16))
    with freeze_zeros(net):
        optimizer = OPTIMIZERS["Adam"](net)
        average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer.register_step_post_hook(lambda *_: average.update_parameters(net))
        train(net, optimizer, 150)
    averaged: Any = average.module
    for name, weight in quaternion_weights(net).items():
        assert torch.equal(averaged.get_parameter(name) == 0, weight == 0)
    assert difference(averaged) < 1e-3
