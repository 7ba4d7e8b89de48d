"""Pooling and upsampling: over positions, channel by channel."""

from typing import Any

from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import ExportError
from quern.graph import packing, plain
from quern.graph.functions import FunctionRules
from quern.graph.layers.bases import OneToOne, Whole
from quern.graph.packing import Packed, Packer
from quern.graph.spec import Call, Writer, register
from quern.graph.values import Value


class Pool(OneToOne):
    """``space`` has the numbers of axes behind the channels that it may have."""

    splits = True

    def __init__(self, *space: int) -> None:
        self.space = space

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return reader.pool(call.title, value, call.out, self.space, self.weighs_padding(call.layer))

    def weighs_padding(self, layer: Any) -> bool:
        """Whether it gives another value at the border for a constant."""
        return False

    def keeps_constants(self, layer: Any) -> bool:
        return True


class MaxPool(Pool):
    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        function = packing.maximum(self.space[0], "MODULUS" if self.components == 4 else "MAX")
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return function(packer, out, input, *sizes, return_indices=layer.return_indices)


class SplitMaxPool(MaxPool):
    """torch's own in the real form."""

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return writer.call(name, lambda: nn.MaxPool2d(*sizes, layer.return_indices, layer.ceil_mode), input)


class AdaptiveMaxPool(Pool):
    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        if layer.return_indices:
            raise ExportError("the places of the maxima are asked for, which the runtime does not keep.")
        return packing.adaptive("MAX", self.space[0])(packer, out, input)


class Upsample(Pool):
    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return packing.interpolate(packer, input, layer.size, layer.scale_factor, layer.mode, layer.align_corners)


class AveragePool(Pool):
    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        sizes = (layer.kernel_size, layer.stride, layer.padding)
        divisor = getattr(layer, "divisor_override", None)
        function = packing.average(self.space[0])
        return function(packer, out, input, *sizes, count_include_pad=layer.count_include_pad, divisor_override=divisor)

    def weighs_padding(self, layer: Any) -> bool:
        padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
        return (any(padding) and layer.count_include_pad) or getattr(layer, "divisor_override", None) is not None

    def keeps_constants(self, layer: Any) -> bool:
        return layer.padding in (0, (0,), (0, 0), (0, 0, 0))


class AdaptiveAveragePool(Pool):
    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return packing.adaptive("MEAN", self.space[0])(packer, out, input)

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        """Over all positions a mean: of channels_last values torch's own pooling would be exported as a gathering of
        strides."""
        (space,) = self.space
        if layer.output_size not in (1, (1,) * space):
            return super().to_real(writer, name, layer, input)
        return input.mean(tuple(range(-space, 0)), keepdim=True)


class Padding(Whole):
    """Borders around an image; what they do to constants nobody asks."""

    splits = packs = True

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return packing.pad(packer, input, layer.padding, self.mode, getattr(layer, "value", 0.0))


class Rest(Whole):
    """What acts on each channel alone, or keeps them in their places; no more is known."""

    splits = True


class QuaternionPool(MaxPool):
    """By the modulus of whole quaternions."""

    components = 4

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return 1

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return super().flow(reader, call, value, x) if value.parts == 4 else reader.whole([value], call.out)

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        y, indices = plain.max_pool(input, layer.space, *sizes, layer.ceil_mode)
        return (y, indices) if layer.return_indices else y


for _n in (1, 2, 3):
    register(getattr(nn, f"MaxPool{_n}d"), MaxPool(_n))
    register(getattr(nn, f"AdaptiveMaxPool{_n}d"), AdaptiveMaxPool(_n))
    register(getattr(nn, f"AvgPool{_n}d"), AveragePool(_n))
    register(getattr(nn, f"AdaptiveAvgPool{_n}d"), AdaptiveAveragePool(_n))
    register(getattr(qnn, f"QMaxPool{_n}d"), QuaternionPool(_n))
    for _name, _mode in (("Zero", "constant"), ("Constant", "constant"), ("Reflection", "reflect")):
        register(getattr(nn, f"{_name}Pad{_n}d"), Padding(_mode))
    register(getattr(nn, f"ReplicationPad{_n}d"), Padding("replicate"))
    register(getattr(nn, f"LPPool{_n}d"), Rest())
register(qnn.SplitMaxPool2d, SplitMaxPool(2))
register(nn.Softmax, Rest())
for _kind in (nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d):
    register(_kind, Upsample(1, 2, 3))
