"""Penalties against plain numpy, finite differences and numerical minimisation."""

import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn

from quern import models
from quern import nn as qnn
from quern.graph import quaternion_shifts, quaternion_weights
from quern.optim import ProximalAdam, ProximalSGD
from quern.penalties import (
    COMPONENTS,
    L1,
    L2,
    RQ,
    RQL,
    SQUARES,
    GammaL1,
    OfWeights,
    Penalty,
    ProximalMap,
    Target,
    shrink_,
)

PENALTIES = {
    "l1": L1(0.7),
    "l2": L2(0.7),
    "rq": RQ(0.7),
    "rql": RQL(0.7),
    "gamma": GammaL1(0.7),
    "gamma with beta": GammaL1(0.7, with_beta=True),
    "plain sums": RQ(0.07, normalize=False) + GammaL1(0.2, normalize=False),
    "everything": L1(0.3) + L2(0.2) + RQ(0.4) + GammaL1(0.3) + GammaL1(0.5, with_beta=True),
}
few = settings(max_examples=15)
every_penalty = pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES.keys())
SEEDS = st.integers(0, 2**31)
MAGNITUDES = st.sampled_from([1e-15, 1e-6, 1e-2, 1.0, 1e3])


def network() -> nn.Sequential:
    """Everything a penalty may meet: two quaternion layers, a normalisation, real-valued layers."""
    layers = (qnn.QLinear(8, 12), qnn.QBatchNorm1d(12), nn.ReLU(), qnn.QLinear(12, 8), qnn.Modulus(), nn.Linear(2, 2))
    return nn.Sequential(*layers).double()


def drawn(seed: int, magnitude: float = 1.0, zeros: float = 0.3) -> nn.Sequential:
    """A network with random numbers everywhere, some of them and some whole quaternions zero."""
    generator = torch.Generator().manual_seed(seed)
    net = network()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(magnitude * torch.randn(p.shape, generator=generator, dtype=p.dtype))
            p[torch.rand(p.shape, generator=generator) < zeros] = 0
            if p.dim() > 1:
                p[:, torch.rand(p.shape[1:], generator=generator) < zeros] = 0
    return net


def by_hand(terms: Penalty, net: nn.Sequential) -> float:
    """The definitions, written out with numpy."""
    weights = [net[0].weight, net[3].weight]
    w = np.concatenate([p.detach().numpy().reshape(4, -1) for p in weights if isinstance(p, Tensor)], axis=1)
    norm = net[1]
    assert isinstance(norm, qnn.QBatchNorm1d)
    assert norm.weight is not None
    assert norm.bias is not None
    gamma, beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    moduli = np.sqrt((w**2).sum(0))
    values = {
        "L1": np.abs(w).sum() / w.shape[1],
        "L2": (w**2).sum() / w.shape[1],
        "RQ": moduli.sum() / w.shape[1],
        "RQL": (moduli.sum() + np.abs(w).sum()) / w.shape[1],
        "GammaL1": np.abs(gamma).sum() / len(gamma),
        "GammaL1 with beta": np.sqrt(gamma**2 + (beta**2).sum(0)).sum() / len(gamma),
    }
    total = 0.0
    for term in terms.terms:
        count = len(gamma) if isinstance(term, GammaL1) else w.shape[1]
        name = type(term).__name__ + (" with beta" if isinstance(term, GammaL1) and term.with_beta else "")
        total += term.weight * values[name] * (1 if term.normalize else count)
    return total


@every_penalty
@few
@given(seed=SEEDS, magnitude=MAGNITUDES)
def test_value_is_the_definition(penalty: Penalty, seed: int, magnitude: float) -> None:
    net = drawn(seed, magnitude)
    assert float(penalty(net).detach()) == pytest.approx(by_hand(penalty, net), rel=1e-12)


@every_penalty
def test_gradient_is_the_slope(penalty: Penalty) -> None:
    net = drawn(0, zeros=0.0)
    penalty(net).backward()
    for name, p in net.named_parameters():
        slope = torch.zeros_like(p)
        for n in range(p.numel()):
            sides = []
            for step in (1e-6, -1e-6):
                moved = copy.deepcopy(net)
                moved.get_parameter(name).data.view(-1)[n] += step
                sides.append(by_hand(penalty, moved))
            slope.view(-1)[n] = (sides[0] - sides[1]) / 2e-6
        torch.testing.assert_close(torch.zeros_like(p) if p.grad is None else p.grad, slope, rtol=1e-6, atol=1e-8)


