"""Compaction where something is in the way: hooks, unknown operations, changes in place, numbers from the input."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import functional as F
from quern import nn as qnn
from quern.compact import compact, plan
from quern.errors import CompactionError, NotFiniteWarning, QuernError
from tests.networks import F64, Wired, kill, numbers, random_values, shapes, smaller, two, widths


def test_hooks_parametrizations_and_shared_parameters_keep_a_layer_whole() -> None:
    def hooked() -> Any:
        model = two(qnn.QLinear(8, 12), qnn.QLinear(12, 4), lambda m, x: m.c(x), c=qnn.QLinear(12, 12))
        model.c.register_forward_hook(lambda layer, inputs, out: 2 * out)
        return model

    def parametrized() -> Any:
        real = nn.utils.parametrizations.weight_norm(nn.Linear(12, 12))
        return two(qnn.QLinear(8, 12), qnn.QLinear(12, 4), lambda m, x: m.c(x), c=real)

    def tied() -> Any:
        model = two(qnn.QLinear(8, 12), qnn.QLinear(12, 4), lambda m, x: m.d(m.c(x)), c=qnn.QLinear(12, 12))
        model.d = qnn.QLinear(12, 12).double()
        model.d.weight = model.c.weight
        return model

    def looked_at() -> Any:
        model = two(qnn.QLinear(8, 12), qnn.QLinear(12, 4), lambda m, x: m.c(x), c=qnn.QLinear(12, 12))
        model.wiring = lambda m, x: m.b(m.c(m.a(x))) * m.c.weight.norm()
        return model

    for make in (hooked, parametrized, tied, looked_at):
        model = make()
        model.train(False)
        kill(model.a, rows=(0,))
        kill(model.b, columns=(1,))
        small, found = smaller(model, numbers(3, 8), numbers(5, 8))
        assert any(note.startswith("c (") and "kept whole" in note for note in found.notes)
        assert widths(small)["a"] == (2, 3)
        assert widths(small)["b"] == (3, 1)
        assert "note: c (" in str(found)


def test_a_hook_inside_attention_counts() -> None:
    attention = qnn.QMultiheadAttention(16, 2, batch_first=True)
    model = random_values(Wired(lambda m, x: m.at(x, x, x)[0], at=attention))
    kill(attention.out_proj, columns=(2, 3))

    def scaled(layer: nn.Module, inputs: Any, out: Tensor) -> Tensor:
        return out * torch.arange(16)

    attention.q_proj.register_forward_hook(scaled)
    small, found = smaller(model, numbers(2, 3, 16))
    assert small.at.num_heads == 2
    assert "at (QMultiheadAttention)" in found.notes[0]


def test_hooks_of_the_network_itself() -> None:
    model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4))
    kill(model.a, rows=(0,), bias=False)
    model.register_forward_pre_hook(lambda m, inputs: (2 * inputs[0],))
    model.register_forward_hook(lambda m, inputs, out: out[:, :3])
    assert widths(smaller(model, numbers(2, 8))[0]) == {"a": (2, 3), "b": (3, 1)}


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(-1) * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].flip(-1) * 2


@torch.fx.wrap
def doubled(x: Tensor) -> Tensor:
    return _Doubled.apply(x)  # pyright: ignore[reportReturnType]


@torch.fx.wrap
def in_a_dict(x: Tensor) -> dict[str, Tensor]:
    return {"x": x.flip(-1)}


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (nn.LogSoftmax(-1), "op (LogSoftmax)"),
        (lambda x: torch.fft.fft(x).real, "fft_fft (fft_fft)"),
        (lambda x: doubled(x), "doubled (doubled)"),
        (lambda x: in_a_dict(x)["x"], "in_a_dict (in_a_dict)"),
        (lambda x: x * x.norm().item(), "norm (norm)"),
        (lambda x: x.clamp(-1, 1), "clamp (clamp)"),
        (lambda x: F.linear(x, torch.ones(4, 3, 3, dtype=F64)), "linear (linear)"),
    ],
)
def test_an_operation_without_a_rule_is_named_or_kept_whole(operation: Any, name: str) -> None:
    module = operation if isinstance(operation, nn.Module) else nn.Identity()

    def wiring(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        y = m.op(y) if module is operation else operation(y)
        return m.c(m.b(y))

    layers = {"a": qnn.QLinear(8, 12), "op": module, "b": qnn.QLinear(12, 12), "c": qnn.QLinear(12, 4)}
    model = random_values(Wired(wiring, **layers))
    kill(model.a, rows=(1,), bias=False)
    kill(model.c, columns=(0,))
    with pytest.raises(CompactionError) as error:
        plan(model, numbers(2, 8))
    assert f"no rule for {name}" in str(error.value)
    assert "\n" not in str(error.value)
    small, found = smaller(model, numbers(2, 8), numbers(3, 8), keep_unknown=True)
    assert widths(small) == {"a": (2, 3), "b": (3, 2), "c": (2, 1)}
    assert any(note.startswith(name) for note in found.notes)
    assert shapes(compact(model, numbers(2, 8), keep_unknown=True)) == shapes(small)
    with pytest.raises(CompactionError, match=r"^keep_unknown is for making a plan, and this one is made: .*\.$"):
        compact(model, found, keep_unknown=True)


def test_forwards_and_examples_that_do_not_work_are_one_sentence() -> None:
    def branch(m: Any, x: Tensor) -> Tensor:
        return m.b(m.a(x)) if x.sum() > 0 else m.b(-m.a(x))

    layers = {"a": qnn.QLinear(8, 8), "b": qnn.QLinear(8, 8)}
    image = Wired(lambda m, x: m.a(x).mean((2, 3)), a=qnn.QConv2d(8, 8, 1))
    cases = [
        (Wired(branch, **layers), torch.randn(1, 8), "cannot be traced"),
        (Wired(lambda m, x: m.b(m.a(x)), **layers), torch.randn(1, 9), "does not take the example"),
        (Wired(lambda m, x: m.b(m.a(x)), **layers), torch.randint(9, (1, 8)), "does not take the example"),
        (Wired(lambda m, x: m.b(m.a(x).missing()), **layers), torch.randn(1, 8), "does not take the example"),
        (image, torch.randn(8, 3, 3), "does not take the example"),
        (image, torch.randn(0, 8, 3, 3), "empty"),
        (nn.Sequential(qnn.QEmbedding(3, 8)), torch.tensor([7]), "does not take the example"),
    ]
    for model, x, said in cases:
        with pytest.raises(QuernError, match=said) as error:
            plan(model, x)
        assert "\n" not in str(error.value)
        assert str(error.value).endswith(".")


def test_what_is_changed_in_place_is_seen_by_all() -> None:
    def again(m: Any, x: Tensor) -> Tensor:
        x = m.a(x)
        y = torch.relu_(x)
        return m.b(x + y)

    def through_identity(m: Any, x: Tensor) -> Tensor:
        x = m.a(x)
        y = TF.relu(m.same(x), inplace=True)
        return m.b(x * 3 + y)

    def through_a_view(m: Any, x: Tensor) -> Tensor:
        x = m.a(x)
        x.flatten(1).sigmoid_()
        return m.b(x)

    def of_another(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        y.view(-1, 12).add_(m.c(x).view(-1, 12))
        return m.b(y)

    def added(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        y.add_(m.c(x))
        return m.b(y)

    wide = {again: 1, through_identity: 1, through_a_view: 3, of_another: 3, added: 2}
    for wiring, wanted in wide.items():
        layers = {"a": qnn.QLinear(8, 12), "b": qnn.QLinear(12, 4), "c": qnn.QLinear(8, 12), "same": nn.Dropout()}
        model = random_values(Wired(wiring, **layers))
        kill(model.a, rows=(0,), bias=False)
        kill(model.b, columns=(2,))
        small, _ = smaller(model, numbers(2, 3, 8), numbers(2, 4, 8))
        assert widths(small)["b"] == (wanted, 1)


def test_a_sum_in_place_that_torch_fx_does_not_see() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        y = z = m.a(x)
        y += m.c(x)
        return m.b(z)

    model = random_values(Wired(wiring, a=qnn.QLinear(8, 12), b=qnn.QLinear(12, 4), c=qnn.QLinear(8, 12)))
    with pytest.raises(CompactionError, match="write y = y"):
        plan(model, numbers(2, 8))


@pytest.mark.parametrize(
    "wiring",
    [
        lambda m, x: m.a(x) * x.mean(),
        lambda m, x: (y := m.a(x)) * y.mean(),
        lambda m, x: m.a(x) * x.mean(1, keepdim=True),
        lambda m, x: m.a(x) + x.sum().item(),
        lambda m, x: torch.add(input=m.a(x), other=m.c(x)),
        lambda m, x: m.a(x).mul(other=m.c(x)),
        lambda m, x: torch.add(m.a(x), m.c(x), alpha=2),
        lambda m, x: m.a(x) / (m.c(x).mean(-1, keepdim=True) + 9),
        lambda m, x: m.pool(m.a(x)),
        lambda m, x: TF.max_pool1d(m.a(x).unsqueeze(1), 3, 1, 1).squeeze(1),
    ],
)
def test_constants_that_meet_numbers_from_the_input_are_not_constant(wiring: Any) -> None:
    layers = {"a": qnn.QLinear(8, 12), "b": qnn.QLinear(12, 4), "c": qnn.QLinear(8, 12), "pool": nn.AvgPool1d(3, 1, 1)}
    model = random_values(Wired(lambda m, x: m.b(wiring(m, x)), **layers))
    kill(model.a, rows=(0,), bias=False)
    smaller(model, numbers(2, 8), numbers(2, 8), numbers(3, 8))
    kill(model.b, columns=(1,))
    smaller(model, numbers(2, 8), numbers(2, 8))


def test_numbers_of_the_network_are_numbers() -> None:
    model = two(qnn.QLinear(8, 12), qnn.QLinear(12, 4))
    model.scale = nn.Parameter(torch.tensor(3.0, dtype=F64))
    model.wiring = lambda m, x: m.b(m.a(x) * m.scale)
    kill(model.a, rows=(0,), bias=False)
    assert widths(smaller(model, numbers(2, 8), numbers(2, 8))[0]) == {"a": (2, 2), "b": (2, 1)}


def test_a_real_layer_called_on_quaternions_and_on_real_numbers() -> None:
    again: list[nn.Module] = [nn.Linear(12, 12), nn.BatchNorm1d(12), nn.PReLU(12)]
    for layer in again:
        model = random_values(
            Wired(
                lambda m, x: m.b(m.again(m.real(m.again(m.a(x))))),
                a=qnn.QLinear(8, 12),
                again=layer,
                real=nn.Linear(12, 12),
                b=nn.Linear(12, 4),
            )
        )
        kill(model.a, rows=(0,), bias=False)
        smaller(model, numbers(2, 8), numbers(2, 8))


def test_quaternion_pooling_of_real_channels() -> None:
    last = nn.Conv1d(4, 1, 1)
    model = random_values(nn.Sequential(qnn.QConv1d(4, 16, 1), qnn.Modulus(), qnn.QMaxPool1d(2), last))
    last.weight.data[:, 1:] = 0
    smaller(model, numbers(2, 4, 6), numbers(2, 4, 9))


def test_the_last_channel_is_not_squeezed_away() -> None:
    for squeeze in (lambda x: x.squeeze(1), lambda x: x.squeeze()):
        model = two(qnn.QLinear(8, 12), nn.Linear(3, 2), lambda m, x, squeeze=squeeze: squeeze(F.modulus(x)))
        kill(model.a, rows=(0, 1), bias=False)
        smaller(model, numbers(2, 8), numbers(4, 8))


def test_inputs_of_recurrent_layers_by_name() -> None:
    model = random_values(
        Wired(
            lambda m, x: m.rnn(hx=m.h(x[:, :1]), input=m.a(x))[0],
            a=qnn.QLinear(8, 12),
            h=qnn.QLinear(8, 8),
            rnn=qnn.QRNN(12, 8),
        )
    )
    kill(model.a, rows=(0,), bias=False)
    x = numbers(1, 1, 8)
    small, _ = smaller(model, x)
    assert small.rnn.input_size == 8


def test_what_is_not_a_number_is_kept() -> None:
    model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4))
    kill(model.a, rows=(0,), bias=False)
    model.a.bias.data[0, 0] = math.nan
    with pytest.warns(NotFiniteWarning, match="look for NaN or inf in its weights"):
        small = compact(model, numbers(2, 8))
    assert shapes(small) == shapes(model)
    assert "not finite" in str(plan(model, numbers(2, 8)))


def test_a_nan_is_not_mended_in_silence() -> None:
    """0 * NaN is NaN, so without the neuron that nobody needs the outputs would be others."""
    model = two(qnn.QLinear(8, 16), qnn.QLinear(16, 4))
    kill(model.b, columns=(0,))
    model.a.bias.data[0, 0] = math.nan
    with pytest.raises(CompactionError, match=r"same outputs .* look for NaN or inf in its weights\.$"):
        plan(model, numbers(2, 8))


def test_a_zero_that_stays_but_is_no_longer_zero_is_not_looked_at() -> None:
    """Unit 0 of q is relu(1 - 2): without the constant that made it so, it is 1. It is kept with unit 0 of z."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        q, z = torch.relu(m.q(m.a(x))), m.z(x)
        return m.one(q) + m.two(q * z) + m.three(z)

    layers = {name: qnn.QLinear(8, 8) for name in ("a", "q", "z", "one", "two", "three")}
    model: Any = random_values(Wired(wiring, **layers))
    kill(model.a, rows=(0,))
    model.a.bias.data[:, 0] = 1
    model.q.weight.data[:, :, 0] = 0
    model.q.weight.data[:, 0] = 0
    model.q.weight.data[0, 0, 0] = -2
    model.q.bias.data[:, 0] = 1
    small, _ = smaller(model, numbers(3, 8), numbers(2, 8))
    assert widths(small)["a"] == (2, 1)
    assert widths(small)["q"] == (1, 2)
    assert not small.one.weight[:, :, 0].any()


def test_a_sum_over_places_grows_with_the_image() -> None:
    for total in (lambda x: x.sum((2, 3)), lambda x: torch.sum(x, dim=(-1, -2))):
        model = two(qnn.QConv2d(4, 8, 1), qnn.QLinear(8, 4), lambda m, x, total=total: total(x))
        kill(model.a, rows=(0,), bias=False)
        smaller(model, numbers(2, 4, 3, 3), numbers(2, 4, 5, 2))


def test_the_optimizer_of_another_network_is_refused() -> None:
    model, other = (nn.Sequential(qnn.QLinear(8, 8), qnn.QLinear(8, 4)) for _ in range(2))
    kill(model[0], rows=(1,), bias=True)
    with pytest.raises(CompactionError, match="holds none of the network's parameters"):
        compact(model, torch.randn(2, 8), torch.optim.Adam(other.parameters()))
