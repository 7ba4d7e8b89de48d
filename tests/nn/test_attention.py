"""Attention: masks, both paths, and torch's shapes."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from quern import nn as qnn


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
