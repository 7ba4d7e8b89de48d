"""Compaction, layer by layer: what is removed, what a network keeps, plans as files have them, optimizers.

What is refused is in test_compact_limits.py, random networks are in test_compact_networks.py."""

import copy
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quern import functional as F
from quern import models
from quern import nn as qnn
from quern.compact import Plan, compact, compact_, is_dead, plan
from quern.errors import CompactionError, DeadNetworkWarning, InputError
from quern.models import recipe_of
from quern.optim import ProximalAdam, ProximalSGD, freeze_zeros
from quern.penalties import RQ, GammaL1
from tests.networks import (
    F64,
    Wired,
    difference,
    kill,
    numbers,
    random_values,
    random_zeros,
    shapes,
    smaller,
    tensors_of,
    two,
    widths,
)

RECURRENT = (qnn.QRNN, qnn.QLSTM, qnn.QGRU, nn.RNN, nn.LSTM, nn.GRU)


# ------------------------------------------------------------------------------------------------- what is removed


def test_a_chain_keeps_what_lives_and_is_needed() -> None:
    model: Any = random_values(
        nn.Sequential(*(qnn.QLinear(16, 16), nn.ReLU(), qnn.QLinear(16, 16), qnn.QLinear(16, 8)))
    )
    kill(model[0], rows=(1,))
    kill(model[2], columns=(3,))
    kill(model[3], columns=(0,))
    small, found = smaller(model, numbers(3, 16))
    assert widths(small) == {"0": (4, 2), "2": (2, 3), "3": (3, 2)}
    assert found.layers["0"].outputs is not None
    assert found.layers["0"].outputs.indices == (0, 2)
    assert found.neurons == (10, 7)
    assert found.parameters == tuple(sum(p.numel() for p in m.parameters()) for m in (model, small))
    assert not found.dead
    assert torch.equal(small[0].weight, model[0].weight[:, [0, 2]])


def test_deaths_cascade_both_ways() -> None:
    model: Any = random_values(nn.Sequential(*(qnn.QLinear(8, 8, bias=False) for _ in range(4))))
    model[0].weight.data[:, 1] = 0  # then 1 of the second layer hears nothing
    model[1].weight.data[:, 1, 0] = 0
    model[2].weight.data[:, 1, 0] = 0
    small, _ = smaller(model, numbers(2, 8))
    assert widths(small) == {"0": (2, 1), "1": (1, 1), "2": (1, 1), "3": (1, 2)}
    assert all(m.bias is None for m in small)  # zeros make no bias


def test_constants_become_bias_or_the_constant() -> None:
    for padding, mode, where in ((0, "zeros", "bias"), (1, "reflect", "bias"), (1, "zeros", "constant")):
        last = qnn.QConv2d(12, 8, 3, padding=padding, padding_mode=mode, bias=False)
        model = two(qnn.QConv2d(4, 12, 3), last, lambda m, x: torch.sigmoid(x))
        kill(model.a, rows=(1,))
        small, found = smaller(model, numbers(2, 4, 8, 8), numbers(1, 4, 5, 11), numbers(1, 4, 20, 6))
        assert widths(small) == {"a": (1, 2), "b": (2, 2)}
        assert found.layers["b"].constants == ((1, (0.5,) * 4),)
        assert {"bias": small.b.bias, "constant": small.b.constant}[where] is not None
        assert (small.b.bias is None) == (where != "bias")
        again, _ = smaller(small, numbers(2, 4, 8, 8))
        assert shapes(again) == shapes(small)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("geometry", [(1, 0, 0), (2, 1, 1), (3, 0, 2)])
def test_constants_into_transposed_convolutions(groups: int, geometry: tuple[int, int, int]) -> None:
    stride, padding, extra = geometry
    last = qnn.QConvTranspose2d(16, 16, 3, stride, padding, extra, groups=groups)
    model = two(qnn.QConv2d(4, 16, 1), last)
    kill(model.a, rows=(1, 2), bias=False)
    small, _ = smaller(model, numbers(2, 4, 4, 4), numbers(1, 4, 3, 7))
    assert small.b.constant is not None
    assert widths(small)["a"] == (1, 4 if groups == 4 else 2)  # no group is emptied


