"""Linear layers, and what convolutions have in common with them: one weight, and edges from inputs to outputs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from quern.algebra import UNITS, hamilton
from quern.functional.products import block_weight, nearest_weight
from quern.graph.functions import FunctionRules
from quern.graph.layer_plan import LayerPlan
from quern.graph.layers.bases import OneToOne, factory, grain, image_parts, nonzero, order, real_layer, square
from quern.graph.packing import Packed, Packer
from quern.graph.spec import Affine, Call, Nearest, Select, Shape, Work, Writer, add_parameter, both, register, take
from quern.graph.values import Value


class Linear(OneToOne):
    """``y = W x + b``. Its weight is seen as ``(components, out, in/groups, *kernel)``, where a real layer has one
    component, and its bias as ``(components, out)``."""

    costly = absorbs = True
    size = ("in_features", "out_features")  # under which names the layer keeps how many real channels it has

    def __init__(self, components: int) -> None:
        self.components = components
        # Whether what constant inputs do next to zero padding can be kept, as the layer's ``constant``.
        self.holds_borders = components == 4

    def parts(self, layer: Any) -> int:
        """How many real numbers an input channel of the weight is."""
        return len(layer.input_parts) if self.components == 4 else 1

    def groups(self, layer: Any) -> int:
        return 1

    def seen(self, layer: Any) -> Select:
        """How a tensor of the shape of the weight becomes one ``(components, out, in/groups, *kernel)``."""
        return (lambda t: t) if self.components == 4 else (lambda t: t.unsqueeze(0))

    def stored(self, layer: Any) -> Select:
        """The way back."""
        return (lambda t: t) if self.components == 4 else (lambda t: t.squeeze(0))

    def pads(self, layer: Any) -> bool:
        """Whether a constant input gives another value at the border than in the middle."""
        return False

    def weights(self, layer: Any) -> tuple[str, ...]:
        return ("weight",)

    def shifts(self, layer: Any) -> tuple[str, ...]:
        return ("bias",)

    def neurons(self, layer: Any) -> int:
        return self.sizes(layer)[1] or 0

    def neuron_axes(self, layer: Any) -> dict[str, tuple[int, int]]:
        axis = 1 if self.components == 4 or getattr(layer, "transposed", False) else 0
        axes = {"weight": (axis, 1), "bias": (1 if self.components == 4 else 0, 1)}
        return {} if axis and self.components == 1 and self.groups(layer) > 1 else axes

    def silent(self, layer: Any) -> Tensor:
        return ~self.edges(layer).any(1)

    # ------------------------------------------------------------------------------------------------- flow

    def edges(self, layer: Any) -> Tensor:
        """``(outputs, inputs)`` over all groups: where some number of the weight is not zero."""
        some = self.seen(layer)(nonzero(layer.weight)).any(0)
        some = some.flatten(2).any(2) if some.dim() > 2 else some
        groups = self.groups(layer)
        return some if groups == 1 else torch.block_diag(*some.chunk(groups)).bool()

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        layer = call.layer
        axis = x.dim() - 1 - len(getattr(layer, "kernel_size", ()))
        parts = self.parts(layer)
        if self.components == 1 and self.groups(layer) == 1:
            parts = grain(self, reader, layer, value, axis)
        value = reader.facts.followed(value, x, axis, parts)
        units, uneven = len(value.live), self.pads(layer)

        def edges() -> Tensor:
            return self.edges(layer).unflatten(1, (-1, units)).any(1)

        absorbs = self.holds_borders or not uneven
        return reader.facts.weighted(
            call.name, layer, value, call.out, edges, axis=axis, parts=self.components, absorbs=absorbs, uneven=uneven
        )

    # ---------------------------------------------------------------------------------------------- narrowing

    def sizes(self, layer: Any) -> tuple[int | None, int | None]:
        inputs, outputs = (getattr(layer, name) for name in self.size)
        return inputs // self.parts(layer), outputs // self.components

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        ins, outs = plan.left
        select = both(take(1, outs), take(2, ins)) if self.groups(layer) == 1 else self.in_groups(layer, plan)
        rows = take(1 if self.components == 4 else 0, outs)
        return {"weight": both(both(self.seen(layer), select), self.stored_after(layer, plan)), "bias": rows}

    def stored_after(self, layer: Any, plan: LayerPlan) -> Select:
        """:meth:`stored` for the layer that ``plan`` leaves."""
        return self.stored(layer)

    def in_groups(self, layer: Any, plan: LayerPlan) -> Select:
        raise NotImplementedError

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        for name, parts, left in zip(self.size, (self.parts(layer), self.components), plan.left, strict=True):
            setattr(layer, name, parts * len(left))

    def shapes(self, layer: Any, ins: int | None, outs: int | None, constants: bool) -> dict[str, Shape] | None:
        if self.groups(layer) > 1:
            return None
        assert ins is not None
        assert outs is not None
        kernel = getattr(layer, "kernel_size", ())
        weight = self.stored(layer)(torch.empty(self.components, outs, ins, *kernel, device="meta"))
        shapes: dict[str, Shape] = {"weight": tuple(weight.shape)}
        at_borders = self.holds_borders and self.pads(layer)
        if layer.bias is not None or (constants and not at_borders):
            shapes["bias"] = (4, outs) if self.components == 4 else (outs,)
        if getattr(layer, "constant", None) is not None or (constants and at_borders):
            shapes["constant"] = (4, outs, 1, *kernel)
        rest = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        return shapes | {name: tuple(t.shape) for name, t in rest if name not in shapes}

    def absorb(self, layer: Any, plan: LayerPlan) -> None:
        if not plan.constants:
            return
        columns = torch.tensor([n for n, _ in plan.constants])
        numbers = torch.zeros(self.components, self.sizes(layer)[0] or 0, dtype=torch.float64)
        numbers[:, columns] = torch.tensor([q for _, q in plan.constants], dtype=torch.float64).T
        looks = torch.ones(numbers.shape[1], dtype=torch.bool)
        looks[columns] = False
        pushed = self.pushed(layer, numbers)
        if self.holds_borders and self.pads(layer):
            add_parameter(layer, "constant", pushed.unsqueeze(2), layer.weight)
        else:
            shift = _over_kernel(pushed)
            add_parameter(layer, "bias", shift if self.components == 4 else shift.squeeze(0), layer.weight)
        weight = self.seen(layer)(layer.weight)
        layer.weight.copy_(self.stored(layer)(weight * self._by_row(layer, looks.unsqueeze(0))))

    def _by_row(self, layer: Any, columns: Tensor) -> Tensor:
        """``(c, in)`` over all groups as ``(c, out, in/groups, 1, ...)``: what each row of the weight is given."""
        outs, groups = self.sizes(layer)[1] or 0, self.groups(layer)
        rows = torch.arange(outs, device=columns.device) // (outs // groups)
        ones = [1] * len(getattr(layer, "kernel_size", ()))
        return columns.unflatten(1, (groups, -1))[:, rows].unflatten(2, (-1, *ones)).to(layer.weight.device)

    def pushed(self, layer: Any, numbers: Tensor) -> Tensor:
        """What inputs that are constantly ``numbers (components, in)`` add: ``(components, out, *kernel)``."""
        weight, numbers = self.seen(layer)(layer.weight.double()), self._by_row(layer, numbers)
        return (hamilton(weight, numbers) if self.components == 4 else weight * numbers).sum(2)

    # ------------------------------------------------------------------------------------------------ folding

    def followed_by(self, layer: Any, affine: Affine, flat: bool) -> Callable[[], None] | None:
        # After flattening, as many features as there were channels means that there was one position.
        space = 1 if flat else len(getattr(layer, "kernel_size", ())) or 1
        if affine.space != space or len(affine.scale) != getattr(layer, self.size[1]):
            return None
        if self.components == 4 and not affine.whole:
            return None

        def change() -> None:
            weight = self.seen(layer)(layer.weight.double())
            rows = affine.scale[: weight.shape[1]].view(-1, *[1] * (weight.dim() - 2))
            if getattr(layer, "constant", None) is not None:
                layer.constant = _like(layer.constant, layer.constant.double() * rows)
            shift = affine.shift
            if layer.bias is not None:
                shift = shift + affine.scale * layer.bias.double().flatten()
            self._set(layer, weight * rows, shift)

        return change

    def preceded_by(self, layer: Any, affine: Affine, flat: bool) -> Callable[[], None] | None:
        channels, kernel = getattr(layer, self.size[0]), getattr(layer, "kernel_size", ())
        times, rest = divmod(channels, len(affine.scale))
        fits = not kernel and not rest if flat else affine.space == (len(kernel) or 1) and (times, rest) == (1, 0)
        if self.components == 4:
            fits &= layer.input_parts == UNITS if affine.whole else len(layer.input_parts) == 1
        if not fits or getattr(layer, "transposed", False) or self.pads(layer):
            return None

        def change() -> None:
            scale, shift = (v.repeat_interleave(times) for v in (affine.scale, affine.shift))
            components = dict(zip(getattr(layer, "input_parts", "r"), shift.view(self.parts(layer), -1), strict=True))
            nothing = torch.zeros_like(components[next(iter(components))])
            numbers = torch.stack([components.get(part, nothing) for part in UNITS[: self.components]])
            total = _over_kernel(self.pushed(layer, numbers)).flatten()
            if layer.bias is not None:
                total = total + layer.bias.double().flatten()
            weight = self.seen(layer)(layer.weight.double())
            columns = scale[: len(scale) // self.parts(layer)].unsqueeze(0)
            self._set(layer, weight * self._by_row(layer, columns), total)

        return change

    def _set(self, layer: Any, weight: Tensor, bias: Tensor) -> None:
        old = layer.weight
        layer.weight = _like(old, self.stored(layer)(weight))
        shape = (4, -1) if self.components == 4 else (-1,)
        layer.bias = nn.Parameter(bias.view(shape).to(old.dtype), old.requires_grad)
        layer.train(layer.training)  # forgets the expanded weight

    # ---------------------------------------------------------------------------------------------- real form

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        if self.components == 1:
            return super().to_real(writer, name, layer, input)

        def build() -> nn.Module:
            weight = block_weight(layer.weight, layer.input_parts)
            bias = None if layer.bias is None else layer.bias.flatten()
            return real_layer(nn.Linear, layer.in_features, layer.out_features, weight=weight, bias=bias)

        return writer.call(name, build, input)

    functions = (TF.linear,)

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        if self.components == 4:
            return -1
        return None if axis is None or axis == -1 or rank is None or axis == rank - 1 else axis

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        if self.components == 4:
            return None
        sizes, parts = (layer.in_features, layer.out_features), image_parts(layer.in_features)
        return qnn.QLinear(*sizes, layer.bias is not None, input_parts=parts, **factory(layer))

    def matrix(self, layer: Any) -> Tensor | None:
        if self.components == 4:
            return None
        weight = self.seen(layer)(layer.weight.detach())[0]
        groups = self.groups(layer)
        if groups == 1:
            return weight
        rows, columns = (size // groups for size in (len(weight), getattr(layer, self.size[0])))
        whole = weight.new_zeros(len(weight), groups * columns, *weight.shape[2:])
        for n in range(groups):
            own = slice(n * rows, (n + 1) * rows)
            whole[own, n * columns : (n + 1) * columns] = weight[own]
        return whole

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        """Of each 4x4 block; in a grouped layer, of the blocks that ``new`` has."""
        real, groups = self.matrix(layer), getattr(new, "groups", 1)
        assert real is not None
        real, total = real.cpu().double(), square(layer.weight)
        inputs = order(inputs, real.shape[1], len(new.input_parts))
        outputs = order(outputs, real.shape[0])
        blocks = real[outputs.flatten()][:, inputs.flatten()].unflatten(1, inputs.shape).unflatten(0, outputs.shape)
        weight = nearest_weight(blocks, new.input_parts)
        if groups > 1:
            rows = enumerate(weight.chunk(groups, 1))
            weight = torch.cat([row.chunk(groups, 2)[n] for n, row in rows], 1)
        tensors = {"weight": weight}
        if layer.bias is not None:
            tensors["bias"] = layer.bias.detach().cpu()[outputs]
        return Nearest(tensors, len(new.input_parts) * square(weight), total)

    # ---------------------------------------------------------------------------------------------------- packing

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return packer.linear(name, input, self.seen(layer)(layer.weight), layer.bias, self.part_bits(layer))

    def part_bits(self, layer: Any) -> int:
        """A bit for each component that the input has."""
        return sum(1 << UNITS.index(part) for part in getattr(layer, "input_parts", UNITS[0]))

    # --------------------------------------------------------------------------------------------------- work

    def work(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> list[Work]:
        return [(layer.weight, output.numel() // output.shape[-1], self.parts(layer))]


def _over_kernel(pushed: Tensor) -> Tensor:
    """``(c, out, *kernel)`` summed up over the kernel."""
    return pushed.flatten(2).sum(2) if pushed.dim() > 2 else pushed


def _like(old: nn.Parameter, new: Tensor) -> nn.Parameter:
    """``new`` in the type and the memory layout of ``old``."""
    return nn.Parameter(torch.empty_like(old).copy_(new), old.requires_grad)


register(nn.Linear, Linear(1))
register(qnn.QLinear, Linear(4))
