"""Sums, products, views and reductions: what they keep of the neurons before them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quern import functional as F
from quern import nn as qnn
from quern.nn import cat
from tests import networks
from tests.graph.neurons import (
    F64,
    assert_dead_do_not_matter,
    convs,
    dead,
    kill,
    layer,
    linears,
    moduli,
    one_column,
    random_values,
    random_zeros,
)


class Wired(networks.Wired):
    """Here, because torch.fx knows the names of the file that forward is in."""

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x)


def attention() -> qnn.QMultiheadAttention:
    return qnn.QMultiheadAttention(8, 1, batch_first=True)


def attentions() -> dict[str, nn.Module]:
    one, other = attention(), attention()
    other.q_proj = one.q_proj
    return {"one": one, "other": other}


# The shape of a sample, the forward, and the layers it is a function of. What is heard of what is not as it looks.
ODD: dict[str, tuple[tuple[int, ...], Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "a sequence is flattened": (
        *((2, 8), lambda m, x: m.b(m.a(x).flatten(1))),
        lambda: linears((8, 8)) | {"b": nn.Linear(16, 1)},
    ),
    "a mean over the units": (
        *((16, 8), lambda m, x: m.b(m.a(x).mean(-1))),
        lambda: linears((8, 16)) | {"b": nn.Linear(16, 1)},
    ),
    "a mean over channels": (
        *((4, 16, 2), lambda m, x: m.b(m.a(x).mean(1))),
        lambda: convs((4, 16)) | {"b": qnn.QConv1d(16, 4, 1)},
    ),
    "a mean over channels counted from the end": (
        *((4, 16, 16), lambda m, x: m.b(m.a(x).mean(-3))),
        lambda: convs((4, 16)) | {"b": nn.Linear(16, 1)},
    ),
    "a linear layer over space": (
        *((4, 16), lambda m, x: m.b(m.a(x))),
        lambda: {"a": qnn.QConv1d(4, 16, 1), "b": qnn.QLinear(16, 8)},
    ),
    "a convolution over a sequence": (
        *((16, 8), lambda m, x: m.b(m.a(x))),
        lambda: {"a": qnn.QLinear(8, 16), "b": qnn.QConv1d(16, 8, 1)},
    ),
    "pooling over units": (
        *((4, 8), lambda m, x: m.b(m.pool(m.a(x)))),
        lambda: linears((8, 16), (16, 4)) | {"pool": nn.AvgPool1d(3, 1, 1)},
    ),
    "pooling over units by a function": (
        *((4, 8), lambda m, x: m.b(nn.functional.avg_pool2d(m.a(x), 3, 1, 1))),
        lambda: {"a": qnn.QConv1d(4, 16, 1), "b": qnn.QConv1d(16, 4, 1)},
    ),
    "components taken as gray images": (
        *((4, 2, 2), lambda m, x: m.b(m.a(x))),
        lambda: {"a": qnn.QConv2d(4, 8, 1), "b": qnn.QConv2d(8, 16, 1, input_parts="r")},
    ),
    "the modulus across places": (
        *((4, 8), lambda m, x: m.b(F.modulus(m.a(x)))),
        lambda: linears((8, 8)) | {"b": nn.Linear(8, 1)},
    ),
    "the modulus over space": (
        *((4, 4, 1), lambda m, x: m.b(F.modulus(m.a(x), dim=2).flatten(1))),
        lambda: convs((4, 8)) | {"b": nn.Linear(8, 1)},
    ),
    "attention weights as features": (
        *((4, 8), lambda m, x: m.b(torch.tanh(m.attention(*[m.a(x)] * 3)[1]))),
        lambda: linears((8, 8)) | {"b": nn.Linear(4, 4), "attention": attention()},
    ),
    "an attention mask from neurons": (
        *((4, 8), lambda m, x: m.attention(x, x, x, attn_mask=m.a(x))[0]),
        lambda: linears((8, 4)) | {"attention": attention()},
    ),
    "attention called by keywords": (
        *((4, 8), lambda m, x: m.attention(value=m.c(x), key=m.b(x), query=m.a(x))[0]),
        lambda: linears((8, 8), (8, 8), (8, 8)) | {"attention": attention()},
    ),
    "a projection of two attentions": (
        *((4, 8), lambda m, x: m.other(*[m.one(x, x, x)[0]] * 3)[0]),
        attentions,
    ),
    "an addition in place": (
        *((8,), lambda m, x: m.b((y := m.a(x), y.add_(m.c(x)))[0])),
        lambda: linears((8, 16), (16, 8), (8, 16)),
    ),
    "a copy in place": (
        *((8,), lambda m, x: m.b((y := m.a(x), y.copy_(m.c(x)))[0])),
        lambda: linears((8, 4), (4, 4), (8, 4)),
    ),
    "indices from neurons": (
        *((8,), lambda m, x: m.table(m.a(x).sigmoid().mul(9).to(torch.long))),
        lambda: linears((8, 8)) | {"table": qnn.QEmbedding(9, 8)},
    ),
    "a cat across places": (
        *((4, 8), lambda m, x: m.c(qnn.cat([m.a(x), m.b(x)], 1))),
        lambda: linears((8, 8), (8, 8), (8, 8)),
    ),
    "a cat over space": (
        *((4, 4, 1), lambda m, x: m.c(qnn.cat([m.a(x), m.b(x)], 2).flatten(1))),
        lambda: convs((4, 8), (4, 8)) | {"c": nn.Linear(64, 1)},
    ),
    "a cat with a parameter": (
        *((4, 2, 2), lambda m, x: m.c(qnn.cat([m.p.expand(3, 8, 2, 2), m.a(x)]).flatten(1))),
        lambda: convs((4, 8)) | {"p": nn.Parameter(torch.empty(8, 1, 1)), "c": qnn.QLinear(64, 4)},
    ),
    "a cat of flattened values": (
        *((4, 3), lambda m, x: m.c(qnn.cat([m.a(x).flatten(1), m.b(x).flatten(1)]))),
        lambda: {"a": qnn.QConv1d(4, 8, 3), "b": qnn.QConv1d(4, 8, 1), "c": qnn.QLinear(32, 4)},
    ),
    "a cat of real channels": (
        *((8,), lambda m, x: m.c(qnn.cat([m.a(x), m.b(x)]))),
        lambda: {"a": moduli(), "b": moduli(), "c": nn.Linear(8, 1)},
    ),
    "an addition across axes": (
        *((4, 1, 8), lambda m, x: m.b(m.c(x[:, 0, 0]) + m.a(x))),
        lambda: convs((4, 8)) | {"c": qnn.QLinear(8, 8), "b": qnn.QLinear(8, 4)},
    ),
    "an addition of different widths": (
        *((8,), lambda m, x: m.c(x) + m.a(x)),
        lambda: {"a": moduli(), "c": nn.Linear(8, 1)},
    ),
    "quaternions and real channels flattened alike": (
        *((4, 4, 4), lambda m, x: m.c(m.a(x).flatten(1) + F.modulus(m.b(x)).flatten(1))),
        lambda: {"a": qnn.QConv2d(4, 8, 1, 2), "b": qnn.QConv2d(4, 8, 1), "c": nn.Linear(32, 1)},
    ),
    "a reshape": (
        *((4, 8), lambda m, x: m.b(m.a(x).reshape(3, -1))),
        lambda: linears((8, 16), (64, 8)),
    ),
    "a transposition": (
        *((16, 8), lambda m, x: m.b(m.a(x).mT)),
        lambda: linears((8, 16), (16, 8)),
    ),
    "halves": (
        *((8,), lambda m, x: m.b(m.a(x).chunk(2, -1)[1])),
        lambda: linears((8, 16), (8, 8)),
    ),
    "an initial state from neurons": (
        *((4, 8), lambda m, x: m.rnn(x, m.a(x[:, 0]).unsqueeze(0))[0]),
        lambda: linears((8, 8)) | {"rnn": qnn.QGRU(8, 8, batch_first=True)},
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_networks_lose_nothing(name: str) -> None:
    shape, wiring, layers = ODD[name]
    alive = 0
    for seed in range(10):
        torch.manual_seed(seed)
        model = random_zeros(random_values(Wired(wiring, **layers())), keep=(0.2, 0.6, 1.0)[seed % 3])
        if seed % 2:
            one_column(model, seed / 10)
        alive += assert_dead_do_not_matter(model, torch.randn(3, *shape, dtype=F64))[1]
    assert alive > 0


def test_a_residual_sum_keeps_what_either_side_has() -> None:
    model = Wired(
        lambda m, x: m.last(m.body(y := m.first(x)) + y),
        first=qnn.QConv2d(4, 12, 1),
        body=qnn.QConv2d(12, 12, 3, padding=1),
        last=qnn.QConv2d(12, 4, 1),
    )
    kill(layer(model, "body"), rows=(0,), columns=(1,))
    assert dead(model, 4, 3, 3) == {"first": [], "body": [], "last": []}  # added to each other
    kill(layer(model, "first"), rows=(0,))  # nothing is left on either side of it
    assert dead(model, 4, 3, 3) == {"first": [0], "body": [0], "last": []}
    kill(layer(model, "last"), columns=(1,))  # first's neuron 1 went through the sum only
    assert dead(model, 4, 3, 3) == {"first": [0, 1], "body": [0, 1], "last": []}
    kill(layer(model, "last"), columns=(2,))
    assert dead(model, 4, 3, 3) == {"first": [1, 2], "body": [1, 2], "last": []}


def test_a_gate_of_means_is_followed() -> None:
    model = Wired(
        lambda m, x: m.last((y := m.first(x)) * torch.sigmoid(m.gate(y.mean((2, 3), keepdim=True)))),
        first=qnn.QConv2d(4, 12, 1),
        gate=qnn.QConv2d(12, 12, 1),
        last=qnn.QConv2d(12, 4, 1),
    )
    kill(layer(model, "last"), columns=(0,))
    assert dead(model, 4, 3, 3) == {"first": [], "gate": [], "last": []}
    kill(layer(model, "gate"), columns=(0,))
    assert dead(model, 4, 3, 3) == {"first": [0], "gate": [0], "last": []}


def test_flattening_gives_each_channel_its_columns() -> None:
    for head in (qnn.QLinear(2 * 4 * 9, 8), nn.Linear(2 * 4 * 9, 8)):
        model = nn.Sequential(qnn.QConv2d(4, 8, 1), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), head)  # to 3 x 3
        columns = (
            head.weight.data.view(-1, 2, 9) if isinstance(head, qnn.QLinear) else head.weight.data.view(-1, 4, 2, 9)
        )
        columns[..., 1, :8] = 0
        assert dead(model, 4, 6, 6)["0"] == []
        columns[..., 1, 8] = 0
        assert dead(model, 4, 6, 6)["0"] == [1]


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: x.flatten(1),
        lambda x: torch.flatten(input=x, start_dim=1),
        lambda x: x.mean((2, 3), keepdim=True).flatten(start_dim=1),
        lambda x: x.mean(-1).sum(-1),
        lambda x: torch.amax(x, (-2, -1)),
        lambda x: nn.functional.adaptive_avg_pool2d(x, 1).flatten(1),
        lambda x: nn.functional.max_pool2d(x, 1).flatten(1),
    ],
)
def test_ways_to_vectors_are_followed(flatten: Callable[[Tensor], Tensor]) -> None:
    model = Wired(lambda m, x: m.b(flatten(m.a(x))), a=qnn.QConv2d(4, 12, 1), b=qnn.QLinear(12, 8))
    assert model(torch.randn(2, 4, 1, 1)).shape == (2, 8)
    kill(layer(model, "b"), columns=(1,))
    assert dead(model, 4, 1, 1) == {"a": [1], "b": []}


def test_a_flattened_sequence_is_not_followed() -> None:
    """Its columns are place, component, channel: not the order of quaternions."""
    model = Wired(lambda m, x: m.b(m.a(x).flatten(1)), a=qnn.QLinear(4, 8), b=nn.Linear(16, 1))
    layer(model, "b").weight.data[:, torch.arange(16) != 1] = 0
    assert dead(model, 2, 4) == {"a": [], "b": []}


def test_a_scale_of_places_kills_no_unit() -> None:
    norm, linear = qnn.QBatchNorm1d(8), qnn.QLinear(8, 4)  # on (batch, 8, 8): the axis of the scale is not the last
    norm.get_parameter("weight").data[0] = 0
    kill(linear, columns=(1,))
    assert dead(nn.Sequential(norm, linear), 8, 8) == {"1": []}


def test_cat_puts_channels_side_by_side() -> None:
    for join in (lambda a, b: qnn.cat([a, b]), lambda a, b: cat((a, b), dim=-3), lambda a, b: F.cat(tensors=[a, b])):
        model = Wired(
            lambda m, x, join=join: m.last(join(m.one(x), m.other(x))),
            one=qnn.QConv2d(4, 8, 1),
            other=qnn.QConv2d(4, 12, 1),
            last=qnn.QConv2d(20, 8, 1),
        )
        kill(layer(model, "one"), rows=(0,))
        kill(layer(model, "last"), columns=(1, 3))
        assert dead(model, 4, 2, 2) == {"one": [1], "other": [1], "last": []}
        kill(layer(model, "last"), columns=(2, 4))  # it hears the dead one only
        assert dead(model, 4, 2, 2) == {"one": [1], "other": [1, 2], "last": []}


def test_asking_for_sizes_needs_no_neuron_but_computing_with_their_number_does() -> None:
    def wiring(m: Any, x: Tensor, counted: bool) -> Tensor:
        y = m.one(x)
        return m.last(y / y.size(0) - y.dim() * y + (y.shape[-1] if counted else 0))

    for counted in (False, True):
        model = Wired(partial(wiring, counted=counted), one=qnn.QLinear(4, 8), last=qnn.QLinear(8, 4))
        kill(layer(model, "last"), columns=(0,))
        assert dead(model, 4) == {"one": [] if counted else [0], "last": []}
