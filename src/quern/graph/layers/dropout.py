"""Layers that hand on what they get, when not training."""

from functools import partial
from typing import Any

from torch import nn

from quern import nn as qnn
from quern.graph.layers.bases import Apart
from quern.graph.packing import Packed, Packer
from quern.graph.spec import Writer, register


class Identity(Apart):
    passes = packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return input

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        return input


class Dropout(Identity):
    def keeps_constants(self, layer: Any) -> bool:
        return False  # while training it does not

    def quaternion_form(self, layer: Any, dim: int) -> nn.Module | None:
        forms = {nn.Dropout: partial(qnn.QDropout, dim=dim), nn.Dropout2d: qnn.QDropout2d}
        return forms[type(layer)](layer.p, layer.inplace) if type(layer) in forms else None


register(nn.Identity, Identity())
for _kind in (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(qnn.QDropout, qnn.QDropout2d),
):
    register(_kind, Dropout())
