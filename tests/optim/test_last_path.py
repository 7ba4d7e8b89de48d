"""A penalty, however strong, leaves a path from the network's input to its output, and says so once."""

import copy
import math
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import models
from quern import nn as qnn
from quern.compact import compact, compact_, plan
from quern.errors import LastPathWarning
from quern.graph import quaternion_weights
from quern.optim import ProximalAdam, ProximalSGD, ramp
from quern.penalties import L1, L2, RQ, RQL, GammaL1, Penalty
from quern.sparsity import measure
from tests.networks import cloned, draw, kill, random_values

PENALTIES: dict[str, Callable[[float], Penalty]] = {
    "l1": L1,
    "rq": RQ,
    "rql": RQL,
    "gamma": GammaL1,
    "gamma-beta": lambda weight: GammaL1(weight, with_beta=True),
    "both": lambda weight: RQ(weight) + GammaL1(weight),
}
OPTIMIZERS: dict[str, Callable[[nn.Module, Penalty], ProximalAdam | ProximalSGD]] = {
    "adam": lambda net, penalty: ProximalAdam(net, penalty, lr=5e-3),
    "sgd": lambda net, penalty: ProximalSGD(net, penalty, lr=0.1, momentum=0.9),
}


def descend(net: nn.Module, optimizer: Any, steps: int, clip: Callable[[], Any] = lambda: None) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(0, 10, (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        clip()
        optimizer.step()


def depends_on_its_input(net: nn.Module) -> bool:
    """Seen from outside, in float64: some input changes the output."""
    judged = copy.deepcopy(net).double().eval()
    with torch.no_grad():
        answers = judged(10 * torch.randn(256, 1, 8, 8, dtype=torch.float64))
    return bool((answers != answers[0]).any())


def digits(norm: models.Norm = "after_conv") -> nn.Sequential:
    torch.manual_seed(0)
    return models.digits_qcnn(norm=norm)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", PENALTIES)
def test_a_penalty_without_measure_leaves_a_path(kind: str, optimizer: str) -> None:
    net = digits()
    made = OPTIMIZERS[optimizer](net, PENALTIES[kind](1e6))
    with pytest.warns(LastPathWarning) as told:
        descend(net, made, 12)
    assert len(told) == 1
    assert not plan(net, torch.randn(2, 1, 8, 8)).dead
    assert measure(net, torch.randn(2, 1, 8, 8)).neurons_left > 0
    assert depends_on_its_input(net)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "after_conv", "after_activation"])
def test_clipped_gradients_do_not_kill(norm: models.Norm) -> None:
    """Clipped by torch, Adam's threshold is many times larger; the network lives, and its owner is told of λ."""
    net = digits(norm)
    optimizer = ProximalAdam(net, RQL(60.0), lr=5e-3)
    with pytest.warns(LastPathWarning, match=r"penalty RQL\(60\) .* smaller λ.*clip_grad_norm_") as told:
        descend(net, optimizer, 200, lambda: nn.utils.clip_grad_norm_(net.parameters(), 1e-3))
    assert len(told) == 1
    assert measure(net).quaternion_sparsity > 0.9
    assert depends_on_its_input(net)


def test_the_strength_of_the_moment_is_told() -> None:
    net = digits()
    optimizer = ProximalAdam(net, GammaL1(4e6), lr=5e-3)
    optimizer.scale_penalty(ramp(1, 4))
    with pytest.warns(LastPathWarning, match=r"penalty GammaL1\(1e\+06\)"):
        descend(net, optimizer, 2)


def test_nothing_is_said_or_kept_where_nothing_is_lost() -> None:
    one, other = digits(), digits()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descend(one, ProximalAdam(one, RQL(30.0) + L2(0.1), lr=5e-3), 20)
        descend(other, ProximalAdam(other, L2(1e6), lr=5e-3), 3)
    assert 0 < measure(one).quaternion_sparsity < 1


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["rq", "rql", "l1"]))
@settings(max_examples=8)
def test_random_networks_live(seed: int, kind: str) -> None:
    """Whatever the wiring: a plan, which tries what it says, says that it lives."""
    torch.manual_seed(seed)
    drawn = draw(random.Random(seed))
    net = random_values(drawn.model).train()
    inputs = drawn.inputs[0]
    assume(quaternion_weights(net))
    found = plan(net, inputs, keep_unknown=True)
    assume(not found.dead and not found.notes)  # which say what was not followed
    optimizer = ProximalSGD(net, PENALTIES[kind](1e9), lr=0.1)
    net(*cloned(inputs))  # what the path is read from
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastPathWarning)
        for _ in range(3):
            optimizer.step()
    assert not plan(net, inputs, keep_unknown=True).dead


