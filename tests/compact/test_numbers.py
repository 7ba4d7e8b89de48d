"""Compaction of networks that compute with sizes and with numbers: what was read off the example holds for others."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as TF
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import nn as qnn
from quern.compact import compact, plan
from quern.errors import CompactionError
from tests.networks import (
    F64,
    Numbered,
    cloned,
    difference,
    kill,
    numbered_network,
    numbers,
    outputs,
    random_values,
    smaller,
    tensors_of,
    two,
    widths,
)


def the_same(model: nn.Module, *inputs: tuple[Any, ...], **options: Any) -> Any:
    """The compacted network, after it gave the same outputs for all ``inputs``; the first is the example."""
    small = compact(model, plan(model, inputs[0], **options))
    for one in inputs:
        wanted = outputs(model, one)
        assert wanted is not None
        assert difference(wanted, tensors_of(small(*cloned(one)))) <= 1e-10
    return small


@pytest.mark.slow
def test_sizes_and_numbers_are_not_constant() -> None:
    removed = []

    @settings(max_examples=150)
    @given(st.integers(0, 1 << 30))
    def law(seed: int) -> None:
        torch.manual_seed(seed)
        drawn = numbered_network(random.Random(seed))
        small = the_same(drawn.model, *drawn.inputs)
        removed.append(sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in drawn.model.parameters()))

    law()
    assert sum(removed) > len(removed) / 3  # else the law says little


Forward = Callable[[Any, Tensor, Any], Any]
CASES: dict[str, Forward] = {
    "size": lambda y, x, k: y * y.size(2),
    "batch": lambda y, x, k: y * x.size(0),
    "shape": lambda y, x, k: y + x.shape[3],
    "last of the shape": lambda y, x, k: y + x.shape[-1],
    "part of the shape": lambda y, x, k: y * math.prod(x.shape[2:]),
    "numel": lambda y, x, k: y / x.numel(),
    "numel of the shape": lambda y, x, k: y * x.shape[2:].numel(),
    "divided": lambda y, x, k: y * (x.size(2) / 7),
    "arithmetic": lambda y, x, k: y * (x.size(2) // 2 + 1),
    "root": lambda y, x, k: y / math.sqrt(x.size(3)),
    "number": lambda y, x, k: y * k,
    "number from the left": lambda y, x, k: k - y,
    "number of a number": lambda y, x, k: y + (k * 2 + 1),
    "number and size": lambda y, x, k: y / (k * k + x.size(2)),
    "in place": lambda y, x, k: y.clone().mul_(k),
    "by name": lambda y, x, k: torch.add(input=y, other=k),
    "alpha": lambda y, x, k: torch.add(y, torch.sigmoid(y), alpha=k),
    "alpha with a number": lambda y, x, k: torch.sub(y, 1.5, alpha=x.size(2)),
    "method with alpha": lambda y, x, k: y.add(torch.tanh(y), alpha=k),
    "slope": lambda y, x, k: TF.leaky_relu(y, k),
    "elu": lambda y, x, k: TF.elu(y, alpha=x.size(2) / 10),
    "limit": lambda y, x, k: TF.hardtanh(y, -0.1, x.size(2) / 10),
    "full": lambda y, x, k: y * torch.full((1,), k, dtype=F64),
    "ones": lambda y, x, k: y + torch.ones((x.size(2), 1), dtype=F64).sum(),
    "new_full": lambda y, x, k: y + x.new_full((1,), k),
    "arange": lambda y, x, k: y + torch.arange(x.size(3)),
    "zeros": lambda y, x, k: y * (torch.zeros((1,), dtype=F64) + k),
    "interpolate": lambda y, x, k: TF.interpolate(y, size=(x.size(2) * 2, x.size(3) + 1)),
    "pooled": lambda y, x, k: TF.adaptive_max_pool2d(y, (x.size(2) // 2, 3)),
    "average": lambda y, x, k: TF.avg_pool2d(y, 3, 1, 1, divisor_override=x.size(2)),
    "slice": lambda y, x, k: y[:, :, : x.size(2) // 2] * x.size(0),
    "view": lambda y, x, k: y.reshape(x.size(0), y.size(1), -1).unsqueeze(3) * k,
    "summed": lambda y, x, k: y.sum((2, 3), keepdim=True) * k,
}


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_constant_that_meets_a_number_is_live(case: str, padding: int) -> None:
    last = qnn.QConv2d(12, 4, 1 + 2 * padding, padding=padding)
    layers = {"a": qnn.QConv2d(4, 12, 1), "b": last}
    model: Any = random_values(Numbered(lambda m, x, k: m.b(CASES[case](m.a(x), x, k)), **layers))
    kill(model.a, rows=(0,), bias=False)  # a constant
    kill(model.b, columns=(1,))  # so that there is something to remove in any case
    example, other = numbers(2, 4, 5, 4), numbers(3, 4, 8, 7)
    small = the_same(model, (example, 0.7), (example, -2.0), (other, 0.7), (numbers(1, 4, 4, 9), 3.0))
    stays = 1 if case in ("interpolate", "pooled") else 2
    assert widths(small)["a"][1] == stays
    assert widths(the_same(model, (other, 2.0), (example, 0.7)))["a"][1] == stays


def test_numbers_in_the_program_are_constant() -> None:
    model = two(qnn.QConv2d(4, 12, 1), qnn.QConv2d(12, 4, 1), lambda m, x: TF.leaky_relu(3 * x - 0.5, 0.2) / 7)
    kill(model.a, rows=(0,), bias=False)
    assert widths(smaller(model, numbers(2, 4, 5, 4), numbers(1, 4, 3, 3))[0]) == {"a": (1, 2), "b": (2, 1)}


def test_zero_times_a_number_is_zero() -> None:
    layers = {"a": qnn.QConv2d(4, 12, 1), "b": qnn.QConv2d(12, 4, 1)}
    model: Any = random_values(Numbered(lambda m, x, k: m.b(m.a(x) * k * x.size(2)), **layers))
    kill(model.a, rows=(0,))
    small = the_same(model, (numbers(2, 4, 5, 4), 0.7), (numbers(2, 4, 3, 3), 2.0))
    assert widths(small) == {"a": (1, 2), "b": (2, 1)}


@pytest.mark.parametrize(
    "wiring",
    [
        lambda m, y, x: y * y.size(1),
        lambda m, y, x: y + y.shape[1] // 4,
        lambda m, y, x: y / y.numel(),
        lambda m, y, x: y * y[:, : y.size(1)].mean(),
        lambda m, y, x: TF.adaptive_avg_pool2d(y, y.size(1)),
        lambda m, y, x: y + torch.zeros((y.size(1), 1, 1), dtype=F64),
    ],
)
def test_who_computes_with_the_number_of_channels_keeps_them(wiring: Any) -> None:
    model = two(qnn.QConv2d(4, 12, 1), qnn.QConv2d(12, 4, 1))
    model.wiring = lambda m, x: m.b(wiring(m, m.a(x), x))
    kill(model.a, rows=(0,))
    small, _ = smaller(model, numbers(2, 4, 5, 4), numbers(3, 4, 8, 7))
    assert widths(small)["a"] == (1, 3)


def test_the_number_of_channels_as_an_output() -> None:
    model = two(qnn.QConv2d(4, 12, 1), qnn.QConv2d(12, 4, 1))
    model.wiring = lambda m, x: (m.b(y := m.a(x)), y.size(1) + 1)
    kill(model.a, rows=(0,))
    assert compact(model, x := numbers(2, 4, 5, 4))(x)[1] == 13


VIEWS: list[tuple[Any, Any, int]] = [
    (lambda y, x: y.reshape(y.size(0), -1), lambda: nn.Linear(12 * 20, 3), 2),
    (lambda y, x: y.reshape(x.size(0), y.size(1), -1), lambda: nn.Conv1d(12, 3, 1), 2),
    (lambda y, x: y.reshape((y.shape[0], y.shape[1] * 20)), lambda: nn.Linear(12 * 20, 3), 2),
    (lambda y, x: y.reshape(y.shape), lambda: nn.Conv2d(12, 3, 1), 2),
    (lambda y, x: y.reshape(y.size(0), -1, y.size(3)), lambda: nn.Conv1d(12 * 5, 3, 1), 2),
    (lambda y, x: y.flatten(2).mT.reshape(-1, y.size(1)), lambda: nn.Linear(12, 3), 2),
    # These agree with the channels on the example, by chance or by a number that stays when channels go.
    (lambda y, x: y.reshape(2, -1), lambda: nn.Linear(12 * 20, 3), 3),
    (lambda y, x: y.reshape(x.size(3) // 2, -1), lambda: nn.Linear(12 * 20, 3), 3),
    (lambda y, x: y.reshape(y.size(0), -1, 4), lambda: nn.Conv1d(12 * 5, 3, 1), 3),
    (lambda y, x: y.reshape(y.size(0), x.size(1) * 3, -1), lambda: nn.Conv1d(12, 3, 1), 3),
]


@pytest.mark.parametrize(("view", "last", "stays"), VIEWS)
def test_views_by_sizes(view: Any, last: Any, stays: int) -> None:
    model = two(qnn.QConv2d(4, 12, 1), last())
    model.wiring = lambda m, x: m.b(view(m.a(x), x))
    kill(model.a, rows=(0,), bias=False)
    small = the_same(model, (numbers(2, 4, 5, 4),), (numbers(2, 4, 5, 4),))
    assert widths(small)["a"][1] == stays
    for shape in ((4, 4, 5, 4), (2, 4, 5, 8), (1, 4, 10, 4), (4, 4, 5, 2)):
        x = numbers(*shape)
        if (wanted := outputs(model, (x,))) is not None:
            assert difference(wanted, tensors_of(small(x))) <= 1e-10


def test_a_view_that_cuts_across_channels_on_other_images() -> None:
    """With images twice as large, each row of the view holds half of the channels of one image."""

    def wiring(m: Any, x: Tensor, k: int) -> Tensor:
        return m.b(m.a(x).reshape(k, -1))

    layers = {"a": qnn.QConv1d(4, 8, 1), "b": nn.Linear(8 * 3, 2)}
    model: Any = random_values(Numbered(wiring, **layers))
    kill(model.a, rows=(0,), bias=False)
    the_same(model, (numbers(2, 4, 3), 2), (numbers(2, 4, 6), 4), (numbers(1, 4, 12), 4))


@pytest.mark.parametrize("squeeze", [lambda y: y.squeeze(), lambda y: y.squeeze(0), lambda y: y.squeeze((2, 3))])
def test_squeezed_axes_of_other_inputs(squeeze: Any) -> None:
    model = two(qnn.QConv2d(4, 12, 1), nn.Identity(), lambda m, y: squeeze(y.mean((2, 3), keepdim=True)) * 2)
    kill(model.a, rows=(0,), bias=False)
    smaller(model, numbers(1, 4, 3, 3), numbers(2, 4, 3, 3))
    smaller(model, numbers(2, 4, 3, 3), numbers(1, 4, 3, 3))


class Optional(nn.Module):
    """Inputs that need not be given."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = qnn.QLinear(8, 12), qnn.QLinear(12, 4)

    def forward(self, x: Tensor, scale: float = 2.0, more: Tensor | None = None, plain: bool = True) -> Tensor:
        y = self.a(x) * scale
        y = y if more is None else y + more
        return self.b(y if plain else -y)


