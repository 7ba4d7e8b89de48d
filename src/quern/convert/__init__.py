"""Ways in: weights of the 2019 library, and networks written in ``torch.nn``."""

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quern import algebra
from quern.graph.layers.convolution import Convolution
from quern.graph.paths import has_rows
from quern.graph.spec import own_spec, spec_of

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


# Layers that act on each real channel alone, and so on quaternions as they are.
_SPLIT_WISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softshrink),
    *(nn.Tanhshrink, nn.Threshold, nn.RReLU, nn.Identity, nn.Flatten),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.LPPool1d, nn.LPPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad2d),
    *(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
)


def quaternionize(module: nn.Module, keep: Collection[str] = ()) -> nn.Module:
    """The quaternion network of the same real widths, freshly initialised: a quarter of the weights.

    Linear, Conv, ConvTranspose, BatchNorm, LayerNorm and Dropout layers are replaced; layers that act on every channel
    alone (activations, pooling, padding, Flatten) stay. A layer with 3 or 1 input channels takes RGB (gray) images as
    they are. Dropout takes the quaternions to be on axis 1 if the network has convolutions, else on the last axis.
    Layers named in ``keep``, for example a final ``nn.Linear`` with 10 outputs, stay real. Layers that cannot be
    converted are all named in one error; the given module is not changed.

    Only layers are seen, not what ``forward`` does between them: a ``torch.cat`` of channels there must become
    ``quern.nn.cat``.
    """
    keep = (keep,) if isinstance(keep, str) else keep
    unknown = [name for name in keep if name not in dict(module.named_modules())]
    if unknown:
        raise ValueError(f"keep names {', '.join(unknown)}, which the network does not have.")
    dim = 1 if any(isinstance(own_spec(m), Convolution) for m in module.modules()) else -1
    problems: list[str] = []
    done: dict[nn.Module, nn.Module] = {}  # a layer used twice stays one layer

    def convert(old: nn.Module, name: str) -> nn.Module:
        if name in keep or type(old) in _SPLIT_WISE or type(old).__module__.startswith("quern.nn."):
            return old
        if old in done:
            return done[old]
        new = old
        try:
            spec = own_spec(old)
            new = None if spec is None else spec.quaternion_form(old, dim)
        except ValueError as error:
            problems.append(f"{name or 'the module'} ({error})")
        if new is None:
            new = old
            is_container = type(old) in (nn.Sequential, nn.ModuleList, nn.ModuleDict) or list(old.children())
            if not is_container or list(old.parameters(recurse=False)):
                problems.append(f"{name or 'the module'} (no quaternion form of {type(old).__name__} is known)")
            # not named_children(), which leaves out the second name of a layer used twice
            for child_name, child in [(n, m) for n, m in old._modules.items() if m is not None]:
                setattr(old, child_name, convert(child, f"{name}.{child_name}" if name else child_name))
        elif new is not old:
            new.train(old.training)
        done[old] = new
        return new

    result = convert(copy.deepcopy(module), "")
    if problems:
        raise ValueError(f"cannot convert {'; '.join(problems)}. Name them in keep=... to leave them real.")
    return result
