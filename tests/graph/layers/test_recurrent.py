"""Neurons of recurrent layers: one place in all levels, directions and gates."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import nn as qnn
from quern.sparsity import measure
from tests.graph.neurons import (
    F64,
    REAL_RECURRENT,
    RECURRENT,
    dead,
    kill,
    layer,
    random_values,
    random_zeros,
    removed,
    run_exchanged,
)
from tests.networks import Wired


def unrolled(layer: Any, x: Tensor, exchanged: Tensor) -> tuple[Tensor, Tensor]:
    """A recurrent layer, batch first, step by step, some neurons having the state of another sample after every step.

    The outputs, and the last states h of all levels and directions."""
    parts = 4 if isinstance(layer, RECURRENT) else 1
    units = iter(exchanged.view(-1, layer.hidden_size // parts))
    last = []
    for level in range(layer.num_layers):
        sides = []
        for suffix in ("", "_reverse") if layer.bidirectional else ("",):
            cell = type(layer)(x.shape[-1], layer.hidden_size, bias=layer.bias, batch_first=True).double().eval()
            own = {name: layer.get_parameter(name.replace("_l0", f"_l{level}{suffix}")) for name in cell.state_dict()}
            cell.load_state_dict(own)
            which = next(units).repeat(parts)
            state, steps = None, {}
            for t in range(x.shape[1])[:: -1 if suffix else 1]:
                _, state = cell(x[:, t : t + 1], state)
                states = state if isinstance(state, tuple) else (state,)
                states = tuple(torch.where(which, own.roll(1, 1), own) for own in states)
                state = states if isinstance(state, tuple) else states[0]
                steps[t] = states[0][0]
            sides.append(torch.stack([steps[t] for t in range(x.shape[1])], 1))
            last.append(steps[0 if suffix else x.shape[1] - 1])
        x = (qnn.cat if parts == 4 else torch.cat)(sides, -1)
    return x, torch.stack(last)


def recurrent_network(kind: int, levels: int, both: bool, of_state: bool, first: nn.Module, bias: bool) -> nn.Module:
    """Three hidden units, of quaternions for a ``kind`` below 3, else of real numbers."""
    parts = 4 if kind < 3 else 1
    make = (*RECURRENT, *REAL_RECURRENT)[kind]
    rnn = make(8, 3 * parts, levels, bias=bias, batch_first=True, bidirectional=both)

    def of_output(m: Any, x: Tensor) -> Tensor:
        return m.fc(m.rnn(m.first(x))[0])

    def of_last(m: Any, x: Tensor) -> Tensor:
        _, state = m.rnn(m.first(x))
        return m.fc(state[0] if kind % 3 == 1 else state)

    width = 3 * parts if of_state or not both else 6 * parts
    fc = (qnn.QLinear if parts == 4 else nn.Linear)(width, 8)
    return random_values(Wired(of_last if of_state else of_output, first=first, rnn=rnn, fc=fc))


@torch.no_grad()
@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(1, 2), *[st.booleans()] * 4)
def test_neurons_of_recurrent_layers(
    seed: int, kind: int, levels: int, both: bool, of_state: bool, quaternion_inputs: bool, bias: bool
) -> None:
    """Without a bias, which moves every unit, many units stay at zero."""
    torch.manual_seed(seed)
    first = (qnn.QLinear if quaternion_inputs else nn.Linear)(8, 8)
    network = recurrent_network(kind, levels, both, of_state, first, bias)
    model: Any = random_zeros(network, keep=0.7 if bias else 0.3)
    x = torch.randn(2, 4, 8, dtype=F64)
    wanted, inner = model(x), model.first(x)
    gone, notes = removed(model, x)
    assert notes == []
    # A hidden unit has one place in all levels and directions, and leaves all of them.
    going = gone["rnn"].repeat(levels * (1 + both))
    assert len(going) == 3 * levels * (1 + both)

    def run(exchanged: Tensor) -> Tensor:
        output, last = unrolled(model.rnn, inner, exchanged)
        return model.fc(last if of_state else output)

    torch.testing.assert_close(run(torch.zeros_like(going)), wanted)
    torch.testing.assert_close(run(going), wanted)
    torch.testing.assert_close(run_exchanged(model, x, {"first": gone["first"]}), wanted)


def test_levels_and_directions_of_recurrent_layers() -> None:
    """A hidden unit goes if nobody needs it in any level and direction."""
    rnn = qnn.QLSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True)
    model = Wired(lambda m, x: m.last(m.rnn(x)[0]), rnn=rnn, last=qnn.QLinear(16, 4))
    weight = {name: p.data for name, p in rnn.named_parameters()}
    kill(layer(model, "last"), columns=(0, 2))  # level 1: unit 0 of both directions still speaks to unit 1
    assert dead(model, 5, 8) == {"rnn": [], "last": []}
    for side in ("", "_reverse"):
        weight[f"weight_hh_l1{side}"][:, :, 0] = 0
    assert dead(model, 5, 8) == {"rnn": [], "last": []}  # level 0 speaks to level 1
    for side in ("", "_reverse"):
        weight[f"weight_ih_l1{side}"][:, :, ::2] = 0
    assert dead(model, 5, 8) == {"rnn": [], "last": []}  # and to its own unit 1
    weight["weight_hh_l0"][:, :, 0] = 0
    assert dead(model, 5, 8) == {"rnn": [], "last": []}
    weight["weight_hh_l0_reverse"][:, :, 0] = 0
    assert dead(model, 5, 8) == {"rnn": [0], "last": []}
    size = measure(model, torch.randn(2, 5, 8))
    assert [row.dead_neurons for row in size.layers] == [4, 0]  # in two levels and two directions


def test_last_states_keep_neurons_of_every_level() -> None:
    wirings = [(kind, lambda m, x: m.rnn(x)[1]) for kind in (*RECURRENT, *REAL_RECURRENT)]
    for kind in (qnn.QLSTM, nn.LSTM):
        wirings += [(kind, lambda m, x: m.rnn(x)[1][0]), (kind, lambda m, x: m.rnn(x)[1][1])]
    for kind, wiring in wirings:
        model = Wired(wiring, rnn=kind(4, 8, num_layers=2))
        assert dead(model, 3, 4) == {"rnn": []}
        layer(model, "rnn").get_parameter("weight_ih_l1").data.zero_()
        assert dead(model, 3, 4) == {"rnn": []}  # level 0 has them


def test_inputs_of_recurrent_layers() -> None:
    model = nn.Sequential(qnn.QLinear(4, 12), qnn.QGRU(12, 8))
    kill(layer(model, "0"), rows=(0,))
    layer(model, "1").weight_ih_l0.data[:, :, 2] = 0
    assert dead(model, 5, 4) == {"0": [0, 2], "1": []}
    layer(model, "1").weight_ih_l0.data[:, :, 1] = 0
    assert dead(model, 5, 4) == {"0": [1, 2], "1": []}


def test_inputs_of_real_recurrent_layers() -> None:
    """A quaternion that goes in is needed as long as any of its four components is."""
    model = nn.Sequential(qnn.QLinear(4, 12), nn.GRU(12, 5))
    for component in range(4):
        assert dead(model, 5, 4) == {"0": [], "1": []}
        layer(model, "1").weight_ih_l0.data[:, 3 * component + 2] = 0
    assert dead(model, 5, 4) == {"0": [2], "1": []}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projected_state_needs_all_units() -> None:
    """It mixes them, so they are not followed, and that is said."""
    rnn = nn.LSTM(8, 6, proj_size=3)
    model = Wired(lambda m, x: m.rnn(m.a(x))[0], a=nn.Linear(4, 8), rnn=rnn)
    rnn.get_parameter("weight_ih_l0").data[:, 2] = 0
    size = measure(model, torch.randn(5, 2, 4))
    assert [row.dead_neurons for row in size.layers] == [0, 0]
    assert size.notes == ("rnn (LSTM) was not followed, so all its neurons count as alive",)
