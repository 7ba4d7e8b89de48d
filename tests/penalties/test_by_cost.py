"""Penalties weighed by what quaternions cost at run time: costs counted by hand, conditions of optimality."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import nn as qnn
from quern.compact import compact_, plan
from quern.errors import InputError
from quern.graph import quaternion_costs, quaternion_weights
from quern.optim import ProximalAdam, ProximalSGD
from quern.penalties import L1, RQ, RQL, GammaL1, Penalty

SEEDS = st.integers(0, 2**31)
POWERS = st.sampled_from([0.25, 0.5, 1.0])
few = settings(max_examples=25)
NAMES = ("0.weight", "2.weight", "5.weight")


def network(seed: int, side: int = 9, stride: int = 2, parts: str = "ijk") -> nn.Sequential:
    """Quaternions that are applied at many positions, at fewer, and once; some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    second = (side - 2 - 3) // stride + 1
    net = nn.Sequential(
        qnn.QConv2d(len(parts), 8, 3, input_parts=parts),
        nn.ReLU(),
        qnn.QConv2d(8, 12, 3, stride=stride),
        nn.ReLU(),
        nn.Flatten(),
        qnn.QLinear(12 * second**2, 8),
    ).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
            if p.dim() > 2:
                p[:, torch.rand(p.shape[1:], generator=generator) < 0.2] = 0
    return net


def example(side: int = 9, batch: int = 2, parts: str = "ijk") -> Tensor:
    return torch.zeros(batch, len(parts), side, side, dtype=torch.float64)


def weights_by_hand(net: nn.Sequential, power: float, side: int = 9, stride: int = 2, parts: int = 3) -> list[float]:
    """The factors a_w of the three layers: positions counted by the loops of a convolution, mean 1 over quaternions."""
    first = sum(1 for _ in range(side - 2) for _ in range(side - 2))
    second = sum(1 for _ in range(0, side - 4, stride) for _ in range(0, side - 4, stride))
    costs = np.array([4 * parts * first, 16 * second, 16]) ** power
    counts = np.array([p.numel() / 4 for p in quaternion_weights(net).values()])
    return list(costs * counts.sum() / (costs * counts).sum())


@few
@given(
    side=st.integers(5, 11),
    stride=st.integers(1, 3),
    batch=st.integers(1, 4),
    parts=st.sampled_from(["r", "ijk", "rijk"]),
)
def test_costs_are_multiply_adds_of_a_quaternion_for_one_sample(side: int, stride: int, batch: int, parts: str) -> None:
    net = network(0, side, stride, parts).train()
    costs = quaternion_costs(net, example(side, batch, parts))
    assert net.training
    second = len(range(0, side - 4, stride)) ** 2
    assert costs == dict(zip(NAMES, (4 * len(parts) * (side - 2) ** 2, 16 * second, 16), strict=True))


def test_a_weight_that_is_used_twice_costs_twice() -> None:
    layer = qnn.QLinear(8, 8)
    assert quaternion_costs(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(3, 8)) == {"0.weight": 32}
    assert quaternion_costs(layer, torch.zeros(3, 5, 8)) == {"weight": 80}  # five rows a sample


@few
@given(
    seed=SEEDS,
    power=st.floats(0.01, 1),
    side=st.integers(5, 11),
    stride=st.integers(1, 3),
    normalize=st.booleans(),
    kind=st.sampled_from([RQ, RQL, L1]),
)
def test_the_mean_weight_is_one_and_weights_are_as_costs_to_a_power(
    seed: int, power: float, side: int, stride: int, normalize: bool, kind: Any
) -> None:
    net = network(seed, side, stride)
    penalty = kind(3.0, by_cost=power, normalize=normalize).weighed(net, example(side))
    plain = kind(3.0, normalize=normalize)
    wanted = weights_by_hand(net, power, side, stride)
    targets, unweighed = penalty.targets(net), plain.targets(net)
    for target, before, factor in zip(targets, unweighed, wanted, strict=True):
        assert [m for m, _ in target.maps] == [m for m, _ in before.maps]
        for (_, ours), (_, theirs) in zip(target.maps, before.maps, strict=True):
            assert ours == pytest.approx(theirs * factor, rel=1e-12)
    counts = [target.groups for target in targets]
    ratios = [ours.maps[0][1] / theirs.maps[0][1] for ours, theirs in zip(targets, unweighed, strict=True)]
    assert np.average(ratios, weights=counts) == pytest.approx(1, rel=1e-12)


