"""Which neurons no longer matter: judged by what happens when their outputs are exchanged between samples, and by hand.

They are those that a plan removes. So channels that are added to each other go together or not at all, no layer loses
its last neuron, and what the network puts out stays.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import functional as F
from quern import models
from quern import nn as qnn
from quern.compact import plan
from quern.nn import cat
from quern.sparsity import measure
from tests.builders import shape_of
from tests.graph.neurons import (
    F64,
    assert_dead_do_not_matter,
    dead,
    kill,
    layer,
    mlp,
    random_values,
    random_zeros,
    removed,
)
from tests.networks import Wired, draw

STEPS = ("conv", "grouped", "transposed", "residual", "sum", "cat", "shared", "average", "maximum", "upsample", "real")


def block(space: int, kind: str, inner: int, out: int, norm: int, bend: Callable[[], nn.Module]) -> nn.Module:
    """One stage of a random network; ``inner`` and ``out`` count quaternions."""

    def conv(groups: int = 1, kernel: int = 3) -> nn.Module:
        return getattr(qnn, f"QConv{space}d")(4 * inner, 4 * out, kernel, padding=kernel // 2, groups=groups)

    def normalised(layer: nn.Module) -> nn.Module:
        kinds: list[Any] = [nn.Identity, getattr(qnn, f"QBatchNorm{space}d"), getattr(nn, f"BatchNorm{space}d")]
        kinds.append(qnn.QWhiteningBatchNorm2d if space == 2 else nn.Identity)
        make = kinds[norm]
        return nn.Sequential(layer, make() if make is nn.Identity else make(4 * out), bend())

    if kind == "grouped":
        return normalised(conv(groups=2))
    if kind == "transposed":
        return normalised(getattr(qnn, f"QConvTranspose{space}d")(4 * inner, 4 * out, 3, padding=1, groups=2))
    if kind == "residual" and inner == out:
        return Wired(lambda m, x: m.body(x) + x, body=normalised(conv()))
    if kind in ("residual", "sum"):
        return Wired(lambda m, x: m.one(x) + m.other(x), one=normalised(conv()), other=conv(kernel=1))
    if kind == "cat":
        joined = {"one": conv(kernel=1), "other": normalised(conv()), "last": conv(kernel=1)}
        joined["last"] = getattr(qnn, f"QConv{space}d")(8 * out, 4 * out, 1)
        return Wired(lambda m, x: m.last(qnn.cat([m.one(x), m.other(x)])), **joined)
    if kind == "shared" and inner == out:
        return Wired(lambda m, x: m.again(m.bend(m.again(x))), again=conv(), bend=bend())
    if kind == "real":
        return nn.Sequential(getattr(nn, f"Conv{space}d")(4 * inner, 4 * out, 1, groups=2), bend())
    layers = [normalised(conv())]
    if kind == "average":
        layers.append(getattr(nn, f"AvgPool{space}d")(2, stride=1))
    if kind == "maximum":
        layers += [getattr(nn, f"MaxPool{space}d")(2, stride=1), getattr(qnn, f"QMaxPool{space}d")(1)]
    if kind == "upsample":
        layers.append(nn.Upsample(scale_factor=1))
    return nn.Sequential(*layers)


def head(space: int, kind: int, inner: int, size: int) -> nn.Module:
    features = inner * size**space
    if kind == 0:
        return nn.Sequential(nn.Flatten(), qnn.QLinear(4 * features, 12), qnn.Modulus())
    if kind == 1:
        return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4 * features, 3))
    if kind == 2:
        readout = [qnn.QBatchNorm1d(16), qnn.Modulus(), nn.BatchNorm1d(4), nn.Linear(4, 3)]
        return nn.Sequential(nn.Flatten(), qnn.QLinear(4 * features, 16), *readout)
    if kind == 3:
        axes = tuple(range(2, 2 + space))
        return Wired(lambda m, x: m.fc(x.mean(axes)), fc=qnn.QLinear(4 * inner, 8))
    if kind == 4:
        conv = getattr(nn, f"Conv{space}d")(inner, 8, 1, groups=2)
        return nn.Sequential(qnn.Modulus(), conv, nn.Flatten(), qnn.QLinear(8 * size**space, 8))
    return nn.Sequential(nn.Flatten(), qnn.QBatchNorm1d(4 * features), qnn.QLinear(4 * features, 8), nn.Linear(8, 3))


def random_network(plan: dict[str, Any], bend: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(plan["seed"])
    space, size, inner = plan["space"], 4, 2 * plan["width"]
    first = {4: "rijk", 3: "ijk", 1: "r"}[plan["channels"]]
    stem = getattr(qnn, f"QConv{space}d")(plan["channels"], 4 * inner, 3, padding=1, input_parts=first)
    layers: list[nn.Module] = [stem, bend()]
    for kind, width, norm in plan["steps"]:
        layers.append(block(space, kind, inner, 2 * width, norm, bend))
        inner, size = 2 * width, size - (kind in ("average", "maximum"))
    model = random_values(nn.Sequential(*layers, head(space, plan["head"], inner, size)))
    return model, torch.randn(2, plan["channels"], *[4] * space, dtype=F64)


def plans(steps: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    step = st.tuples(st.sampled_from(steps), st.integers(1, 2), st.integers(0, 3))
    return st.fixed_dictionaries(
        {
            "seed": st.integers(0, 10**6),
            "space": st.integers(1, 3),
            "channels": st.sampled_from([1, 3, 4]),
            "width": st.integers(1, 2),
            "steps": st.lists(step, min_size=2, max_size=3),
            "head": st.integers(0, 5),
            "bend": st.integers(0, 4),
            "taps": st.booleans(),
        }
    )


@pytest.mark.slow
def test_dead_neurons_do_not_matter() -> None:
    counts = []

    @settings(max_examples=70)
    @given(plans(STEPS))
    def law(plan: dict[str, Any]) -> None:
        bends = (nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.Identity, nn.GELU)
        model, x = random_network(plan, bends[plan["bend"]])
        counts.append(assert_dead_do_not_matter(random_zeros(model, taps=plan["taps"]), x))

    law()
    dead_ones, alive_ones = map(sum, zip(*counts, strict=True))
    assert min(dead_ones, alive_ones) > 200  # else the law says little


@pytest.mark.slow
def test_what_is_measured_is_what_a_plan_removes() -> None:
    """The same networks with zeros, drawn for the tests of compaction: one definition of dead."""
    counts = []

    @settings(max_examples=40)
    @given(st.integers(0, 1 << 30))
    def law(seed: int) -> None:
        one = draw(random.Random(seed))
        found, size = plan(one.model, one.inputs[0], keep_unknown=True), measure(one.model, one.inputs[0])
        assert (size.neurons, size.neurons_left) == found.neurons
        for row in size.layers:
            outputs = found.layers[row.name].outputs if row.name in found.layers else None
            share = 0 if outputs is None else 1 - len(outputs.indices) / outputs.total
            assert row.dead_neurons == pytest.approx(share * row.neurons)
        counts.append(size.neurons - size.neurons_left)

    law()
    assert sum(counts) > 100  # else the law says little


def test_an_unknown_initial_state_keeps_a_recurrent_layer() -> None:
    model = Wired(lambda m, x: m.rnn(x, m.first(x[:1]))[0], rnn=qnn.QRNN(8, 8), first=qnn.QLinear(8, 8))
    layer(model, "rnn").weight_ih_l0.data.zero_()
    assert dead(model, 3, 8)["rnn"] == []


def test_embedding() -> None:
    model = nn.Sequential(qnn.QEmbedding(5, 12), qnn.QLinear(12, 4))
    layer(model, "0").weight.data[..., 0] = 0
    layer(model, "0").weight.data[..., 1] = 0
    layer(model, "0").weight.data[3, 4, 1] = 1
    kill(layer(model, "1"), columns=(2,))
    gone, _ = removed(model, torch.randint(5, (2, 3)))
    assert {name: which.tolist() for name, which in gone.items()} == {"0": [True, False, True], "1": [False]}


def test_tolerance_counts_what_is_not_larger_as_zero() -> None:
    model = mlp(2, 3, 2)
    layer(model, "0").weight.data[:, 0] = 0.125
    layer(model, "1").weight.data[:, :, 1] = -0.125
    layer(model, "0").weight.data[:, 2], layer(model, "1").weight.data[:, :, 2] = 1, 1
    x = torch.randn(3, 8)
    for tol, gone in ((0.0, 0), (0.124, 0), (0.125, 2)):
        assert [row.dead_neurons for row in measure(model, x, tol).layers] == [gone, 0]


@pytest.mark.slow
def test_a_tolerance_is_the_same_as_zeros() -> None:
    @settings(max_examples=15)
    @given(plans(STEPS))
    def law(plan: dict[str, Any]) -> None:
        model, x = random_network(plan, nn.ReLU)
        cut = copy.deepcopy(model)
        for name, p in cut.named_parameters():
            if name.endswith("weight"):
                p.data[p.abs() <= 0.7] = 0
        by_tol, by_zeros = measure(model, x, 0.7).layers, measure(cut, x).layers
        assert [row.dead_neurons for row in by_tol] == [row.dead_neurons for row in by_zeros]

    law()


def test_what_is_not_a_number_is_not_zero() -> None:
    model = mlp(1, 2, 1)
    kill(layer(model, "0"), rows=(1,))
    layer(model, "0").weight.data[2, 1] = float("nan")
    assert dead(model, 4) == {"0": [], "1": []}


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x: torch.fft.fft(x).real, "fft_fft"),
        (lambda x: nn.functional.normalize(x), "normalize"),
        (nn.LogSoftmax(1), "op (LogSoftmax)"),
    ],
)
def test_an_operation_without_a_rule_is_noted_and_keeps_what_is_before_it(operation: Any, name: str) -> None:
    layers = {"op": operation} if isinstance(operation, nn.Module) else {}
    model = Wired(
        lambda m, x: m.last((m.op if layers else operation)(m.one(x))),
        one=qnn.QLinear(4, 16),
        last=qnn.QLinear(16, 4),
        **layers,
    )
    kill(layer(model, "one"), rows=(1,))
    kill(layer(model, "last"), columns=(0, 1, 2))
    gone, notes = removed(model.double(), torch.randn(2, 4, dtype=F64))
    assert not gone["one"].any()  # all channels that it takes are kept
    assert any(note.startswith(name) for note in notes)


@pytest.mark.parametrize("operation", [lambda x: x.softmax(1), nn.Softmax(1), nn.LayerNorm(16), nn.GroupNorm(2, 16)])
def test_an_operation_that_needs_all_channels_keeps_what_is_before_it_without_a_note(operation: Any) -> None:
    layers = {"op": operation} if isinstance(operation, nn.Module) else {}
    model = Wired(
        lambda m, x: m.last((m.op if layers else operation)(m.one(x))),
        one=qnn.QLinear(4, 16),
        last=qnn.QLinear(16, 4),
        **layers,
    )
    kill(layer(model, "one"), rows=(1,))
    kill(layer(model, "last"), columns=(0, 1, 2))
    gone, notes = removed(model.double(), torch.randn(2, 4, dtype=F64))
    assert not gone["one"].any()
    assert not notes


def test_a_forward_that_cannot_be_traced_leaves_the_layers_own_zeros() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        y, _ = m.rnn(m.one(x)) if x.sum() > 0 else (x, None)
        return m.last(y)

    layers = {"one": qnn.QLinear(12, 12), "rnn": qnn.QRNN(12, 12, bidirectional=True), "last": qnn.QConv1d(12, 12, 1)}
    model = Wired(wiring, **layers, table=qnn.QEmbedding(3, 8))
    kill(layers["one"], rows=(1,))
    kill(layers["last"], rows=(0,), columns=(0, 1, 2))
    layer(model, "table").weight.data[..., 1] = 0
    found = measure(model)
    assert len(found.notes) == 1
    assert "cannot be traced" in found.notes[0]
    assert {row.name: row.dead_neurons for row in found.layers} == {"one": 1, "rnn": 0, "last": 3, "table": 1}


def test_without_an_example_a_layer_knows_its_weights_and_the_scale_behind_it() -> None:
    model = nn.Sequential(qnn.QLinear(8, 16), qnn.QBatchNorm1d(16), nn.ReLU(), qnn.QLinear(16, 16), nn.Linear(16, 3))
    kill(layer(model, "0"), rows=(0,))
    layer(model, "1").weight.data[1] = 0
    kill(layer(model, "3"), columns=(2,))  # nobody needs it, which takes an example
    kill(layer(model, "3"), rows=(3,))
    found = measure(model)
    assert [row.dead_neurons for row in found.layers] == [2, 1, 0]
    assert len(found.notes) == 1
    assert "without an example input" in found.notes[0]
    found = measure(model, torch.randn(2, 8))
    assert [row.dead_neurons for row in found.layers] == [3, 1, 0]
    assert found.notes == ()


def test_layers_that_are_not_reached_are_noted() -> None:
    model = Wired(lambda m, x: m.used(x), used=qnn.QLinear(4, 4), idle=qnn.QLinear(4, 8))
    kill(layer(model, "idle"), rows=(1,))
    found = measure(model, torch.randn(2, 4))
    assert [row.dead_neurons for row in found.layers] == [0, 0]
    assert found.notes == ("idle (QLinear) was not followed, so all its neurons count as alive",)
    wrapped = measure(nn.DataParallel(mlp(1, 2, 1)), torch.randn(2, 4))
    assert [row.name for row in wrapped.layers] == ["module.0", "module.1"]
    assert len(wrapped.notes) == 1
    assert "DataParallel hides the network" in wrapped.notes[0]


def test_a_layer_whose_output_is_not_used_is_dead() -> None:
    model = Wired(lambda m, x: (m.one(x), m.other(x))[0], one=qnn.QLinear(4, 4), other=qnn.QLinear(4, 8))
    assert dead(model, 4) == {"one": [], "other": [1]}


def test_operations_on_the_input_are_not_noted() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        x = (x.permute(0, 3, 1, 2) / 255).clamp(-1, 1)
        return m.one(qnn.encode_rgb(x).reshape(2, 4, -1).mean(-1))

    model = Wired(wiring, one=qnn.QLinear(4, 8))
    assert model(torch.randn(2, 5, 5, 3)).shape == (2, 8)
    assert dead(model, 5, 5, 3) == {"one": []}


@pytest.mark.parametrize(
    ("one", "inputs"),
    [
        (qnn.QLinear(8, 8), (torch.ones(2, 8),)),
        (qnn.QConv2d(8, 8, 3), (torch.ones(2, 8, 4, 4),)),
        (qnn.QLSTM(8, 8), (torch.ones(2, 3, 8),)),
        (qnn.QEmbedding(3, 8), (torch.ones(2, 3, dtype=torch.long),)),
        (qnn.QMultiheadAttention(8, 2), (torch.ones(2, 3, 8),) * 3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_layer_is_a_network(one: nn.Module, inputs: tuple[Any, ...]) -> None:
    gone, notes = removed(one, *inputs)
    assert gone
    assert notes == []
    assert not any(which.any() for which in gone.values())


@pytest.mark.parametrize("name", models.BUILDERS)
def test_fresh_networks_are_all_alive(name: str) -> None:
    model = models.BUILDERS[name]()
    gone = dead(model, *shape_of(name))
    kinds = (qnn.QLinear, qnn.QConv2d, qnn.SplitConv2d, nn.Linear, nn.Conv2d)
    assert gone == {n: [] for n, m in model.named_modules() if isinstance(m, kinds)}


def test_the_network_is_left_as_it_was() -> None:
    model = models.digits_qcnn().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    measure(model, torch.randn(2, 1, 8, 8), 1e-3)
    measure(model, tol=1e-3)
    assert all(m.training for m in model.modules())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert qnn.cat is F.cat is cat
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 10)