def test_a_number_that_the_example_leaves_out_may_be_given_later() -> None:
    model: Any = random_values(Optional())
    kill(model.a, rows=(0,), bias=False)
    kill(model.b, columns=(1,))
    x = numbers(2, 8)
    assert widths(the_same(model, (x,), (x, 3.0), (numbers(3, 8), -1.0)))["a"] == (2, 2)
    assert widths(the_same(model, (x, 1.0), (x,), (x, 3.0)))["a"] == (2, 2)


def test_a_number_that_decides_what_is_done_is_said() -> None:
    class Repeated(Optional):
        def forward(self, x: Tensor, times: int = 2) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            y = self.a(x)
            for _ in range(times):
                y = torch.relu(y)
            return self.b(y)

    model = random_values(Repeated())
    found = plan(model, numbers(2, 8))
    assert found.notes == ("times is taken to be 2 in every call, because it cannot be followed",)


def test_numbers_in_tuples_and_dicts() -> None:
    x, y = numbers(2, 4, 3, 3), numbers(1, 4, 5, 2)
    wirings: list[tuple[Any, Any, Any]] = [
        (lambda m, x, k: m.b(m.a(x) * k[1]), (1, 0.5), (2, 3.0)),
        (lambda m, x, k: m.b(m.a(x) * k["scale"]), {"scale": 0.5}, {"scale": 3.0}),
        (lambda m, x, k: m.b(m.a(x) * k["scale"] + k["shift"]), {"scale": 0.5, "shift": x.mean()}, None),
    ]
    for wiring, first, second in wirings:
        layers = {"a": qnn.QConv2d(4, 12, 1), "b": qnn.QConv2d(12, 4, 1)}
        model: Any = random_values(Numbered(wiring, **layers))
        kill(model.a, rows=(0,), bias=False)
        the_same(model, (x, first), (y, second or {"scale": -1.0, "shift": y.sum()}))


