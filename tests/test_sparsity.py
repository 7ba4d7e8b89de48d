"""What ``measure`` counts, against numbers counted by hand, by numpy, or by torch's own counter of operations."""

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from quern import models
from quern import nn as qnn
from quern.compact import compact, plan
from quern.functional import products
from quern.sparsity import Sparsity, measure


def ones(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        nn.init.ones_(p)
    return model


def weight(model: nn.Module, name: str) -> Tensor:
    return model.get_parameter(f"{name}.weight").data


def small() -> nn.Module:
    """A convolution of 2 x 1 x 3 quaternions, a batch normalisation and a linear layer of 1 x 4, all ones."""
    return ones(
        nn.Sequential(
            qnn.QConv1d(4, 8, 3), qnn.QBatchNorm1d(8), nn.ReLU(), nn.Flatten(), qnn.QLinear(16, 4), qnn.Modulus()
        )
    )


# ----------------------------------------------------------------------------------------------- the three sparsities


def test_three_sparsities_by_hand() -> None:
    model = small()
    weight(model, "0")[:, 0, 0, 0] = 0  # one quaternion
    weight(model, "0")[1:3, 1, 0, 2] = 0  # two components of another
    weight(model, "4")[:, 0, 2:] = 0  # all that the linear layer hears of neuron 1: its two places
    weight(model, "4")[3, 0, 0] = 0
    found = measure(model, torch.randn(2, 4, 4))
    conv, linear = found.layers
    assert (conv.name, conv.kind, linear.name, linear.kind) == ("0", "QConv1d", "4", "QLinear")
    assert (conv.quaternions, conv.zero_components, conv.zero_quaternions) == (6, 6, 1)
    assert (conv.neurons, conv.dead_neurons, conv.neurons_left) == (2, 1, 1)
    assert (conv.component_sparsity, conv.quaternion_sparsity, conv.neuron_sparsity) == (6 / 24, 1 / 6, 1 / 2)
    assert (linear.quaternions, linear.zero_components, linear.zero_quaternions) == (4, 9, 2)
    assert (linear.neurons, linear.dead_neurons, linear.neurons_left) == (1, 0, 1)
    assert (found.component_sparsity, found.quaternion_sparsity, found.neuron_sparsity) == (15 / 40, 3 / 10, 1 / 3)
    assert (found.neurons, found.neurons_left, found.notes) == (3, 2, ())


def test_a_zero_scale_is_a_dead_neuron_but_no_zero_weight() -> None:
    model = small()
    model.get_parameter("1.weight").data[0] = 0
    for found in (measure(model), measure(model, torch.randn(2, 4, 4))):
        assert (found.component_sparsity, found.quaternion_sparsity, found.neuron_sparsity) == (0, 0, 1 / 3)


def test_zero_is_what_is_not_larger_than_the_tolerance() -> None:
    model = small()
    weight(model, "0")[:, 0, 0] = torch.tensor([1e-3, -1e-3, 1.1e-3])  # three quaternions of neuron 0
    weight(model, "0")[0, 1, 0] = -1e-3
    # The modulus of a quaternion of four times 1e-3 is 2e-3, and its components are zero before it is.
    counts = ((0.0, 0, 0, 0), (9e-4, 0, 0, 0), (1e-3, 11, 0, 0), (1.2e-3, 15, 0, 1), (2.1e-3, 15, 2, 1))
    for tol, components, quaternions, dead in counts:
        conv = measure(model, tol=tol).layers[0]
        assert (conv.zero_components, conv.zero_quaternions, conv.dead_neurons) == (components, quaternions, dead)
    found = measure(model, tol=3e-3)
    assert (found.layers[0].zero_quaternions, found.layers[0].dead_neurons, found.tol) == (3, 1, 3e-3)
    assert found.nonzero_parameters == found.parameters - 15


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 4), min_size=2, max_size=4), st.floats(0, 1))
def test_counts_equal_those_of_numpy(seed: int, sizes: list[int], tol: float) -> None:
    torch.manual_seed(seed)
    layers = [qnn.QLinear(4 * n, 4 * m) for n, m in pairwise(sizes)]
    for layer in layers:
        layer.weight.data.mul_(torch.rand_like(layer.weight) > 0.5).mul_(torch.rand(layer.weight.shape[1:]) > 0.3)
    found = measure(nn.Sequential(*layers), torch.randn(3, 4 * sizes[0]), tol=tol)
    zeros, whole, total = 0, 0, 0
    for layer, row in zip(layers, found.layers, strict=True):
        numbers = layer.weight.detach().numpy().astype(np.float64)
        zero, gone = np.abs(numbers) <= tol, np.sqrt((numbers**2).sum(0)) <= tol
        assert row.zero_components == zero.sum()
        assert row.zero_quaternions == gone.sum()
        assert (row.macs, row.nonzero_macs) == (4 * zero.size, 4 * (~zero).sum())
        zeros, whole, total = zeros + zero.sum(), whole + gone.sum(), total + zero.size
    assert found.component_sparsity == pytest.approx(zeros / total)
    assert found.quaternion_sparsity == pytest.approx(4 * whole / total)
    assert (found.macs, found.nonzero_macs) == (4 * total, 4 * (total - zeros))


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 5), min_size=2, max_size=4), st.floats(0, 1))
def test_real_layers_count_as_layers_of_one_component(seed: int, sizes: list[int], tol: float) -> None:
    """Weights as numpy counts them, dead neurons as a plan removes them; the network has no others."""
    torch.manual_seed(seed)
    layers = [nn.Linear(n, m) for n, m in pairwise(sizes)]
    for layer in layers:
        layer.weight.data.mul_(torch.rand_like(layer.weight) > 0.5)
    model, x = nn.Sequential(*layers), torch.randn(3, sizes[0])
    measured, planned = measure(model, x, tol=tol), plan(model, x, tol=tol, keep_unknown=True)
    for layer, row in zip(layers, measured.layers, strict=True):
        zero = np.abs(layer.weight.detach().numpy().astype(np.float64)) <= tol
        assert (row.components, row.quaternions, row.neurons) == (1, zero.size, zero.shape[0])
        assert row.zero_components == row.zero_quaternions == zero.sum()
        assert row.component_sparsity == row.quaternion_sparsity == pytest.approx(zero.mean())
        assert (row.macs, row.nonzero_macs) == (zero.size, (~zero).sum())
    assert (measured.neurons, measured.neurons_left) == planned.neurons
    assert measured.neurons == sum(sizes[1:])