def test_copies_of_a_network_that_is_watched_are_networks_as_any() -> None:
    net = nn.Sequential(qnn.QLinear(8, 8), nn.ReLU(), qnn.QLinear(8, 4))
    optimizer = ProximalSGD(net, RQ(1e9), lr=0.1)
    twin, again = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    x = torch.randn(3, 8)
    assert torch.equal(twin(x), again(x))  # these are not what the path is read from
    kill(net[0], rows=(1,))
    for one in (net, net[0], twin):  # nor does compaction take them for networks with hooks
        assert plan(one, x).notes == ()
    assert plan(net, x).neurons == (3, 2)
    copied = copy.deepcopy(optimizer)
    for made, model in ((optimizer, net), (copied, copied._path.model)):
        model(x).sum().backward()
        with pytest.warns(LastPathWarning):
            made.step()
        assert not plan(model, x).dead
        assert not model._forward_pre_hooks


def test_before_a_call_no_layer_loses_all_it_has() -> None:
    net = nn.Sequential(qnn.QLinear(8, 8), nn.ReLU(), qnn.QLinear(8, 4))
    optimizer = ProximalSGD(net, RQ(1e9), lr=0.1)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    with pytest.warns(LastPathWarning):
        optimizer.step()
    assert all(weight.any() for weight in quaternion_weights(net).values())


class Beside(nn.Module):
    """A branch beside a path that no penalty reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch = nn.Linear(64, 8), qnn.QLinear(8, 8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x.flatten(1))
        return self.last(y + self.branch(y))


def test_a_branch_beside_a_living_path_may_go() -> None:
    net = Beside()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descend(net, ProximalAdam(net, RQ(1e6), lr=5e-3), 3)
    assert not net.branch.weight.any()


class Branching(nn.Module):
    """What torch.fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = digits("none")

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() < 1e9 else self.inner(-x)


def test_in_a_network_that_cannot_be_traced_each_layer_keeps_something() -> None:
    net = Branching()
    with pytest.warns(LastPathWarning):
        descend(net, ProximalAdam(net, RQ(1e6), lr=5e-3), 5)
    for weight in quaternion_weights(net).values():
        assert weight.any()


def test_what_is_not_on_the_path_goes_by_the_formula() -> None:
    """One step of plain descent: every quaternion that is left was on the path, and is as the gradient left it."""
    net = digits("none")
    optimizer = ProximalSGD(net, RQ(1e9), lr=1e-3)
    with pytest.warns(LastPathWarning):
        descend(net, optimizer, 1)
    plain = digits("none")
    descend(plain, torch.optim.SGD(plain.parameters(), lr=1e-3), 1)
    for name, weight in quaternion_weights(net).items():
        kept = (weight != 0).any(0)
        assert 0 < int(kept.sum()) < kept.numel() / 4
        torch.testing.assert_close(weight[:, kept], plain.get_parameter(name)[:, kept])


@pytest.mark.slow
def test_a_state_goes_on_with_the_same_path() -> None:
    """Stopped and loaded into another optimizer after any number of steps: the same weights, nothing said twice."""
    wanted = digits()
    with pytest.warns(LastPathWarning) as told:
        descend(wanted, ProximalAdam(wanted, RQL(3e4), lr=5e-3), 10)
    assert len(told) == 1
    for stop in (1, 4, 9):
        net = digits()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            first = ProximalAdam(net, RQL(3e4), lr=5e-3)
            first.weigh({"0.weight": 1.0})
            descend(net, first, stop)
            second = ProximalAdam(net, RQL(3e4), lr=5e-3)
            second.load_state_dict(copy.deepcopy(first.state_dict()))
            assert second.costs == first.costs
            for step in range(stop, 10):
                generator = torch.Generator().manual_seed(step)
                x = torch.randn(16, 1, 8, 8, generator=generator)
                y = torch.randint(0, 10, (16,), generator=generator)
                second.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                second.step()
        assert len([w for w in told if w.category is LastPathWarning]) == 1
        torch.testing.assert_close(net.state_dict(), wanted.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [kind for kind in PENALTIES if kind != "both"])
