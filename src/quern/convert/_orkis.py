"""Weights of the 2019 library (Orkis-Research/Pytorch-Quaternion-Neural-Networks)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quern import algebra
from quern.graph.layers.convolution import Convolution
from quern.graph.paths import has_rows
from quern.graph.spec import spec_of

_ORKIS_PARTS = ("r_weight", "i_weight", "j_weight", "k_weight")


def from_orkis(state_dict: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` of a network of the 2019 library (Orkis-Research/Pytorch-Quaternion-Neural-Networks), for
    ``model.load_state_dict``.

    ``model`` is the same network built from quern's layers under the same names; it tells linear from transposed
    convolution. That library keeps four tensors r_weight to k_weight, its linear weights transposed, its transposed
    convolutions with the conjugate of the weight; biases are ``(out,)``. All other entries are passed on as they are.
    """
    modules = dict(model.named_modules())
    result: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        prefix, _, name = key.rpartition(".")
        dot = f"{prefix}." if prefix else ""
        given = [part for part in _ORKIS_PARTS if dot + part in state_dict]
        if not given:
            result[key] = value
        elif name == "bias":
            result[key] = value.view(4, -1)
        elif name == given[0]:
            missing = [part for part in _ORKIS_PARTS if part not in given]
            if missing:
                raise ValueError(f"the layer {prefix!r} of the state_dict lacks {', '.join(missing)}.")
            if f"{dot}zero_kernel" in state_dict or f"{dot}scale_param" in state_dict:
                raise ValueError(f"the layer {prefix!r} is a rotation layer, which quern does not have.")
            if prefix not in modules:
                raise ValueError(f"the state_dict has a layer {prefix!r}, but the model has none of that name.")
            weight = torch.stack([state_dict[dot + part] for part in _ORKIS_PARTS])
            result[f"{dot}weight"] = _orkis_weight(weight, modules[prefix], prefix)
        elif name not in _ORKIS_PARTS:
            result[key] = value
    return result


def _orkis_weight(weight: Tensor, layer: Any, name: str) -> Tensor:
    if not has_rows(layer):
        raise ValueError(f"the layer {name!r} is a {type(layer).__name__}, which has no counterpart in that library.")
    if not isinstance(spec_of(layer), Convolution):
        return weight.transpose(1, 2)
    if layer.groups != 1:
        raise ValueError(f"the layer {name!r} has groups={layer.groups}, which split components in that library.")
    return algebra.conjugate(weight.transpose(1, 2)) if layer.transposed else weight