@given(zeros=st.sets(st.integers(0, 11)), unheard=st.sets(st.integers(0, 3), max_size=3), norm=st.booleans())
def test_dead_neurons_of_real_layers_by_hand(zeros: set[int], unheard: set[int], norm: bool) -> None:
    """Neurons that nobody hears, or that say the same always, on a network without a quaternion."""
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    model = nn.Sequential(first, nn.BatchNorm1d(4) if norm else nn.Identity(), nn.ReLU(), last)
    first.weight.data.fill_(1).view(-1)[list(zeros)] = 0
    first.bias.data.fill_(1)
    last.weight.data[:, list(unheard)] = 0
    constant = {n for n in range(4) if {3 * n, 3 * n + 1, 3 * n + 2} <= zeros}
    row, end = measure(model, torch.randn(2, 3)).layers
    assert row.dead_neurons == min(len(unheard | constant), 3)  # one stays
    assert (end.dead_neurons, end.zero_quaternions) == (0, 2 * len(unheard))
    small: Any = compact(model, plan(model, torch.randn(2, 3)))
    assert small[0].out_features == 4 - row.dead_neurons


def test_totals_are_those_of_the_quaternion_layers_where_there_are_any() -> None:
    model = nn.Sequential(ones(nn.Linear(4, 16)), ones(qnn.QLinear(16, 4)), qnn.Modulus(), ones(nn.Linear(1, 3)))
    weight(model, "0")[0] = 0
    weight(model, "1")[:, 0, 1] = 0
    measured = measure(model)
    assert [row.components for row in measured.layers] == [1, 4, 1]
    assert [row.component_sparsity for row in measured.layers] == [1 / 16, 1 / 4, 0]
    assert [row.dead_neurons for row in measured.layers] == [1, 0, 0]
    assert (measured.component_sparsity, measured.quaternion_sparsity, measured.neurons) == (1 / 4, 1 / 4, 1)
    assert "all: weights, shares and neurons of the quaternion layers alone" in str(measured)
    assert "alone" not in str(measure(model[1])).splitlines()[-2]