def test_a_constant_is_multiplied_from_the_right_side() -> None:
    """w ⊗ q is not q ⊗ w: i ⊗ j = k."""
    model = two(qnn.QLinear(4, 8, bias=True), qnn.QLinear(8, 4, bias=False))
    kill(model.a, rows=(1,))
    model.a.bias.data[:, 1] = torch.tensor([0.0, 0, 1, 0])
    model.b.weight.data[:, 0, 1] = torch.tensor([0.0, 1, 0, 0])
    small, _ = smaller(model, numbers(2, 4))
    torch.testing.assert_close(small.b.bias.flatten(), torch.tensor([0.0, 0, 0, 1], dtype=F64))


@pytest.mark.parametrize("norm", ["q", "whitening", "real"])
@pytest.mark.parametrize("shift", [False, True])
def test_scales_of_zero(norm: str, shift: bool) -> None:
    kinds: Any = {"q": qnn.QBatchNorm2d, "whitening": qnn.QWhiteningBatchNorm2d, "real": nn.BatchNorm2d}
    layer = kinds[norm](16)
    model = two(qnn.QConv2d(4, 16, 3, padding=1), qnn.QConv2d(16, 4, 3, padding=1), lambda m, x: m.norm(x), norm=layer)
    off = [1, 5, 9, 13] if norm == "real" else [1]
    layer.weight.data[..., off] = 0
    if not shift:
        layer.bias.data[..., off] = 0
    small, _ = smaller(model, numbers(2, 4, 6, 6), numbers(2, 4, 4, 9))
    assert widths(small) == {"a": (1, 3), "b": (3, 1)}
    assert small.norm.num_features == 12
    assert (small.b.constant is not None) == shift
    if norm == "real":  # one of four components alone removes nothing
        layer.weight.data[1] = 1
        assert widths(smaller(model, numbers(2, 4, 6, 6))[0]) == {"a": (1, 4), "b": (4, 1)}


def test_the_inside_of_a_residual_block_shrinks_and_its_sum_when_all_agree() -> None:
    body = nn.Sequential(qnn.QConv2d(12, 12, 3, padding=1), nn.ReLU(), qnn.QConv2d(12, 12, 3, padding=1))
    model = two(qnn.QConv2d(4, 12, 1), qnn.QConv2d(12, 4, 1), lambda m, x: x + m.body(x), body=body)
    kill(body[0], rows=(0, 2))
    small, _ = smaller(model, numbers(2, 4, 5, 5), numbers(2, 4, 7, 6))
    assert widths(small) == {"a": (1, 3), "b": (3, 1), "body.0": (3, 1), "body.2": (1, 3)}
    kill(model.a, rows=(1,))
    small, _ = smaller(model, numbers(2, 4, 5, 5))  # 1 comes in from the body
    assert widths(small)["a"] == (1, 3)
    kill(body[2], rows=(1,))
    small, _ = smaller(model, numbers(2, 4, 5, 5))
    assert widths(small) == {"a": (1, 2), "b": (2, 1), "body.0": (2, 1), "body.2": (1, 2)}


def test_a_product_with_zero_is_zero() -> None:
    gate = qnn.QConv2d(4, 12, 1)
    model = random_values(
        Wired(lambda m, x: m.b(m.a(x) * m.gate(x)), a=qnn.QConv2d(4, 12, 1), gate=gate, b=qnn.QConv2d(12, 4, 1))
    )
    kill(gate, rows=(2,))
    small, _ = smaller(model, numbers(2, 4, 3, 3))
    assert widths(small) == {"a": (1, 2), "gate": (1, 2), "b": (2, 1)}


def test_dead_groups_go_and_depthwise_channels() -> None:
    model = two(qnn.QConv2d(4, 24, 1), qnn.QConv2d(24, 4, 1), lambda m, x: m.g(x), g=qnn.QConv2d(24, 24, 3, groups=3))
    kill(model.b, columns=(2, 3))
    small, _ = smaller(model, numbers(2, 4, 5, 5))
    assert (small.g.groups, widths(small)) == (2, {"a": (1, 4), "b": (4, 1), "g": (4, 4)})
    kill(model.b, columns=(0,))  # one of two outputs: the other groups keep two, so this one does too
    assert widths(smaller(model, numbers(2, 4, 5, 5))[0])["g"] == (4, 4)
    depthwise = qnn.QConv2d(12, 24, 3, groups=3, padding=1)  # two for each
    model = two(qnn.QConv2d(4, 12, 1), qnn.QConv2d(24, 4, 1), lambda m, x: m.g(x), g=depthwise)
    kill(model.a, rows=(1,))
    kill(depthwise, rows=(2, 3))
    small, _ = smaller(model, numbers(2, 4, 5, 5), numbers(1, 4, 3, 8))
    assert (small.g.groups, small.g.weight.shape[1]) == (2, 4)


