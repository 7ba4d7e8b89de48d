"""What makes plans fast must not be seen: copies are deep ones, and outputs that are used again are the same."""

import copy
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import compact as package
from quern import models
from quern import nn as qnn
from quern.compact import plan
from quern.errors import CompactionError
from quern.graph.precision import floating, in_float64
from quern.graph.reader import read, remembering
from tests.networks import cloned, draw, kill, numbers, tensors_of


class Holder(nn.Module):
    """Whatever a module of somebody's own may hold."""

    def __init__(self) -> None:
        super().__init__()
        first = qnn.QLinear(8, 8)
        self.layers = nn.ModuleList([first, qnn.QBatchNorm1d(8), first])
        self.again = nn.Linear(8, 8, bias=False)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.again.weight
        self.hidden = [self.again, {"a": (first, [1, 2])}]  # modules that torch does not see here
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("part", self.get_buffer("whole")[2:4])
        self.register_buffer("kept", torch.ones(2, dtype=torch.float16), persistent=False)
        self.anything: Any = {"table": {}, "set": {1}, "shape": torch.Size((2, 3)), "parent": [self]}
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.layers[2](self.layers[0](x)))


def assert_copies_alike(found: Any, model: Any) -> None:
    state, wanted = found.state_dict(), model.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name].to(state[name].dtype)) for name in state)
    assert all(state[name].data_ptr() != wanted[name].data_ptr() for name in state)
    assert [n for n, _ in found.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert found.tied.weight is found.again.weight
    assert found.layers[0] is found.layers[2] is not model.layers[0]
    assert found.hidden[0] is found.again
    assert found.hidden[1]["a"][0] is found.layers[0]
    assert found.hidden[1]["a"][1] == [1, 2]
    assert found.hidden[1]["a"][1] is not model.hidden[1]["a"][1]
    assert found.anything["parent"][0] is found
    assert found.anything["table"] is not model.anything["table"]
    assert not found.frozen.requires_grad
    assert found.frozen is not model.frozen


def test_a_copy_in_float64_is_a_deep_copy_in_float64() -> None:
    model = Holder().eval()
    found, wanted = in_float64(model, floating(model)), copy.deepcopy(model).double()
    assert isinstance(found, Holder)
    assert_copies_alike(found, model)
    for (name, t), (other, like) in zip(found.state_dict().items(), wanted.state_dict().items(), strict=True):
        assert (name, t.dtype, t.stride()) == (other, like.dtype, like.stride())
    assert found.get_buffer("kept").dtype == torch.float64
    network = models.cifar_qcnn()
    strides = [p.stride() for p in copy.deepcopy(network).double().parameters()]
    wide = in_float64(network, floating(network))
    assert wide is not None
    assert [p.stride() for p in wide.parameters()] == strides
    assert all(p.dtype == torch.float32 for p in network.parameters())


@pytest.mark.parametrize("seed", range(12))
def test_reading_with_a_memory_finds_the_same(seed: int) -> None:
    drawn = draw(random.Random(seed))
    model, inputs = drawn.model.eval(), drawn.inputs[0]
    with torch.no_grad():
        with remembering(model) as memory:
            model(*cloned(inputs))
        facts, values, outs = read(model, cloned(inputs), True)
        again, same_values, same_outs = read(model, cloned(inputs), True, memory=memory)
    assert torch.equal(facts.settle(), again.settle())
    assert len(values) == len(same_values)
    for one, other in zip(tensors_of(outs), tensors_of(same_outs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def fill_zeros_(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.where(p == 0, torch.rand_like(p) + 0.5, p))


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
@settings(max_examples=40)
@given(st.integers(0, 1 << 30))
def test_large_networks_get_the_plans_that_small_ones_get(full: bool, seed: int) -> None:
    drawn = draw(random.Random(seed))
    model = drawn.model.float()
    if full:
        fill_zeros_(model)
    inputs = tuple(x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in drawn.inputs[0])
    wanted = plan(model, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "_LARGE", -1)
        assert plan(model, inputs) == wanted


def test_a_large_network_that_keeps_all_it_has_is_not_copied_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[nn.Module] = []
    monkeypatch.setattr(package, "in_float64", lambda model, types: copies.append(model) or in_float64(model, types))
    model, x = models.digits_qcnn(norm="after_conv"), torch.rand(2, 1, 8, 8)
    assert not plan(model, x).layers
    assert len(copies) == 1
    monkeypatch.setattr(package, "_LARGE", -1)
    assert not plan(model, x).layers
    assert len(copies) == 1
    assert isinstance(model[1], qnn.QBatchNorm2d)
    model[1].get_parameter("weight").data[1] = 0  # then something goes, and is looked at closely
    assert plan(model, x).layers
    assert len(copies) == 2


def test_a_layer_on_another_input_is_run_again() -> None:
    layer = qnn.QLinear(4, 4).double()
    model = nn.Sequential(layer, nn.ReLU(inplace=True), layer)
    x = numbers(2, 4).double()
    with torch.no_grad(), remembering(model) as memory:
        model(x)
        wanted = model(2 * x)
        _, _, found = read(model, (2 * x,), False, memory=memory)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        layer.weight.mul_(3)  # memory is of what the layer was: the caller's to see to
        assert torch.equal(read(model, (2 * x,), False, memory=memory)[2], wanted)


def test_a_network_that_differs_from_call_to_call_is_refused_where_nothing_goes() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = qnn.QLinear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + torch.rand(())

    with pytest.raises(CompactionError):
        plan(Noisy(), torch.randn(2, 4))


def test_the_network_is_left_as_it_was() -> None:
    model = models.digits_qcnn(norm="after_conv")
    kill(model[0], rows=(1,))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    plan(model, torch.randn(2, 1, 8, 8))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())