@every_penalty
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("magnitude", [0.0, 1e-38, 1e-20, 1e-7, 1.0, 1e4])
def test_gradients_are_finite(penalty: Penalty, dtype: torch.dtype, magnitude: float) -> None:
    net = drawn(1, magnitude).to(dtype)
    penalty(net).backward()
    found = [p.grad for p in net.parameters() if p.grad is not None]
    assert found
    if dtype != torch.float16 or magnitude < 1e4:
        assert all(torch.isfinite(g).all() for g in found)
    zero = [p.grad[p == 0] for p in net.parameters() if p.grad is not None and p.dim() == 3]
    assert all((g == 0).all() for g in zero)  # the smallest subgradient, so zero is a stationary point


def objective(penalty: Penalty, net: nn.Sequential, start: dict[str, Tensor], step: float) -> float:
    distance = sum(float(((p.detach() - start[name]) ** 2).sum()) for name, p in net.named_parameters())
    return step * by_hand(penalty, net) + distance / 2


@every_penalty
@few
@given(seed=SEEDS, step=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 5.0]))
def test_prox_is_a_minimum(penalty: Penalty, seed: int, step: float) -> None:
    """The objective is strongly convex, so a point that no small step in any direction improves is the minimum."""
    net = drawn(seed)
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    penalty.prox(net, step)
    best = objective(penalty, net, start, step)
    at = {name: p.detach().clone() for name, p in net.named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    for size in (1e-1, 1e-3):
        for _ in range(8):
            for name, p in net.named_parameters():
                p.data = at[name] + size * torch.randn(p.shape, generator=generator, dtype=p.dtype)
            assert objective(penalty, net, start, step) >= best - 1e-12
    # Along the parameters alone and back to where it started, too.
    for back in (1e-3, 0.5, 1.0):
        for name, p in net.named_parameters():
            p.data = (1 - back) * at[name] + back * start[name]
        assert objective(penalty, net, start, step) >= best - 1e-12


@pytest.mark.parametrize("factors", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0.5, 1, 0.3)], ids=str)
@pytest.mark.parametrize("step", [0.2, 0.9])
def test_prox_of_a_quaternion_equals_numerical_minimisation(factors: tuple[float, ...], step: float) -> None:
    """The corners of the penalty rounded off by 1e-8, and a descent that knows nothing of thresholds."""
    l1, rq, l2 = map(float, factors)
    layer = qnn.QLinear(4, 4, bias=False).double()
    for seed in range(8):
        start = np.random.default_rng(seed).normal(size=4)

        def cost(x: np.ndarray, start: np.ndarray = start) -> float:
            corners = l1 * np.sqrt(x**2 + 1e-16).sum() + rq * np.sqrt((x**2).sum() + 1e-16)
            return step * (corners + l2 * (x**2).sum()) + ((x - start) ** 2).sum() / 2

        def slope(x: np.ndarray, start: np.ndarray = start) -> np.ndarray:
            corners = l1 * x / np.sqrt(x**2 + 1e-16) + rq * x / np.sqrt((x**2).sum() + 1e-16)
            return step * (corners + 2 * l2 * x) + x - start

        tries = [
            minimize(cost, first, jac=slope, method="BFGS", options={"gtol": 1e-9}) for first in (start, start / 9)
        ]
        found = min(tries, key=lambda tried: tried.fun).x
        layer.weight.data = torch.tensor(start).view(4, 1, 1)
        (L1(l1) + RQ(rq) + L2(l2)).prox(layer, step)
        reached = layer.weight.detach().numpy().ravel()
        assert cost(reached) <= cost(found) + 1e-7
        np.testing.assert_allclose(reached, found, atol=2e-5)


