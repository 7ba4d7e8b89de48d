"""Steering: budgets that are met, by counts as by plans, stopped or not."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.compact import Census, Counted, Plan, census, plan
from quern.data import ImageSet
from quern.errors import Stopped, TrainingError
from quern.export import packed_size
from quern.penalties import RQ, RQL, GammaL1, Penalty
from quern.pipeline._sizes import Packing
from quern.pipeline.steering import Steering
from quern.records import ACCURACY, Budget, Metric
from quern.sparsity import measure
from quern.train import Grinding, Settings, checkpoint, fit
from tests.optim.test_ahead import equal, values
from tests.small_tasks import deep, few_digits, few_milestones, shallow, size
from tests.train.short_runs import Stop


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return few_digits(320)


def example(images: ImageSet) -> Tensor:
    return images.normalize(images.train.pixels[:2])


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
    net = shallow(hidden=64)
    result = steered(images, net, Budget(max_params=limit))
    assert limit / 2 < size(net) <= limit
    sizes = [line.parameters or 0 for line in result.history]
    assert sizes == sorted(sizes, reverse=True)
    assert alive(net, images)


@pytest.mark.slow
def test_a_budget_that_cannot_be_met_leaves_the_smallest_network_that_lives(images: ImageSet) -> None:
    net = shallow(hidden=16)
    steered(images, net, Budget(max_params=10))
    assert size(net) == 109 + 10
    assert alive(net, images)


def test_a_budget_that_is_met_already_removes_nothing(images: ImageSet) -> None:
    net = shallow(hidden=16)
    before = size(net)
    result = steered(images, net, Budget(max_params=before))
    assert size(net) == before
    assert [line.strength for line in result.history] == [0, 0, 0]


def flat_and_convolved() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (qnn.QConv2d(1, 16, 3, input_parts="r"), nn.ReLU(), nn.Flatten(), qnn.QLinear(576, 16), nn.Linear(16, 10))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("by_cost", [0.0, 0.5])
def test_quaternions_of_a_network_meet_a_budget_of_speed(images: ImageSet, by_cost: float) -> None:
    """Multiply-adds that are not with zeros lead there; a clock that says what was asked for is content with them."""
    net = flat_and_convolved()
    before = measure(net, example(images)).nonzero_macs
    assert before
    change = {"penalty": RQ(1.0, by_cost=by_cost)}
    steered(images, net, Budget(min_speedup=2.5), change, speedup=lambda _: 3.0)
    after = measure(net, example(images))
    assert after.nonzero_macs
    assert after.macs
    assert 2.5 * after.nonzero_macs <= before
    assert after.nonzero_macs < 0.9 * after.macs  # not by whole neurons alone
    assert alive(net, images)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "share", "penalty"),
    [
        ("max_flash", 1 / 3, RQ(1.0)),  # single quaternions that are zero take none
        ("max_flash", 1 / 3, GammaL1(1.0, with_beta=True)),
        ("max_ram", 0.9, GammaL1(1.0, with_beta=True)),
    ],
    ids=str,
)
def test_the_packed_network_is_no_larger_than_the_budget(
    images: ImageSet, limit: str, share: float, penalty: Penalty
) -> None:
    net = flat_and_convolved() if isinstance(penalty, RQ) else shallow(hidden=64)

    def packed(model: nn.Module) -> Packing:
        return Packing(*packed_size(model, example(images)))

    def taken() -> int:
        return packed(net).bytes if limit == "max_flash" else packed(net).ram

    asked = int(share * taken())
    steered(images, net, Budget(**{limit: asked}), {"penalty": penalty}, packs=packed)
    assert 0.7 * asked < taken() <= asked
    assert alive(net, images)
    if isinstance(penalty, RQ):
        assert measure(net, example(images)).quaternion_sparsity > 0.5


def test_quaternions_of_a_network_without_normalisation_meet_a_budget(images: ImageSet) -> None:
    torch.manual_seed(0)
    layers = (nn.Flatten(), qnn.QLinear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    net = nn.Sequential(*layers)
    before = size(net)
    steered(images, net, Budget(max_params=700), {"penalty": RQL(1.0)})
    assert size(net) <= 700 < before
    assert alive(net, images)


def test_the_saved_file_is_no_larger_than_the_budget(images: ImageSet, tmp_path: Path) -> None:
    net = shallow(hidden=64)
    steering = Steering(Budget(max_bytes=5000), example(images), images=images.about())
    fit(net, images, SHORT, tmp_path, steer=steering)
    assert 4000 < (tmp_path / "model.safetensors").stat().st_size <= 5000


def test_a_speedup_is_reached_by_the_clock(images: ImageSet) -> None:
    """Multiply-adds lead there, but the clock says something else."""
    net, x = shallow(hidden=64), example(images)
    dense = measure(net, x).macs
    assert dense is not None

    def clock(small: nn.Module) -> float:
        macs = measure(small, x).macs
        assert macs is not None
        return 0.8 * dense / macs

    steered(images, net, Budget(min_speedup=2.0), speedup=clock)
    assert clock(net) >= 2
    assert alive(net, images)


@pytest.mark.parametrize(
    ("metric", "drop", "value"),
    [
        (ACCURACY, 60.0, lambda share: 0.9 * share),
        (Metric("mm", lower_is_better=True), 6.0, lambda share: 10.0 - 9.0 * share),  # the same in another unit
    ],
)
def test_no_more_is_lost_than_may_be(
    metric: Metric, drop: float, value: Any, images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From milestone to milestone a third less, down to a quarter."""
    monkeypatch.setattr("quern.pipeline.steering.SMALLEST", 0.25)
    net = shallow(hidden=64)
    whole = size(net)

    def trial(small: nn.Module) -> float:
        return value(size(small) / whole)

    seen: dict[str, Any] = {}

    class Remembering(Steering):
        def strength(self, now: Grinding) -> float | None:
            seen.update(now.memory)
            return super().strength(now)

    steering = Remembering(Budget(max_drop=drop), example(images), trial=trial, metric=metric, dense_value=value(1.0))
    with few_milestones(6):
        fit(net, images, SHORT, steer=steering)
    assert metric.lost(value(1.0), trial(net)) <= drop
    assert size(net) < whole
    assert seen["trials"]
    assert all(tried["value"] == pytest.approx(value(tried["parameters"] / whole)) for tried in seen["trials"])
    assert seen["trials"][-1]["parameters"] == size(net)


