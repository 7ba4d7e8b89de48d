"""Steering: where the penalty alone leads, what a neuron costs, and budgets that are met."""

import copy
import dataclasses
import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import io, models
from quern import nn as qnn
from quern.compact import Census, Counted, Plan, census, compact, plan
from quern.data import Images, ImageSet, digits
from quern.errors import Stopped, TrainingError
from quern.optim import ProximalAdam, ProximalSGD
from quern.penalties import RQ, RQL, GammaL1, Penalty
from quern.pipeline.steering import Budget, Steering, check_possible
from quern.sparsity import measure
from quern.train import Grinding, Settings, checkpoint, fit
from tests.optim.test_proximal import descend, network
from tests.train.test_train import Stop

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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_neurons": 0}, "max_neurons is 0"),
        ({"max_params": 0}, "max_params is 0"),
        ({"max_bytes": -5}, "max_bytes is -5"),
        ({"min_speedup": 0.5}, "min_speedup is 0.5"),
        ({"min_speedup": math.nan}, "min_speedup is nan"),
        ({"min_speedup": math.inf}, "min_speedup is inf"),
        ({"max_drop": -1.0}, "max_drop is -1"),
        ({"max_drop": 100.0}, "max_drop is 100"),
        ({"max_drop": math.nan}, "max_drop is nan"),
    ],
    ids=str,
)
def test_impossible_budgets_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=rf"^{said}[^.]*(\.0)?, but .*\.$"):
        Budget(**wrong)


def test_a_budget_knows_what_it_is_about() -> None:
    assert not Budget()
    assert not Budget().of_size
    assert Budget(max_drop=0.0)
    assert not Budget(max_drop=0.0).of_size
    limits: list[dict[str, Any]] = [{"max_neurons": 1}, {"max_params": 1}, {"max_bytes": 1}, {"min_speedup": 1.0}]
    for one in limits:
        assert Budget(**one)
        assert Budget(**one, max_drop=1.0).of_size
    assert {k: v for k, v in Budget(max_bytes=7).to_dict().items() if v is not None} == {"max_bytes": 7}


@pytest.fixture(scope="module")
def images() -> ImageSet:
    whole = digits()
    part = Images(whole.train.pixels[:320], whole.train.labels[:320])
    return dataclasses.replace(whole, train=part, val=Images(whole.val.pixels[:100], whole.val.labels[:100]))


