"""Which neurons of a network still matter.

A *unit* is one quaternion channel (or one real channel, after a readout). A unit is *live* if it can depend on the
input: there is a path of non-zero weights and scales from the input to it. It is *needed* if there is such a path from
it to an output. A neuron, an output unit of a quaternion layer, matters if it is both. Biases do not count: a neuron
without live input is a constant, and a network without it can have that constant in the next layer.

The network is traced with torch.fx. An operation without a rule is taken to use all of its input and to make all of
its output live, so the neurons found dead are dead for sure, and what was not understood is noted. The first axis of
every input is taken to be the batch, and what a linear layer hands to a one-dimensional batch normalisation of its size
to be ``(batch, features)``.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from quern import functional as F
from quern import nn as qnn
from quern.errors import TraceError
from quern.graph.trace import Tracer, trace
from quern.nn.bases import QBatchNorm, QConvolution, QRecurrent

__all__ = ["Liveness", "liveness"]

REAL_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
# Modules and functions that keep channels apart: each output channel depends on the same input channel alone.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, qnn.QDropout, qnn.QDropout2d)
APART_MODULES = (
    *(nn.Identity, *DROPOUTS),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid),
)
QUATERNION_POOLS = {qnn.QMaxPool1d: (1,), qnn.QMaxPool2d: (2,), qnn.QMaxPool3d: (3,)}
POOLS: dict[type[nn.Module], tuple[int, ...]] = {
    **{
        getattr(nn, f"{kind}Pool{n}d"): (n,) for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax") for n in (1, 2, 3)
    },
    **QUATERNION_POOLS,
    nn.Upsample: (1, 2, 3),
}
REAL_NORMS = {nn.BatchNorm1d: (0, 1), nn.BatchNorm2d: (2,), nn.BatchNorm3d: (3,)}
BATCH_NORMS = (*REAL_NORMS, QBatchNorm, qnn.QWhiteningBatchNorm2d)
WITH_NEURONS = (qnn.QLinear, QConvolution, qnn.QEmbedding, QRecurrent)
OF_QUATERNIONS = (QBatchNorm, qnn.QWhiteningBatchNorm2d, qnn.QModReLU, qnn.Modulus, *QUATERNION_POOLS)
ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "leaky_relu", "relu6", "hardtanh", "softplus")
APART_FUNCTIONS = {
    *(getattr(TF, name) for name in (*ACTIVATIONS, "dropout", "dropout1d", "dropout2d", "dropout3d")),
    *(torch.relu, torch.tanh, torch.sigmoid, operator.neg, torch.neg, F.dropout),
}
POOL_FUNCTIONS = {
    getattr(TF, f"{kind}_pool{n}d"): (n,) for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)
}
APART_METHODS = {"relu", "tanh", "sigmoid", "contiguous", "clone", "detach", "float", "double", "half", "to", "neg"}
JOINING = {operator.add, operator.iadd, operator.sub, operator.mul, operator.imul, operator.truediv}
JOINING |= {torch.add, torch.sub, torch.mul, torch.div}
JOINING_METHODS = {"add", "add_", "sub", "mul", "mul_", "div"}
SIZES = {"shape", "ndim", "dtype", "device"}
SIZE_METHODS = {"size", "dim", "numel"}
REDUCTIONS = {torch.mean, torch.sum, torch.amax, torch.amin}
REDUCING_METHODS = {"mean", "sum", "amax", "amin"}


def convolution_edges(layer: Any, some: Tensor) -> Tensor:
    """``(outputs, inputs)`` of a convolution, both over all groups, where ``some``, of the shape of its weight, is
    True: quaternions, or channels of a real one."""
    if isinstance(layer, QConvolution):
        some = some.any(0)
    elif layer.transposed:  # (in, out/groups, ...)
        some = torch.cat([part.transpose(0, 1) for part in some.chunk(layer.groups)])
    some = some.flatten(2).any(2)
    return some if layer.groups == 1 else torch.block_diag(*some.chunk(layer.groups)).bool()


@dataclass(frozen=True)
class Liveness:
    """``alive[name]`` has one entry per neuron of the quaternion layer ``name``; ``notes`` says what was not followed.

    The neurons of a recurrent layer stand level by level, in each the forward direction first. ``dead`` if no output
    of the network depends on its input, None where that is not known because the network cannot be traced.
    """

    alive: dict[str, Tensor]
    notes: tuple[str, ...]
    dead: bool | None


@dataclass(eq=False)
class _Value:
    """What is known of one value in the network: its units, or ``live=None`` where even their number is not known.

    The units lie along ``axis``: 1, or -1 where the number of axes ``dims`` may be None, not known. The units of
    ``real`` values are real channels, those of others quaternions. ``flat`` values had their space flattened into the
    channels: each unit stands for several in a row.
    """

    live: Tensor | None
    axis: int = -1
    dims: int | None = None
    flat: bool = False
    real: bool = False
    needed: Tensor | None = None
    wholly_needed: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        if self.dims == 2:
            self.axis = -1

    @property
    def depends(self) -> bool:
        """Whether the value may depend on an input."""
        return not self.fixed if self.live is None else bool(self.live.any())

    def lies_along(self, dim: Any) -> bool:
        """Whether ``dim`` is the axis of the units; where ``dims`` is not known, sizes will tell at the next layer."""
        if not isinstance(dim, int):
            return False
        if self.dims is None:
            return dim == -1 or dim > 0
        return dim % self.dims == self.axis % self.dims

    def has_space(self, space: tuple[int, ...]) -> bool:
        """Whether so many axes come after the units on axis 1."""
        if self.axis == 1 and self.dims is not None:
            return self.dims - 2 in space
        return 0 in space and self.dims in (None, 2)

    def need(self, units: Tensor) -> None:
        if self.live is None:
            self.wholly_needed |= bool(units.any())
        else:
            units = units.view(len(self.live), -1).any(1)
            self.needed = units if self.needed is None else self.needed | units

    def is_needed(self, size: int) -> Tensor:
        if self.wholly_needed or self.needed is None:
            return torch.full((size,), self.wholly_needed)
        return _spread(self.needed, size)


def _spread(units: Tensor, size: int) -> Tensor:
    """One entry per unit as one per feature: each is repeated where space was flattened."""
    return units.repeat_interleave(size // len(units))


@dataclass
class _Pass:
    """Both passes over one network: rules run forward and leave behind what is to be done backward."""

    tol: float
    alive: dict[nn.Module, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    dead: bool | None = None
    backward: list[Callable[[], None]] = field(default_factory=list)

    def nonzero(self, t: Tensor) -> Tensor:
        return ~(t.detach().abs() <= self.tol).cpu()

    def live(self, value: _Value, size: int) -> Tensor:
        return torch.full((size,), not value.fixed) if value.live is None else _spread(value.live, size)

    def fitting(self, name: str, value: _Value, space: tuple[int, ...] | None, channels: int) -> _Value:
        """``value`` if it has ``channels`` real channels where a layer looks for them, else what is not known: on axis
        1 before as many axes as ``space`` says, or on the last axis."""
        if value.live is None:
            return value
        size, rest = (channels, 0) if value.real else divmod(channels, 4)
        fits = not rest and (size == len(value.live) or (value.flat and size % len(value.live) == 0))
        placed = value.axis == -1 if space is None else value.has_space(space)
        return value if fits and placed else self.opaque(name, [value])

    def through(self, value: _Value, **changes: Any) -> _Value:
        """An operation that keeps units apart; ``changes`` are those of the value."""
        out = replace(value, needed=None, wholly_needed=False, **changes)
        units = 1 if value.live is None else len(value.live)
        self.backward.append(lambda: value.need(out.is_needed(units)))
        return out

    def scaled(self, value: _Value, scale: Tensor, space: tuple[int, ...], real: bool) -> _Value:
        """A normalisation with one scale for each real channel. A quaternion one, not ``real``, makes units known,
        unless they may be on the last axis."""
        if value.live is None and (real or 0 in space):
            return self.through(value)
        out = _Value(None, 1, 2 + space[0]) if value.live is None else replace(value)
        kept = self.nonzero(scale) if out.real else self.nonzero(scale).unflatten(0, (4, -1)).any(0)
        out.live, out.needed, out.wholly_needed = self.live(value, len(kept)) & kept, None, False
        self.backward.append(lambda: value.need(out.is_needed(len(kept)) & kept))
        return out

    def weighted(self, value: _Value, edges: Tensor, layer: nn.Module | None, dims: int | None) -> _Value:
        """A layer with ``edges (out, in)``, True where a weight is not zero, one column per real channel. ``layer`` if
        its outputs are quaternions, that is, neurons; ``dims`` None for layers of the last axis."""
        edges = _by_unit(edges, value)
        axis = -1 if dims is None else 1
        live = (edges & self.live(value, edges.shape[1])).any(1)
        out = _Value(live, axis, dims or value.dims, real=layer is None)

        def back() -> None:
            needed = out.is_needed(len(live))
            value.need((edges & needed.unsqueeze(1)).any(0))
            if layer is not None:
                self.matter(layer, live & needed)

        self.backward.append(back)
        return out

    def matter(self, layer: nn.Module, neurons: Tensor) -> None:
        """A layer used several times keeps what matters in any of its uses."""
        self.alive[layer] = neurons | self.alive[layer] if layer in self.alive else neurons

    def joined(self, name: str, values: Sequence[_Value]) -> _Value:
        """An operation on corresponding units of several values, such as an addition."""
        lives = [v.live for v in values if v.live is not None]
        kinds = {(len(v.live), v.real, v.dims if v.axis == 1 else None) for v in values if v.live is not None}
        if len(lives) < len(values) or len(kinds) != 1:
            return self.opaque(name, values)
        dims = values[0].dims if len({v.dims for v in values}) == 1 else None
        live = torch.stack(lives).any(0)
        out = _Value(live, values[0].axis, dims, any(v.flat for v in values), values[0].real)

        def back() -> None:
            for value in values:
                value.need(out.is_needed(len(live)))

        self.backward.append(back)
        return out

    def concatenated(self, name: str, values: Sequence[_Value], dim: Any) -> _Value:
        parts = [v.live for v in values if v.live is not None and not v.flat and not v.real and v.lies_along(dim)]
        if len(parts) < len(values) or len({(v.axis, v.dims) for v in values}) != 1:
            return self.opaque(name, values)
        out = replace(values[0], live=torch.cat(parts), needed=None, wholly_needed=False)

        def back() -> None:
            needed = out.is_needed(sum(map(len, parts))).split([len(part) for part in parts])
            for value, part in zip(values, needed, strict=True):
                value.need(part)

        self.backward.append(back)
        return out

    def opaque(self, name: str, values: Sequence[_Value]) -> _Value:
        """An operation without a rule. It is noted, unless nothing was known of its input either."""
        if any(v.live is not None for v in values):
            self.notes.append(f"{name} has no rule for its input, all of which counts as used")

        def back() -> None:
            for value in values:
                value.wholly_needed = True

        self.backward.append(back)
        return _Value(None, fixed=bool(values) and not any(v.depends for v in values))


def _by_unit(edges: Tensor, value: _Value) -> Tensor:
    """Columns of real channels as columns of units. Quaternions are component-major."""
    return edges if value.live is None or value.real else edges.unflatten(1, (4, -1)).any(1)


def _edges(run: _Pass, layer: nn.Module) -> Tensor:
    """Where the weight of a layer is not zero, as ``(out, in)``: outputs are units, inputs real channels."""
    assert isinstance(layer.weight, Tensor)
    some = run.nonzero(layer.weight)
    if isinstance(layer, nn.Linear):
        return some
    if isinstance(layer, qnn.QLinear):
        return some.any(0).repeat(1, len(layer.input_parts))
    assert isinstance(layer, (QConvolution, *REAL_CONVOLUTIONS))
    some = convolution_edges(layer, some)
    return some.repeat(1, len(layer.input_parts)) if isinstance(layer, QConvolution) else some


def _recurrent(run: _Pass, layer: QRecurrent, value: _Value) -> tuple[_Value, Any]:
    hidden, directions = layer.hidden_size // 4, 2 if layer.bidirectional else 1

    def edges(kind: str, level: int, direction: int) -> Tensor:
        weight = layer.get_parameter(f"weight_{kind}_l{level}{('', '_reverse')[direction]}")
        return run.nonzero(weight).any(0).unflatten(0, (layer.gates, hidden)).any(0)

    levels: list[list[tuple[Tensor, Tensor, Tensor]]] = []  # per level and direction: input edges, own edges, live
    live = torch.empty(0)
    for level in range(layer.num_layers):
        row = []
        for direction in range(directions):
            inputs, own = edges("ih", level, direction), edges("hh", level, direction)
            if level == 0:
                inputs = _by_unit(inputs.repeat(1, 4), value)
                live = run.live(value, inputs.shape[1])
            now = (inputs & live).any(1)
            while not torch.equal(grown := now | (own & now).any(1), now):
                now = grown
            row.append((inputs, own, now))
        levels.append(row)
        live = torch.cat([now for _, _, now in row])
    out = _Value(live, dims=value.dims)
    states = [_Value(torch.stack([now for row in levels for _, _, now in row]).any(0)) for _ in range(2)]

    def back() -> None:
        of_state = states[0].is_needed(hidden) | states[1].is_needed(hidden)
        needed = out.is_needed(directions * hidden)
        matter = []
        for row in reversed(levels):
            below, mattering = torch.zeros_like(row[0][0][0]), []
            for (inputs, own, now), part in zip(row, needed.split(hidden), strict=True):
                wanted = part | of_state
                while not torch.equal(grown := wanted | (own & wanted.unsqueeze(1)).any(0), wanted):
                    wanted = grown
                below |= (inputs & wanted.unsqueeze(1)).any(0)
                mattering.append(now & wanted)
            needed, matter = below, mattering + matter
        value.need(needed)
        run.matter(layer, torch.cat(matter))

    run.backward.append(back)
    return out, tuple(states) if isinstance(layer, qnn.QLSTM) else states[0]


def _attention(run: _Pass, layer: qnn.QMultiheadAttention, inputs: Sequence[_Value], masked: bool) -> tuple[Any, Any]:
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    q, k, v = (run.weighted(x, _edges(run, p), p, None) for x, p in zip(inputs, projections, strict=True))
    wide = layer.embed_dim // 4

    def whole_heads(units: Tensor) -> Tensor:
        return units.view(layer.num_heads, -1).any(1).repeat_interleave(wide // layer.num_heads)

    # Weighing the same constant at every place gives it again; one that differs from place to place becomes live.
    uneven = _edges(run, layer.v_proj).any(1) | (layer.bias_v is not None or layer.add_zero_attn)
    scores = whole_heads(run.live(q, wide) | run.live(k, wide)) | masked
    mixed = _Value(run.live(v, wide) | (scores & uneven), dims=v.dims)
    weights = _Value(None)

    def back() -> None:
        needed = mixed.is_needed(wide)
        v.need(needed)
        for side in (q, k):
            side.need(whole_heads(needed & uneven) | weights.wholly_needed)

    run.backward.append(back)
    return run.weighted(mixed, _edges(run, layer.out_proj), layer.out_proj, None), weights


def _values(args: Any) -> list[_Value]:
    found: list[_Value] = []
    map_aggregate(args, lambda a: found.append(a) if isinstance(a, _Value) else None)
    return found


def _space(table: dict[type[nn.Module], tuple[int, ...]], layer: nn.Module) -> tuple[int, ...]:
    return next((space for kind, space in table.items() if isinstance(layer, kind)), ())


def _module(run: _Pass, layer: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = f"{name} ({type(layer).__name__})"
    values = _values((args, kwargs))
    if isinstance(layer, qnn.QMultiheadAttention):
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        inputs = [given.get(part) for part in ("query", "key", "value")]
        masks = [v for v in values if not any(v is i for i in inputs)]
        run.opaque(name, masks)
        found = [i if isinstance(i, _Value) else _Value(None) for i in inputs]
        sizes = (layer.embed_dim, layer.kdim, layer.vdim)
        found = [run.fitting(name, v, None, size) for v, size in zip(found, sizes, strict=True)]
        return _attention(run, layer, found, bool(masks))
    if isinstance(layer, qnn.QEmbedding):
        run.opaque(name, values)
        live = _alone(run, layer)
        out = _Value(live)
        run.backward.append(lambda: run.matter(layer, live & out.is_needed(len(live))))
        return out
    if len(values) != 1:
        return run.opaque(name, values)
    (value,) = values
    if isinstance(layer, QRecurrent):
        return _recurrent(run, layer, run.fitting(name, value, None, layer.input_size))
    neurons = layer if isinstance(layer, (qnn.QLinear, QConvolution)) else None
    if isinstance(layer, (qnn.QLinear, nn.Linear)):
        value = run.fitting(name, value, None, layer.in_features)
        return run.weighted(value, _edges(run, layer), neurons, None)
    if isinstance(layer, (QConvolution, *REAL_CONVOLUTIONS)):
        space = len(layer.kernel_size)
        value = run.fitting(name, value, (space,), layer.in_channels)
        return run.weighted(value, _edges(run, layer), neurons, space + 2)
    if isinstance(layer, OF_QUATERNIONS) and value.real:
        return run.opaque(name, values)
    if isinstance(layer, (QBatchNorm, qnn.QWhiteningBatchNorm2d)):
        n = layer.num_features // 4
        scale = torch.ones(n) if layer.weight is None else layer.weight.abs().reshape(-1, n).amax(0)
        space = layer.space if isinstance(layer, QBatchNorm) else (2,)
        return run.scaled(run.fitting(name, value, space, 4 * n), scale.repeat(4), space, real=False)
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        scale = torch.ones(layer.num_features) if layer.weight is None else layer.weight
        space = _space(REAL_NORMS, layer)
        return run.scaled(run.fitting(name, value, space, layer.num_features), scale, space, real=True)
    if isinstance(layer, (*APART_MODULES, qnn.QModReLU, nn.PReLU)):
        return run.through(value)
    if space := _space(POOLS, layer):
        return _pooled(run, name, value, space)
    if isinstance(layer, qnn.Modulus):
        return _modulus(run, name, value, layer.dim)
    if isinstance(layer, nn.Flatten):
        return _flattened(run, name, value, layer.start_dim, layer.end_dim)
    return run.opaque(name, values)


def _pooled(run: _Pass, name: str, value: _Value, space: tuple[int, ...]) -> _Value:
    return run.through(value) if value.live is None or value.has_space(space) else run.opaque(name, [value])


def _modulus(run: _Pass, name: str, value: _Value, dim: Any) -> _Value:
    if value.live is None or (value.lies_along(dim) and not value.real):
        return run.through(value, real=True)
    return run.opaque(name, [value])


def _flattened(run: _Pass, name: str, value: _Value, start: Any, end: Any) -> _Value:
    """Units along axis 1 stay together; sequences would be cut across."""
    if start == 1 and end == -1 and (value.live is None or value.axis == 1 or value.dims == 2):
        return run.through(value, flat=True, dims=2)
    return run.opaque(name, [value])


def _reduced(run: _Pass, name: str, value: _Value, dim: Any, keepdim: bool) -> _Value:
    """A mean or a sum over some axes, of which the units' must be none."""
    axes = dim if isinstance(dim, (tuple, list)) else [dim]
    if not axes or any(not isinstance(d, int) for d in axes):
        return run.opaque(name, [value])
    if value.dims is None:
        return run.through(value) if all(d < -1 for d in axes) else run.opaque(name, [value])
    if any(d % value.dims in (0, value.axis % value.dims) for d in axes):
        return run.opaque(name, [value])
    return run.through(value, dims=value.dims - (0 if keepdim else len(axes)))


