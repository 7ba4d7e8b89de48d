"""Convolutions and transposed convolutions: linear layers with groups, a kernel and a border."""

import math
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import CompactionError, ExportError
from quern.functional.products import block_weight
from quern.functional.shapes import same_padding, weight_layout
from quern.graph import plain
from quern.graph.layer_plan import LayerPlan
from quern.graph.layers.bases import factory, image_parts, real_layer
from quern.graph.layers.linear import Linear
from quern.graph.packing import Packed, Packer, pad
from quern.graph.spec import Select, Work, Writer, register, take

_QUATERNION: tuple[Any, ...] = (qnn.QConv1d, qnn.QConv2d, qnn.QConv3d)
_QUATERNION += (qnn.QConvTranspose1d, qnn.QConvTranspose2d, qnn.QConvTranspose3d)
_REAL = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Convolution(Linear):
    takes_sizes = True
    size = ("in_channels", "out_channels")

    def groups(self, layer: Any) -> int:
        return layer.groups

    def seen(self, layer: Any) -> Select:
        if self.components == 1 and layer.transposed:  # (in, out/groups, *kernel)
            groups = layer.groups
            return lambda t: t.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).unsqueeze(0)
        return super().seen(layer)

    def stored(self, layer: Any) -> Select:
        return self._stored(layer, layer.groups)

    def _stored(self, layer: Any, groups: int) -> Select:
        if self.components == 1 and layer.transposed:
            return lambda t: t.squeeze(0).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        return super().stored(layer)

    def pads(self, layer: Any) -> bool:
        if layer.transposed:  # outputs at the border lack some of the products
            plain = ((layer.kernel_size, 1), (layer.stride, 1), (layer.padding, 0), (layer.output_padding, 0))
            return any(n != trivial for sizes, trivial in plain for n in sizes)
        if layer.padding_mode != "zeros" or layer.padding == "valid":
            return False
        return any(k > 1 for k in layer.kernel_size) if layer.padding == "same" else any(layer.padding)

    # ---------------------------------------------------------------------------------------------- narrowing

    def check(self, name: str, layer: Any, plan: LayerPlan) -> None:
        super().check(name, layer, plan)
        if layer.groups > 1:
            _groups(layer, plan)

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        return super().selections(layer, plan) | {"constant": take(1, plan.left[1])}

    def stored_after(self, layer: Any, plan: LayerPlan) -> Select:
        return self._stored(layer, 1 if layer.groups == 1 else len(_groups(layer, plan)[0]))

    def in_groups(self, layer: Any, plan: LayerPlan) -> Select:
        before, (groups, ins, outs) = layer.groups, _groups(layer, plan)

        def select(t: Tensor) -> Tensor:
            parts = t.unflatten(1, (before, -1))[:, groups.to(t.device)]
            chosen = [
                part.index_select(1, rows.to(t.device)).index_select(2, columns.to(t.device))
                for part, rows, columns in zip(parts.unbind(1), outs, ins, strict=True)
            ]
            return torch.stack(chosen, 1).flatten(1, 2)

        return select

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        super().resize(layer, plan)
        if layer.groups > 1:
            layer.groups = len(_groups(layer, plan)[0])

    def narrow(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        weight = layer.weight.detach()
        layout = weight_layout(weight if self.components == 4 else weight.unsqueeze(0))
        selections = super().narrow(layer, plan)
        if layout is not None:
            layer.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        return selections

    # ---------------------------------------------------------------------------------------------- real form

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any, output_size: Any = None) -> Any:
        more = {} if output_size is None else {"output_size": output_size}
        if self.components == 1:
            return writer.call(name, lambda: layer, input, **more)
        kinds = _REAL[3:] if layer.transposed else _REAL[:3]
        kind, groups = kinds[layer.space - 1], layer.groups
        options, beyond = self._geometry(layer)
        layout = weight_layout(layer.weight) or torch.contiguous_format
        sizes = (layer.in_channels, layer.out_channels)

        def build() -> nn.Module:
            weight = block_weight(layer.weight, layer.input_parts, groups, layer.transposed, layout)
            bias = None if layer.bias is None else layer.bias.unflatten(1, (groups, -1)).transpose(0, 1).flatten()
            return real_layer(kind, *sizes, weight=weight, bias=bias, groups=groups, **options)

        def build_constant() -> nn.Module:
            weight = block_weight(layer.constant, "r", 1, layer.transposed, layout)
            return real_layer(kind, 1, layer.out_channels, weight=weight, bias=None, **options)

        x = TF.pad(input, beyond) if beyond else input
        if groups == 1:
            y = writer.call(name, build, x, **more)
        else:  # a real grouped convolution wants the channels of a group side by side
            x = plain.swap_channel_order(x, layer.space, len(layer.input_parts), groups)
            y = plain.swap_channel_order(writer.call(name, build, x, **more), layer.space, groups, 4)
        if layer.constant is None:
            return y
        ones = input.new_ones((1, 1, *(input.shape[axis] for axis in range(-layer.space, 0))))
        ones = TF.pad(ones, beyond) if beyond else ones
        return y + writer.call(writer.beside(name, "constant"), build_constant, ones, **more)

    def _geometry(self, layer: Any) -> tuple[dict[str, Any], list[int]]:
        """The options of the real layer, and what its input has to be padded with before."""
        names = ("kernel_size", "stride", "dilation", "padding_mode", "padding")
        options = {name: getattr(layer, name) for name in names}
        beyond: list[int] = []
        if layer.transposed:
            options["output_padding"] = layer.output_padding
        elif layer.padding == "same" and layer.padding_mode == "zeros":
            # In numbers, because torch warns where the two sides of the word differ.
            sides = same_padding(layer.kernel_size, layer.dilation)
            options["padding"] = tuple(near for near, _ in sides)
            if any(far > near for near, far in sides):
                beyond = [more for near, far in reversed(sides) for more in (0, far - near)]
        return options, beyond

    functions = (torch.conv1d, torch.conv2d, torch.conv3d)
    functions += (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        own = -len(layer.kernel_size) - 1
        if self.components == 4:
            return own
        return None if axis is None or rank is None or axis % rank == rank + own else axis

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        """Where the groups are not of whole quaternions, as in a depthwise convolution, as many as there can be."""
        if self.components == 4:
            return None
        sizes = (layer.in_channels, layer.out_channels)
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        options = {name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None} | factory(layer)
        if layer.groups > 1:
            options["groups"] = math.gcd(layer.groups, *(size // 4 for size in sizes)) or 1
        if layer.transposed:
            options["output_padding"] = layer.output_padding
        else:
            options["input_parts"] = image_parts(layer.in_channels)
        kind = next(_REAL.index(kind) for kind in type(layer).__mro__ if kind in _REAL)
        return _QUATERNION[kind](*sizes, **options)

    # ---------------------------------------------------------------------------------------------------- packing

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed, output_size: Any = None) -> Packed:
        """A sequence is an image of one row; a transposed convolution is one with the kernel turned round, of an input
        with zeros between its numbers."""
        space = len(layer.kernel_size)
        if space > 2:
            raise ExportError("convolutions over volumes are not in the runtime.")
        if input.view.dim() != space + 2:
            raise ExportError("an input without a batch is not in the runtime.")
        sides, extra = self._sides(layer), (0,) * space
        weight, constant = self.seen(layer)(layer.weight), getattr(layer, "constant", None)
        if layer.transposed:
            sizes = zip(
                input.view.shape[2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True
            )
            least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in sizes]
            extra = tuple(size - n for size, n in zip(out.shape[2:], least, strict=True))
            axes = tuple(range(-space, 0))
            weight, constant = weight.flip(axes), None if constant is None else constant.flip(axes)
        elif layer.padding_mode != "zeros":
            flat = [side for pair in reversed(sides) for side in pair]
            input, sides = pad(packer, input, flat, layer.padding_mode), [(0, 0)] * space
        sides = [(near, far + more) for (near, far), more in zip(sides, extra, strict=True)]
        if any(near < 0 or far < 0 for near, far in sides):
            raise ExportError(
                "a transposed convolution with more padding than its kernel reaches is not in the runtime."
            )
        ones, zeros = (1,) * (2 - space), ((0, 0),) * (2 - space)
        if space == 1:
            input = input.moved(lambda t: t.unsqueeze(2))
            weight = weight.unsqueeze(-2)
            constant = None if constant is None else constant.unsqueeze(-2)
        (top, bottom), (left, right) = (*zeros, *sides)
        y = packer.conv(
            name,
            input,
            weight,
            layer.bias,
            constant,
            stride=(1, 1) if layer.transposed else (*ones, *layer.stride),
            padding=(top, left, bottom, right),
            dilation=(*ones, *layer.dilation),
            stuffing=(*ones, *layer.stride) if layer.transposed else (1, 1),
            groups=layer.groups,
            parts=self.part_bits(layer),
        )
        return y if space == 2 else y.moved(lambda t: t.squeeze(2))

    def _sides(self, layer: Any) -> list[tuple[int, int]]:
        """What is padded near and far, axis by axis."""
        if layer.transposed:
            sizes = zip(layer.kernel_size, layer.dilation, layer.padding, strict=True)
            return [(d * (k - 1) - p,) * 2 for k, d, p in sizes]
        if layer.padding == "same":
            return same_padding(layer.kernel_size, layer.dilation)
        return [(0, 0)] * len(layer.kernel_size) if layer.padding == "valid" else [(p, p) for p in layer.padding]

    # --------------------------------------------------------------------------------------------------- work

    def work(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> list[Work]:
        input = args[0] if args else kwargs["input"]
        side = input if layer.transposed else output  # where every number of the weight is used once
        batched = side.dim() == len(layer.kernel_size) + 2
        positions = math.prod(side.shape[2 if batched else 1 :]) * (side.shape[0] if batched else 1)
        work: list[Work] = [(layer.weight, positions, self.parts(layer))]
        if getattr(layer, "constant", None) is not None:  # once for all of a batch
            work.append((layer.constant, positions, 1))
        return work


class SplitConvolution(Convolution):
    """A depthwise convolution of each component by itself: a group for each quaternion channel, and of the products of
    two quaternions the four of equal components."""

    packs = False  # as the real one that it is

    def __init__(self) -> None:
        super().__init__(4)
        self.holds_borders = False

    def pushed(self, layer: Any, numbers: Tensor) -> Tensor:
        return (self.seen(layer)(layer.weight.double()) * self._by_row(layer, numbers)).sum(2)

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        super().resize(layer, plan)
        layer.groups = len(plan.left[1])

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any, output_size: Any = None) -> Any:
        options, beyond = self._geometry(layer)

        def build() -> nn.Module:
            weight = layer.weight.detach().flatten(0, 1)
            bias = None if layer.bias is None else layer.bias.flatten()
            channels = layer.in_channels
            return real_layer(nn.Conv2d, channels, channels, weight=weight, bias=bias, groups=channels, **options)

        return writer.call(name, build, TF.pad(input, beyond) if beyond else input)

    def work(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> list[Work]:
        return [(weight, positions, 1) for weight, positions, _ in super().work(layer, args, kwargs, output)]


def _groups(layer: Any, plan: LayerPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Which groups stay, and of each the inputs and outputs that stay, counted within it."""
    sides: list[dict[int, list[int]]] = []
    for kept in (plan.inputs, plan.outputs):
        assert kept is not None
        per_group, left = kept.total // layer.groups, dict[int, list[int]]()
        for n in kept.indices:
            left.setdefault(n // per_group, []).append(n % per_group)
        sides.append(left)
    ins, outs = sides
    if set(ins) != set(outs) or len({len(v) for v in ins.values()}) != 1 or len({len(v) for v in outs.values()}) != 1:
        raise CompactionError("a plan leaves the groups of a convolution with unequal numbers of channels.")
    return torch.tensor(sorted(ins)), torch.tensor(list(ins.values())), torch.tensor(list(outs.values()))


for _kind in _REAL:
    register(_kind, Convolution(1))
for _kind in _QUATERNION:
    register(_kind, Convolution(4))
register(qnn.SplitConv2d, SplitConvolution())