@every_penalty
@few
@given(first=SEEDS, second=SEEDS, step=st.floats(0, 10), magnitude=MAGNITUDES)
def test_prox_does_not_move_points_apart(
    penalty: Penalty, first: int, second: int, step: float, magnitude: float
) -> None:
    def apart(a: nn.Module, b: nn.Module) -> float:
        pairs = zip(a.parameters(), b.parameters(), strict=True)
        return sum(float(((p.detach() - q.detach()) ** 2).sum()) for p, q in pairs) ** 0.5

    a, b = drawn(first, magnitude), drawn(second, magnitude)
    before = apart(a, b)
    penalty.prox(a, step)
    penalty.prox(b, step)
    assert apart(a, b) <= before * (1 + 1e-12)


def shrunk(penalty: Penalty, x: Tensor, metric: Tensor | None = None) -> Tensor:
    """What the proximal map makes of the weight ``x (4, out, in)``."""
    layer = qnn.QLinear(4 * x.shape[2], 4 * x.shape[1], bias=False)
    layer.weight = nn.Parameter(x.clone())
    shrink_(penalty.targets(layer), [1.0], None if metric is None else [metric])
    return layer.weight.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=SEEDS, magnitude=st.sampled_from([1e-6, 1.0, 1e4]))
def test_thresholds_give_exact_zeros_and_only_those(dtype: torch.dtype, seed: int, magnitude: float) -> None:
    x = magnitude * torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    size = x.norm(dim=0)
    t = float(size.flatten().sort().values[7:9].mean())  # between two of the fifteen
    grouped, single = shrunk(RQ(t, normalize=False), x), shrunk(L1(t, normalize=False), x)
    assert torch.equal((grouped == 0).all(0), size <= t)
    assert torch.equal(single == 0, x.abs() <= t)
    torch.testing.assert_close(grouped.norm(dim=0), (size - t).clamp_min(0), rtol=1e-4, atol=1e-6 * magnitude)
    torch.testing.assert_close(single.abs(), (x.abs() - t).clamp_min(0))
    kept = size > t
    torch.testing.assert_close((grouped / x)[:, kept], (1 - t / size)[kept].expand(4, -1), rtol=1e-3, atol=1e-6)
    zero = torch.zeros_like(x)
    assert torch.equal(shrunk(RQL(t, normalize=False), zero), zero)
    metric = torch.full((5, 3), 2.0, dtype=dtype)  # twice as dear to move: half the threshold
    torch.testing.assert_close(shrunk(RQ(2 * t, normalize=False), x, metric), grouped)
    torch.testing.assert_close(shrunk(L1(2 * t, normalize=False), x, metric), single)


def test_prox_leaves_the_rest_alone() -> None:
    net = drawn(3, zeros=0.0)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    net[3].requires_grad_(False)
    (RQ(5.0) + GammaL1(2.0)).prox(net)
    same = {name for name, p in net.named_parameters() if torch.equal(p, before[name])}
    assert same == {"0.bias", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"}


def test_what_is_not_trained_does_not_count() -> None:
    net = drawn(4)
    net[3].requires_grad_(False)
    alone = nn.Sequential(net[0])
    torch.testing.assert_close(RQ(1.0)(net), RQ(1.0)(alone))


def test_a_shared_layer_counts_once() -> None:
    layer = qnn.QLinear(8, 8)
    torch.testing.assert_close(RQ(1.0)(nn.Sequential(layer, nn.ReLU(), layer)), RQ(1.0)(layer))
    tied = nn.Sequential(qnn.QLinear(8, 8), qnn.QLinear(8, 8))
    tied[1].weight = tied[0].weight
    torch.testing.assert_close(L1(1.0)(tied), L1(1.0)(tied[0]))


def test_every_quaternion_layer_is_covered() -> None:
    net = nn.ModuleList(
        [
            qnn.QConv1d(4, 8, 3),
            qnn.QConvTranspose2d(4, 8, 3),
            qnn.QLSTM(8, 8, bidirectional=True),
            qnn.QEmbedding(5, 8),
            qnn.QMultiheadAttention(8, 2, add_bias_kv=True),
            qnn.QLayerNorm(8),
            qnn.QWhiteningBatchNorm2d(8),
            nn.Conv2d(3, 3, 3),
        ]
    )
    covered = [name for target in RQ(1.0).targets(net) for name in target.names]
    wanted = ["0.weight", "1.weight", "2.weight_ih_l0", "2.weight_hh_l0", "2.weight_ih_l0_reverse"]
    wanted += ["2.weight_hh_l0_reverse", "3.weight", *(f"4.{n}_proj.weight" for n in ("q", "k", "v", "out"))]
    assert covered == wanted
    shifts = ["0.bias", "1.bias", "2.bias_ih_l0", "2.bias_hh_l0", "2.bias_ih_l0_reverse", "2.bias_hh_l0_reverse"]
    shifts += ["4.bias_k", "4.bias_v", *(f"4.{n}_proj.bias" for n in ("q", "k", "v", "out")), "5.bias", "6.bias"]
    assert list(quaternion_shifts(net)) == shifts
    assert all(p.shape[0] == 4 for p in (*quaternion_weights(net).values(), *quaternion_shifts(net).values()))


def test_one_lambda_means_the_same_on_any_network() -> None:
    """With all moduli equal, the normalised value does not depend on the size of the network."""
    values = []
    for net in (models.mnist_qcnn(norm="after_conv"), models.cifar_qcnn(norm="after_conv")):
        for p in net.parameters():
            nn.init.constant_(p, 0.5)
        values.append((RQ(1.0)(net), L1(1.0)(net), GammaL1(1.0)(net)))
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], (torch.tensor(1.0), torch.tensor(2.0), torch.tensor(0.5)))