@few
@given(seed=SEEDS, power=POWERS)
def test_value_and_gradient_are_those_of_the_weighed_sum(seed: int, power: float) -> None:
    net = network(seed)
    penalty = RQL(2.0, by_cost=power).weighed(net, example())
    value = penalty(net)
    value.backward()
    count = sum(w.numel() // 4 for w in quaternion_weights(net).values())
    total = 0.0
    for weight, factor in zip(quaternion_weights(net).values(), weights_by_hand(net, power), strict=True):
        w = weight.detach().numpy()
        modulus = np.sqrt((w**2).sum(0))
        total += 2.0 / count * factor * (modulus.sum() + np.abs(w).sum())
        slope = w / np.where(modulus == 0, 1, modulus) + np.sign(w)
        assert weight.grad is not None
        np.testing.assert_allclose(weight.grad.numpy(), 2.0 / count * factor * slope, rtol=1e-12)
    assert value.item() == pytest.approx(total, rel=1e-12)


@few
@given(
    seed=SEEDS, power=POWERS, step=st.sampled_from([0.01, 0.3, 2.0]), kind=st.sampled_from([RQ, RQL]), sgd=st.booleans()
)
def test_prox_meets_the_conditions_of_optimality(seed: int, power: float, step: float, kind: Any, sgd: bool) -> None:
    """x minimises t P(x) + ½|x - θ|² just if (θ - x) / t is a subgradient of P at x. The same by ``prox`` and by a step
    of an optimizer whose gradient is zero."""
    net = network(seed)
    count = sum(w.numel() // 4 for w in quaternion_weights(net).values())
    penalty = kind(float(count), by_cost=power).weighed(net, example())
    before = [w.detach().numpy().copy() for w in quaternion_weights(net).values()]
    if sgd:
        optimizer = ProximalSGD(net, penalty, lr=step)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer._path.groups = {}  # no path is kept, which is no part of the proximal map
        optimizer.step()
    else:
        penalty.prox(net, step)
    for weight, theta, factor in zip(
        quaternion_weights(net).values(), before, weights_by_hand(net, power), strict=True
    ):
        x, bound = weight.detach().numpy(), step * factor
        modulus = np.sqrt((x**2).sum(0))
        alive = modulus > 0
        rest = theta - x - bound * np.where(alive, x / np.where(alive, modulus, 1), 0)
        if kind is RQ:
            np.testing.assert_allclose(rest[:, alive], 0, atol=1e-12)
            least = theta
        else:
            np.testing.assert_allclose(np.where(x != 0, rest - bound * np.sign(x), 0)[:, alive], 0, atol=1e-12)
            assert (np.abs(rest[:, alive]) <= bound + 1e-12).all()
            least = np.sign(theta) * np.maximum(np.abs(theta) - bound, 0)  # what signs cannot hold at zero
        assert (np.sqrt((least**2).sum(0))[~alive] <= bound + 1e-12).all()


def test_unweighed_is_what_it_was() -> None:
    net = network(0)
    plain, zero = RQ(50.0), RQ(50.0, by_cost=0.0)
    assert zero.weighed(net, example()) is zero
    assert plain == zero
    assert plain.to_list() == zero.to_list() == [{"kind": "RQ", "weight": 50.0, "normalize": True}]
    count = sum(w.numel() // 4 for w in quaternion_weights(net).values())
    assert [target.maps[0][1] for target in plain.targets(net)] == [50.0 / count] * 3


def test_where_all_cost_the_same_nothing_is_weighed() -> None:
    net = nn.Sequential(qnn.QLinear(8, 12), nn.ReLU(), qnn.QLinear(12, 4))
    weighed = RQ(1.0, by_cost=0.7).weighed(net, torch.zeros(2, 8))
    for ours, theirs in zip(weighed.targets(net), RQ(1.0).targets(net), strict=True):
        assert ours.maps[0][1] == pytest.approx(theirs.maps[0][1], rel=1e-12)


def test_it_is_written_down_and_read_again() -> None:
    net = network(0)
    asked = RQ(2.0, by_cost=0.5) + GammaL1(1.0)
    assert repr(asked) == "RQ(2, by_cost=0.5) + GammaL1(1)"
    weighed = RQL(2.0, by_cost=0.5).weighed(net, example())
    assert weighed.to_list() == [{"kind": "RQL", "weight": 2.0, "normalize": True, "by_cost": 0.5}]
    assert Penalty.from_list(asked.to_list()) == asked
    again = Penalty.from_list(weighed.to_list()).weighed(net, example())
    assert again == weighed
    assert (2.0 * weighed).targets(net)[0].maps[0][1] == 2 * weighed.targets(net)[0].maps[0][1]
    for wrong in ({"by_cost": 2.0}, {"_costs": "x"}):
        with pytest.raises(ValueError, match=r"^by_cost is .*, but it must be|has no option _costs$"):
            Penalty.from_list([{"kind": "RQ", "weight": 1.0, "normalize": True, **wrong}])


@pytest.mark.parametrize("power", [-0.1, 1.1, float("nan"), float("inf")])
def test_impossible_powers_are_refused(power: float) -> None:
    with pytest.raises(ValueError, match=r"^by_cost is .*, but it must be a number from 0 \(all alike\) to 1"):
        RQ(1.0, by_cost=power)


@pytest.mark.unchecked
@pytest.mark.parametrize("power", [True, "0.5", None])
def test_a_power_that_is_no_number_is_refused(power: Any) -> None:
    with pytest.raises(ValueError, match=r"^by_cost is .*, but it must be a number from 0"):
        RQ(1.0, by_cost=power)


def test_what_is_not_known_is_said() -> None:
    net = network(0)
    penalty = RQ(1.0, by_cost=0.5)
    penalty.check(net)
    for use in (penalty, penalty.prox, lambda net: ProximalAdam(net, penalty)):
        with pytest.raises(ValueError, match=r"^RQ\(1, by_cost=0\.5\) does not know yet .* penalty\.weighed\(network"):
            use(net)
    with pytest.raises(ValueError, match=r"was weighed for another network, without weight: weigh it anew"):
        penalty.weighed(net, example()).targets(qnn.QLinear(8, 8))
    table = nn.Sequential(qnn.QEmbedding(5, 8), qnn.QLinear(8, 8))  # looked up, not multiplied
    with pytest.raises(InputError, match=r"does not tell what 0\.weight costs\.$"):
        penalty.weighed(table, torch.zeros(2, 3, dtype=torch.long))


def test_compaction_keeps_what_each_quaternion_is_weighed_by() -> None:
    """Not normalised anew: the penalty of what is left is what it was, as λ is."""
    net = network(0)
    with torch.no_grad():
        net.get_parameter("0.weight")[:, 1] = 0
        net.get_parameter("0.bias")[:, 1] = 0
        net.get_parameter("2.weight")[:, 2] = 0
        net.get_parameter("2.bias")[:, 2] = 0
    optimizer = ProximalAdam(net, RQ(5.0, by_cost=0.5).weighed(net, example()))
    before, factors = optimizer.penalty().item(), [target.maps[0][1] for target in optimizer._targets]
    lost = sum(  # weights that read the two neurons
        float(factor * w.detach()[:, :, columns].norm(dim=0).sum())
        for factor, w, columns in (
            (factors[1], net.get_parameter("2.weight"), slice(1, 2)),
            (factors[2], net.get_parameter("5.weight"), slice(2 * 9, 3 * 9)),
        )
    )
    compact_(net, plan(net, example()), optimizer)
    assert [p.shape[1] for p in quaternion_weights(net).values()] == [1, 2, 2]
    assert [target.maps[0][1] for target in optimizer._targets] == factors
    assert optimizer.penalty().item() == pytest.approx(before - lost, rel=1e-12)


def test_terms_that_are_not_of_weights_are_left_as_they_are() -> None:
    net = nn.Sequential(qnn.QConv2d(4, 8, 3), qnn.QBatchNorm2d(8), nn.Flatten(), qnn.QLinear(32, 4))
    x = torch.zeros(2, 4, 4, 4)
    both = (RQ(1.0, by_cost=1.0) + GammaL1(1.0)).weighed(net, x)
    alone = RQ(1.0, by_cost=1.0).weighed(net, x)
    merged = {target.names[0]: target.maps for target in both.targets(net)}
    for penalty in (alone, GammaL1(1.0)):
        for target in penalty.targets(net):
            assert merged[target.names[0]] == target.maps
    assert dataclasses.replace(alone, by_cost=0.0).is_weighed
