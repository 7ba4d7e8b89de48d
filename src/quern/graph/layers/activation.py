"""Activations: without numbers of their own, with one for all channels, or with one for each."""

from typing import Any

from torch import Tensor, nn

from quern import nn as qnn
from quern.graph import plain
from quern.graph.functions import FunctionRules
from quern.graph.layers.bases import Apart, PerChannel
from quern.graph.packing import Packed, Packer, gelu, reshape
from quern.graph.spec import Call, Writer, register
from quern.graph.values import Value


class PReLU(PerChannel):
    """A slope for each channel, or one for all."""

    size = "num_parameters"

    packs = splits = True

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        if call.layer.num_parameters == 1:
            return Apart().flow(reader, call, value, x)
        return super().flow(reader, call, value, x)

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        if layer.num_parameters == 1:
            return packer.unary("LEAKY_RELU", input, float(layer.weight))
        above = packer.unary("RELU", input)
        slopes = packer.constant(layer.weight.view(-1, *[1] * (input.view.dim() - 2)))
        return packer.binary("ADD", above, packer.binary("MUL", packer.binary("SUB", input, above), slopes))


class ModReLU(PerChannel):
    """A bias for the modulus of each quaternion."""

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return layer.dim

    def axis(self, layer: Any, x: Tensor) -> int:
        return layer.dim % x.dim()

    def keeps_constants(self, layer: Any) -> bool:
        return True

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        dim = layer.dim % input.view.dim()
        parts = input.moved(lambda t: t.unflatten(dim, (4, -1)))
        size = packer.unary("SQRT", packer.reduce("SUM", packer.binary("MUL", parts, parts), (dim,), True))
        bias = packer.constant(layer.bias.view(-1, *[1] * (input.view.dim() - 1 - dim)))
        grown = packer.unary("RELU", packer.binary("ADD", size, bias))
        factor = packer.binary("MUL", grown, packer.unary("INVERSE", size))
        return reshape(packer, packer.binary("MUL", parts, factor), out.shape)

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        return plain.mod_relu(input, writer.tensor(f"{name}.bias", layer.bias), layer.dim)


class Activation(Apart):
    """``kind`` is its name in the C runtime, ``numbers`` the layer's that it takes, by name or as they are."""

    packs = splits = True

    def __init__(self, kind: str, *numbers: str | float) -> None:
        self.kind, self.numbers = kind, numbers

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        numbers = (getattr(layer, n) if isinstance(n, str) else n for n in self.numbers)
        return packer.unary(self.kind, input, *map(float, numbers))


class Gelu(Activation):
    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return gelu(packer, input, layer.approximate)


class Unpacked(Apart):
    """One that the C runtime does not have."""

    splits = True


for _kind in (nn.Hardshrink, nn.Softshrink, nn.Threshold, nn.RReLU):
    register(_kind, Unpacked())
register(nn.ReLU, Activation("RELU"))
register(nn.ReLU6, Activation("CLAMP", 0.0, 6.0))
register(nn.LeakyReLU, Activation("LEAKY_RELU", "negative_slope"))
register(nn.ELU, Activation("ELU", "alpha"))
register(nn.CELU, Activation("CELU", "alpha"))
register(nn.SELU, Activation("SELU"))
register(nn.GELU, Gelu("GELU"))
register(nn.SiLU, Activation("SILU"))
register(nn.Mish, Activation("MISH"))
register(nn.Tanh, Activation("TANH"))
register(nn.Sigmoid, Activation("SIGMOID"))
register(nn.Hardtanh, Activation("CLAMP", "min_val", "max_val"))
register(nn.Hardswish, Activation("HARDSWISH"))
register(nn.Hardsigmoid, Activation("HARDSIGMOID"))
register(nn.Softplus, Activation("SOFTPLUS", "beta", "threshold"))
register(nn.Softsign, Activation("SOFTSIGN"))
register(nn.Tanhshrink, Activation("TANHSHRINK"))
register(nn.LogSigmoid, Activation("LOGSIGMOID"))
register(nn.PReLU, PReLU(1))
register(qnn.QModReLU, ModReLU(4))