@pytest.fixture(autouse=True)
def _few_milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one takes as long as hundreds of steps of networks as small as these."""
    for place in ("quern.train._run.MILESTONES", "quern.pipeline.steering.MILESTONES"):
        monkeypatch.setattr(place, 3)


def example(images: ImageSet) -> Tensor:
    return images.normalize(images.train.pixels[:2])


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def shallow(hidden: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Flatten(), qnn.QLinear(64, hidden, bias=False), qnn.QBatchNorm1d(hidden), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


SHORT = Settings(warmup=1, epochs=1, heal=1, penalty=GammaL1(1.0, with_beta=True), batch=32, lr=1e-2, compact_every=1)


def steered(images: ImageSet, net: nn.Module, budget: Budget, change: dict[str, Any] | None = None, **how: Any) -> Any:
    steering = Steering(budget, example(images), **how)
    return fit(net, images, dataclasses.replace(SHORT, **(change or {})), steer=steering)


def alive(net: nn.Module, images: ImageSet) -> bool:
    with torch.no_grad():
        return bool((net(images.normalize(images.val.pixels)).std(0) > 0).any())


@pytest.mark.parametrize("limit", [1500, 200])
def test_budgets_of_parameters_are_met(images: ImageSet, limit: int) -> None:
    """One hidden neuron takes 4 * 16 + 5 + 40 numbers, and ten biases stay: all of these can be reached."""
    net = shallow()
    result = steered(images, net, Budget(max_params=limit))
    assert limit / 2 < size(net) <= limit
    sizes = [line.parameters or 0 for line in result.history]
    assert sizes == sorted(sizes, reverse=True)
    assert alive(net, images)


def test_a_budget_that_cannot_be_met_leaves_the_smallest_network_that_lives(images: ImageSet) -> None:
    net = shallow(16)
    steered(images, net, Budget(max_params=10))
    assert size(net) == 109 + 10
    assert alive(net, images)


@pytest.mark.parametrize("penalty", [GammaL1(1.0), GammaL1(1.0, with_beta=True), RQ(1.0)], ids=repr)
@pytest.mark.parametrize("builder", ["digits", "residual", "shallow"])
def test_what_is_refused_is_what_cannot_be(builder: str, penalty: Penalty) -> None:
    """The least that is accepted is what is left when the penalty does all it can without killing the network: fewer
    parameters than by killing neurons one by one, in any order, there never are."""
    torch.manual_seed(0)
    net, x = {
        "digits": lambda: (models.digits_qcnn(norm="after_conv"), torch.randn(2, 1, 8, 8)),
        "residual": lambda: (models.qresnet20(widths=(8, 8, 16)), torch.randn(2, 3, 8, 8)),
        "shallow": lambda: (shallow(16), torch.randn(2, 1, 8, 8)),
    }[builder]()
    for p in net.parameters():
        p.data = torch.randn_like(p)  # biases and shifts too, as training leaves them
    with pytest.raises(TrainingError, match="the smallest network that can come of this one has") as refused:
        check_possible(Budget(max_params=1), net, penalty, x)
    least = int(str(refused.value).split(" has ")[1].split(", with")[0].replace(",", ""))
    check_possible(Budget(max_params=least), net, penalty, x)
    with pytest.raises(TrainingError):
        check_possible(Budget(max_params=least - 1), net, penalty, x)
    random = torch.Generator().manual_seed(1)
    for target in penalty.targets(net):
        for p in target.parameters:
            neurons = p if p.dim() == 1 else p.transpose(0, 1)
            neurons.data[torch.randperm(len(neurons), generator=random)[1:]] = 0
    found = plan(net, x)
    assert found.dead or found.parameters[1] >= least


def test_layers_of_which_the_least_is_not_known_are_not_refused() -> None:
    net = nn.Sequential(qnn.QEmbedding(7, 16), qnn.QLinear(16, 8))
    check_possible(Budget(max_params=1), net, RQ(1.0), torch.zeros(2, 3, dtype=torch.long))


def test_a_budget_that_is_met_already_removes_nothing(images: ImageSet) -> None:
    net = shallow(16)
    before = size(net)
    result = steered(images, net, Budget(max_params=before))
    assert size(net) == before
    assert [line.strength for line in result.history] == [0, 0, 0]


def test_quaternions_of_a_network_without_normalisation_meet_a_budget(images: ImageSet) -> None:
    torch.manual_seed(0)
    layers = (nn.Flatten(), qnn.QLinear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    net = nn.Sequential(*layers)
    before = size(net)
    steered(images, net, Budget(max_params=700), {"penalty": RQL(1.0)})
    assert size(net) <= 700 < before
    assert alive(net, images)


def test_the_saved_file_is_no_larger_than_the_budget(images: ImageSet, tmp_path: Path) -> None:
    net = shallow()
    steering = Steering(Budget(max_bytes=5000), example(images), images=images.about())
    fit(net, images, SHORT, tmp_path, steer=steering)
    assert 4000 < (tmp_path / "model.safetensors").stat().st_size <= 5000


def test_a_size_is_that_of_the_file_that_will_be_written(images: ImageSet, tmp_path: Path) -> None:
    """Accuracies such as 2/3 take more digits than most."""
    net = shallow(16)
    guessed = Steering(Budget(max_bytes=5000), example(images), images=images.about()).size(net)
    io.save(
        compact(net, example(images)),
        tmp_path / "net.safetensors",
        metrics={"test_accuracy": 2 / 3, "val_accuracy": 2 / 3},
        images=images.about(),
    )
    assert guessed is not None
    assert guessed.bytes >= (tmp_path / "net.safetensors").stat().st_size


def test_a_speedup_is_reached_by_the_clock(images: ImageSet) -> None:
    """Multiply-adds lead there, but the clock says something else."""
    net, x = shallow(), example(images)
    dense = measure(net, x).macs
    assert dense is not None

    def clock(small: nn.Module) -> float:
        macs = measure(small, x).macs
        assert macs is not None
        return 0.8 * dense / macs

    steered(images, net, Budget(min_speedup=2.0), speedup=clock)
    assert clock(net) >= 2
    assert alive(net, images)


def test_an_accuracy_is_not_lost(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """From milestone to milestone a third less, down to a quarter."""
    for place, value in (("train._run.MILESTONES", 6), ("steering.MILESTONES", 6), ("steering.SMALLEST", 0.25)):
        monkeypatch.setattr(f"quern.{place}", value)
    net = shallow()
    whole = size(net)

    def trial(small: nn.Module) -> float:
        return 0.9 * size(small) / whole

    seen: dict[str, Any] = {}

    class Remembering(Steering):
        def strength(self, now: Grinding) -> float | None:
            seen.update(now.memory)
            return super().strength(now)

    steering = Remembering(Budget(max_drop=60.0), example(images), trial=trial, dense_accuracy=0.9)
    fit(net, images, SHORT, steer=steering)
    assert trial(net) >= 0.9 - 0.6
    assert size(net) < whole
    assert seen["trials"]
    assert all(one["accuracy"] == pytest.approx(0.9 * one["parameters"] / whole) for one in seen["trials"])
    assert seen["trials"][-1]["parameters"] == size(net)


BUDGETS = {
    "neurons": Budget(max_neurons=6),
    "parameters": Budget(max_params=500),
    "bytes": Budget(max_bytes=4500),
    "two": Budget(max_params=600, max_bytes=4500),
}


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_counts_lead_to_the_same_network_as_plans(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch, budget: Budget
) -> None:
    """To the last bit, and with two plans at most for a milestone in place of dozens."""
    plans = 0

    def planned(*args: Any) -> Plan:
        nonlocal plans
        plans += 1
        return plan(*args)

    monkeypatch.setattr("quern.pipeline.steering.plan", planned)
    counted, by_plans = deep(), deep()
    steered(images, counted, budget)
    few, plans = plans, 0
    monkeypatch.setattr("quern.pipeline.steering.census", lambda *_: None)
    steered(images, by_plans, budget)
    assert equal(values(counted), values(by_plans))
    assert few <= 2 * 4 < plans


@pytest.mark.parametrize("how", ["too few", "too many", "dead", "none"])
def test_counts_that_are_wrong_are_not_acted_on(images: ImageSet, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Right for the dense network, but not for what is left of it: then there are plans."""
    whole = plan(shallow(), example(images)).parameters[0]
    count = Census.count

    def wrong(self: Census) -> Counted | None:
        found = count(self)
        if found is None or found.parameters == whole:
            return found
        parameters = {"too few": found.parameters // 3, "too many": whole - 1}.get(how)
        return None if parameters is None else dataclasses.replace(found, parameters=parameters)

    if how == "none":
        monkeypatch.setattr(
            "quern.pipeline.steering.census", lambda net, x: census(net, x) if size(net) == whole else None
        )
    else:
        monkeypatch.setattr(Census, "count", wrong)
    seen: list[bool] = []

    class Remembering(Steering):
        def strength(self, now: Grinding) -> float | None:
            seen.append(now.memory["counted"])
            return super().strength(now)

    net = shallow()
    fit(net, images, SHORT, steer=Remembering(Budget(max_params=1500), example(images)))
    assert 750 < size(net) <= 1500
    assert seen[0]
    assert not seen[-1]


def test_a_grinding_of_few_steps_meets_its_budget(images: ImageSet) -> None:
    net = shallow()
    steered(images, net, Budget(max_params=500), {"batch": 160})  # two steps
    assert size(net) <= 500


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Flatten(), qnn.QLinear(64, 32, bias=False), qnn.QBatchNorm1d(32), nn.ReLU())
    return nn.Sequential(
        *layers, nn.Dropout(0.1), qnn.QLinear(32, 16, bias=False), qnn.QBatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)
    )