def test_a_path_is_the_same_numbers_after_compaction(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not looked for again, as that takes longer than many steps, unless some of it went."""
    net = digits()
    optimizer = OPTIMIZERS["adam"](net, PENALTIES[kind](1e-3))
    descend(net, optimizer, 2)

    def held() -> dict[str, Tensor]:
        groups = optimizer.path["groups"]
        first = {name: net.get_parameter(name).detach() for name in groups}
        return {name: (p.flatten(1) if p.dim() > 1 else p)[..., groups[name]].clone() for name, p in first.items()}

    before = held()
    groups = optimizer.path["groups"]
    with torch.no_grad():  # a neuron of the second layer goes that no path leads through
        row = net.get_parameter("3.weight")[0, 0].numel()
        on_path = {*groups.get("4.weight", ()), *(n // row for n in groups.get("3.weight", ()))}
        gone = next(n for n in range(8) if n not in on_path)
        net.get_parameter("4.weight")[gone] = 0
        net.get_parameter("4.bias")[:, gone] = 0
    compact_(net, plan(net, torch.randn(2, 1, 8, 8)), optimizer)
    assert len(net.get_parameter("4.weight")) == 7
    after = held()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    looked = []
    monkeypatch.setattr("quern.optim._last_path.LastPath.look", lambda *_: looked.append(True))
    descend(net, optimizer, 1)
    assert not looked


def test_a_path_that_was_compacted_away_is_looked_for_again() -> None:
    net = digits()
    optimizer = OPTIMIZERS["adam"](net, GammaL1(1e-3))
    descend(net, optimizer, 2)
    with torch.no_grad():
        for n in optimizer.path["groups"]["4.weight"]:
            net.get_parameter("4.weight")[n] = 0
    compact_(net, plan(net, torch.randn(2, 1, 8, 8)), optimizer)
    assert optimizer.path == {"groups": None, "held": False}
    descend(net, optimizer, 1)
    groups = optimizer.path["groups"]
    assert groups["4.weight"]


def test_a_compacted_network_keeps_its_path() -> None:
    net = digits()
    optimizer = ProximalAdam(net, GammaL1(300.0), lr=5e-3)
    with pytest.warns(LastPathWarning):
        descend(net, optimizer, 30)
    small = compact(net, plan(net, torch.randn(2, 1, 8, 8)), optimizer)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said twice
        descend(small, optimizer, 30)
    assert depends_on_its_input(small)


@pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")
@given(factor=st.floats(1e-3, 1.0), seed=st.integers(0, 100), kind=st.sampled_from(["rq", "rql", "l1"]))
@settings(max_examples=20)
def test_clipped_by_the_optimizer_a_penalty_means_the_same(factor: float, seed: int, kind: str) -> None:
    """Every gradient clipped by one factor: the weights are those without clipping."""
    torch.manual_seed(seed)
    layers = [qnn.QLinear(16, 12).double() for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    free, clipped = (ProximalAdam(layer, PENALTIES[kind](60.0), lr=0.01, eps=1e-30) for layer in layers)
    for _ in range(8):
        for p, q in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        norm = float(nn.utils.get_total_norm([p.grad for p in layers[0].parameters() if p.grad is not None]))
        assert float(clipped.clip_grad_norm_(factor * (norm + 1e-6))) == pytest.approx(norm)
        free.step()
        clipped.step()
    torch.testing.assert_close(layers[0].state_dict(), layers[1].state_dict(), rtol=1e-7, atol=1e-12)


def test_a_clipping_is_for_one_step() -> None:
    layers = [qnn.QLinear(16, 12, bias=False).double() for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    one, other = (ProximalSGD(layer, RQ(0.1), lr=0.1) for layer in layers)
    for layer, optimizer in zip(layers, (one, other), strict=True):
        layer.weight.grad = torch.zeros_like(layer.weight)
        if optimizer is one:
            layer.weight.grad.fill_(math.inf)
            assert float(one.clip_grad_norm_(1.0)) == math.inf
            layer.weight.grad.zero_()
        optimizer.step()  # with an infinite norm nothing is left of gradient and penalty
    assert not torch.equal(layers[0].weight, layers[1].weight)
    before = layers[0].weight.detach().clone()
    one.step()
    assert (layers[0].weight.norm(dim=0) < before.norm(dim=0)).all()