def _function(run: _Pass, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], method: bool) -> Any:
    values = _values((args, kwargs))
    asks_size = target in SIZE_METHODS if method else target is getattr and args[1] in SIZES
    if not values or asks_size:
        return None  # not a value of the network
    if target is operator.getitem and isinstance(args[0], tuple):
        return args[0][args[1]]
    if target is F.cat and len(values) == len(_option(args, kwargs, 0, "tensors", ())):
        return run.concatenated(name, values, _option(args, kwargs, 1, "dim", 1))
    if len(values) > 1:
        joins = target in (JOINING_METHODS if method else JOINING)
        return run.joined(name, values) if joins else run.opaque(name, values)
    (value,) = values
    if target in (APART_METHODS | JOINING_METHODS if method else APART_FUNCTIONS | JOINING):
        return run.through(value)
    if target in POOL_FUNCTIONS:
        return _pooled(run, name, value, POOL_FUNCTIONS[target])
    if target is F.modulus:
        return _modulus(run, name, value, _option(args, kwargs, 1, "dim", 1))
    if target in (("flatten",) if method else (torch.flatten,)):
        start, end = _option(args, kwargs, 1, "start_dim", 0), _option(args, kwargs, 2, "end_dim", -1)
        return _flattened(run, name, value, start, end)
    if target in (("view", "reshape") if method else (torch.reshape,)):
        sizes = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        if len(sizes) == 2 and sizes[1] == -1:  # as one flattens: the first axis is the batch
            return _flattened(run, name, value, 1, -1)
        return run.opaque(name, values)
    if target in (REDUCING_METHODS if method else REDUCTIONS):
        dim, keepdim = _option(args, kwargs, 1, "dim", None), _option(args, kwargs, 2, "keepdim", False)
        return _reduced(run, name, value, dim, keepdim)
    return run.opaque(name, values)