def test_description_lists_what_is_covered_and_what_is_not() -> None:
    said = (RQ(0.5) + GammaL1(0.1, with_beta=True)).describe(network()).splitlines()
    assert said[0] == "RQ(0.5): 12 quaternions"
    assert said[1:3] == ["  0.weight (4x3x2)", "  3.weight (4x2x3)"]
    assert said[3] == "GammaL1(0.1, with_beta=True): 3 scales"
    assert said[4] == "  1.weight with 1.bias (3)"
    assert said[5] == "left out: 0.bias, 3.bias, 5.weight, 5.bias"


def test_sums_and_multiples() -> None:
    net = drawn(5)
    both = RQ(0.3) + 2.0 * L1(0.1)
    torch.testing.assert_close(both(net), RQ(0.3)(net) + 0.2 * L1(1.0)(net))
    torch.testing.assert_close((RQ(1.0) + L1(1.0))(net), RQL(1.0)(net))
    assert repr(both) == "RQ(0.3) + L1(0.2)"
    assert repr(GammaL1(1e-3, normalize=False)) == "GammaL1(0.001, normalize=False)"
    assert Penalty.from_list(both.to_list()) == both
    assert sum([RQ(0.3), L1(0.2)]) == both


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_impossible_weights_are_refused(weight: float) -> None:
    for make in (L1, L2, RQ, RQL, GammaL1):
        with pytest.raises(ValueError, match="must be a finite number that is not negative"):
            make(weight)
    with pytest.raises(ValueError, match="step is"):
        RQ(1.0).prox(network(), weight)


@pytest.mark.unchecked
@pytest.mark.parametrize("build", [L1, L2, RQ, RQL, GammaL1])
def test_a_weight_that_is_no_number_is_refused(build: Callable[..., Penalty]) -> None:
    for weight in ("30", True, None, [1.0]):
        with pytest.raises(
            TypeError, match=r"^the weight of a penalty is .*, but it must be a number: RQL\(12\.0\)\.$"
        ):
            build(weight)
    for weight in (3, np.float32(3), torch.tensor(3.0)):
        assert build(weight) == build(3.0)


def test_nothing_to_act_on_is_refused() -> None:
    with pytest.raises(ValueError, match="no quaternion batch normalisation"):
        GammaL1(1.0)(models.mnist_qcnn())
    with pytest.raises(ValueError, match="no quaternion weights that are trained"):
        RQ(1.0)(models.mnist_cnn())
    with pytest.raises(ValueError, match="no quaternion weights that are trained"):
        (RQ(1.0) + L1(1.0)).prox(nn.Linear(2, 2))


@pytest.mark.parametrize("weight", [1e-30, 1e-45, 1e-50, 1e-300])
def test_a_vanishing_step_leaves_weights_and_zeros_as_they_are(weight: float) -> None:
    layer = qnn.QLinear(8, 8)
    with torch.no_grad():
        layer.weight[:, 0] = 0
    before = layer.weight.detach().clone()
    for penalty in (RQ(weight, normalize=False), RQL(weight, normalize=False)):
        penalty.prox(layer)
        torch.testing.assert_close(layer.weight.detach(), before)
    for optimizer in (ProximalAdam(layer, RQ(weight)), ProximalSGD(layer, RQ(weight), lr=1e-3)):
        layer(torch.zeros(2, 8)).sum().backward()
        optimizer.step()
        assert layer.weight.isfinite().all()