def test_a_layer_that_is_called_with_a_number_is_kept_whole() -> None:
    attention = qnn.QMultiheadAttention(16, 2, batch_first=True)
    model: Any = random_values(Numbered(lambda m, x, k: m.at(x, x, x, need_weights=k)[0], at=attention))
    kill(attention.out_proj, columns=(2, 3))
    small = the_same(model, (numbers(2, 3, 16), False), (numbers(2, 5, 16), True))
    assert small.at.num_heads == 2
    transposed = qnn.QConvTranspose2d(12, 4, 3, stride=2)
    layers = {"a": qnn.QConv2d(4, 12, 1), "b": transposed}
    model = random_values(Numbered(lambda m, x, k: m.b(m.a(x), output_size=[k, k]), **layers))
    kill(model.a, rows=(0,), bias=False)
    small = the_same(model, (numbers(2, 4, 3, 3), 7), (numbers(2, 4, 3, 3), 8), (numbers(1, 4, 5, 5), 11))
    assert widths(small) == {"a": (1, 2), "b": (2, 1)}


@pytest.mark.parametrize("pad", [lambda y, k: TF.pad(y, (1, 1), value=k), lambda y, k: torch.full_like(y, k) + y])
def test_operations_without_a_rule_stay_without(pad: Any) -> None:
    layers = {"a": qnn.QConv2d(4, 12, 1), "b": qnn.QConv2d(12, 4, 1)}
    model: Any = random_values(Numbered(lambda m, x, k: m.b(pad(m.a(x), k)), **layers))
    kill(model.a, rows=(0,), bias=False)
    inputs = [(numbers(2, 4, 3, 3), 0.5), (numbers(2, 4, 3, 3), 2.0), (numbers(1, 4, 6, 3), 2.0)]
    with pytest.raises(CompactionError, match="no rule"):
        plan(model, inputs[0])
    the_same(model, *inputs, keep_unknown=True)


torch.fx.wrap("len")


def test_the_length_of_a_tensor() -> None:
    model = two(qnn.QConv2d(4, 12, 1), qnn.QConv2d(12, 4, 1), lambda m, y: y * len(y))
    kill(model.a, rows=(0,), bias=False)
    smaller(model, numbers(2, 4, 5, 4), numbers(3, 4, 5, 4))
