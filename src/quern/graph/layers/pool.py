"""Pooling and upsampling: over positions, channel by channel."""

from typing import Any

from torch import Tensor, nn

from quern import nn as qnn
from quern.graph import plain
from quern.graph.facts import Value
from quern.graph.functions import FunctionRules
from quern.graph.layers.bases import OneToOne
from quern.graph.spec import Call, Writer, register


class Pool(OneToOne):
    """``space`` has the numbers of axes behind the channels that it may have."""

    def __init__(self, *space: int) -> None:
        self.space = space

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return reader.pool(call.title, value, call.out, self.space, self.weighs_padding(call.layer))

    def weighs_padding(self, layer: Any) -> bool:
        """Whether it gives another value at the border for a constant."""
        return False

    def keeps_constants(self, layer: Any) -> bool:
        return True


class AveragePool(Pool):
    def weighs_padding(self, layer: Any) -> bool:
        padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
        return (any(padding) and layer.count_include_pad) or getattr(layer, "divisor_override", None) is not None

    def keeps_constants(self, layer: Any) -> bool:
        return layer.padding in (0, (0,), (0, 0), (0, 0, 0))


class AdaptiveAveragePool(Pool):
    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        """Over all positions a mean: of channels_last values torch's own pooling would be exported as a gathering of
        strides."""
        (space,) = self.space
        if layer.output_size not in (1, (1,) * space):
            return super().to_real(writer, name, layer, input)
        return input.mean(tuple(range(-space, 0)), keepdim=True)


class QuaternionPool(Pool):
    """By the modulus of whole quaternions."""

    components = 4

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return super().flow(reader, call, value, x) if value.parts == 4 else reader.whole([value], call.out)

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        y, indices = plain.max_pool(input, layer.space, *sizes, layer.ceil_mode)
        return (y, indices) if layer.return_indices else y


for _n in (1, 2, 3):
    register(getattr(nn, f"MaxPool{_n}d"), Pool(_n))
    register(getattr(nn, f"AdaptiveMaxPool{_n}d"), Pool(_n))
    register(getattr(nn, f"AvgPool{_n}d"), AveragePool(_n))
    register(getattr(nn, f"AdaptiveAvgPool{_n}d"), AdaptiveAveragePool(_n))
    register(getattr(qnn, f"QMaxPool{_n}d"), QuaternionPool(_n))
register(nn.Upsample, Pool(1, 2, 3))