def test_dead_heads_go() -> None:
    for asked, extra in ((False, False), (False, True), (True, False)):
        attention = qnn.QMultiheadAttention(16, 2, batch_first=True, add_bias_kv=extra)
        model = two(
            qnn.QLinear(8, 16),
            qnn.QLinear(16, 4),
            lambda m, x, asked=asked: m.at(x, x, x, need_weights=asked)[0],
            at=attention,
        )
        kill(attention.out_proj, columns=(2, 3))
        small, _ = smaller(model, numbers(2, 5, 8), numbers(1, 3, 8))
        assert small.at.num_heads == 1
        assert all(widths(small)[f"at.{part}_proj"] == (4, 2) for part in "qkv")


def test_returned_attention_weights_keep_all_heads() -> None:
    attention = qnn.QMultiheadAttention(16, 2, batch_first=True)
    model = random_values(Wired(lambda m, x: m.at(x, x, x), at=attention))
    kill(attention.out_proj, columns=(2, 3))
    assert smaller(model, numbers(2, 5, 16))[0].at.num_heads == 2


def test_a_mask_from_the_network_is_kept() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        return m.at(y, y, y, attn_mask=m.mask(x), need_weights=False)[0]

    layers = {"a": qnn.QLinear(8, 8), "at": qnn.QMultiheadAttention(8, 2), "mask": qnn.QLinear(8, 4)}
    small, _ = smaller(random_values(Wired(wiring, **layers)), numbers(4, 8), numbers(4, 8))
    assert widths(small)["mask"] == (2, 1)


@pytest.mark.parametrize("kind", RECURRENT, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("both", "levels"), [(False, 1), (False, 2), (True, 2)])
@pytest.mark.parametrize("end", ["last", "state", "all"])
def test_hidden_units_go(kind: Any, both: bool, levels: int, end: str) -> None:
    """With quaternion layers around quaternion layers, and real ones around real ones."""
    parts, linear = (4, qnn.QLinear) if kind.__name__.startswith("Q") else (1, nn.Linear)
    rnn = kind(3 * parts, 4 * parts, levels, batch_first=True, bidirectional=both)
    ways: dict[str, Callable[[Any], Tensor]] = {
        "last": lambda result: result[0][:, -1],
        "state": lambda result: (result[1][0] if kind in (qnn.QLSTM, nn.LSTM) else result[1])[-1],
        "all": lambda result: result[0],
    }
    width = 8 if both and end != "state" else 4
    first, last = linear(4, 3 * parts), linear(width * parts, 4)
    model: Any = random_values(Wired(lambda m, x: m.b(ways[end](m.rnn(m.a(x)))), a=first, rnn=rnn, b=last))
    model.a.weight.data[..., 1, :] = 0
    for name, p in rnn.named_parameters():
        rows = p.data.movedim(-2 if name.startswith("weight") else -1, 0)
        rows[2::4] = 0  # nothing drives hidden unit 2
        if name.startswith("weight_hh"):
            p.data[..., 3] = 0  # nobody looks at hidden unit 3
    for level in range(1, levels):
        for side in ("", "_reverse")[: 2 if both else 1]:
            rnn.get_parameter(f"weight_ih_l{level}{side}").data[..., 3::4] = 0
    model.b.weight.data[..., 3::4] = 0
    small, _ = smaller(model, numbers(2, 5, 4), numbers(1, 2, 4), numbers(3, 9, 4))
    assert (small.rnn.input_size, small.rnn.hidden_size) == (2 * parts, 2 * parts)
    assert small.a.out_features == 2 * parts


@pytest.mark.parametrize("parts", [4, 1])
def test_columns_of_an_embedding(parts: int) -> None:
    quaternion = qnn.QEmbedding(5, 16), qnn.QLinear(16, 4)
    model = two(*(quaternion if parts == 4 else (nn.Embedding(5, 4), nn.Linear(4, 4))))
    model.a.weight.data[..., 0] = 0
    model.b.weight.data[..., 2] = 0
    words = torch.tensor([[0, 3, 1]])
    small, _ = smaller(model, words, torch.tensor([[4, 2]]))
    assert small.a.embedding_dim == 2 * parts
    assert tuple(small.a.weight.shape) == ((4, 5, 2) if parts == 4 else (5, 2))