BUDGETS = {
    "neurons": Budget(max_neurons=6),
    "parameters": Budget(max_params=500),
    "bytes": Budget(max_bytes=4500),
    "two": Budget(max_params=600, max_bytes=4500),
}


@pytest.mark.slow
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

    for place in ("steering", "_sizes"):
        monkeypatch.setattr(f"quern.pipeline.{place}.plan", planned)
    counted, by_plans = deep(), deep()
    steered(images, counted, budget)
    few, plans = plans, 0
    monkeypatch.setattr("quern.pipeline._sizes.census", lambda *_: None)
    steered(images, by_plans, budget)
    assert equal(values(counted), values(by_plans))
    assert few <= 2 * 4 < plans


@pytest.mark.slow
@pytest.mark.parametrize("how", ["too few", "too many", "dead", "none"])
def test_counts_that_are_wrong_are_not_acted_on(images: ImageSet, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Right for the dense network, but not for what is left of it: then there are plans."""
    whole = plan(shallow(hidden=64), example(images)).parameters[0]
    count = Census.count

    def wrong(self: Census) -> Counted | None:
        found = count(self)
        if found is None or found.parameters == whole:
            return found
        parameters = {"too few": found.parameters // 3, "too many": whole - 1}.get(how)
        return None if parameters is None else dataclasses.replace(found, parameters=parameters)

    if how == "none":
        monkeypatch.setattr(
            "quern.pipeline._sizes.census", lambda net, x: census(net, x) if size(net) == whole else None
        )
    else:
        monkeypatch.setattr(Census, "count", wrong)
    seen: list[bool] = []

    class Remembering(Steering):
        def strength(self, now: Grinding) -> float | None:
            seen.append(now.memory["counted"])
            return super().strength(now)

    net = shallow(hidden=64)
    fit(net, images, SHORT, steer=Remembering(Budget(max_params=1500), example(images)))
    assert 750 < size(net) <= 1500
    assert seen[0]
    assert not seen[-1]


def test_a_grinding_of_few_steps_meets_its_budget(images: ImageSet) -> None:
    net = shallow(hidden=64)
    steered(images, net, Budget(max_params=500), {"batch": 160})  # two steps
    assert size(net) <= 500


@pytest.mark.slow
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
        with pytest.raises(TrainingError, match="λ is steered with a penalty and a proximal optimizer"):
            steered(images, shallow(hidden=16), Budget(max_params=100), change)
