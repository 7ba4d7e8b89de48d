"""Layers that hand on what they get, when not training."""

from typing import Any

from torch import nn

from quern import nn as qnn
from quern.graph.layers.bases import Apart
from quern.graph.packing import Packed, Packer
from quern.graph.spec import Writer, register


class Identity(Apart):
    passes = packs = splits = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return input

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        return input


class Dropout(Identity):
    def keeps_constants(self, layer: Any) -> bool:
        return False  # while training it does not

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        return qnn.QDropout2d(layer.p, layer.inplace) if type(layer) is nn.Dropout2d else None

    def quaternion_form_along(self, layer: Any, axis: int) -> nn.Module | None:
        return qnn.QDropout(layer.p, layer.inplace, dim=axis) if type(layer) is nn.Dropout else None

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return axis


register(nn.Identity, Identity())
for _kind in (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(qnn.QDropout, qnn.QDropout2d),
):
    register(_kind, Dropout())
