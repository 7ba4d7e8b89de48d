"""Recurrent layers: a hidden unit has one place in all levels and directions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.algebra import hamilton
from quern.errors import ExportError
from quern.graph.facts import Value
from quern.graph.functions import FunctionRules, option, unknown, values_of
from quern.graph.layer_plan import LayerPlan
from quern.graph.layers.bases import Whole, factory, nonzero
from quern.graph.packing import Packed, Packer, cat, reshape
from quern.graph.spec import Call, Select, Spec, Work, Writer, add_parameter, both, register, take


def _suffixes(layer: Any) -> list[list[str]]:
    """The endings of the parameters' names, level by level, in each the forward direction first."""
    ends = ("", "_reverse")[: 2 if layer.bidirectional else 1]
    return [[f"l{level}{end}" for end in ends] for level in range(layer.num_layers)]


class Recurrent(Spec):
    """``new`` is the gate that makes what is new in the state. As long as it gives zero, a state that began at zero
    stays there. ``real`` is the layer of torch, with ``options`` that both have."""

    components = 4
    absorbs = True

    def __init__(self, new: int, real: Callable[..., nn.Module], *options: str) -> None:
        self.new, self.real, self.options = new, real, options

    def weights(self, layer: Any) -> list[str]:
        return [name for name, _ in layer.named_parameters(recurse=False) if name.startswith("weight")]

    def shifts(self, layer: Any) -> list[str]:
        return [name for name, _ in layer.named_parameters(recurse=False) if name.startswith("bias")]

    def neurons(self, layer: Any) -> int:
        return layer.num_layers * (2 if layer.bidirectional else 1) * layer.hidden_size // 4

    def carried(self, layer: Any, value: Any) -> Any:
        return value, (value, value) if self.real is nn.LSTM else value

    # ------------------------------------------------------------------------------------------------- flow

    def follow(self, reader: FunctionRules, call: Call) -> Any:
        if not call.values:
            return unknown(call.out)
        value, x = option(call.known, 0, "input", None), option(call.given, 0, "input", None)
        if not isinstance(x, Tensor) or not isinstance(value, Value):  # a packed sequence
            return reader.opaque(call.title, call.values, call.out)
        return self._flow(reader, call, value, x, values_of((call.known[0][1:], call.known[1].get("hx"))))

    def _flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor, states: Sequence[Value]) -> Any:
        """Hidden units that start at zero and are driven by nothing stay at zero; all others count as live, because
        they change from step to step even under constant input."""
        facts, layer, out = reader.facts, call.layer, call.out
        hidden = layer.hidden_size // 4
        value = facts.followed(value, x, -1, 4)
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
            return nonzero(layer.get_parameter(f"{kind}_{suffix}")).any(0).unflatten(0, (layer.gates, hidden))

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
        output = facts.value(out[0], ids, -1, 4, source, call.name, heard.expand(len(ids)))
        # A state has the last axis of units too, but those of several levels in one place.
        some = torch.stack(list(moving.values())).any(0)
        final = [
            facts.value(state, record.outputs, -1, 4, some, call.name, heard.expand(hidden))
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
        return layer.input_size // 4, layer.hidden_size // 4

    def still_names(self, layer: Any) -> set[str]:
        return {suffix for row in _suffixes(layer) for suffix in row}

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        ins, outs = plan.left
        hidden = layer.hidden_size // 4
        rows = [gate * hidden + n for gate in range(layer.gates) for n in outs]
        below = [direction * hidden + n for direction in range(2 if layer.bidirectional else 1) for n in outs]
        selections: dict[str, Select] = {}
        for level, row in enumerate(_suffixes(layer)):
            for suffix in row:
                selections[f"weight_ih_{suffix}"] = both(take(1, rows), take(2, below if level else ins))
                selections[f"weight_hh_{suffix}"] = both(take(1, rows), take(2, outs))
                selections[f"bias_ih_{suffix}"] = selections[f"bias_hh_{suffix}"] = take(1, rows)
        return selections

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        layer.input_size, layer.hidden_size = (4 * len(left) for left in plan.left)

    def absorb(self, layer: Any, plan: LayerPlan) -> None:
        suffixes = _suffixes(layer)
        if plan.constants:
            columns = [n for n, _ in plan.constants]
            q = torch.tensor([q for _, q in plan.constants], dtype=torch.float64).T.unsqueeze(1)  # (4, 1, columns)
            for suffix in suffixes[0]:
                weight = layer.get_parameter(f"weight_ih_{suffix}")
                pushed = hamilton(weight[:, :, columns].to(torch.float64), q.to(weight.device)).sum(2)
                if layer.bias:
                    add_parameter(layer, f"bias_ih_{suffix}", pushed, weight)
                weight[:, :, columns] = 0
        for level, row in enumerate(suffixes):
            for direction, suffix in enumerate(row):
                units = list(plan.still.get(suffix, ()))
                layer.get_parameter(f"weight_hh_{suffix}")[:, :, units] = 0
                for above in suffixes[level + 1] if level + 1 < layer.num_layers else []:
                    shifted = [direction * layer.hidden_size // 4 + n for n in units]
                    layer.get_parameter(f"weight_ih_{above}")[:, :, shifted] = 0

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any, hx: Any = None) -> Any:
        def build() -> nn.Module:
            names = ("num_layers", "bias", "batch_first", "bidirectional", *self.options)
            options = {name: getattr(layer, name) for name in names}
            sizes, dtype = (layer.input_size, layer.hidden_size), layer.weight_ih_l0.dtype
            real = self.real(*sizes, dtype=dtype, device="meta", **options)
            for own in layer._names:
                setattr(real, own, nn.Parameter(layer._real(own).detach().clone()))
            return real

        result = writer.call(name, build, input) if hx is None else writer.call(name, build, input, hx)
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
        units = layer.hidden_size // parts
        x = packer.contiguous(input)
        given = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        last: list[list[Packed]] = [[] for _ in range(count)]
        for level, row in enumerate(_suffixes(layer)):
            directions = []
            for way, suffix in enumerate(row):
                into, own = (self._seen(layer.get_parameter(f"weight_{at}_{suffix}")) for at in ("ih", "hh"))
                if layer.bias:
                    first, second = (self._seen(layer.get_parameter(f"bias_{at}_{suffix}")) for at in ("ih", "hh"))
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

    def _seen(self, t: Tensor) -> Tensor:
        return t if self.components == 4 else t.unsqueeze(0)

    def work(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> list[Work]:
        input = args[0] if args else kwargs["input"]
        data = input if isinstance(input, Tensor) else input.data  # of a packed sequence
        steps = data.numel() // data.shape[-1]
        return [(layer.get_parameter(name), steps, 4) for name in self.weights(layer)]


class RealRecurrent(Whole):
    """``quaternion`` is the layer of the same name."""

    def __init__(self, quaternion: Callable[..., nn.Module], *options: str) -> None:
        self.quaternion, self.options = quaternion, options

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return None

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        if layer.proj_size:
            raise ValueError("a recurrent layer with proj_size has no quaternion form")
        names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional", *self.options)
        options = {name: getattr(layer, name) for name in names} | factory(layer)
        return self.quaternion(layer.input_size, layer.hidden_size, **options)


register(nn.RNN, RealRecurrent(qnn.QRNN, "nonlinearity"))
register(nn.LSTM, RealRecurrent(qnn.QLSTM))
register(nn.GRU, RealRecurrent(qnn.QGRU))
register(qnn.QRNN, Recurrent(0, nn.RNN, "nonlinearity"))
register(qnn.QLSTM, Recurrent(2, nn.LSTM))
register(qnn.QGRU, Recurrent(2, nn.GRU))
