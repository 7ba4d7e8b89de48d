"""Layers of transformers, put together from attention, linear layers and normalisations.

They hold no mathematics of their own: torch.fx looks into them, so what is known of their parts is known of them.
"""

import copy
from collections.abc import Callable
from typing import Any, no_type_check

import torch.nn.functional as TF
from torch import Tensor, nn

from quern.nn._attention import QMultiheadAttention
from quern.nn._dropout import QDropout
from quern.nn._linear import QLinear
from quern.nn._norm import QLayerNorm

Activation = str | Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": TF.relu, "gelu": TF.gelu}


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, but it must be 'relu', 'gelu' or a function.")
    return _ACTIVATIONS[activation]


class _Layer(nn.Module):
    """The part that works on each place alone, ``linear2(dropout(activation(linear1(x))))``."""

    def _set(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float,
        activation: Activation,
        bias: bool,
        factory: dict[str, Any],
    ) -> None:
        self.linear1 = QLinear(d_model, dim_feedforward, bias, **factory)
        self.dropout = QDropout(dropout, dim=-1)
        self.linear2 = QLinear(dim_feedforward, d_model, bias, **factory)
        self.activation = _activation(activation)

    @no_type_check
    def _feed(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class QTransformerEncoderLayer(_Layer):
    r"""``torch.nn.TransformerEncoderLayer`` of quaternions: attention to itself, then a linear layer, an activation and
    another one, each with a residual and a quaternion layer normalisation, before it (``norm_first``) or after.

    Sizes are real, ``(batch, length, d_model)`` with ``batch_first``; masks as in :class:`QMultiheadAttention`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.self_attn = QMultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **factory)
        self._set(d_model, dim_feedforward, dropout, activation, bias, factory)
        self.norm1, self.norm2 = (QLayerNorm(d_model, layer_norm_eps, bias=bias, **factory) for _ in range(2))
        self.dropout1, self.dropout2 = (QDropout(dropout, dim=-1) for _ in range(2))
        self.norm_first = norm_first

    @no_type_check
    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        def attend(x):
            return self.dropout1(
                self.self_attn(
                    x,
                    x,
                    x,
                    key_padding_mask=src_key_padding_mask,
                    need_weights=False,
                    attn_mask=src_mask,
                    is_causal=is_causal,
                )[0]
            )

        x = src
        if self.norm_first:
            x = x + attend(self.norm1(x))
            return x + self.dropout2(self._feed(self.norm2(x)))
        x = self.norm1(x + attend(x))
        return self.norm2(x + self.dropout2(self._feed(x)))


class QTransformerDecoderLayer(_Layer):
    r"""``torch.nn.TransformerDecoderLayer`` of quaternions: attention to itself, attention to the ``memory`` of an
    encoder, then what :class:`QTransformerEncoderLayer` does to each place."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.self_attn, self.multihead_attn = (
            QMultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **factory) for _ in range(2)
        )
        self._set(d_model, dim_feedforward, dropout, activation, bias, factory)
        norms = (QLayerNorm(d_model, layer_norm_eps, bias=bias, **factory) for _ in range(3))
        self.norm1, self.norm2, self.norm3 = norms
        self.dropout1, self.dropout2, self.dropout3 = (QDropout(dropout, dim=-1) for _ in range(3))
        self.norm_first = norm_first

    @no_type_check
    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=False,
        memory_is_causal=False,
    ):
        def attend(x):
            options = {"key_padding_mask": tgt_key_padding_mask, "attn_mask": tgt_mask, "is_causal": tgt_is_causal}
            return self.dropout1(self.self_attn(x, x, x, need_weights=False, **options)[0])

        def look_at_memory(x):
            options = {
                "key_padding_mask": memory_key_padding_mask,
                "attn_mask": memory_mask,
                "is_causal": memory_is_causal,
            }
            return self.dropout2(self.multihead_attn(x, memory, memory, need_weights=False, **options)[0])

        x = tgt
        if self.norm_first:
            x = x + attend(self.norm1(x))
            x = x + look_at_memory(self.norm2(x))
            return x + self.dropout3(self._feed(self.norm3(x)))
        x = self.norm1(x + attend(x))
        x = self.norm2(x + look_at_memory(x))
        return self.norm3(x + self.dropout3(self._feed(x)))


class _Stack(nn.Module):
    """``num_layers`` copies of a layer, and a normalisation behind them if one is given."""

    def __init__(self, layer: nn.Module, num_layers: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}, but there must be at least one.")
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    @no_type_check
    def _through(self, x, *args, **options):
        for layer in self.layers:
            x = layer(x, *args, **options)
        return x if self.norm is None else self.norm(x)


class QTransformerEncoder(_Stack):
    """``torch.nn.TransformerEncoder`` of quaternions: copies of an encoder layer one after another."""

    @no_type_check
    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
        return self._through(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))


class QTransformerDecoder(_Stack):
    """``torch.nn.TransformerDecoder`` of quaternions: copies of a decoder layer one after another."""

    @no_type_check
    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=None,
        memory_is_causal=False,
    ):
        return self._through(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=bool(tgt_is_causal),
            memory_is_causal=memory_is_causal,
        )
