"""Recurrent layers: a hidden unit has one place in all levels and directions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.algebra import hamilton
from quern.errors import ExportError
from quern.functional.products import nearest_weight
from quern.graph.functions import FunctionRules, option, unknown, values_of
from quern.graph.layer_plan import LayerPlan
from quern.graph.layers.bases import factory, grain, nonzero, order, square
from quern.graph.packing import Packed, Packer, cat, reshape
from quern.graph.spec import Call, Nearest, Select, Spec, Work, Writer, add_parameter, both, register, take
from quern.graph.values import Value


def _suffixes(layer: Any) -> list[list[str]]:
    """The endings of the parameters' names, level by level, in each the forward direction first."""
    ends = ("", "_reverse")[: 2 if layer.bidirectional else 1]
    return [[f"l{level}{end}" for end in ends] for level in range(layer.num_layers)]


class Recurrent(Spec):
    """``new`` is, of so many ``gates``, the one that makes what is new in the state: as long as it gives zero, a state
    that began at zero stays there. A weight is seen as ``(components, gates * units, in)`` and a bias as
    ``(components, gates * units)``, where a real layer has one component. ``real`` is the layer of torch and
    ``quaternion`` ours, with ``options`` that both have."""

    absorbs = True

    def __init__(
        self,
        components: int,
        gates: int,
        new: int,
        real: Callable[..., nn.Module],
        quaternion: Callable[..., nn.Module],
        options: Sequence[str],
    ) -> None:
        self.components, self.gates, self.new = components, gates, new
        self.real, self.quaternion, self.options = real, quaternion, options

    def seen(self, t: Tensor) -> Tensor:
        return t if self.components == 4 else t.unsqueeze(0)

    def units(self, layer: Any) -> int:
        """How many hidden units there are in each level and direction."""
        return layer.hidden_size // self.components

    def weights(self, layer: Any) -> list[str]:
        return [name for name, _ in layer.named_parameters(recurse=False) if name.startswith("weight")]

    def shifts(self, layer: Any) -> list[str]:
        return [name for name, _ in layer.named_parameters(recurse=False) if name.startswith("bias")]

    def neurons(self, layer: Any) -> int:
        return layer.num_layers * (2 if layer.bidirectional else 1) * self.units(layer)

    def neuron_axes(self, layer: Any) -> dict[str, tuple[int, int]]:
        """One neuron is a hidden unit in all levels and directions, with all its gates."""
        where = (1 if self.components == 4 else 0, self.gates)
        return (
            {} if getattr(layer, "proj_size", 0) else dict.fromkeys((*self.weights(layer), *self.shifts(layer)), where)
        )

    def carried(self, layer: Any, value: Any) -> Any:
        return value, (value, value) if self.real is nn.LSTM else value

    # ------------------------------------------------------------------------------------------------- flow

    def follow(self, reader: FunctionRules, call: Call) -> Any:
        if not call.values:
            return unknown(call.out)
        value, x = option(call.known, 0, "input", None), option(call.given, 0, "input", None)
        if not isinstance(x, Tensor) or not isinstance(value, Value):  # a packed sequence
            return reader.opaque(call.title, call.values, call.out)
        if getattr(call.layer, "proj_size", 0):  # every hidden unit enters every number of the output
            return reader.whole(call.values, call.out)
        return self._flow(reader, call, value, x, values_of((call.known[0][1:], call.known[1].get("hx"))))

    def _flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor, states: Sequence[Value]) -> Any:
        """Hidden units that start at zero and are driven by nothing stay at zero; all others count as live, because
        they change from step to step even under constant input."""
        facts, layer, out = reader.facts, call.layer, call.out
        hidden, axis = self.units(layer), x.dim() - 1
        value = facts.followed(value, x, axis, grain(self, reader, layer, value, axis))
        assert value.ids is not None
        facts.whole(*states)
        record = facts.record(call.name, layer, value.ids, hidden)
        assert record.outputs is not None
        record.absorbs = layer.bias
        record.calls.append(value)
        if states:
            facts.pin(record.outputs)
        new = self.new

        def weight(kind: str, suffix: str) -> Tensor:
            some = self.seen(nonzero(layer.get_parameter(f"{kind}_{suffix}"))).any(0)
            if kind == "weight_ih" and suffix in _suffixes(layer)[0]:  # four real inputs may be one quaternion
                some = some.unflatten(1, (-1, len(value.live))).any(1)
            return some.unflatten(0, (self.gates, hidden))

        # Forward: which hidden units ever leave zero.
        moving: dict[str, Tensor] = {}
        source = value.live | value.pushing
        for row in _suffixes(layer):
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
        output = facts.value(out[0], ids, -1, self.components, source, call.name, heard.expand(len(ids)))
        # A state has the last axis of units too, but those of several levels in one place.
        some = torch.stack(list(moving.values())).any(0)
        final = [
            facts.value(state, record.outputs, -1, self.components, some, call.name, heard.expand(hidden))
            for state in (out[1] if isinstance(out[1], tuple) else (out[1],))
        ]
        edges = torch.cat([weight("weight_ih", suffix).flatten(0, 1) for suffix in _suffixes(layer)[0]])
        record.edges, record.rows = edges, torch.ones(len(edges), dtype=torch.bool)

        def back() -> None:
            of_state = torch.stack([state.needed for state in final]).any(0)
            needed = output.needed.clone()
            for row in reversed(_suffixes(layer)):
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

    # ---------------------------------------------------------------------------------------------- narrowing

    def sizes(self, layer: Any) -> tuple[int | None, int | None]:
        return layer.input_size // self.components, self.units(layer)

    def still_names(self, layer: Any) -> set[str]:
        return {suffix for row in _suffixes(layer) for suffix in row}

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        ins, outs = plan.left
        hidden = self.units(layer)
        rows = [gate * hidden + n for gate in range(self.gates) for n in outs]
        below = [direction * hidden + n for direction in range(2 if layer.bidirectional else 1) for n in outs]
        selections: dict[str, Select] = {}
        for level, row in enumerate(_suffixes(layer)):
            for suffix in row:
                selections[f"weight_ih_{suffix}"] = both(take(-2, rows), take(-1, below if level else ins))
                selections[f"weight_hh_{suffix}"] = both(take(-2, rows), take(-1, outs))
                selections[f"bias_ih_{suffix}"] = selections[f"bias_hh_{suffix}"] = take(-1, rows)
        return selections

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        layer.input_size, layer.hidden_size = (self.components * len(left) for left in plan.left)

    def absorb(self, layer: Any, plan: LayerPlan) -> None:
        suffixes = _suffixes(layer)
        if plan.constants:
            columns = [n for n, _ in plan.constants]
            numbers = torch.tensor([q for _, q in plan.constants], dtype=torch.float64).T.unsqueeze(1)
            product = hamilton if self.components == 4 else torch.mul  # of (components, rows or 1, columns)
            for suffix in suffixes[0]:
                weight = layer.get_parameter(f"weight_ih_{suffix}")
                pushed = product(self.seen(weight)[..., columns].double(), numbers.to(weight.device)).sum(2)
                if layer.bias:
                    bias = pushed if self.components == 4 else pushed.squeeze(0)
                    add_parameter(layer, f"bias_ih_{suffix}", bias, weight)
                weight[..., columns] = 0
        for level, row in enumerate(suffixes):
            for direction, suffix in enumerate(row):
                units = list(plan.still.get(suffix, ()))
                layer.get_parameter(f"weight_hh_{suffix}")[..., units] = 0
                for above in suffixes[level + 1] if level + 1 < layer.num_layers else []:
                    shifted = [direction * self.units(layer) + n for n in units]
                    layer.get_parameter(f"weight_ih_{above}")[..., shifted] = 0

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any, hx: Any = None) -> Any:
        given = (input,) if hx is None else (input, hx)
        if self.components == 1:
            return super().to_real(writer, name, layer, *given)

        def build() -> nn.Module:
            names = ("num_layers", "bias", "batch_first", "bidirectional", *self.options)
            options = {name: getattr(layer, name) for name in names}
            sizes, dtype = (layer.input_size, layer.hidden_size), layer.weight_ih_l0.dtype
            real = self.real(*sizes, dtype=dtype, device="meta", **options)
            for own in layer._names:
                setattr(real, own, nn.Parameter(layer._real(own).detach().clone()))
            return real

        result = writer.call(name, build, *given)
        output = result[0]
        if layer.bidirectional:  # torch joins the directions as they are
            output = output.unflatten(-1, (2, 4, -1)).transpose(-3, -2).flatten(-3)
        return output, result[1]

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed, hx: Any = None) -> Any:
        """Level by level: what the input gives to all gates, a linear layer, and then the steps."""
        if input.view.dim() != 3:
            raise ExportError("a sequence without a batch is not in the runtime.")
        kind = {nn.LSTM: "LSTM", nn.GRU: "GRU"}.get(self.real) or f"RNN_{layer.nonlinearity.upper()}"  # pyright: ignore[reportArgumentType, reportCallIssue]
        count, parts = (2 if kind == "LSTM" else 1), self.components
        units = self.units(layer)
        x = packer.contiguous(input)
        given = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        last: list[list[Packed]] = [[] for _ in range(count)]
        for level, row in enumerate(_suffixes(layer)):
            directions = []
            for way, suffix in enumerate(row):
                into, own = (self.seen(layer.get_parameter(f"weight_{at}_{suffix}")) for at in ("ih", "hh"))
                if layer.bias:
                    first, second = (self.seen(layer.get_parameter(f"bias_{at}_{suffix}")) for at in ("ih", "hh"))
                else:
                    first = second = into.new_zeros(into.shape[:2])
                place = level * len(row) + way
                states = [state.moved(lambda t, place=place: t[place]) for state in given] or [None] * count
                gates = packer.linear(f"{name}.weight_ih_{suffix}", x, into, first, (1 << parts) - 1)
                where = f"{name}.weight_hh_{suffix}"
                y, ends = packer.recurrent(where, kind, gates, own, second, states, reverse=way == 1)
                directions.append(y)
                for collected, end in zip(last, ends, strict=True):
                    collected.append(end)
            split = [y.moved(lambda t: t.unflatten(-1, (parts, units))) for y in directions]
            joined = split[0] if len(split) == 1 else cat(packer, split, -1)
            x = reshape(packer, joined, (*x.view.shape[:2], len(row) * layer.hidden_size))
        final = tuple(cat(packer, [end.moved(lambda t: t.unsqueeze(0)) for end in ends], 0) for ends in last)
        output = x if layer.batch_first else x.moved(lambda t: t.transpose(0, 1))
        return output, final if kind == "LSTM" else final[0]

    def work(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> list[Work]:
        input = args[0] if args else kwargs["input"]
        data = input if isinstance(input, Tensor) else input.data  # of a packed sequence
        steps = data.numel() // data.shape[-1]
        return [(layer.get_parameter(name), steps, self.components) for name in self.weights(layer)]

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return None if self.components == 1 else -1

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        if self.components == 4:
            return None
        if layer.proj_size:
            raise ValueError("a recurrent layer with proj_size has no quaternion form")
        names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional", *self.options)
        options = {name: getattr(layer, name) for name in names} | factory(layer)
        return self.quaternion(layer.input_size, layer.hidden_size, **options)

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        """Gate by gate. Above the first level a layer takes all directions, each with its hidden units in order."""
        hidden, ways = layer.hidden_size, 2 if layer.bidirectional else 1
        inputs, units = order(inputs, layer.input_size), order(outputs, hidden)
        both_ways = torch.cat([units + way * hidden for way in range(ways)], 1)
        rows = torch.cat([units + gate * hidden for gate in range(self.gates)], 1)
        tensors: dict[str, Tensor] = {}
        for level, suffixes in enumerate(_suffixes(layer)):
            for suffix in suffixes:
                columns = {"weight_ih": both_ways if level else inputs, "weight_hh": units}
                for name, places in columns.items():
                    real = layer.get_parameter(f"{name}_{suffix}").detach().cpu().double()
                    blocks = real[rows.flatten()][:, places.flatten()].unflatten(1, (4, -1)).unflatten(0, (4, -1))
                    tensors[f"{name}_{suffix}"] = nearest_weight(blocks)
                for name in ("bias_ih", "bias_hh") if layer.bias else ():
                    tensors[f"{name}_{suffix}"] = layer.get_parameter(f"{name}_{suffix}").detach().cpu()[rows]
        weights = self.weights(layer)
        kept = 4 * square(*(tensors[name] for name in weights))
        return Nearest(tensors, kept, square(*map(layer.get_parameter, weights)))


for _kind, _gates, _new, _options in (("RNN", 1, 0, ("nonlinearity",)), ("LSTM", 4, 2, ()), ("GRU", 3, 2, ())):
    _real, _quaternion = getattr(nn, _kind), getattr(qnn, f"Q{_kind}")
    register(_real, Recurrent(1, _gates, _new, _real, _quaternion, _options))
    register(_quaternion, Recurrent(4, _gates, _new, _real, _quaternion, _options))
