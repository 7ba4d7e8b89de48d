"""Layers made smaller: which numbers of every parameter stay, and what becomes of constant inputs."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.algebra import UNITS, hamilton
from quern.compact._plan import Kept, LayerPlan
from quern.compact._sequences import suffixes
from quern.errors import CompactionError
from quern.functional.shapes import weight_layout
from quern.graph import REAL_CONVOLUTIONS, pads_with_zeros
from quern.nn.bases import QBatchNorm, QConvolution, QRecurrent

Select = Callable[[Tensor], Tensor]
Shape = tuple[int, ...]
_REAL_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NORMS = (QBatchNorm, qnn.QWhiteningBatchNorm2d, *_REAL_NORMS)
_ACTIVATIONS = (qnn.QModReLU, nn.PReLU)
_CONVOLUTIONS = (QConvolution, *REAL_CONVOLUTIONS)
_WEIGHTED = (qnn.QLinear, nn.Linear, *_CONVOLUTIONS)


def sizes(layer: Any) -> tuple[int | None, int | None]:
    """How many inputs and outputs a plan chooses from; None where it has no choice."""
    if isinstance(layer, qnn.QLinear):
        return layer.weight.shape[2], layer.weight.shape[1]
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, QConvolution):
        return layer.weight.shape[2] * layer.groups, layer.weight.shape[1]
    if isinstance(layer, REAL_CONVOLUTIONS):
        return layer.in_channels, layer.out_channels
    if isinstance(layer, (QBatchNorm, qnn.QWhiteningBatchNorm2d, qnn.QModReLU)):
        return layer.num_features // 4, None
    if isinstance(layer, _REAL_NORMS):
        return layer.num_features, None
    if isinstance(layer, nn.PReLU):
        return layer.num_parameters, None
    if isinstance(layer, qnn.QEmbedding):
        return None, layer.embedding_dim // 4
    if isinstance(layer, QRecurrent):
        return layer.input_size // 4, layer.hidden_size // 4
    if isinstance(layer, qnn.QMultiheadAttention):
        return None, layer.num_heads
    raise CompactionError(f"{type(layer).__name__} is no layer that can be made smaller.")


def shapes(layer: Any, ins: int | None, outs: int | None, constants: bool) -> dict[str, Shape] | None:
    """The tensors of a layer when so many of its inputs and outputs are left, with those that it gets where it takes
    in ``constants``. None for kinds of layers where these numbers do not tell."""
    if isinstance(layer, (*_NORMS, *_ACTIVATIONS)):
        names = ("weight", "bias", "running_mean", "running_var", "running_cov")
        tensors = {name: getattr(layer, name, None) for name in names}
        found = {name: (*t.shape[:-1], ins or 0) for name, t in tensors.items() if isinstance(t, Tensor)}
    elif isinstance(layer, _WEIGHTED) and getattr(layer, "groups", 1) == 1:
        assert ins is not None
        assert outs is not None
        kernel = tuple(layer.weight.shape[3 if isinstance(layer, (qnn.QLinear, QConvolution)) else 2 :])
        at_borders = isinstance(layer, QConvolution) and pads_with_zeros(layer)
        has_bias = layer.bias is not None or (constants and not at_borders)
        if isinstance(layer, (qnn.QLinear, QConvolution)):
            found = {"weight": (4, outs, ins, *kernel)} | ({"bias": (4, outs)} if has_bias else {})
            if isinstance(layer, QConvolution) and (layer.constant is not None or (constants and at_borders)):
                found["constant"] = (4, outs, 1, *kernel)
        else:
            sides = (ins, outs) if getattr(layer, "transposed", False) else (outs, ins)
            found = {"weight": (*sides, *kernel)} | ({"bias": (outs,)} if has_bias else {})
    else:
        return None
    rest = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    return found | {name: tuple(t.shape) for name, t in rest if name not in found}


def narrowed_shapes(layer: nn.Module, plan: LayerPlan) -> dict[str, Shape]:
    """The tensors of a layer after ``plan``."""
    ins, outs = (None if kept is None else len(kept.indices) for kept in (plan.inputs, plan.outputs))
    found = shapes(layer, ins, outs, bool(plan.constants))
    if found is None:
        small = copy.deepcopy(layer).to("meta")
        narrow_(small, plan)
        found = {name: tuple(t.shape) for name, t in (*small.named_parameters(), *small.named_buffers())}
    return found


def check(name: str, layer: nn.Module, plan: LayerPlan) -> None:
    """A sentence if ``plan`` is not for ``layer``."""
    if type(layer).__name__ != plan.kind:
        raise CompactionError(f"the plan has a {plan.kind} at {name!r}, but the network a {type(layer).__name__}.")
    for what, have, kept in zip(("inputs", "outputs"), sizes(layer), (plan.inputs, plan.outputs), strict=True):
        if (have is None) != (kept is None) or (kept is not None and kept.total != have):
            raise CompactionError(
                f"the plan has {kept.total if kept else 'no'} {what} at {name!r}, not {have or 'none'}."
            )
    if isinstance(layer, _CONVOLUTIONS) and layer.groups > 1:
        _groups(layer, plan)
    known = {suffix for row in suffixes(layer) for suffix in row} if isinstance(layer, QRecurrent) else set()
    width = 4 if isinstance(layer, (qnn.QLinear, QConvolution, QRecurrent)) else 1
    may = isinstance(layer, (*_WEIGHTED, QRecurrent))
    if not set(plan.still) <= known or any(len(q) != width or not may for _, q in plan.constants):
        raise CompactionError(f"the plan's constants do not fit {name!r}.")


def _groups(layer: Any, plan: LayerPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Which groups stay, and of each the inputs and outputs that stay, counted within it."""
    assert plan.inputs is not None
    assert plan.outputs is not None
    rows = []
    for kept in (plan.inputs, plan.outputs):
        per_group = kept.total // layer.groups
        found: dict[int, list[int]] = {}
        for n in kept.indices:
            found.setdefault(n // per_group, []).append(n % per_group)
        rows.append(found)
    ins, outs = rows
    if set(ins) != set(outs) or len({len(v) for v in ins.values()}) != 1 or len({len(v) for v in outs.values()}) != 1:
        raise CompactionError("a plan leaves the groups of a convolution with unequal numbers of channels.")
    return torch.tensor(sorted(ins)), torch.tensor(list(ins.values())), torch.tensor(list(outs.values()))


def _take(axis: int, indices: Any) -> Select:
    """The entries at ``indices``, which rise: as many as there are is all of them."""
    chosen = torch.as_tensor(indices, dtype=torch.long)
    return lambda t: t if len(chosen) == t.shape[axis] else t.index_select(axis, chosen.to(t.device))


def _both(first: Select, second: Select) -> Select:
    return lambda t: second(first(t))


def selections(layer: Any, plan: LayerPlan) -> dict[str, Select]:
    """For every parameter and buffer that changes, what it becomes; also right for an optimizer's state of its shape.

    None of them touches the axis of the components.
    """
    ins, outs = (k.indices if k is not None else () for k in (plan.inputs, plan.outputs))
    if isinstance(layer, qnn.QLinear):
        return {"weight": _both(_take(1, outs), _take(2, ins)), "bias": _take(1, outs)}
    if isinstance(layer, nn.Linear):
        return {"weight": _both(_take(0, outs), _take(1, ins)), "bias": _take(0, outs)}
    if isinstance(layer, QConvolution):
        weight = _both(_take(1, outs), _take(2, ins)) if layer.groups == 1 else _in_groups(layer, plan)
        return {"weight": weight, "bias": _take(1, outs), "constant": _take(1, outs)}
    if isinstance(layer, REAL_CONVOLUTIONS):
        axes = (1, 0) if layer.transposed else (0, 1)
        plain = _both(_take(axes[0], outs), _take(axes[1], ins))
        return {"weight": plain if layer.groups == 1 else _in_groups(layer, plan), "bias": _take(0, outs)}
    if isinstance(layer, (*_NORMS, *_ACTIVATIONS)):
        names = ("weight", "bias", "running_mean", "running_var", "running_cov")
        return {name: _take(-1, ins) for name in names}
    if isinstance(layer, qnn.QEmbedding):
        return {"weight": _take(2, outs)}
    if isinstance(layer, QRecurrent):
        return _recurrent(layer, ins, outs)
    assert isinstance(layer, qnn.QMultiheadAttention)  # its projections have plans of their own
    per_head = layer.embed_dim // 4 // layer.num_heads  # not by a projection, which may be narrow by now
    units = [head * per_head + n for head in outs for n in range(per_head)]
    return {"bias_k": _take(1, units), "bias_v": _take(1, units)}


def _in_groups(layer: Any, plan: LayerPlan) -> Select:
    groups, ins, outs = _groups(layer, plan)
    quaternion = isinstance(layer, QConvolution)

    def select(t: Tensor) -> Tensor:
        t = t if quaternion else t.unsqueeze(0)
        if layer.transposed and not quaternion:  # (1, groups * in, out, ...)
            parts = t.unflatten(1, (layer.groups, -1))[:, groups.to(t.device)]
            first, second = ins, outs
        else:
            parts = t.unflatten(1, (layer.groups, -1))[:, groups.to(t.device)]
            first, second = outs, ins
        made = [
            part.index_select(1, a.to(t.device)).index_select(2, b.to(t.device))
            for part, a, b in zip(parts.unbind(1), first, second, strict=True)
        ]
        joined = torch.stack(made, 1).flatten(1, 2)
        return joined if quaternion else joined.squeeze(0)

    return select


def _recurrent(layer: QRecurrent, ins: tuple[int, ...], outs: tuple[int, ...]) -> dict[str, Select]:
    hidden = layer.hidden_size // 4
    rows = [gate * hidden + n for gate in range(layer.gates) for n in outs]
    below = [direction * hidden + n for direction in range(2 if layer.bidirectional else 1) for n in outs]
    found: dict[str, Select] = {}
    for level, row in enumerate(suffixes(layer)):
        for suffix in row:
            found[f"weight_ih_{suffix}"] = _both(_take(1, rows), _take(2, below if level else ins))
            found[f"weight_hh_{suffix}"] = _both(_take(1, rows), _take(2, outs))
            found[f"bias_ih_{suffix}"] = found[f"bias_hh_{suffix}"] = _take(1, rows)
    return found


def _count(kept: Kept | None) -> int:
    assert kept is not None
    return len(kept.indices)


def _resize(layer: Any, plan: LayerPlan) -> None:
    """The numbers a layer keeps of its own sizes."""
    if isinstance(layer, qnn.QLinear):
        layer.in_features, layer.out_features = len(layer.input_parts) * _count(plan.inputs), 4 * _count(plan.outputs)
    elif isinstance(layer, nn.Linear):
        layer.in_features, layer.out_features = _count(plan.inputs), _count(plan.outputs)
    elif isinstance(layer, _CONVOLUTIONS):
        if layer.groups > 1:
            layer.groups = len(_groups(layer, plan)[0])
        parts = (len(layer.input_parts), 4) if isinstance(layer, QConvolution) else (1, 1)
        layer.in_channels, layer.out_channels = parts[0] * _count(plan.inputs), parts[1] * _count(plan.outputs)
    elif isinstance(layer, (QBatchNorm, qnn.QWhiteningBatchNorm2d, qnn.QModReLU)):
        layer.num_features = 4 * _count(plan.inputs)
    elif isinstance(layer, _REAL_NORMS):
        layer.num_features = _count(plan.inputs)
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = _count(plan.inputs)
    elif isinstance(layer, qnn.QEmbedding):
        layer.embedding_dim = 4 * _count(plan.outputs)
    elif isinstance(layer, QRecurrent):
        layer.input_size, layer.hidden_size = 4 * _count(plan.inputs), 4 * _count(plan.outputs)
    elif isinstance(layer, qnn.QMultiheadAttention):
        layer.embed_dim = layer.embed_dim // layer.num_heads * _count(plan.outputs)
        layer.num_heads = _count(plan.outputs)


def narrow_(layer: Any, plan: LayerPlan) -> dict[str, Select]:
    """Make ``layer`` smaller in place. Returns how its parameters were selected."""
    _absorb_(layer, plan)
    found = selections(layer, plan)
    layout = None
    if isinstance(layer, _CONVOLUTIONS) and layer.weight.dim() in (4, 5, 6):
        weight = layer.weight if isinstance(layer, QConvolution) else layer.weight.detach().unsqueeze(0)
        layout = weight_layout(weight)
    for name, select in found.items():
        old = getattr(layer, name, None)
        if not isinstance(old, Tensor):
            continue
        new = select(old.detach()).contiguous()
        if isinstance(old, nn.Parameter):
            setattr(layer, name, nn.Parameter(new, requires_grad=old.requires_grad))
        else:
            setattr(layer, name, new)
    _resize(layer, plan)
    if layout is not None:
        layer.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    if isinstance(layer, (qnn.QLinear, QConvolution, QRecurrent)):
        layer.train(layer.training)  # forgets what was derived from the old weights
    return found


# ------------------------------------------------------------------------------------------------- constant inputs


@torch.no_grad()
def _absorb_(layer: Any, plan: LayerPlan) -> None:
    """Add to the layer what its constant inputs did, and let it look at them no more."""
    if isinstance(layer, QRecurrent):
        _absorb_recurrent_(layer, plan)
    if not plan.constants or not isinstance(layer, _WEIGHTED):
        return
    columns = torch.tensor([n for n, _ in plan.constants])
    numbers = torch.tensor([q for _, q in plan.constants], dtype=torch.float64)
    weight = layer.weight
    wide = weight.to(torch.float64)
    total = sizes(layer)[0]
    assert total is not None
    device = weight.device
    if isinstance(layer, (qnn.QLinear, QConvolution)):
        q = torch.zeros(4, total, dtype=torch.float64)
        q[:, columns] = numbers.T
        seen = torch.zeros(total, dtype=torch.bool)
        seen[columns] = True
        groups = getattr(layer, "groups", 1)
        rows = torch.arange(weight.shape[1]) // (weight.shape[1] // groups)
        q_rows = q.view(4, groups, -1)[:, rows].to(device)  # (4, out, in/groups): what each neuron sees
        seen_rows = seen.view(groups, -1)[rows].to(device)
        kernel = [1] * (weight.dim() - 3)
        pushed = hamilton(wide, q_rows.view(*q_rows.shape, *kernel)).sum(2)  # (4, out, *kernel)
        if isinstance(layer, QConvolution) and pads_with_zeros(layer):
            _add_(layer, "constant", pushed.unsqueeze(2), weight)
        else:
            _add_(layer, "bias", pushed.reshape(*pushed.shape[:2], -1).sum(2), weight)
        weight.mul_((~seen_rows).view(1, *seen_rows.shape, *kernel))
        return
    columns, numbers = columns.to(device), numbers.squeeze(1).to(device)
    axis = 0 if isinstance(layer, REAL_CONVOLUTIONS) and layer.transposed else 1
    groups = getattr(layer, "groups", 1)
    value = torch.zeros(total, dtype=torch.float64, device=device)
    value[columns] = numbers
    keep = torch.ones(total, dtype=weight.dtype, device=device)
    keep[columns] = 0
    out = wide.flatten(2).sum(2) if wide.dim() > 2 else wide
    if axis == 0:  # (in, out/groups)
        pushed = (out * value.unsqueeze(1)).unflatten(0, (groups, -1)).sum(1).flatten()
        weight.mul_(keep.view(-1, *[1] * (weight.dim() - 1)))
    else:
        rows = torch.arange(weight.shape[0], device=device) // (weight.shape[0] // groups)
        pushed = (out * value.view(groups, -1)[rows]).sum(1)
        weight.mul_(keep.view(groups, -1)[rows].view(*out.shape, *[1] * (weight.dim() - 2)))
    _add_(layer, "bias", pushed, weight)


def _add_(layer: nn.Module, name: str, what: Tensor, like: Tensor) -> None:
    old = getattr(layer, name)
    total = what if old is None else old.detach().to(what.dtype) + what
    trained = like.requires_grad if old is None else old.requires_grad
    setattr(layer, name, nn.Parameter(total.to(like.dtype), requires_grad=trained))


def _absorb_recurrent_(layer: QRecurrent, plan: LayerPlan) -> None:
    if plan.constants:
        columns = [n for n, _ in plan.constants]
        q = torch.tensor([q for _, q in plan.constants], dtype=torch.float64).T.unsqueeze(1)  # (4, 1, columns)
        for suffix in suffixes(layer)[0]:
            weight = layer.get_parameter(f"weight_ih_{suffix}")
            pushed = hamilton(weight[:, :, columns].to(torch.float64), q.to(weight.device)).sum(2)
            if layer.bias:
                _add_(layer, f"bias_ih_{suffix}", pushed, weight)
            weight[:, :, columns] = 0
    for level, row in enumerate(suffixes(layer)):
        for direction, suffix in enumerate(row):
            units = list(plan.still.get(suffix, ()))
            layer.get_parameter(f"weight_hh_{suffix}")[:, :, units] = 0
            for above in suffixes(layer)[level + 1] if level + 1 < layer.num_layers else []:
                shifted = [direction * layer.hidden_size // 4 + n for n in units]
                layer.get_parameter(f"weight_ih_{above}")[:, :, shifted] = 0


def quaternion(numbers: list[float], input_parts: str) -> tuple[float, ...]:
    """A constant of some components as a whole quaternion."""
    found = dict(zip(input_parts, numbers, strict=True))
    return tuple(found.get(part, 0.0) for part in UNITS)
