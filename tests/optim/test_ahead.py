"""Where the penalty alone leads, and what a neuron costs: what a steering asks of the optimizers."""

import copy
import math
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quern import models
from quern.compact import compact, plan
from quern.optim import ProximalAdam, ProximalSGD
from quern.penalties import RQ, RQL, GammaL1
from tests.optim.test_proximal import descend, network

LR, MOMENTUM = 0.02, 0.8
OPTIMIZERS = {
    "adam": lambda net, penalty: ProximalAdam(net, penalty, lr=LR),
    "sgd": lambda net, penalty: ProximalSGD(net, penalty, lr=LR, momentum=MOMENTUM),
}
PENALTIES = {
    "gamma": GammaL1,
    "gamma-beta": lambda lam: GammaL1(lam, with_beta=True),
    "rq": RQ,
    "rql": RQL,
}


def values(net: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in net.named_parameters()}


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


def soft(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


def wanted(net: nn.Module, optimizer: torch.optim.Optimizer, kind: str, thresholds: dict[str, float]) -> dict[str, Any]:
    """Where the parameters go, in numpy, for thresholds steps * λ * cost / (number of weights) by name."""
    found = values(net)

    def rate(name: str, size: int) -> Any:
        if isinstance(optimizer, ProximalSGD):
            return LR / (1 - MOMENTUM)
        state = optimizer.state[net.get_parameter(name)]
        second = state["exp_avg_sq"].numpy() / size / (1 - 0.999 ** float(state["step"]))
        return LR / (np.sqrt(second) + 1e-8)

    for name, threshold in thresholds.items():
        if kind == "gamma":
            found[name] = soft(found[name], threshold * rate(name, 1))
            continue
        if kind == "gamma-beta":
            shift = name.replace("weight", "bias")
            by, members = threshold * rate(name, 5), (name, shift)
            squares = found[name] ** 2 + (found[shift] ** 2).sum(0)
        else:
            by, members = threshold * rate(name, 4), (name,)
            if kind == "rql":
                found[name] = soft(found[name], by)
            squares = (found[name] ** 2).sum(0)
        kept = np.maximum(1 - by / np.sqrt(np.maximum(squares, 1e-300)), 0)
        found |= {member: found[member] * kept for member in members}
    return found


def penalised(net: nn.Module, kind: str) -> dict[str, int]:
    """How many groups each parameter has that is penalised."""
    if kind.startswith("gamma"):
        return {"1.weight": net.get_parameter("1.weight").numel()}
    return {name: net.get_parameter(name).numel() // 4 for name in ("0.weight", "4.weight")}


def moved(kind: str, optimizer: str, lam: float, seed: int = 0) -> tuple[nn.Sequential, Any]:
    net = network(seed)
    made = OPTIMIZERS[optimizer](net, PENALTIES[kind](lam))
    descend(net, made, 4, first=seed)
    return net, made


@pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", PENALTIES)
@given(steps=st.floats(0, 200), lam=st.floats(0.01, 3), cost=st.floats(0.1, 10), seed=st.integers(0, 5))
@settings(max_examples=8)
def test_ahead_is_where_the_penalty_alone_leads(
    kind: str, optimizer: str, steps: float, lam: float, cost: float, seed: int
) -> None:
    net, made = moved(kind, optimizer, lam, seed)
    counts = penalised(net, kind)
    first, before = next(iter(counts)), values(net)
    made.weigh({first: 2 * cost})  # which the next call takes the place of
    made.weigh({first: cost, "6.weight": 3.0})
    thresholds = {name: steps * lam / sum(counts.values()) for name in counts}
    thresholds[first] *= cost
    expected = wanted(net, made, kind, thresholds)
    with made.ahead(steps):
        inside = values(net)
        for name, value in expected.items():
            np.testing.assert_allclose(inside[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert equal(values(net), before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["gamma", "gamma-beta", "rq"])
def test_steps_ahead_add_up(kind: str, optimizer: str) -> None:
    net, made = moved(kind, optimizer, 0.3)
    before = values(net)
    with made.ahead(7.0):
        at_once = values(net)
    with ExitStack() as blocks:
        for _ in range(7):
            blocks.enter_context(made.ahead(1.0))
        one_by_one = values(net)
    for name, value in at_once.items():
        np.testing.assert_allclose(one_by_one[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert not equal(at_once, before)
    assert equal(values(net), before)


def test_a_block_that_fails_leaves_the_parameters_as_they_were() -> None:
    net, made = moved("rql", "adam", 1.0)
    before = values(net)

    def fail() -> None:
        with made.ahead(1000.0):
            assert not equal(values(net), before)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert equal(values(net), before)


def test_what_was_never_moved_stays() -> None:
    net = network()
    made = ProximalAdam(net, RQ(1.0), lr=LR)
    before = values(net)
    with made.ahead(1e6):
        assert equal(values(net), before)
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="steps is"):
            made.ahead(wrong).__enter__()


def test_ahead_without_momentum() -> None:
    net = network()
    made = ProximalSGD(net, GammaL1(1.0), lr=LR)
    descend(net, made, 2)
    with made.ahead(1e6):
        assert (net.get_parameter("1.weight") == 0).all()


def test_costs_that_are_no_factors_are_refused() -> None:
    made = ProximalAdam(network(), GammaL1(1.0))
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"the cost of 1\.weight is .* positive finite number"):
            made.weigh({"1.weight": wrong})
    assert made.costs == {}


def test_costs_weigh_the_value_too_and_are_kept_by_copies() -> None:
    net, made = moved("rq", "adam", 1.0)
    before = made.penalty().item()
    made.weigh({"0.weight": 5.0, "4.weight": 5.0})
    assert made.penalty().item() == pytest.approx(5 * before)
    made.weigh({"0.weight": 2.0})  # the other keeps its own
    assert made.costs == {"0.weight": 2.0, "4.weight": 5.0}
    twin, copied = copy.deepcopy((net, made))
    assert copied.costs == made.costs
    for one, its in ((net, made), (twin, copied)):
        its.weigh({"4.weight": 0.5})
        descend(one, its, 3, first=9)
    assert equal(values(net), values(twin))


def test_a_second_weighing_leaves_no_trace_of_the_first() -> None:
    """To the last bit: a training that is resumed weighs once."""
    once, twice = (moved("rq", "adam", 0.3) for _ in range(2))
    costs = {"0.weight": 7.0, "4.weight": 0.1}
    once[1].weigh(costs)
    for n in range(1, 20):
        twice[1].weigh({"0.weight": n / 3, "4.weight": n / 7})
    twice[1].weigh(costs)
    for net, made in (once, twice):
        descend(net, made, 5, first=9)
    assert equal(values(once[0]), values(twice[0]))


def test_costs_survive_compaction() -> None:
    torch.manual_seed(0)
    net = models.digits_qcnn(norm="after_conv", widths=(8, 16)).double()
    made = ProximalAdam(net, GammaL1(1.0), lr=LR)
    x = torch.randn(8, 1, 8, 8, dtype=torch.float64)
    net(x).square().mean().backward()
    made.step()
    made.weigh({"4.weight": 3.0})
    with torch.no_grad():
        net.get_parameter("4.weight")[1] = 0
        net.get_parameter("4.bias")[:, 1] = 0
    small = compact(net, plan(net, x), made)
    scale = small.get_parameter("4.weight")
    assert scale.shape == (3,)
    assert made.costs == {"4.weight": 3.0}
    expected = wanted(small, made, "gamma", {"1.weight": 0.5 / 6, "4.weight": 3 * 0.5 / 6})
    with made.ahead(0.5):
        np.testing.assert_allclose(scale.detach().numpy(), expected["4.weight"], rtol=1e-9)
