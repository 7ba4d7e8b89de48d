import math

import torch
import torch.nn.functional as TF
from jaxtyping import Float
from torch import Tensor, nn

from quern.functional.shapes import quaternions
from quern.nn import init
from quern.nn._dropout import check_probability
from quern.nn._linear import QLinear


class QMultiheadAttention(nn.Module):
    r"""Multi-head attention with quaternion projections, called as ``torch.nn.MultiheadAttention``.

    Queries, keys and values are :math:`W \otimes x + b`; each head owns ``embed_dim/4/num_heads`` quaternion channels.
    The score of a query and a key is the real part of :math:`\sum_c q_c^* \otimes k_c` (the real inner product) over
    :math:`\sqrt{d}`, so the attention weights are real. Sizes are real; the last axis carries the quaternions.
    """

    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        n = quaternions(embed_dim, "embed_dim")
        if num_heads < 1 or n % num_heads:
            raise ValueError(f"num_heads={num_heads} must divide the {n} quaternion channels of embed_dim={embed_dim}.")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.dropout = check_probability(dropout)
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.add_zero_attn = add_zero_attn
        self.q_proj = QLinear(embed_dim, embed_dim, bias, device, dtype)
        self.k_proj = QLinear(self.kdim, embed_dim, bias, device, dtype)
        self.v_proj = QLinear(self.vdim, embed_dim, bias, device, dtype)
        self.out_proj = QLinear(embed_dim, embed_dim, bias, device, dtype)
        for name in ("bias_k", "bias_v"):
            extra = nn.Parameter(torch.empty(4, n, device=device, dtype=dtype)) if add_bias_kv else None
            self.register_parameter(name, extra)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            init.glorot_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.normal_(extra, std=math.sqrt(2 / self.embed_dim))

    def _heads(self, x: Tensor) -> Tensor:
        """``(batch, length, 4*n)`` to ``(batch, heads, length, 4*n/heads)``: whole quaternions to each head."""
        return x.unflatten(-1, (4, self.num_heads, -1)).permute(0, 3, 1, 2, 4).flatten(3)

    def _join(self, heads: Tensor) -> Tensor:
        return heads.unflatten(-1, (4, -1)).permute(0, 2, 3, 1, 4).flatten(2)

    def forward(
        self,
        query: Float[Tensor, "..."],
        key: Float[Tensor, "..."],
        value: Float[Tensor, "..."],
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."] | None]:
        """The attended values, and with ``need_weights`` the attention weights (else None); shapes as in torch."""
        batched = query.dim() == 3
        if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
            raise ValueError(
                "query, key and value must all have 3 axes, or all 2 without a batch, but they have "
                f"{query.dim()}, {key.dim()} and {value.dim()}."
            )
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask: give the mask too.")
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        if key.shape[:2] != value.shape[:2]:
            raise ValueError(
                f"there are {key.shape[1]} keys for {key.shape[0]} sequences, "
                f"but {value.shape[1]} values for {value.shape[0]}."
            )
        if query.shape[0] != key.shape[0]:
            raise ValueError(f"there are {query.shape[0]} sequences of queries, but {key.shape[0]} of keys.")
        k, v = self.k_proj(key), self.v_proj(value)
        mask = self._additive_mask(key_padding_mask, attn_mask, query, k)
        extra = []
        if self.bias_k is not None and self.bias_v is not None:
            extra.append((self.bias_k.flatten(), self.bias_v.flatten()))
        if self.add_zero_attn:
            extra.append((k.new_zeros(k.shape[-1]), v.new_zeros(v.shape[-1])))
        for extra_k, extra_v in extra:  # one more place to attend to, visible to every query
            k = torch.cat([k, extra_k.expand(k.shape[0], 1, -1)], 1)
            v = torch.cat([v, extra_v.expand(v.shape[0], 1, -1)], 1)
            mask = None if mask is None else TF.pad(mask, (0, 1))
        q, k, v = self._heads(self.q_proj(query)), self._heads(k), self._heads(v)
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = TF.dropout((scores if mask is None else scores + mask).softmax(-1), p)
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = TF.scaled_dot_product_attention(q, k, v, mask, p)
        output = self.out_proj(self._join(heads))
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _additive_mask(
        self, padding: Tensor | None, attention: Tensor | None, query: Tensor, key: Tensor
    ) -> Tensor | None:
        """Both masks as one of ``(batch or 1, heads or 1, targets, sources)`` to add to the scores.

        As in torch, True in a boolean mask hides.
        """
        batch, sources, targets = key.shape[0], key.shape[1], query.shape[1]
        total = None
        if attention is not None:
            shapes = {2: (targets, sources), 3: (batch * self.num_heads, targets, sources)}
            if tuple(attention.shape) != shapes.get(attention.dim()):
                raise ValueError(
                    f"attn_mask must be {shapes[2]} or {shapes[3]}, but its shape is {tuple(attention.shape)}."
                )
            total = _hiding(attention, key)
            total = total.unflatten(0, (batch, self.num_heads)) if total.dim() == 3 else total[None, None]
        if padding is not None:
            if tuple(padding.shape) != (batch, sources):
                raise ValueError(
                    f"key_padding_mask must be {(batch, sources)}, but its shape is {tuple(padding.shape)}."
                )
            hidden = _hiding(padding, key)[:, None, None, :].expand(-1, -1, targets, -1)
            total = hidden if total is None else total + hidden
        return total

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"


def _hiding(mask: Tensor, like: Tensor) -> Tensor:
    if mask.is_floating_point():
        return mask.to(like.dtype)
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask must be boolean or floating-point, but this one is {mask.dtype}.")
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)