def test_real_layers_after_a_readout() -> None:
    layers = [
        qnn.QLinear(8, 16),
        qnn.Modulus(),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Linear(4, 6),
        nn.Tanh(),
        nn.Linear(6, 2),
    ]
    model: Any = random_values(nn.Sequential(*layers))
    model[2].weight.data[1] = 0
    model[4].weight.data[:, 2] = 0
    model[6].weight.data[:, 5] = 0
    small, _ = smaller(model, numbers(3, 8))
    assert [tuple(p.shape) for p in small.parameters() if p.dim() > 1] == [(4, 2, 2), (4, 2), (5, 2), (2, 5)]
    assert small[2].num_features == 2


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_constants_into_real_convolutions(kind: Any, groups: int) -> None:
    for padding, stays in ((0, 3), (1, 4)):  # next to padding a real one has to see the constant itself
        transposed = kind is nn.ConvTranspose1d
        last = kind(4, 6, 1 if transposed else 3, padding=padding, groups=groups, bias=False)
        model = two(qnn.QConv1d(4, 16, 1), last, lambda m, x: F.modulus(x))
        kill(model.a, rows=(1,), bias=False)
        small, _ = smaller(model, numbers(2, 4, 6), numbers(1, 4, 9))
        assert widths(small)["a"] == (1, stays if groups == 1 else 4)


def test_flattened_images() -> None:
    for flatten in (nn.Flatten(), Wired(lambda m, x: x.view(x.size(0), x.size(1) * x.size(2) * x.size(3)))):
        model: Any = random_values(nn.Sequential(qnn.QConv2d(4, 12, 3), nn.ReLU(), flatten, qnn.QLinear(12 * 4, 8)))
        kill(model[0], rows=(1,), bias=False)
        small, _ = smaller(model, numbers(2, 4, 4, 4))
        assert widths(small) == {"0": (1, 2), "3": (8, 2)}


@pytest.mark.parametrize(
    ("reshape", "back"),
    [
        (lambda x: x.flatten(2).permute(0, 2, 1), lambda x: x),
        (lambda x: x.view(x.size(0), x.size(1), -1).mT, lambda x: x),
        (lambda x: x.movedim(1, -1).flatten(1, 2), lambda x: x.transpose(1, 2).transpose(-1, -2)),
        (lambda x: x.permute(0, 2, 3, 1).reshape(-1, x.size(3), x.size(1)), lambda x: x.reshape(-1, x.shape[-1])),
        (lambda x: x[:, :, 0].permute(0, 2, 1), lambda x: x[:, -1].unsqueeze(1)),
        (lambda x: x.mean(2).transpose(1, 2), lambda x: x[..., None, :].squeeze(2)),
        (lambda x: torch.reshape(x, shape=(x.size(0), x.size(1), -1)).swapaxes(1, 2), lambda x: x),
    ],
)
def test_ways_around_recurrent_layers(reshape: Any, back: Any) -> None:
    rnn = qnn.QGRU(12, 8, batch_first=True)
    model = random_values(
        Wired(lambda m, x: m.b(back(m.rnn(reshape(m.a(x)))[0])), a=qnn.QConv2d(4, 12, 1), rnn=rnn, b=qnn.QLinear(8, 4))
    )
    kill(model.a, rows=(0,), bias=False)
    small, _ = smaller(model, numbers(2, 4, 3, 4), numbers(1, 4, 5, 2))
    assert (widths(small)["a"], small.rnn.input_size) == ((1, 2), 8)


def test_squeeze_and_excite_by_view() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        scale = m.fc(y.mean((2, 3)).view(y.size(0), y.size(1)))
        return m.b(y * torch.sigmoid(scale).view(y.size(0), y.size(1), 1, 1))

    layers = {"a": qnn.QConv2d(4, 12, 1), "fc": qnn.QLinear(12, 12), "b": qnn.QConv2d(12, 4, 1)}
    model = random_values(Wired(wiring, **layers))
    kill(model.b, columns=(1,))
    kill(model.fc, columns=(1,))
    small, _ = smaller(model, numbers(2, 4, 3, 4), numbers(1, 4, 5, 2))
    assert widths(small) == {"a": (1, 2), "fc": (2, 2), "b": (2, 1)}


