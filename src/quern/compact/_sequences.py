"""The rules for layers of sequences: recurrent layers and attention."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quern import nn as qnn
from quern.compact._facts import Facts, Value
from quern.nn.bases import QRecurrent

# Which gate makes what is new in the state. As long as it gives zero, a state that began at zero stays there.
_NEW = {qnn.QRNN: 0, qnn.QLSTM: 2, qnn.QGRU: 2}


def _nonzero(t: Tensor) -> Tensor:
    return (t.detach() != 0).any(0).cpu()


def suffixes(layer: QRecurrent) -> list[list[str]]:
    """The endings of the parameters' names, level by level, in each the forward direction first."""
    ends = ("", "_reverse")[: 2 if layer.bidirectional else 1]
    return [[f"l{level}{end}" for end in ends] for level in range(layer.num_layers)]


def recurrent(
    facts: Facts, name: str, layer: QRecurrent, value: Value, x: Tensor, states: Sequence[Value], out: Any
) -> Any:
    """Hidden units that start at zero and are driven by nothing stay at zero; all others count as live, because they
    change from step to step even under constant input. A hidden unit has one place in all levels and directions."""
    hidden = layer.hidden_size // 4
    value = facts.followed(value, x, -1, 4)
    assert value.ids is not None
    facts.whole(*states)
    record = facts.record(name, layer, value.ids, hidden)
    assert record.outputs is not None
    record.absorbs = layer.bias
    record.calls.append(value)
    if states:
        facts.pin(record.outputs)
    new = next(gate for kind, gate in _NEW.items() if isinstance(layer, kind))

    def weight(kind: str, suffix: str) -> Tensor:
        return _nonzero(layer.get_parameter(f"{kind}_{suffix}")).unflatten(0, (layer.gates, hidden))

    # Forward: which hidden units ever leave zero.
    moving: dict[str, Tensor] = {}
    source = value.live | value.pushing
    for row in suffixes(layer):
        for suffix in row:
            now = (weight("weight_ih", suffix)[new] & source).any(1)
            if layer.bias:
                now |= weight("bias_ih", suffix)[new] | weight("bias_hh", suffix)[new]
            if states:
                now = torch.ones_like(now)
            own = weight("weight_hh", suffix)[new]
            while not torch.equal(grown := now | (own & now).any(1), now):
                now = grown
            moving[suffix] = now
            still = ~now
            record.still[suffix] = record.still[suffix] & still if suffix in record.still else still
        source = torch.cat([moving[suffix] for suffix in row])
    ids = record.outputs.repeat(2 if layer.bidirectional else 1)
    heard = value.heard.any() | bool(states)
    output = facts.value(out[0], ids, -1, 4, source, name, heard.expand(len(ids)))
    # A state has the last axis of units too, but those of several levels in one place.
    some = torch.stack(list(moving.values())).any(0)
    final = [
        facts.value(state, record.outputs, -1, 4, some, name, heard.expand(hidden))
        for state in (out[1] if isinstance(out[1], tuple) else (out[1],))
    ]
    edges = torch.cat([weight("weight_ih", suffix).flatten(0, 1) for suffix in suffixes(layer)[0]])
    record.edges, record.rows = edges, torch.ones(len(edges), dtype=torch.bool)

    def back() -> None:
        of_state = torch.stack([state.needed for state in final]).any(0)
        needed = output.needed.clone()
        for row in reversed(suffixes(layer)):
            below = torch.zeros(weight("weight_ih", row[0]).shape[2], dtype=torch.bool)
            for suffix, part in zip(row, needed.split(hidden), strict=True):
                wanted = (part | of_state) & moving[suffix]
                own = weight("weight_hh", suffix).any(0) & moving[suffix]
                while not torch.equal(grown := wanted | (own & wanted.unsqueeze(1)).any(0), wanted):
                    wanted = grown
                below |= (weight("weight_ih", suffix).any(0) & wanted.unsqueeze(1)).any(0)
                output.needed[:hidden] |= wanted  # one place in all levels and directions
            needed = below
        value.need(needed & ~record.fixed())

    facts.backward.append(back)
    return output, tuple(final) if isinstance(out[1], tuple) else final[0]


def attention(
    facts: Facts, name: str, layer: qnn.QMultiheadAttention, known: Any, given: Any, out: Any, weights_used: bool
) -> Any:
    """Whole heads go: within one, the scale of the scores depends on its width."""
    names = ("query", "key", "value")
    values = dict(zip(names, known[0], strict=False)) | {k: v for k, v in known[1].items() if k in names}
    tensors = dict(zip(names, given[0], strict=False)) | {k: v for k, v in given[1].items() if k in names}
    masks = [m for m in (*given[0][3:], *(v for k, v in given[1].items() if "mask" in k)) if isinstance(m, Tensor)]
    facts.whole(*(m for m in (*known[0][3:], *(v for k, v in known[1].items() if "mask" in k)) if isinstance(m, Value)))
    weights_used = weights_used and out[1] is not None
    projections = {"query": layer.q_proj, "key": layer.k_proj, "value": layer.v_proj}
    wide = layer.out_proj.weight.shape[2]
    made: dict[str, Value] = {}
    for part, projection in projections.items():
        x = tensors[part]
        value = facts.followed(values[part], x, -1, 4)
        edges = partial(_nonzero, projection.weight)
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
        mixed.live = mixed.live | _nonzero(layer.bias_v)
    mixed.heard = mixed.live & (v.heard | q.heard.any() | k.heard.any())
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
    edges = partial(_nonzero, layer.out_proj.weight)
    return facts.weighted(where, layer.out_proj, mixed, out[0], edges, axis=-1, parts=4, absorbs=False), weights