def test_without_an_example_real_neurons_are_dead_by_the_scale_behind_them() -> None:
    model = nn.Sequential(nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 1), qnn.QBatchNorm1d(8))
    model.get_parameter("1.weight").data[[1, 2]] = 0
    weight(model, "0")[[2, 5]] = 0
    model.get_parameter("4.weight").data[0] = 0  # of the quaternion of channels 0, 2, 4, 6
    assert [row.dead_neurons for row in measure(model).layers] == [3, 4]


@pytest.mark.parametrize("tiny", [1e-30, 1e-44])
def test_a_number_whose_square_is_zero_is_none(tiny: float) -> None:
    model = small()
    weight(model, "0")[:, 0, 0, 0] = torch.tensor([0.0, tiny, 0.0, 0.0])
    assert measure(model).layers[0].zero_quaternions == 0
    assert measure(model, tol=2 * tiny).layers[0].zero_quaternions == 1


def test_every_kind_of_layer_has_its_row() -> None:
    attention = qnn.QMultiheadAttention(8, 1, add_bias_kv=True)
    model = nn.ModuleDict(
        {
            "table": qnn.QEmbedding(5, 8),
            "rnn": qnn.QLSTM(8, 12, num_layers=2, bidirectional=True),
            "attention": attention,
            "back": qnn.QConvTranspose2d(8, 4, 3, groups=1),
            "real": nn.Linear(4, 4),
            "norm": qnn.QLayerNorm(8),
        }
    )
    rows = {row.name: (row.kind, row.quaternions, row.neurons) for row in measure(model).layers}
    assert rows == {
        "table": ("QEmbedding", 5 * 2, 2),
        "rnn": ("QLSTM", 2 * 4 * 3 * (2 + 3) + 2 * 4 * 3 * (6 + 3), 12),
        **{f"attention.{part}_proj": ("QLinear", 4, 2) for part in ("q", "k", "v", "out")},
        "back": ("QConvTranspose2d", 2 * 9, 1),
        "real": ("Linear", 16, 4),
    }


def test_tied_weights_count_once() -> None:
    one, other = qnn.QLinear(8, 8, bias=False), qnn.QLinear(8, 8, bias=False)
    other.weight = one.weight
    one.weight.data[:, 0, 0] = 0
    found = measure(nn.Sequential(one, other), torch.randn(2, 8))
    assert [row.quaternions for row in found.layers] == [4, 0]
    assert [row.neurons for row in found.layers] == [2, 2]
    assert (found.parameters, found.nonzero_parameters, found.bytes) == (16, 12, 64)
    assert (found.component_sparsity, found.quaternion_sparsity) == (1 / 4, 1 / 4)
    assert found.layers[1].component_sparsity == 0
    assert (found.macs, found.nonzero_macs) == (2 * 64, 2 * 48)  # but both layers compute


# ---------------------------------------------------------------------------------------------------------------- size


def test_parameters_and_bytes_by_hand() -> None:
    model = nn.Sequential(qnn.QLinear(8, 12), qnn.QBatchNorm1d(12), qnn.Modulus(), nn.Linear(3, 2, dtype=torch.float64))
    ones(model)
    found = measure(model)
    assert found.parameters == (24 + 12) + (3 + 12) + (6 + 2)
    assert found.nonzero_parameters == found.parameters
    statistics = 4 * (12 + 3) + 8  # mean, variance and a count of 64 bits
    assert found.bytes == 4 * (24 + 12 + 3 + 12) + 8 * (6 + 2) + statistics
    weight(model, "3").zero_()
    model.get_parameter("0.bias").data[0] = 0
    assert measure(model).nonzero_parameters == found.parameters - 6 - 3
    assert measure(model).bytes == found.bytes