def test_the_paper_network_and_the_residual_one() -> None:
    for build, shape in ((models.digits_qcnn, (2, 1, 8, 8)), (models.qresnet20, (2, 3, 12, 12))):
        model = random_zeros(random_values(build()), random.Random(3))
        smaller(model, numbers(*shape), *([numbers(1, 3, 17, 9)] if build is models.qresnet20 else []))


def test_a_dead_network_says_so_and_keeps_one_of_everything() -> None:
    model: Any = random_values(
        nn.Sequential(qnn.QConv2d(4, 8, 3, padding=1), qnn.QBatchNorm2d(8), nn.ReLU(), qnn.QConv2d(8, 8, 3, padding=1))
    )
    kill(model[0], rows=(0, 1))
    small, found = smaller(model, numbers(2, 4, 5, 5))
    assert found.dead  # though the border differs from the middle
    assert widths(small) == {"0": (1, 1), "3": (1, 2)}
    kill(model[3], rows=(0, 1), bias=False)
    small, found = smaller(model, numbers(2, 4, 5, 5), numbers(1, 4, 3, 3))
    assert found.dead
    assert "does not depend on its input" in str(found)
    assert widths(small) == {"0": (1, 1), "3": (1, 2)}
    for p in model.parameters():
        p.data.zero_()
    small, found = smaller(model, numbers(2, 4, 5, 5))
    assert found.dead
    assert all(p.numel() for p in small.parameters())


def a_dead_network() -> Any:
    model = two(qnn.QLinear(8, 12), qnn.QLinear(12, 4))
    kill(model.a, rows=(0, 1, 2), bias=False)
    return model


def test_a_dead_network_is_one_warning_with_what_to_do() -> None:
    model, x = a_dead_network(), numbers(2, 8)
    with pytest.warns(DeadNetworkWarning) as said:
        small = compact(model, x)
    assert [str(one.message) for one in said] == [
        "the network is dead: its output does not depend on its input; train it with a weaker penalty, or remove less."
    ]
    torch.testing.assert_close(small(x), model(x))


def test_a_plan_says_itself_that_the_network_is_dead() -> None:
    """Without a warning, which pytest would make an error: whoever has a plan can ask it."""
    model, x = a_dead_network(), numbers(2, 8)
    found = plan(model, x)
    assert found.dead
    compact_(compact(model, found), plan(compact(model, found), x))
    assert is_dead(model, x)
    kill(model.b, columns=(0,))
    model.a.weight.data[:, 1] = 1
    assert not plan(model, x).dead
    assert not is_dead(model, x)
    assert not is_dead(nn.Sequential(nn.Softmax(-1)), x)
    assert not is_dead(Wired(lambda m, x: x if x.sum() > 0 else -x), x)


def test_planning_in_inference_mode() -> None:
    model, found = a_plan()
    with torch.inference_mode():
        assert plan(model, numbers(1, 8)).to_dict() == found