def _option(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def liveness(model: nn.Module, tol: float = 0.0) -> Liveness:
    """Which neurons of the quaternion layers in ``model`` still matter; weights up to ``tol`` count as zero."""
    run = _Pass(tol)
    root = nn.Sequential(model) if Tracer().is_leaf_module(model, "") else model
    try:
        graph = trace(root)
    except TraceError as reason:
        run.notes.append(f"each layer was looked at alone: {reason}")
    else:
        _follow(run, root, graph)
        run.notes += [
            f"{name} ({type(layer).__name__}) was not reached, so it was looked at alone"
            for name, layer in model.named_modules()
            if isinstance(layer, WITH_NEURONS) and layer not in run.alive
        ]
    alive = {
        name: run.alive[layer] if layer in run.alive else _alone(run, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, WITH_NEURONS)
    }
    return Liveness(alive, tuple(dict.fromkeys(run.notes)), run.dead)


def _alone(run: _Pass, layer: nn.Module) -> Tensor:
    if isinstance(layer, QRecurrent):  # with an initial state its weights do not tell
        directions = 2 if layer.bidirectional else 1
        return torch.ones(layer.num_layers * directions * layer.hidden_size // 4, dtype=torch.bool)
    if isinstance(layer, qnn.QEmbedding):
        return run.nonzero(layer.weight).any(0).any(0)
    return _edges(run, layer).any(1)


def _follow(run: _Pass, model: nn.Module, graph: fx.Graph) -> None:
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: known[n])
        if node.op == "placeholder":
            known[node] = _Value(None)
        elif node.op == "call_module":
            known[node] = _module(run, model.get_submodule(str(node.target)), str(node.target), args, kwargs)
        elif node.op in ("call_function", "call_method"):
            known[node] = _function(run, node.name, node.target, args, kwargs, node.op == "call_method")
            if node.op == "call_method" and str(node.target).endswith("_"):  # it changed the value itself
                known[node.args[0]] = known[node]
        elif node.op == "output":
            for value in _values(args):
                value.wholly_needed = True
            run.dead = not any(value.depends for value in _values(args))
        else:
            known[node] = None  # a parameter used directly: not a value of the network
    for back in reversed(run.backward):
        back()