class ElasticNet(OfWeights):
    """A penalty of a user's own, of maps that are there."""

    maps = (COMPONENTS, SQUARES)


class Count(ProximalMap):
    """A map of a user's own: the number of quaternions that are not zero."""

    joint = True

    def value(self, target: Target, dtype: torch.dtype) -> Tensor:
        return (target.parameters[0].detach().norm(dim=0) > 0).sum().to(dtype)

    def shrink_(self, target: Target, bound: float | Tensor) -> None:
        weight = target.parameters[0]
        weight.mul_(weight.square().sum(0) > 2 * bound)


@dataclass(frozen=True, repr=False)
class L0(OfWeights):
    """The penalty of it, with an option of its own."""

    _: KW_ONLY
    at_least: int = 1
    maps = (Count(),)


def test_a_penalty_of_ones_own_is_one_like_ours() -> None:
    net, other = drawn(6), drawn(6)
    both = ElasticNet(0.3) + GammaL1(0.2)
    torch.testing.assert_close(both(net), (L1(0.3) + L2(0.3) + GammaL1(0.2))(net))
    both.prox(net, 0.5)
    (L1(0.3) + L2(0.3) + GammaL1(0.2)).prox(other, 0.5)
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert repr(both) == "ElasticNet(0.3) + GammaL1(0.2)"
    assert Penalty.from_list(both.to_list()) == both


@pytest.mark.parametrize("optimizer", [ProximalAdam, ProximalSGD])
def test_a_proximal_map_of_ones_own_makes_exact_zeros(optimizer: type[ProximalAdam | ProximalSGD]) -> None:
    x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    kept = shrunk(L0(0.5, normalize=False), x)
    size = x.norm(dim=0)
    assert torch.equal((kept == 0).all(0), size <= 1)  # the minimum of |x - w|²/2 + 0.5·[w ≠ 0]
    assert torch.equal(kept[:, size > 1], x[:, size > 1])
    half = shrunk(L0(1.0, normalize=False), x, torch.full((5, 3), 2.0))
    assert torch.equal(half, kept)
    net = drawn(7, zeros=0.0)
    made = optimizer(net, L0(3.0, at_least=2), lr=1e-2)
    for _ in range(3):
        made.zero_grad()
        net(torch.randn(9, 8, dtype=torch.float64)).square().sum().backward()
        made.step()
    assert repr(L0(3.0, at_least=2)) == "L0(3, at_least=2)"
    assert Penalty.from_list(L0(3.0, at_least=2).to_list()) == L0(3.0, at_least=2)


def test_two_penalties_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^there is a penalty RQ already, in quern\.penalties: take another name\.$"):
        type("RQ", (OfWeights,), {"__module__": __name__})


def test_what_is_written_are_fields_and_older_spellings_are_read() -> None:
    penalty = RQ(2.0, normalize=False) + GammaL1(1.0, with_beta=True)
    assert penalty.to_list() == [
        {"kind": "RQ", "weight": 2.0, "normalize": False},
        {"kind": "GammaL1", "weight": 1.0, "normalize": True, "with_beta": True},
    ]
    old = {"weight": 1.0, "normalize": True}
    assert Penalty.from_list([{"kind": "GammaL1 with_beta=True", **old}]) == GammaL1(1.0, with_beta=True)
    assert Penalty.from_list([{"kind": "GammaL1", **old}]) == GammaL1(1.0)
    for wrong in ({"kind": "GammaL2", **old}, {"kind": "OfWeights with_beta=True", **old}):
        with pytest.raises(ValueError, match=r"^there is no penalty .*, only .*: import the module that has it$"):
            Penalty.from_list([wrong])
    for wrong in ({"kind": "RQ", **old, "with_beta": True}, {"kind": "RQ", **old, "weight": -1}, {"kind": "RQ"}, 3):
        with pytest.raises(ValueError, match=r"cannot be made|not negative|missing|should be"):
            Penalty.from_list([wrong])