def test_several_inputs() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = qnn.QLinear(8, 12), qnn.QLinear(4, 12), qnn.QLinear(12, 4)

        def forward(self, x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
            return self.c(self.a(x) + scale * self.b(y))

    model: Any = random_values(Sum())
    kill(model.a, rows=(1,))
    kill(model.b, rows=(1,))
    inputs = (numbers(2, 8), numbers(2, 4))
    small = compact(model, inputs)
    torch.testing.assert_close(small(*inputs), model(*inputs))
    assert widths(small) == {"a": (2, 2), "b": (1, 2), "c": (2, 1)}
    with pytest.raises(InputError, match="the example has 4 inputs, but the network takes 2 to 3"):
        plan(model, (*inputs, 1.0, 1.0))


# --------------------------------------------------------------------------------------------- what is kept of a model


def test_the_network_keeps_its_mode_layout_and_frozen_parameters() -> None:
    model = random_zeros(random_values(models.qresnet20()), random.Random(5)).train()
    model.get_parameter("0.weight").requires_grad = False
    model.get_submodule("3").eval()
    before = copy.deepcopy(model.state_dict())
    small = compact(model, numbers(2, 3, 8, 8))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    modes = [m.training for m in model.modules()]
    assert [m.training for m in small.modules()] == modes
    assert True in modes
    assert False in modes
    assert not small.get_parameter("0.weight").requires_grad
    assert sum(not p.requires_grad for p in small.parameters()) == 1
    for name, m in small.named_modules():
        if isinstance(m, qnn.QConv2d) and m.weight[0, 0].numel() > 1:
            assert m.weight.stride(2) == 1, name
    assert [type(m) for m in small.modules()] == [type(m) for m in model.modules()]
    in_place = copy.deepcopy(model)
    compact_(in_place, plan(model, numbers(2, 3, 8, 8)))
    assert all(torch.equal(t, small.state_dict()[name]) for name, t in in_place.state_dict().items())


def test_where_it_came_from_is_written_down() -> None:
    model = random_zeros(random_values(models.digits_qcnn()), random.Random(1))
    small = compact(model, x := numbers(2, 1, 8, 8))
    random_zeros(small, random.Random(2))
    small = compact(compact(small, x), x)
    source = recipe_of(small)
    assert source.builder == "digits_qcnn"
    (step,) = source.steps
    step = json.loads(json.dumps(step))
    fresh = models.digits_qcnn(**source.arguments).double()
    compact_(fresh, Plan.from_dict(step["compact"]))
    assert shapes(fresh) == shapes(small)
    assert recipe_of(model).steps == ()


def test_attention_is_replayed_in_any_order() -> None:
    attention = qnn.QMultiheadAttention(16, 4, batch_first=True, add_bias_kv=True)
    model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4), lambda m, x: m.at(x, x, x)[0], at=attention)
    fresh = copy.deepcopy(model)
    kill(model.b, columns=(3,))
    small: Any = compact(model, x := numbers(2, 3, 8))
    kill(small.at.out_proj, columns=(2,))
    small = compact(small, x)
    assert small.at.num_heads == 3
    again = compact(fresh, Plan.from_dict(recipe_of(small).steps[0]["compact"]))
    assert shapes(again) == shapes(small)


def test_subnormal_numbers_go_by_a_tolerance_alone() -> None:
    model = two(qnn.QLinear(8, 8), qnn.QLinear(8, 4)).float()
    model.a.weight.data[:, 1] = 1e-40
    model.a.bias.data[:, 1] = 0
    x = torch.randn(2, 8)
    assert widths(compact(model, x)) == {"a": (2, 2), "b": (2, 1)}
    assert widths(compact(model, plan(model, x, tol=1e-38))) == {"a": (2, 1), "b": (1, 1)}
    assert model.a.weight[0, 1, 0] != 0


def test_a_tolerance_must_be_a_number() -> None:
    for tol in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite number that is not negative"):
            plan(qnn.QLinear(4, 4), torch.randn(1, 4), tol)


def test_printing() -> None:
    model = two(qnn.QLinear(8, 8), qnn.QLinear(8, 4))
    assert str(plan(model, numbers(1, 8))).startswith("nothing to remove\nneurons 3 -> 3, parameters 36 -> 36")
    kill(model.a, rows=(0,), bias=False)
    said = str(plan(model, numbers(1, 8)))
    assert [line.split() for line in said.splitlines()] == [
        ["layer", "inputs", "outputs", "constants"],
        ["a", "QLinear", "2/2", "1/2", "-"],
        ["b", "QLinear", "1/2", "1/1", "1"],
        ["neurons", "3", "->", "2,", "parameters", "36", "->", "20"],
    ]
    single = random_values(qnn.QLinear(8, 8))
    assert "nothing" in str(plan(single, numbers(1, 8)))


# ------------------------------------------------------------------------------------------------- plans from elsewhere


def a_plan() -> tuple[Any, dict[str, Any]]:
    model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4))
    kill(model.a, rows=(0,), bias=False)
    return model, plan(model, numbers(1, 8)).to_dict()


def changed(found: dict[str, Any], path: tuple[str, ...], value: Any) -> Any:
    found = copy.deepcopy(found)
    at = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return found


