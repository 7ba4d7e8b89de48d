"""Attention: four projections, and heads that stay or go as a whole."""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import ExportError
from quern.graph import plain
from quern.graph.functions import FunctionRules, values_of
from quern.graph.layer_plan import LayerPlan
from quern.graph.layers.bases import Whole, nonzero, real_layer, square
from quern.graph.spec import Call, Nearest, Select, Spec, Writer, register, spec_of, take
from quern.graph.values import Value


def _edges(weight: Tensor) -> Tensor:
    return nonzero(weight).any(0)


class Attention(Spec):
    """Its projections have Specs, neurons and plans of their own; what it narrows itself is the number of heads."""

    components = 4

    def shifts(self, layer: Any) -> tuple[str, ...]:
        return ("bias_k", "bias_v")

    def carried(self, layer: Any, value: Any) -> Any:
        return value, None

    def follow(self, reader: FunctionRules, call: Call) -> Any:
        """Whole heads go: within one, the scale of the scores depends on its width."""
        facts, name, layer, known, given, out = reader.facts, call.name, call.layer, call.known, call.given, call.out
        weights_used = any(user.target is not operator.getitem or user.args[1] != 0 for user in call.users)
        names = ("query", "key", "value")
        values = dict(zip(names, known[0], strict=False)) | {k: v for k, v in known[1].items() if k in names}
        tensors = dict(zip(names, given[0], strict=False)) | {k: v for k, v in given[1].items() if k in names}
        masks = [m for m in (*given[0][3:], *(v for k, v in given[1].items() if "mask" in k)) if isinstance(m, Tensor)]
        of_masks = values_of((known[0][3:], [v for k, v in known[1].items() if "mask" in k]))
        facts.whole(*of_masks)
        weights_used = weights_used and out[1] is not None
        projections = {"query": layer.q_proj, "key": layer.k_proj, "value": layer.v_proj}
        wide = layer.out_proj.weight.shape[2]
        made: dict[str, Value] = {}
        for part, projection in projections.items():
            x = tensors[part]
            value = facts.followed(values[part], x, -1, 4)
            edges = partial(_edges, projection.weight)
            where = f"{name}.{part[0]}_proj".removeprefix(".")
            made[part] = facts.weighted(where, projection, value, projection(x), edges, axis=-1, parts=4, absorbs=True)
        q, k, v = (made[part] for part in names)
        per_head = wide // layer.num_heads
        record = facts.record(name, layer, None, layer.num_heads)
        assert record.outputs is not None
        ids = record.outputs.repeat_interleave(per_head)
        for side in (q, k, v):
            assert side.ids is not None
            facts.tie(side.ids, ids)
        if masks or weights_used:
            # Masks and returned weights may have an axis of heads, and an average over heads has to be of all of them.
            facts.pin(record.outputs)
        mixed = Value(ids, v.axis, v.dims, 4)
        mixed.live = v.live | v.pushing
        if layer.bias_v is not None:
            mixed.live = mixed.live | _edges(layer.bias_v)
        mixed.heard = mixed.live & (v.heard | q.heard.any() | k.heard.any() | bool(of_masks))
        mixed.constant = torch.zeros(wide, 4, dtype=layer.out_proj.weight.dtype)
        mixed.needed = torch.zeros(wide, dtype=torch.bool)
        facts.values.append(mixed)
        weights = Value() if out[1] is not None else None

        def back() -> None:
            v.need(mixed.needed)
            heads = mixed.needed.view(layer.num_heads, -1).any(1).repeat_interleave(per_head)
            heads |= weights_used
            q.need(heads)
            k.need(heads)

        facts.backward.append(back)
        where = f"{name}.out_proj".removeprefix(".")
        edges = partial(_edges, layer.out_proj.weight)
        return facts.weighted(where, layer.out_proj, mixed, out[0], edges, axis=-1, parts=4, absorbs=False), weights

    def sizes(self, layer: Any) -> tuple[int | None, int | None]:
        return None, layer.num_heads

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        per_head = layer.embed_dim // 4 // layer.num_heads  # not by a projection, which may be narrow by now
        units = [head * per_head + n for head in plan.left[1] for n in range(per_head)]
        return {"bias_k": take(1, units), "bias_v": take(1, units)}

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        heads = len(plan.left[1])
        layer.embed_dim, layer.num_heads = layer.embed_dim // layer.num_heads * heads, heads

    def to_real(
        self,
        writer: Writer,
        name: str,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint about the mask
    ) -> Any:
        """With a batch, and without masks except one that belongs to the network: of others the type is not known."""

        def project(part: str, x: Any) -> Any:
            projection = getattr(layer, f"{part}_proj")
            return writer.layer(f"{name}.{part}_proj", projection, x)

        mask = None
        if attn_mask is not None:
            mask = writer.root.get(attn_mask.node.target) if attn_mask.node.op == "get_attr" else None
        if key_padding_mask is not None or (attn_mask is not None and mask is None):
            raise ExportError(f"{name} ({type(layer).__name__}) is called with a mask that is computed or an input.")
        if not layer.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        k = project("k", key)
        v = project("v", value)
        if mask is not None:
            like = layer.q_proj.weight
            if mask.dtype == torch.bool:
                mask = torch.zeros(mask.shape, dtype=like.dtype).to(mask.device).masked_fill(mask, -math.inf)
            extra = (layer.bias_k is not None) + layer.add_zero_attn
            shape = (1, 1) if mask.dim() == 2 else (-1, layer.num_heads)
            mask = TF.pad(mask.to(like.dtype), (0, extra)).view(*shape, *mask.shape[-2:-1], -1)
            mask = writer.tensor(f"{name}.mask", mask)
        if layer.bias_k is not None and layer.bias_v is not None:
            more = [
                (writer.tensor(f"{name}.bias_{n}", t.flatten()), x)
                for n, t, x in (("k", layer.bias_k, k), ("v", layer.bias_v, v))
            ]
            k, v = (torch.cat([x, one.expand(x.shape[0], 1, -1)], 1) for one, x in more)
        if layer.add_zero_attn:
            k, v = (TF.pad(x, (0, 0, 0, 1)) for x in (k, v))
        q = project("q", query)
        q, k, v = (plain.heads(x, layer.num_heads) for x in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(layer.embed_dim // layer.num_heads)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        output = project("out", plain.joined(weights @ v))
        if not layer.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, weights.mean(1) if average_attn_weights else weights


class RealAttention(Whole):
    """Heads of real channels."""

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return None

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        like = layer.out_proj.weight
        return qnn.QMultiheadAttention(
            layer.embed_dim,
            layer.num_heads,
            layer.dropout,
            layer.in_proj_bias is not None,
            layer.bias_k is not None,
            layer.add_zero_attn,
            layer.kdim,
            layer.vdim,
            layer.batch_first,
            device=like.device,
            dtype=like.dtype,
        )

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        """Projection by projection. A head has the same channels before and after, which in the real layer stand side
        by side: whole quaternions of them."""
        size, heads = layer.embed_dim, layer.num_heads
        of_heads = torch.arange(size).view(heads, 4, -1).transpose(0, 1).flatten(1)
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        weights = weights if layer.in_proj_weight is None else layer.in_proj_weight.chunk(3)
        biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
        tensors, kept = dict[str, Tensor](), 0.0
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        own = ((*weights, layer.out_proj.weight), (*biases, layer.out_proj.bias))
        for name, weight, bias in zip(names, *own, strict=True):
            real = real_layer(nn.Linear, weight.shape[1], size, weight=weight, bias=bias)
            places = (of_heads, outputs) if name == "out_proj" else (None, of_heads)
            one = spec_of(real).nearest(real, getattr(new, name), *places)
            tensors |= {f"{name}.{key}": t for key, t in one.tensors.items()}
            kept += one.kept
        for name in ("bias_k", "bias_v"):
            if (bias := getattr(layer, name)) is not None:
                tensors[name] = bias.detach().cpu().flatten()[of_heads]
        return Nearest(tensors, kept, square(*weights, layer.out_proj.weight))


def _nearest_by_part(layer: nn.Module, new: nn.Module) -> Nearest:
    """Of a layer whose parts have the same names in both forms."""
    tensors, kept, total = dict[str, Tensor](), 0.0, 0.0
    for name, part in new.named_children():
        old = getattr(layer, name)
        if not any(True for _ in part.parameters()):
            continue
        stack = isinstance(part, nn.ModuleList)
        one = _nearest_by_part(old, part) if stack else spec_of(old).nearest(old, part)
        tensors |= {f"{name}.{own}": t for own, t in one.tensors.items()}
        kept, total = kept + one.kept, total + one.total
    return Nearest(tensors, kept, total)


class RealTransformerLayer(RealAttention):
    """``quaternion`` is put together from layers that are known."""

    def __init__(self, quaternion: Callable[..., nn.Module]) -> None:
        self.quaternion = quaternion

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        attention, feed = layer.self_attn, layer.linear1
        return self.quaternion(
            attention.embed_dim,
            attention.num_heads,
            feed.out_features,
            layer.dropout.p,
            layer.activation,
            layer.norm1.eps,
            attention.batch_first,
            layer.norm_first,
            feed.bias is not None,
            device=feed.weight.device,
            dtype=feed.weight.dtype,
        )

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        return _nearest_by_part(layer, new)


class RealTransformer(RealAttention):
    """Some of its layers one after another, all of one kind."""

    def __init__(self, quaternion: Callable[..., nn.Module]) -> None:
        self.quaternion = quaternion

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        first = layer.layers[0]
        one = spec_of(first).quaternion_form(first)
        if one is None:
            raise ValueError(f"its layers are of the kind {type(first).__name__}, of which no quaternion form is known")
        norm = None if layer.norm is None else spec_of(layer.norm).quaternion_form(layer.norm)
        stack = self.quaternion(one, layer.num_layers, norm)
        for part in stack.modules():
            reset: Any = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()  # copies would start alike
        return stack

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        return _nearest_by_part(layer, new)


register(nn.MultiheadAttention, RealAttention())
register(nn.TransformerEncoderLayer, RealTransformerLayer(qnn.QTransformerEncoderLayer))
register(nn.TransformerDecoderLayer, RealTransformerLayer(qnn.QTransformerDecoderLayer))
register(nn.TransformerEncoder, RealTransformer(qnn.QTransformerEncoder))
register(nn.TransformerDecoder, RealTransformer(qnn.QTransformerDecoder))
register(qnn.QMultiheadAttention, Attention())