def test_what_is_not_a_number_is_not_zero() -> None:
    model = small()
    weight(model, "0").fill_(float("nan"))
    found = measure(model, torch.randn(1, 4, 4))
    assert (found.layers[0].zero_components, found.neuron_sparsity) == (0, 0)
    assert found.nonzero_parameters == found.parameters
    assert found.nonzero_macs == found.macs


def test_a_network_without_quaternions() -> None:
    model = models.digits_cnn()
    found = measure(model, torch.randn(2, 1, 8, 8))
    assert [(row.kind, row.neurons, row.components) for row in found.layers] == [
        ("Conv2d", 12, 1),
        ("Conv2d", 24, 1),
        ("Linear", 10, 1),
    ]
    assert (found.neurons, found.notes, found.quaternion_layers) == (46, (), ())
    assert (found.component_sparsity, found.quaternion_sparsity, found.neuron_sparsity) == (0, 0, 0)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.macs == found.nonzero_macs == 12 * 9 * 64 + 24 * 12 * 9 * 64 + 10 * 24 * 16
    nothing = measure(nn.ReLU(), torch.randn(2, 3))
    assert (nothing.parameters, nothing.bytes, nothing.macs, nothing.nonzero_macs) == (0, 0, 0, 0)
    assert "all" in str(nothing)


# --------------------------------------------------------------------------------------------------- multiplications

COUNTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: qnn.QLinear(8, 12), (8,)),
    "linear on a sequence": (lambda: qnn.QLinear(8, 12), (5, 8)),
    "linear, gray": (lambda: qnn.QLinear(3, 12, input_parts="r"), (3,)),
    "conv1d": (lambda: qnn.QConv1d(8, 12, 3), (8, 9)),
    "conv2d, strides and padding": (lambda: qnn.QConv2d(8, 12, (3, 2), (2, 1), (1, 0)), (8, 7, 6)),
    "conv2d, groups": (lambda: qnn.QConv2d(16, 8, 3, groups=2), (16, 5, 5)),
    "split conv2d": (lambda: qnn.SplitConv2d(16, 3, 2, 1), (16, 7, 6)),
    "conv2d, dilation": (lambda: qnn.QConv2d(4, 8, 3, dilation=2, padding="same"), (4, 6, 5)),
    "conv2d, colour": (lambda: qnn.QConv2d(3, 8, 3, input_parts="ijk"), (3, 6, 6)),
    "conv3d": (lambda: qnn.QConv3d(4, 8, 2, padding=1), (4, 3, 4, 5)),
    "transposed 1d": (lambda: qnn.QConvTranspose1d(8, 4, 4, 2), (8, 5)),
    "transposed 2d, groups": (lambda: qnn.QConvTranspose2d(16, 8, 3, 2, 1, 1, groups=2), (16, 4, 3)),
    "transposed 3d": (lambda: qnn.QConvTranspose3d(4, 8, 2), (4, 2, 3, 2)),
    "real linear": (lambda: nn.Linear(7, 3), (4, 7)),
    "real conv": (lambda: nn.Conv2d(6, 4, 3, 2, groups=2), (6, 7, 7)),
    "real transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, 2, groups=2), (6, 4, 4)),
    "reuse": (lambda: nn.Sequential(*[qnn.QLinear(8, 8)] * 3), (8,)),
    "a small network": (
        lambda: nn.Sequential(qnn.QLinear(8, 8), qnn.QBatchNorm1d(8), nn.ReLU(), qnn.QLinear(8, 4)),
        (8,),
    ),
    "mnist": (models.mnist_qcnn, (1, 28, 28)),
    "residual": (lambda: models.qresnet20(widths=(4, 8, 8)), (3, 8, 8)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_multiplications_equal_those_torch_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the block form every real product is one of a real layer, whose operations torch counts: two for each."""
    for choice in ("choose_conv_form", "choose_linear_form"):
        monkeypatch.setattr(products, choice, lambda *sizes: "block")
    build, shape = COUNTED[name]
    model = build().eval()
    for batch in (1, 3):
        x = torch.randn(batch, *shape)
        with FlopCounterMode(display=False) as counter:
            model(x)
        found = measure(model, x)
        assert found.macs is not None
        assert 2 * batch * found.macs == counter.get_total_flops()
        assert sum(row.macs or 0 for row in found.layers) <= found.macs


def test_multiplications_by_hand() -> None:
    """16 real products for a quaternion one, at every place; 4 if the input is gray."""
    model = nn.Sequential(qnn.QConv2d(1, 8, 3, input_parts="r"), nn.Flatten(), qnn.QLinear(8 * 9, 4), nn.Linear(4, 5))
    weight(model, "0")[:, 0] = 0
    weight(model, "2")[1] = 0
    weight(model, "3")[:2] = 0
    found = measure(model, torch.randn(2, 1, 5, 5))
    conv, linear, real = found.layers
    assert (real.macs, real.nonzero_macs) == (20, 12)
    assert (conv.macs, conv.nonzero_macs) == (9 * 2 * 9 * 4, 9 * 9 * 4)
    assert (linear.macs, linear.nonzero_macs) == (18 * 16, 18 * 12)
    assert (found.macs, found.nonzero_macs) == (9 * 2 * 9 * 4 + 18 * 16 + 20, 9 * 9 * 4 + 18 * 12 + 12)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("parts", [4, 1])
def test_recurrent_layers_multiply_at_every_step(name: str, parts: int) -> None:
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[name]
    kind: Any = getattr(qnn, f"Q{name}") if parts == 4 else getattr(nn, name)
    rnn = kind(8, 3 * parts, num_layers=2, bidirectional=True, batch_first=True)
    per_step = parts**2 * gates * 2 * (3 * (8 // parts + 3) + 3 * (6 + 3))
    assert measure(rnn, torch.randn(2, 7, 8)).macs == 7 * per_step
    rnn.weight_hh_l1.data[..., 0, :] = 0
    size = measure(rnn, torch.randn(2, 7, 8))
    assert (size.macs, size.nonzero_macs) == (7 * per_step, 7 * (per_step - parts**2 * 3))

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = rnn

        def forward(self, x: Tensor) -> Any:
            return self.rnn(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 1]), batch_first=True))

    assert measure(Packed(), torch.randn(2, 5, 8)).macs == 3 * per_step  # 6 steps of 2 sequences


def test_attention_projects_every_place() -> None:
    attention = qnn.QMultiheadAttention(8, 2, kdim=12, vdim=4, batch_first=True)
    example = (torch.randn(2, 3, 8), torch.randn(2, 5, 12), torch.randn(2, 5, 4))
    found = measure(attention, example)
    assert {row.name: row.macs for row in found.layers} == {
        "q_proj": 3 * 16 * 4,
        "k_proj": 5 * 16 * 6,
        "v_proj": 5 * 16 * 2,
        "out_proj": 3 * 16 * 4,
    }


def test_layers_called_by_keyword_and_without_an_example() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.back, self.rnn, self.idle = qnn.QConvTranspose1d(4, 8, 2), qnn.QGRU(8, 4), qnn.QLinear(4, 4)

        def forward(self, x: Tensor, scale: float) -> Any:
            return self.rnn(input=scale * self.back(input=x).mT)

    found = measure(Named(), (torch.randn(1, 4, 3), 2.0))
    assert [row.macs for row in found.layers] == [3 * 2 * 2 * 16, 4 * 3 * (2 + 1) * 16, 0]
    found = measure(Named())
    assert found.macs is found.nonzero_macs is None
    assert all(row.macs is row.nonzero_macs is None for row in found.layers)


# --------------------------------------------------------------------------------------------- what it does to a model


def test_the_model_is_left_as_it_was() -> None:
    model = models.digits_qcnn(norm="after_conv").train()
    model[1].eval()
    kept: list[int] = []
    model[0].register_forward_hook(lambda *_: kept.append(1))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    modes = {name: m.training for name, m in model.named_modules()}
    hooks = {name: len(m._forward_hooks) for name, m in model.named_modules()}
    generator = torch.get_rng_state()
    with torch.enable_grad():
        measure(model, torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
        assert torch.is_grad_enabled()
    assert kept == [1]
    assert {name: m.training for name, m in model.named_modules()} == modes
    assert {name: len(m._forward_hooks) for name, m in model.named_modules()} == hooks
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())


def test_the_model_is_left_as_it_was_when_it_fails() -> None:
    model = models.digits_qcnn().train()
    model[0].eval()
    with pytest.raises(ValueError, match="1 real channels"):
        measure(model, torch.randn(2, 3, 8, 8))
    assert [m.training for m in model] == [False] + [True] * (len(model) - 1)
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("tol", [-1e-9, float("nan"), float("inf")])
def test_refusals(tol: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number that is not negative"):
        measure(small(), tol=tol)


# ----------------------------------------------------------------------------------------------------------- the record


def untraceable() -> nn.Module:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = qnn.QLinear(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if x.sum() > 0 else x

    return Fork()


@pytest.mark.parametrize("build", [small, untraceable, nn.Identity])
@pytest.mark.parametrize("with_example", [True, False])
def test_a_record_comes_back_as_it_was(build: Callable[[], nn.Module], with_example: bool) -> None:
    example = (torch.ones(2, 4, 4),) if with_example else None
    found = measure(build(), example, tol=1e-3)
    assert Sparsity.from_dict(found.to_dict()) == found
    assert json.loads(found.to_json()) == found.to_dict()
    assert Sparsity.from_dict(json.loads(found.to_json())) == found
    record = found.to_dict()
    assert record["neuron_sparsity"] == found.neuron_sparsity
    assert [row["neurons_left"] for row in record["layers"]] == [row.neurons_left for row in found.layers]


def test_a_record_from_before_real_rows_is_read() -> None:
    measured = measure(small(), torch.ones(2, 4, 4))
    record = measured.to_dict()
    for row in record["layers"]:
        assert row.pop("components") == 4
    assert Sparsity.from_dict(record) == measured


def test_a_record_does_not_change() -> None:
    found = measure(small())
    with pytest.raises(FrozenInstanceError):
        found.parameters = 0  # pyright: ignore
    with pytest.raises(FrozenInstanceError):
        found.layers[0].neurons = 0  # pyright: ignore
    assert hash(found) == hash(measure(small()))


def test_the_printed_table() -> None:
    model = small()
    weight(model, "0")[:, 0] = 0
    lines = [line.split() for line in str(measure(model, torch.randn(1, 4, 4))).splitlines()]
    assert ["0", "QConv1d", "6", "50.0%", "50.0%", "50.0%", "1/2", "192", "96"] in lines
    assert ["4", "QLinear", "4", "0.0%", "0.0%", "0.0%", "1/1", "64", "64"] in lines
    assert ["all", "10", "30.0%", "30.0%", "33.3%", "2/3", "256", "160"] in lines
    assert lines[-1][:5] == ["50", "of", "62", "parameters", "are"]
    assert "- -" in " ".join(str(measure(model)).split())


def test_notes_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a terminal, and with brackets, which rich would take for markup."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    found = replace(measure(small()), notes=("x[/y] is [bold] :smile:",))
    assert "note: x[/y] is [bold] :smile:" in str(found)
    assert "\x1b" not in str(found)
    named = measure(nn.ModuleDict({"[bold]": qnn.QLinear(4, 4)}))
    assert "[bold] QLinear" in str(named)
    assert "cannot be traced" in " ".join(str(measure(untraceable())).split())