def test_hostile_plans_are_refused() -> None:
    model, found = a_plan()
    before = copy.deepcopy(model.state_dict())
    kept, constants = ("layers", "a", "outputs"), ("layers", "b", "constants")
    bad: list[Any] = [None, [], "plan", 3, {"layers": []}, {"more": 1}, {"layers": {"a": None}}, {"layers": {"a": {}}}]
    bad += [changed(found, ("tol",), tol) for tol in (-1, math.nan, math.inf, 10**400, "0", None, True)]
    bad += [changed(found, ("parameters",), n) for n in ([1], [1, 2.0], "12", None, [1, "2"])]
    bad += [changed(found, ("notes",), n) for n in ("x", [1], None)]
    bad += [changed(found, ("dead",), 1), changed(found, ("layers", "a", "kind"), 1)]
    texts = ("", "1-", "-1", "1,", ",1", "2,1", "1,1", "0-9", "1-1-1", "99999999999", "nan", "1 ", "1\n", None, 1, [1])
    bad += [changed(found, (*kept, "keep"), text) for text in texts]
    bad += [changed(found, (*kept, "of"), n) for n in (0, -1, 10**30, 1.5, "4", None, True, math.nan)]
    bad.append(changed(found, kept, {"of": 2**31 - 1, "keep": f"0-{2**31 - 2}"}))
    numbers_ = [[0, [math.nan] * 4]], [[0, [math.inf] * 4]], [[0, [10**400] * 4]], [[9, [0] * 4]], [[-1, [0] * 4]]
    others = [[0, [0] * 3]], [[0.0, [0] * 4]], [0], [[0]], "00", 5, None, [[0, None]], [[0, ["x"] * 4]]
    twice = [[1, [0.0] * 4], [1, [0.0] * 4]]
    bad += [changed(found, constants, c) for c in (*numbers_, *others, twice)]
    bad += [changed(found, ("layers", "a", "still"), s) for s in ([], {"l0": [1]}, {"l0": "7"}, 3)]
    for case in bad:
        with pytest.raises(CompactionError):
            Plan.from_dict(case)
    wrong = [
        changed(found, ("layers", "a", "still"), {"l0": "1"}),
        changed(found, constants, [[0, [0.5]]]),
        changed(found, ("layers", "a", "kind"), "QConv2d"),
        changed(found, kept, {"of": 5, "keep": "0-1"}),
        changed(found, ("layers", "c"), found["layers"]["a"]),
        changed(found, ("layers", "b.weight"), found["layers"]["a"]),
        changed(found, ("layers", ""), {"kind": "Wired"}),
    ]
    del wrong[0]["layers"]["b"]["inputs"]
    del wrong[0]["layers"]["b"]["constants"]
    for case in wrong:
        with pytest.raises(CompactionError):
            compact_(model, Plan.from_dict(case))
        assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert Plan.from_dict(json.loads(json.dumps(found))).to_dict() == found


def test_a_plan_for_another_network_is_refused() -> None:
    _, found = a_plan()
    others = [
        two(qnn.QLinear(8, 12), qnn.QLinear(12, 4)),
        two(qnn.QLinear(8, 16), nn.Linear(16, 4)),
        qnn.QLinear(8, 16),
    ]
    for other in others:
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(CompactionError, match="the plan"):
            compact_(other, Plan.from_dict(found))
        assert all(torch.equal(before[name], t) for name, t in other.state_dict().items())


def test_plans_that_leave_groups_unequal_are_refused() -> None:
    model = random_values(nn.Sequential(qnn.QConv2d(16, 16, 1, groups=2)))
    for keep in ("0-2", "0"):
        layer = {"kind": "QConv2d", "inputs": {"of": 4, "keep": keep}, "outputs": {"of": 4, "keep": "0-3"}}
        with pytest.raises(CompactionError, match="unequal"):
            compact(model, Plan.from_dict({"layers": {"0": layer}}))


