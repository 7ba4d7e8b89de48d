"""From quaternions to real numbers, and from images to vectors."""

from typing import Any

from torch import Tensor, nn

from quern import nn as qnn
from quern.graph import plain
from quern.graph.functions import FunctionRules
from quern.graph.layers.bases import OneToOne
from quern.graph.packing import Packed, Packer, reshape
from quern.graph.spec import Call, Writer, register
from quern.graph.values import Value


class Modulus(OneToOne):
    components = 4

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return None

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return reader.modulus(call.title, value, x, call.out, call.layer.dim)

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        return plain.modulus(input, layer.dim)


class Flatten(OneToOne):
    splits = True

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return reader.flatten(call.title, value, x, call.out, call.layer.start_dim, call.layer.end_dim)

    def keeps_constants(self, layer: Any) -> bool:
        return True

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return reshape(packer, input, out.shape)

    def flattens(self, layer: Any) -> bool:
        return (layer.start_dim, layer.end_dim) == (1, -1)


register(qnn.Modulus, Modulus())
register(nn.Flatten, Flatten())