def test_a_steered_run_stopped_anywhere_and_resumed_is_never_stopped(images: ImageSet, tmp_path: Path) -> None:
    """Before the first milestone, between milestones, on one, while healing."""
    steering, straight = Steering(Budget(max_params=300), example(images)), deep()
    wanted = fit(straight, images, SHORT, tmp_path / "straight", steer=steering)
    for n, (after, number) in enumerate([(9, 15), (5, 2), (3, 15), (5, 15)]):
        with pytest.raises(Stopped, match="stopped by"):
            fit(deep(), images, SHORT, tmp_path / "run", n > 0, [Stop(after, number)], steer=steering)
    net = deep()
    result = fit(net, images, SHORT, tmp_path / "run", resume=True, steer=steering)
    assert size(net) <= 300
    assert equal(values(net), values(straight))
    timing: dict[str, Any] = {"seconds": 0.0, "images_per_second": None, "peak_memory_mb": None}
    for ours, theirs in zip(result.history, wanted.history, strict=True):
        assert replace(ours, **timing) == replace(theirs, **timing)
    (ours, one), (theirs, other) = (checkpoint.load(tmp_path / run / "last.safetensors") for run in ("run", "straight"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for key in ("costs", "steered", "strength", "enough", "plan"):
        assert one[key] == other[key], key
    assert one["costs"].keys() == {"2.weight", "6.weight"}
    assert one["costs"]["2.weight"] != one["costs"]["6.weight"]


@pytest.mark.parametrize("wrong", [{"dense": {}}, {"dense": None}, {"steps": -1.0}, {"trials": [3]}], ids=str)
def test_a_checkpoint_with_other_memories_is_refused(images: ImageSet, tmp_path: Path, wrong: dict[str, Any]) -> None:
    steering = Steering(Budget(max_params=300), example(images))
    with pytest.raises(Stopped):
        fit(deep(), images, SHORT, tmp_path, watchers=[Stop(14, 15)], steer=steering)
    tensors, state = checkpoint.load(tmp_path / "last.safetensors")
    assert state["steered"]
    checkpoint.save(tmp_path / "last.safetensors", tensors, {**state, "steered": {**state["steered"], **wrong}})
    with pytest.raises(TrainingError, match=r"does not say how λ was steered so far \(.*\): begin again\.$"):
        fit(deep(), images, SHORT, tmp_path, resume=True, steer=steering)


def test_what_cannot_be_steered_is_refused(images: ImageSet) -> None:
    for change in ({"optimizer": "adam", "compact_every": 0}, {"penalty": None, "compact_every": 0}):
        with pytest.raises(TrainingError, match="λ is steered in one process"):
            steered(images, shallow(16), Budget(max_params=100), change)