# --------------------------------------------------------------------------------------------------------- optimizers


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "ProximalAdam": lambda m: ProximalAdam(m, GammaL1(1e-3, with_beta=True), lr=1e-2),
    "ProximalAdam RQ": lambda m: ProximalAdam(m, RQ(1e-3) + GammaL1(1e-3), lr=1e-2, weight_decay=0.01),
    "ProximalSGD": lambda m: ProximalSGD(m, GammaL1(1e-3, with_beta=True), lr=1e-2, momentum=0.9),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, amsgrad=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "groups": lambda m: torch.optim.AdamW(
        [
            {"params": [p for p in m.parameters() if p.dim() > 2], "weight_decay": 0.1},
            {"params": [p for p in m.parameters() if p.dim() <= 2], "weight_decay": 0.0, "lr": 1e-3},
        ]
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("in_place", [False, True])
def test_training_goes_on_as_if_nothing_had_happened(name: str, in_place: bool) -> None:
    layers = [qnn.QConv2d(4, 16, 3), qnn.QBatchNorm2d(16), nn.ReLU(), qnn.QConv2d(16, 12, 3), qnn.QBatchNorm2d(12)]
    model: Any = random_values(nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), qnn.QLinear(12, 8))).eval()
    optimizer = OPTIMIZERS[name](model)

    def steps(m: nn.Module, how: torch.optim.Optimizer, count: int) -> None:
        for n in range(count):
            x, y = numbers_of(n, 6, 4, 5, 5), numbers_of(n + 99, 6, 8)
            how.zero_grad()
            (m(x) - y).square().mean().backward()
            how.step()

    def numbers_of(seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)

    steps(model, optimizer, 3)
    for norm, units in ((model[1], (0, 3)), (model[4], (1,))):
        norm.weight.data[list(units)] = 0
        norm.bias.data[:, list(units)] = 0
    found = plan(model, numbers(1, 4, 5, 5))
    masked, masked_optimizer = copy.deepcopy((model, optimizer))
    if in_place:
        small = model
        compact_(small, found, optimizer)
    else:
        small: Any = compact(model, found, optimizer)
    assert widths(small) == {"0": (1, 2), "3": (2, 2), "7": (2, 2)}
    own = {id(p) for p in small.parameters()}
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == own
    assert {id(p) for p in optimizer.state} == own
    for p, state in optimizer.state.items():
        assert all(t.dim() == 0 or t.shape in (p.shape, p.shape[1:]) for t in state.values())
    steps(small, optimizer, 5)
    # What is dead gets no gradient, but momentum and decay would move it; the rest has to be the same.
    with freeze_zeros(masked):
        steps(masked, masked_optimizer, 5)
    again = compact(masked, found)
    for key, t in again.state_dict().items():
        torch.testing.assert_close(small.state_dict()[key], t, rtol=1e-10, atol=1e-10)
    assert difference(tensors_of(masked(x := numbers(2, 4, 5, 5))), tensors_of(small(x))) <= 1e-10


def test_an_added_bias_is_trained() -> None:
    model = two(qnn.QLinear(4, 8), qnn.QLinear(8, 4, bias=False))
    kill(model.a, rows=(1,), bias=False)
    first, second = ({"params": [p], "lr": lr} for p, lr in ((model.a.weight, 0.1), (model.b.weight, 0.2)))
    optimizer = torch.optim.SGD([first, second], momentum=0.9)
    model(numbers(2, 4)).sum().backward()
    optimizer.step()
    kill(model.a, rows=(1,), bias=False)
    small: Any = compact(model, numbers(1, 4), optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]
    assert optimizer.param_groups[1]["params"][1] is small.b.bias
    before = small.b.bias.detach().clone()
    small(numbers(2, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(small.b.bias, before)


def test_a_state_that_cannot_be_narrowed_is_an_error() -> None:
    model, _ = a_plan()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state[model.a.weight] = {"rows": torch.zeros(4, dtype=F64)}
    before = shapes(model)
    with pytest.raises(CompactionError, match="cannot be narrowed"):
        compact_(model, plan(model, numbers(1, 8)), optimizer)
    assert shapes(model) == before


def test_the_state_of_a_grouped_convolution_goes_with_its_groups() -> None:
    """Which groups there were is asked when the layer has fewer."""
    for point, grouped in (
        *((qnn.QConv2d, qnn.QConv2d), (qnn.QConv2d, qnn.QConvTranspose2d)),
        *((nn.Conv2d, nn.Conv2d), (nn.Conv2d, nn.ConvTranspose2d)),
    ):
        model: Any = nn.Sequential(point(4, 32, 1), grouped(32, 32, 1, groups=4), point(32, 4, 1))
        optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(2, 4, 3, 3)
        model(x).square().sum().backward()
        optimizer.step()
        axis = 1 if point is qnn.QConv2d else 0
        model[1].weight.data.unflatten(axis, (4, -1)).select(axis, 1).zero_()
        old = optimizer.state[model[1].weight]["exp_avg"].unflatten(axis, (4, -1))
        small: Any = compact(model, plan(model, x), optimizer)
        assert small[1].groups == 3
        wanted = old.index_select(axis, torch.tensor([0, 2, 3])).flatten(axis, axis + 1)
        assert torch.equal(optimizer.state[small[1].weight]["exp_avg"], wanted)
