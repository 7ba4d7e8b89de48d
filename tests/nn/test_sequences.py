"""Recurrent layers and attention: packed sequences, states, masks, and torch's shapes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from quern import nn as qnn

PAIRS = [(qnn.QRNN, nn.RNN), (qnn.QLSTM, nn.LSTM), (qnn.QGRU, nn.GRU)]


def tensors(value) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for part in value for t in tensors(part)]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("shape", [(5, 3, 8), (5, 8)])
def test_shapes_are_torchs(ours, theirs, batch_first: bool, bidirectional: bool, shape: tuple[int, ...]) -> None:
    options = {"num_layers": 2, "batch_first": batch_first, "bidirectional": bidirectional}
    x = torch.randn(shape)
    mine, other = ours(8, 12, **options), theirs(8, 12, **options)
    found, wanted = tensors(mine(x)), tensors(other(x))
    assert [t.shape for t in found] == [t.shape for t in wanted]
    states = mine(x)[1]
    assert [t.shape for t in tensors(mine(x, states))] == [t.shape for t in wanted]
    assert repr(mine) == "Q" + repr(other)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences_equal_sequences_one_by_one(ours, theirs, enforce_sorted: bool) -> None:
    layer = ours(8, 12, num_layers=2, bidirectional=True, batch_first=True)
    lengths = [5, 3, 1] if enforce_sorted else [3, 5, 1]
    x = torch.randn(3, 5, 8)
    states = [torch.randn(4, 3, 12) for _ in range(2 if ours is qnn.QLSTM else 1)]

    def hx(parts: list[Tensor]):
        return tuple(parts) if ours is qnn.QLSTM else parts[0]

    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=enforce_sorted)
    output, final = layer(packed, hx(states))
    padded, _ = pad_packed_sequence(output, batch_first=True)
    for n, length in enumerate(lengths):
        alone, last = layer(x[n, :length], hx([s[:, n] for s in states]))
        torch.testing.assert_close(padded[n, :length], alone)
        for a, b in zip(tensors(final), tensors(last), strict=True):
            torch.testing.assert_close(a[:, n], b)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_output_is_component_major_so_a_quaternion_layer_can_follow(ours, theirs) -> None:
    """Halves of the neurons are the directions: dropping the backward ones leaves the forward layer's output."""
    both = ours(8, 8, bidirectional=True)
    forward = ours(8, 8)
    forward.load_state_dict({k: v for k, v in both.state_dict().items() if not k.endswith("_reverse")})
    x = torch.randn(4, 2, 8)
    q = both(x)[0].unflatten(-1, (4, 2, -1))
    torch.testing.assert_close(q[..., 0, :].flatten(-2), forward(x)[0])


