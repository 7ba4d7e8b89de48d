"""Neurons of attention: its projections, and keys that everything hears."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import nn as qnn
from quern.compact import is_dead
from tests.graph.neurons import F64, assert_dead_do_not_matter, dead, kill, layer, random_values, random_zeros
from tests.networks import Wired


def test_neurons_of_attention() -> None:
    counts = []

    @settings(max_examples=40)
    @given(st.integers(0, 10**6), st.integers(1, 2), *[st.booleans()] * 5)
    def law(seed: int, heads: int, crossed: bool, extra: bool, zero: bool, places: bool, weights: bool) -> None:
        def wiring(m: Any, x: Tensor) -> Any:
            y, z = m.one(x), m.other(x)
            y, z = (y + m.places, z - m.places) if places else (y, z)
            found, scores = m.attention(y, z, z if crossed else y)
            return (m.fc(found), scores) if weights else m.fc(found)

        torch.manual_seed(seed)
        attention = qnn.QMultiheadAttention(16, heads, add_bias_kv=extra, add_zero_attn=zero, batch_first=True)
        layers = {"one": qnn.QLinear(8, 16), "other": qnn.QLinear(8, 16), "fc": qnn.QLinear(16, 8)}
        model = Wired(wiring, attention=attention, places=nn.Parameter(torch.empty(4, 16)), **layers)
        model = random_zeros(random_values(model))
        counts.append(assert_dead_do_not_matter(model, torch.randn(3, 4, 8, dtype=F64)))

    law()
    dead_ones, alive_ones = map(sum, zip(*counts, strict=True))
    assert min(dead_ones, alive_ones) > 60


def test_projections_of_attention() -> None:
    model = Wired(
        lambda m, x: m.attention(m.query(x), y := m.source(x), y)[0],
        query=qnn.QLinear(4, 16),
        source=qnn.QLinear(4, 16),
        attention=qnn.QMultiheadAttention(16, 2),
    )
    attention: Any = layer(model, "attention")
    clean = {f"attention.{part}_proj": [] for part in "qkv"} | {"attention.out_proj": [], "query": [], "source": []}
    assert dead(model, 5, 4) == clean
    kill(attention.v_proj, rows=(0,))
    kill(attention.out_proj, columns=(1,))  # nothing of the first head is left to weigh
    head = {f"attention.{part}_proj": [0, 1] for part in "qkv"}
    assert dead(model, 5, 4) == clean | head
    kill(attention.q_proj, columns=(3,))
    kill(attention.k_proj, columns=(2,))
    assert dead(model, 5, 4) == clean | head | {"query": [3]}  # the values hear the other
    kill(attention.v_proj, columns=(2,))
    assert dead(model, 5, 4) == clean | head | {"query": [3], "source": [2]}


def test_an_extra_key_makes_constant_values_live() -> None:
    for bias, zero in ((False, False), (True, False), (False, True)):
        attention: Any = qnn.QMultiheadAttention(8, 1, add_bias_kv=bias, add_zero_attn=zero).double()
        kill(attention.v_proj, rows=(0, 1))
        nn.init.ones_(attention.v_proj.bias)
        model = Wired(lambda m, x: m.attention(x, x, x)[0], attention=attention)
        assert not any(dead(model, 3, 8).values())  # heads go as a whole, and one has to stay
        x, y = torch.randn(2, 2, 3, 8, dtype=F64)
        depends = not torch.allclose(model(x), model(y))
        assert depends == (bias or zero)
        assert not (depends and is_dead(model, x))


@pytest.mark.parametrize("places", [False, True])
def test_a_mask_weighs_constants_that_differ_from_place_to_place(places: bool) -> None:
    def wiring(m: Any, x: Tensor, masked: bool) -> Tensor:
        y = m.first(x) + m.places if places else m.first(x)
        return m.attention(y, y, y, attn_mask=m.mask(x) if masked else None)[0]

    layers: dict[str, Any] = {"first": qnn.QLinear(8, 8), "mask": qnn.QLinear(8, 4 if places else 8)}
    layers["attention"] = qnn.QMultiheadAttention(8, 1, batch_first=True, add_zero_attn=not places)
    where = nn.Parameter(torch.randn(4, 8))
    kill(layers["first"], rows=(0, 1))
    nn.init.ones_(layers["attention"].get_parameter("v_proj.bias"))
    x, y = torch.randn(2, 2, 4 if places else 8, 8, dtype=F64)
    for masked in (False, True):
        model = Wired(partial(wiring, masked=masked), places=where, **layers).double()
        assert torch.allclose(model(x), model(y)) != masked
        assert not (masked and is_dead(model, x))
