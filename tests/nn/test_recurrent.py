"""Recurrent layers: packed sequences, states, and torch's shapes."""

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