def test_dropout_between_layers_only_in_training() -> None:
    layer, x = qnn.QLSTM(8, 8, num_layers=2, dropout=0.9), torch.randn(4, 2, 8)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_eval_cache_follows_the_weights() -> None:
    layer, x = qnn.QGRU(8, 8).eval(), torch.randn(3, 2, 8)
    with torch.no_grad():
        before = layer(x)[0]
        layer.get_parameter("weight_hh_l0").data.mul_(2)
        after = layer(x)[0]
        assert not torch.equal(before, after)
        layer.get_parameter("weight_hh_l0").data.div_(2)
        assert torch.equal(layer(x)[0], before)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: qnn.QLSTM(6, 8), "input_size is 6"),
        (lambda: qnn.QLSTM(8, 6), "hidden_size is 6"),
        (lambda: qnn.QLSTM(8, 8, num_layers=0), "at least one"),
        (lambda: qnn.QLSTM(8, 8, dropout=2.0), "between 0 and 1"),
        (lambda: qnn.QRNN(8, 8, nonlinearity="sigmoid"), "'tanh' or 'relu'"),
        (lambda: qnn.QRNN(8, 8)(torch.ones(2, 3, 4)), "sequences of 8 real features"),
        (lambda: qnn.QRNN(8, 8)(torch.ones(2, 3, 8), torch.ones(2, 3, 8)), "must have the shape (1, 3, 8)"),
        (lambda: qnn.QMultiheadAttention(16, 3), "num_heads=3 must divide the 4 quaternion channels"),
        (lambda: qnn.QMultiheadAttention(16, 2, dropout=-1.0), "between 0 and 1"),
    ],
)
def test_refusals(call, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert sentence in str(caught.value)


class TestAttention:
    def test_both_paths_and_both_layouts_agree(self) -> None:
        layer = qnn.QMultiheadAttention(16, 2)
        first = qnn.QMultiheadAttention(16, 2, batch_first=True)
        first.load_state_dict(layer.state_dict())
        q, k, v = torch.randn(3, 2, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
        slow, weights = layer(q, k, v)
        fast, none = layer(q, k, v, need_weights=False)
        assert none is None
        assert weights.shape == (2, 3, 5)
        torch.testing.assert_close(fast, slow)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
        swapped, _ = first(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        torch.testing.assert_close(swapped.transpose(0, 1), slow)
        alone, one = layer(q[:, 0], k[:, 0], v[:, 0])
        torch.testing.assert_close(alone, slow[:, 0])
        torch.testing.assert_close(one, weights[0])
        _, per_head = layer(q, k, v, average_attn_weights=False)
        torch.testing.assert_close(per_head.mean(1), weights)

    @pytest.mark.parametrize("need_weights", [True, False])
    @pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_bias_kv": True, "add_zero_attn": True}])
    def test_masks_hide(self, need_weights: bool, extra: Any) -> None:
        """A hidden key may change at will; a visible one not."""
        layer = qnn.QMultiheadAttention(16, 2, batch_first=True, **extra)
        q, k = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
        padding = torch.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2])
        changed = k.masked_fill(padding.unsqueeze(-1), 7.0)
        with_mask = layer(q, k, k, key_padding_mask=padding, need_weights=need_weights)[0]
        torch.testing.assert_close(layer(q, changed, changed, padding, need_weights)[0], with_mask)
        assert not torch.allclose(layer(q, k, k)[0], with_mask)
        causal = torch.ones(3, 5, dtype=torch.bool).triu(1)
        y = layer(q, k, k, attn_mask=causal, need_weights=need_weights, is_causal=False)[0]
        late = k.clone()
        late[:, 1:] = 3.0
        torch.testing.assert_close(layer(q, late, late, None, need_weights, causal)[0][:, 0], y[:, 0])
        added = torch.zeros(3, 5).masked_fill(causal, -math.inf)
        torch.testing.assert_close(layer(q, k, k, attn_mask=added, need_weights=need_weights)[0], y)
        per_head = causal.expand(4, 3, 5)
        torch.testing.assert_close(layer(q, k, k, attn_mask=per_head, need_weights=need_weights)[0], y)
        both = layer(q, k, k, padding, need_weights, causal)[0]
        assert both.shape == q.shape
        assert both.isfinite().all()

    def test_shapes_and_signature_are_torchs(self) -> None:
        options: Any = {
            "dropout": 0.1,
            "bias": False,
            "add_bias_kv": True,
            "add_zero_attn": True,
            "kdim": 8,
            "vdim": 12,
        }
        ours, theirs = qnn.QMultiheadAttention(16, 2, **options), nn.MultiheadAttention(16, 2, **options)
        inputs = torch.randn(3, 2, 16), torch.randn(5, 2, 8), torch.randn(5, 2, 12)
        found, wanted = ours(*inputs), theirs(*inputs)
        assert [t.shape for t in found] == [t.shape for t in wanted]

    def test_refusals(self) -> None:
        layer, x = qnn.QMultiheadAttention(16, 2), torch.randn(3, 2, 16)
        with pytest.raises(ValueError, match="all have 3 axes"):
            layer(x, x[0], x)
        with pytest.raises(ValueError, match="3 keys for 2 sequences, but 2 values for 2"):
            layer(x, x, x[:2])
        with pytest.raises(ValueError, match="1 sequences of queries, but 2 of keys"):
            layer(x[:, :1], x, x)
        with pytest.raises(ValueError, match="a mask must be boolean or floating-point"):
            layer(x, x, x, attn_mask=torch.ones(3, 3, dtype=torch.uint8))
        with pytest.raises(ValueError, match="give the mask too"):
            layer(x, x, x, is_causal=True)
        with pytest.raises(ValueError, match="attn_mask must be"):
            layer(x, x, x, attn_mask=torch.ones(2, 2))
        with pytest.raises(ValueError, match="key_padding_mask must be"):
            layer(x, x, x, key_padding_mask=torch.ones(3, 3, dtype=torch.bool))


@pytest.mark.unchecked
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_compiled_training(ours, theirs) -> None:
    layer, x = ours(8, 8, num_layers=2), torch.randn(3, 5, 8)
    wanted = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    found = torch.autograd.grad(compiled(x)[0].square().sum(), list(layer.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
