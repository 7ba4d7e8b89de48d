"""Compaction in every floating type: nothing is lost that the type can hold, and rounding is the only difference."""

import copy
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import nn as qnn
from quern.algebra import hamilton
from quern.compact import compact, compact_, plan
from quern.errors import CompactionError
from quern.graph.layers.linear import Linear
from tests.networks import (
    F64,
    cast,
    difference,
    draw,
    kill,
    measure_halves,
    random_values,
    tensors_of,
    two,
    widths,
)

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64)
SEEDS = st.integers(0, 1 << 30)


def wide(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What the network gives in float64, where 16 bits do not hide anything."""
    with torch.no_grad():
        return tensors_of(copy.deepcopy(model).double().eval()(x.double()))


@pytest.mark.slow
@settings(max_examples=60)
@given(SEEDS, st.sampled_from(DTYPES), st.booleans())
def test_where_there_is_nothing_to_remove_every_bit_stays(seed: int, dtype: torch.dtype, in_place: bool) -> None:
    """Weights, biases and statistics of all sizes, down to the smallest that the type can hold."""
    torch.manual_seed(seed)
    layers = [qnn.QConv2d(4, 8, 3), qnn.QBatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8), qnn.QConv2d(8, 4, 1)]
    model = random_values(nn.Sequential(*layers)).to(dtype)
    finfo = torch.finfo(dtype)
    smallest = math.log10(finfo.smallest_normal * finfo.eps)
    with torch.no_grad():
        for t in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            size = 10 ** random.Random(seed + t.numel()).uniform(smallest, 0)
            t.copy_(torch.where(t < 0, -1.0, 1.0) * (t.double().abs() * size).clamp_min(10**smallest))
            t[t == 0] = 1
            if t.dim() == 1:  # a variance
                t.abs_()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(2, 4, 5, 5, dtype=dtype)
    found = plan(model, x)
    assert not found.layers
    small = copy.deepcopy(model)
    if in_place:
        compact_(small, found)
    else:
        small = compact(model, found)
    for state in (small.state_dict(), model.state_dict()):
        assert all(torch.equal(t, state[name]) for name, t in before.items())


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_statistics_are_not_flushed(dtype: torch.dtype) -> None:
    """In float16 a variance of 5e-5 is below the smallest normal number."""
    norm: Any = qnn.QBatchNorm2d(8)
    model: Any = random_values(nn.Sequential(qnn.QConv2d(4, 8, 3), norm, nn.ReLU(), qnn.QConv2d(8, 4, 3)))
    model[0].weight.data.mul_(1e-2)
    norm.running_mean.data.mul_(5e-5)
    norm.running_var.data.fill_(5e-5)
    kill(model[3], columns=(1,))
    model = model.to(dtype)
    x = torch.randn(2, 4, 8, 8, dtype=dtype)
    small: Any = compact(model, x)
    assert widths(small) == {"0": (1, 1), "3": (1, 1)}
    assert torch.equal(small[1].running_var, norm.running_var[:1])
    assert torch.equal(small[1].running_mean, norm.running_mean[:, :1])
    assert difference(wide(model, x), wide(small, x)) <= 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tolerance_zeroes_weights_and_nothing_else(dtype: torch.dtype) -> None:
    norm: Any = qnn.QBatchNorm1d(8)
    model: Any = random_values(nn.Sequential(qnn.QLinear(8, 8), norm, qnn.QLinear(8, 4))).to(dtype)
    with torch.no_grad():
        model[0].weight[:, :, 0] = 5e-4
        model[0].bias.fill_(5e-4)
        norm.running_var.fill_(5e-5)
    cut = copy.deepcopy(model)
    cut[0].weight.data[:, :, 0] = 0
    x = torch.randn(2, 8, dtype=dtype)
    small: Any = compact(model, plan(model, x, tol=1e-3))
    assert torch.equal(small[0].bias, model[0].bias)
    assert torch.equal(small[1].running_var, norm.running_var)
    assert difference(wide(cut, x), wide(small, x)) <= 1e-12


@pytest.mark.slow
@settings(max_examples=40)
@given(SEEDS, st.sampled_from(HALVES))
def test_random_networks_in_16_bits(seed: int, dtype: torch.dtype) -> None:
    found = measure_halves(draw(random.Random(seed)), dtype)
    eps = torch.finfo(dtype).eps
    assert found.compacted <= max(4 * eps, 4 * found.as_it_is)  # constants in a bias are rounded once
    assert found.compacted_as_it_is <= max(4 * eps, 8 * found.as_it_is)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", [0, 1])
def test_constants_are_added_in_float64_and_rounded_once(dtype: torch.dtype, padding: int) -> None:
    model = two(qnn.QConv2d(4, 24, 1), qnn.QConv2d(24, 8, 3, padding=padding)).to(dtype)
    kill(model.a, rows=(0, 1, 2, 3, 4), bias=False)
    small: Any = compact(model, torch.randn(2, 4, 5, 5, dtype=dtype))
    weight, constant = (t.detach().double() for t in (model.b.weight[:, :, :5], model.a.bias[:, :5]))
    pushed = hamilton(weight, constant.view(4, 1, 5, 1, 1).expand_as(weight)).sum(2)  # (4, 2, 3, 3)
    rounding = 2e-3 * torch.finfo(dtype).eps  # of float64, next to a tie of the type
    if padding:
        assert ((small.b.constant.squeeze(2).double() - pushed).abs() <= _ulp(pushed, dtype) * (0.5 + rounding)).all()
    else:
        wanted = pushed.sum((2, 3)) + model.b.bias.detach().double()
        assert ((small.b.bias.double() - wanted).abs() <= _ulp(wanted, dtype) * (0.5 + rounding) + 1e-14).all()


def _ulp(t: Tensor, dtype: torch.dtype) -> Tensor:
    return 2.0 ** t.abs().log2().floor() * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
def test_a_mistake_is_found_however_small_or_coarse_the_numbers_are(
    dtype: torch.dtype, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4), lambda m, x: torch.sigmoid(x))
    kill(model.a, rows=(0,), bias=False)
    model.b.weight.data.mul_(size)
    model.b.bias.data.zero_()
    model = model.to(dtype)
    monkeypatch.setattr(Linear, "absorb", lambda self, layer, plan: None)  # constants are lost
    with pytest.raises(CompactionError, match="does not give the same outputs"):
        plan(model, torch.randn(2, 8, dtype=dtype))


def test_a_constant_that_the_type_cannot_hold_is_none() -> None:
    """6e4 * 2 is infinite in float16, and has to stay so."""
    model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4), lambda m, x: x * 2).to(torch.float16)
    kill(model.a, rows=(0,), bias=False)
    kill(model.a, rows=(1,))
    model.a.bias.data[:, 0] = 6e4
    x = torch.randn(2, 8, dtype=torch.float16)
    found = plan(model, x)
    assert any("not finite" in note for note in found.notes)
    small = compact(model, found)
    assert widths(small) == {"a": (2, 3), "b": (3, 1)}
    assert not model(x).isfinite().any()
    torch.testing.assert_close(small(x), model(x), equal_nan=True)


def test_a_forward_that_insists_on_its_type() -> None:
    for dtype in (torch.float32, torch.float16):
        model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4), lambda m, x, dtype=dtype: torch.sigmoid(x).to(dtype))
        kill(model.a, rows=(0,), bias=False)
        model = model.to(dtype)
        x = torch.randn(2, 8).to(dtype)
        small = compact(model, x)
        assert widths(small) == {"a": (2, 3), "b": (3, 1)}
        torch.testing.assert_close(small(x), model(x), rtol=1e-2, atol=1e-2)


def test_outputs_that_are_what_rounding_left() -> None:
    """Numbers that cancel leave a rest as large as rounding, and sums of fewer numbers leave another one."""
    model = two(qnn.QLinear(8, 64), qnn.QLinear(64, 4), c=qnn.QLinear(8, 4))
    model.wiring = lambda m, x: m.b(m.a(x)) - m.c(x)
    kill(model.a, rows=tuple(range(9)), bias=False)
    a, b = model.a, model.b
    with torch.no_grad():  # c is b after a
        model.c.weight.copy_(hamilton(b.weight.unsqueeze(3), a.weight.unsqueeze(1)).sum(2))
        model.c.bias.copy_(hamilton(b.weight, a.bias.unsqueeze(1)).sum(2) + b.bias)
    for dtype in (torch.float32, torch.float64):
        one, x = copy.deepcopy(model).to(dtype), torch.randn(3, 8, dtype=dtype)
        assert 0 < one(x).abs().max() <= 1e-4
        assert widths(compact(one, x))["a"] == (2, 7)


def test_inputs_of_another_type_are_left_as_they_are() -> None:
    model = two(qnn.QEmbedding(5, 16), qnn.QLinear(16, 4)).half()
    kill(model.b, columns=(2,))
    words = torch.tensor([[0, 3, 1]])
    assert cast((words,), F64)[0].dtype == torch.int64
    small: Any = compact(model, words)
    assert small.a.embedding_dim == 12
    assert torch.equal(small(words), model(words))
