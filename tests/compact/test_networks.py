"""Compaction of random networks: the network itself, with its zeros, says what is right."""

import copy
import random
import warnings
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from quern import nn as qnn
from quern.compact import Plan, compact, plan
from quern.errors import DeadNetworkWarning, NoRuleError
from quern.models import recipe_of
from tests.networks import Drawn, Inputs, difference, draw, measure, outputs, random_zeros, shapes

SEEDS = st.integers(0, 1 << 30)


@dataclass
class Tally:
    """What the networks of this run came to."""

    networks: int = 0
    sizes: int = 0
    float64: float = 0.0
    float32: float = 0.0
    removed: list[float] = field(default_factory=list)
    dead: int = 0


def drawn(seed: int) -> Drawn:
    return draw(random.Random(seed))


def same(a: nn.Module, b: nn.Module) -> bool:
    """Bit by bit."""
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_outputs_are_the_same_at_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()

    @settings(max_examples=200)
    @given(SEEDS)
    def law(seed: int) -> None:
        one = drawn(seed)
        found = plan(one.model, one.inputs[0])
        small = compact(one.model, found)
        seen = measure(one, found, small, single=seed % 2 == 0)
        assert seen.float64 <= 1e-10
        assert seen.float32 <= max(1e-5, 4 * seen.masked_float32)  # a network may be that sensitive to rounding
        count = {name: p.numel() for name, p in one.model.named_parameters()}
        for name, p in small.named_parameters():
            added = name not in count and name.rpartition(".")[2] in ("bias", "constant")
            assert added or p.numel() <= count[name]
        tally.networks += 1
        tally.sizes += seen.sizes
        tally.dead += found.dead
        tally.float64 = max(tally.float64, seen.float64)
        tally.float32 = max(tally.float32, seen.float32)
        tally.removed.append(1 - found.parameters[1] / found.parameters[0])

    law()
    share = sum(tally.removed) / len(tally.removed)
    with capsys.disabled():
        print(
            f"\n{tally.networks} random networks, {tally.dead} of them dead, at {tally.sizes} sizes: "
            f"worst difference {tally.float64:.1e} in float64, {tally.float32:.1e} in float32; "
            f"{share:.0%} of the parameters removed on average"
        )
    assert tally.networks >= 200
    assert tally.sizes >= 2 * tally.networks
    assert tally.dead < tally.networks / 2  # and many of those still differ from place to place
    assert share > 0.3  # else the law says little


def with_unknown(one: Drawn, rng: random.Random) -> Drawn:
    """The network with some of its activations replaced by layers that mix channels and have no rule."""
    kinds = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.GELU, nn.Softplus, nn.PReLU, qnn.QModReLU)
    for name in [name for name, layer in one.model.named_modules() if isinstance(layer, kinds)]:
        if rng.random() < 0.4:
            unknown = rng.choice([nn.LogSoftmax(1), nn.LocalResponseNorm(3), nn.ChannelShuffle(2), nn.Softshrink(0.1)])
            one.model.set_submodule(name, unknown)
    return one


@pytest.mark.slow
def test_layers_without_a_rule_leave_the_outputs_as_they_are() -> None:
    refused, removed = 0, []

    @settings(max_examples=40)
    @given(SEEDS)
    def law(seed: int) -> None:
        nonlocal refused
        one = with_unknown(drawn(seed), random.Random(seed))
        assume(outputs(one.model, one.inputs[0]) is not None)
        try:
            plan(one.model, one.inputs[0])
        except NoRuleError:
            refused += 1
        found = plan(one.model, one.inputs[0], keep_unknown=True)
        small = compact(one.model, one.inputs[0], keep_unknown=True)
        assert shapes(small) == shapes(compact(one.model, found))
        assert measure(one, found, small, single=False).float64 <= 1e-10
        removed.append(1 - found.parameters[1] / found.parameters[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadNetworkWarning)
        law()
    assert refused > len(removed) / 3
    assert sum(removed) / len(removed) > 0.15  # else the law says little


@given(SEEDS)
def test_nothing_is_left_to_remove(seed: int) -> None:
    one = drawn(seed)
    found = plan(one.model, one.inputs[0])
    small = compact(one.model, found)
    again = plan(small, one.inputs[0])
    assert again.parameters == (found.parameters[1], found.parameters[1])
    assert again.dead == found.dead


@pytest.mark.slow
def test_a_dead_network_gives_the_same_for_every_input() -> None:
    found = []

    @settings(max_examples=50)
    @given(SEEDS)
    def law(seed: int) -> None:
        one = drawn(seed)
        if seed % 2:
            with torch.no_grad():  # nothing of the input gets past the first layer
                next(p for p in one.model.parameters() if p.dim() > 1).zero_()
        (x,) = one.inputs[0]
        other = torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 7)
        same = difference(_run(one.model, (x,)), _run(one.model, (other,))) == 0
        dead = plan(one.model, x).dead
        assert same or not dead
        found.append((same, dead))

    law()
    same = sum(s for s, _ in found)
    assert 5 < same < len(found) - 5
    assert sum(dead for _, dead in found) > 0.8 * same  # else it would say little


@given(SEEDS)
def test_a_plan_can_be_written_down_and_done_again(seed: int) -> None:
    one = drawn(seed)
    found = plan(one.model, one.inputs[0])
    assert same(one.model, drawn(seed).model)
    read = Plan.from_dict(found.to_dict())
    assert read == found
    assert str(read) == str(found)
    assert same(compact(one.model, found), compact(copy.deepcopy(one.model), read))


@given(SEEDS)
def test_compacted_twice_is_one_step_from_a_fresh_network(seed: int) -> None:
    """This is how files are read: a network is built, made as small, and filled."""
    one = drawn(seed)
    first = compact(one.model, plan(one.model, one.inputs[0]))
    random_zeros(first, random.Random(seed))
    wanted = [outputs(first, inputs) for inputs in one.inputs]
    second = compact(first, plan(first, one.inputs[0]))
    (step,) = recipe_of(second).steps
    structure = Plan.from_dict(step["compact"])
    fresh = compact(drawn(seed).model, structure)
    assert shapes(fresh) == shapes(second)
    assert shapes(compact(drawn(seed).model.to("meta"), structure)) == shapes(second)
    fresh.load_state_dict(second.state_dict())
    for inputs, y in zip(one.inputs, wanted, strict=True):
        if y is not None:
            assert difference(y, _run(fresh, inputs)) <= 1e-10


def _run(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    found = outputs(model, inputs)
    assert found is not None
    return found


@given(SEEDS)
def test_a_tolerance_is_the_same_as_zeros(seed: int) -> None:
    one = drawn(seed)
    cut = copy.deepcopy(one.model)
    for name, p in cut.named_parameters():
        owner = cut.get_submodule(name.rpartition(".")[0])
        if name.rpartition(".")[2].startswith("weight") and not isinstance(owner, (nn.PReLU, qnn.QLayerNorm)):
            p.data[p.abs() <= 0.3] = 0
    found, of_cut = plan(one.model, one.inputs[0], tol=0.3), plan(cut, one.inputs[0])
    assert found.layers == of_cut.layers
    assert same(compact(one.model, found), compact(cut, of_cut))
