"""Embedding: padding, norms, gradients by frequency."""

import pytest
import torch

from quern import nn as qnn


def test_embedding_padding_and_norm() -> None:
    table = qnn.QEmbedding(6, 8, padding_idx=-1)
    assert table.padding_idx == 5
    indices = torch.tensor([[0, 5], [2, 5]])
    y = table(indices)
    assert torch.equal(y[:, 1], torch.zeros(2, 8))
    y.sum().backward()
    assert table.weight.grad is not None
    assert torch.equal(table.weight.grad[:, 5], torch.zeros(4, 2))
    assert torch.equal(table.weight.grad[:, 0], torch.ones(4, 2))
    short = qnn.QEmbedding(6, 8, max_norm=0.5)
    before = short.weight.detach().clone()
    y = short(torch.tensor([1, 1, 3]))
    assert (y.norm(dim=1) <= 0.5 + 1e-6).all()
    assert torch.equal(short.weight[:, 0], before[:, 0])
    often = qnn.QEmbedding(3, 4, scale_grad_by_freq=True)
    often(torch.tensor([1, 1])).sum().backward()
    assert often.weight.grad is not None
    torch.testing.assert_close(often.weight.grad[:, 1], torch.ones(4, 1))
    assert not qnn.QEmbedding(6, 8, padding_idx=0, max_norm=0.0)(torch.tensor([0, 1])).isnan().any()
    with pytest.raises(ValueError, match="rows 0 to 5"):
        qnn.QEmbedding(6, 8, padding_idx=6)
