"""Activations: without numbers of their own, with one for all channels, or with one for each."""

from typing import Any

from torch import Tensor, nn

from quern import nn as qnn
from quern.graph import plain
from quern.graph.facts import Value
from quern.graph.functions import FunctionRules
from quern.graph.layers.bases import Apart, PerChannel
from quern.graph.spec import Call, Writer, register


class PReLU(PerChannel):
    """A slope for each channel, or one for all."""

    size = "num_parameters"

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        if call.layer.num_parameters == 1:
            return Apart().flow(reader, call, value, x)
        return super().flow(reader, call, value, x)


class ModReLU(PerChannel):
    """A bias for the modulus of each quaternion."""

    def axis(self, layer: Any, x: Tensor) -> int:
        return layer.dim % x.dim()

    def keeps_constants(self, layer: Any) -> bool:
        return True

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        return plain.mod_relu(input, writer.tensor(f"{name}.bias", layer.bias), layer.dim)


for _kind in (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid),
):
    register(_kind, Apart())
register(nn.PReLU, PReLU(1))
register(qnn.QModReLU, ModReLU(4))
