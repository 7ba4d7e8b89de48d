"""Normalisations: of batches, whose numbers belong to one channel each, and of layers, which mix all channels."""

import math
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import ExportError
from quern.graph import plain
from quern.graph.functions import FunctionRules
from quern.graph.layers.bases import OneToOne, PerChannel, Whole, factory, nearest_scale, nonzero, order, real_layer
from quern.graph.packing import Packed, Packer, reshape
from quern.graph.spec import Affine, Call, Nearest, Writer, register
from quern.graph.values import Value


class BatchNorm(PerChannel):
    """In eval mode ``γ (x - μ)/√(σ² + ε) + β`` channel by channel, before ``space`` more axes."""

    normalises = True

    def __init__(self, components: int, space: int) -> None:
        super().__init__(components)
        self.space, self.gamma = space, True

    def shifts(self, layer: Any) -> tuple[str, ...]:
        return ("bias",)

    def scales(self, layer: Any) -> tuple[str, ...]:
        return ("weight",)

    def affine(self, layer: Any) -> Affine | None:
        if layer.running_mean is None or layer.running_var is None:
            return None
        scale = (layer.running_var.double() + layer.eps).rsqrt()
        if layer.weight is not None:
            scale = scale * layer.weight.double()
        scale = scale.repeat(self.components)
        shift = -layer.running_mean.double().flatten() * scale
        if layer.bias is not None:
            shift = shift + layer.bias.double().flatten()
        return Affine(scale, shift, self.space, whole=self.components == 4)

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        affine = self.affine(layer)
        if affine is None:
            raise ExportError(_no_statistics(name, layer))
        shape = (-1, *[1] * (input.view.dim() - 2))
        scale, shift = (packer.constant(t.float().view(shape)) for t in (affine.scale, affine.shift))
        return packer.binary("ADD", packer.binary("MUL", input, scale), shift)

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        if self.components == 1:
            return super().to_real(writer, name, layer, input)
        mean, var = layer.running_mean, layer.running_var
        if mean is None or var is None:
            raise ExportError(_no_statistics(name, layer))

        def build() -> nn.Module:
            affine = layer.weight is not None or layer.bias is not None
            # The variance of a quaternion is the sum of those of its components: each has a quarter on average.
            share = 4 if affine else 1
            norm = _REAL[self.space - 1](layer.num_features, layer.eps / share, affine=affine, device="meta")
            if affine:
                scale = torch.ones_like(var) if layer.weight is None else layer.weight
                shift = torch.zeros_like(mean) if layer.bias is None else layer.bias
                norm.weight, norm.bias = nn.Parameter(scale.repeat(4) / 2), nn.Parameter(shift.flatten().clone())
            norm.running_mean, norm.running_var = mean.flatten().clone(), var.repeat(4) / share
            norm.num_batches_tracked = layer.num_batches_tracked.clone()
            return norm

        return writer.call(name, build, input)

    functions = (TF.batch_norm, torch.batch_norm)

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return axis if self.components == 1 else 1

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        if self.components == 4:
            return None
        options = (layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        return getattr(qnn, f"QBatchNorm{self.space}d")(*options, **factory(layer))

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        """The variance of a quaternion is the sum of those of its channels, its scale the nearest to their four."""
        places = order(inputs, layer.num_features)
        new.eps = 4 * layer.eps  # which is added to that sum
        if layer.running_var is None:
            return _nearest_of_norm(layer, places)
        var = layer.running_var.detach().cpu().double()
        scale = (var + layer.eps).rsqrt()
        if layer.weight is not None:
            scale = scale * layer.weight.detach().cpu().double()
        mean, kept, total = nearest_scale(scale, places)
        var = var[places].sum(0)
        tensors = {"running_mean": layer.running_mean.detach().cpu()[places], "running_var": var}
        tensors["num_batches_tracked"] = layer.num_batches_tracked
        if layer.weight is not None:
            tensors |= {"weight": mean * (var + new.eps).sqrt(), "bias": layer.bias.detach().cpu()[places]}
        return Nearest(tensors, kept, total)


def _nearest_of_norm(layer: Any, places: Tensor) -> Nearest:
    """Of the scale and shift alone: what is divided by the root of the sum of four variances becomes half as large."""
    if layer.weight is None:
        return Nearest({}, 0.0, 0.0)
    mean, kept, total = nearest_scale(layer.weight, places)
    tensors = {"weight": 2 * mean}
    if getattr(layer, "bias", None) is not None:
        tensors["bias"] = layer.bias.detach().cpu()[places]
    return Nearest(tensors, kept, total)


def _no_statistics(name: str, layer: nn.Module) -> str:
    return f"{name} ({type(layer).__name__}) keeps no running statistics, so what it computes depends on the batch."


class WhiteningBatchNorm(BatchNorm):
    """Its scale is a matrix for each quaternion."""

    packs = False

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.gamma = False

    def affine(self, layer: Any) -> Affine | None:
        return None

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        """A 1x1 convolution with a diagonal in each of its 4x4 blocks."""
        if layer.running_mean is None or layer.running_cov is None:
            raise ExportError(_no_statistics(name, layer))
        n, like = layer.num_features // 4, layer.running_mean

        def build() -> nn.Module:
            # What it makes of zero is the shift; what a 1 in one component adds to that, a column of the matrix.
            units = TF.pad(torch.eye(4).to(like), (0, 0, 1, 0)).repeat_interleave(n, 1)
            shift, *columns = layer(units.view(5, 4 * n, 1, 1)).flatten(1)
            blocks = torch.stack(columns).sub(shift).view(4, 4, n).transpose(0, 1)  # (to, from, n)
            weight = torch.diag_embed(blocks).transpose(1, 2).reshape(4 * n, 4 * n, 1, 1)
            return real_layer(nn.Conv2d, 4 * n, 4 * n, weight=weight, bias=shift, kernel_size=1)

        return writer.call(name, build, input)


class LayerNorm(OneToOne):
    """All channels enter its statistics, so all stay; those with γ = 0 are constant afterwards."""

    components = 4

    def shifts(self, layer: Any) -> tuple[str, ...]:
        return ("bias",)

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return self._normalised(reader, call, value, x, -1)

    def _normalised(self, reader: FunctionRules, call: Call, value: Value, x: Tensor, axis: int) -> Value:
        layer, facts = call.layer, reader.facts
        value = facts.followed(value, x, axis, 4)
        facts.whole(value)
        assert value.ids is not None
        n = len(value.live)
        live = torch.ones(n, dtype=torch.bool)
        if layer.weight is not None and layer.weight.dim() == 1:
            live = nonzero(layer.weight)
        return facts.value(call.out, value.ids, axis, 4, live, call.name, value.heard.any().expand(n))

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        weight, bias = writer.tensor(f"{name}.weight", layer.weight), writer.tensor(f"{name}.bias", layer.bias)
        return plain.layer_norm(input, layer.normalized_shape, weight, bias, layer.eps)


class RealLayerNorm(Whole):
    """All channels enter its statistics."""

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        dims = tuple(range(input.view.dim() - len(layer.normalized_shape), input.view.dim()))
        y = _standardised(packer, input, dims, layer.eps)
        if layer.weight is not None:
            y = packer.binary("MUL", y, packer.constant(layer.weight))
        return y if layer.bias is None else packer.binary("ADD", y, packer.constant(layer.bias))

    functions = (TF.layer_norm, torch.layer_norm)

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        if len(layer.normalized_shape) > 1:
            raise ValueError("a LayerNorm over several axes does not say which carries the quaternions")
        shift = getattr(layer, "bias", None) is not None
        return qnn.QLayerNorm(layer.normalized_shape, layer.eps, layer.elementwise_affine, shift, **factory(layer))

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        new.eps = 4 * layer.eps
        return _nearest_of_norm(layer, order(inputs, layer.normalized_shape[0]))


class GroupNorm(LayerNorm):
    """All channels of a group enter its statistics, so all stay; those with γ = 0 are constant afterwards."""

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return 1

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return self._normalised(reader, call, value, x, 1)

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        weight = None if layer.weight is None else layer.weight.repeat(4)
        bias = None if layer.bias is None else layer.bias.flatten()
        own = (writer.tensor(f"{name}.weight", weight), writer.tensor(f"{name}.bias", bias))
        return plain.group_norm(input, layer.num_groups, layer.num_channels, *own, layer.eps)


class RealGroupNorm(Whole):
    """All channels of a group enter its statistics."""

    functions = (TF.group_norm, torch.group_norm)

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        groups = math.gcd(layer.num_groups, layer.num_channels // 4)
        return qnn.QGroupNorm(groups, layer.num_channels, layer.eps, layer.affine, **factory(layer))

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        new.eps = 4 * layer.eps
        return _nearest_of_norm(layer, order(inputs, layer.num_channels))

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        groups = input.moved(lambda t: t.unflatten(1, (layer.num_groups, -1)))
        y = reshape(packer, _standardised(packer, groups, tuple(range(2, groups.view.dim())), layer.eps), out.shape)
        shape = (-1, *[1] * (input.view.dim() - 2))
        if layer.weight is not None:
            y = packer.binary("MUL", y, packer.constant(layer.weight.view(shape)))
        return y if layer.bias is None else packer.binary("ADD", y, packer.constant(layer.bias.view(shape)))


class InstanceNorm(Whole):
    """A group normalisation with a group for each channel."""

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        if layer.track_running_stats:
            raise ValueError("an InstanceNorm with running statistics has no quaternion form")
        sizes = (layer.num_features // 4, layer.num_features)
        return qnn.QGroupNorm(*sizes, layer.eps, layer.affine, **factory(layer))

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        new.eps = 4 * layer.eps
        return _nearest_of_norm(layer, order(inputs, layer.num_features))


def _standardised(packer: Packer, input: Packed, dims: tuple[int, ...], eps: float) -> Packed:
    share = 1 / math.prod(input.view.shape[n] for n in dims)
    mean = packer.unary("AFFINE", packer.reduce("SUM", input, dims, True), share)
    centred = packer.binary("SUB", input, mean)
    spread = packer.reduce("SUM", packer.binary("MUL", centred, centred), dims, True)
    return packer.binary("MUL", centred, packer.unary("RSQRT", packer.unary("AFFINE", spread, share, eps)))


_REAL = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
for _n in (1, 2, 3):
    register(_REAL[_n - 1], BatchNorm(1, _n))
    register(getattr(qnn, f"QBatchNorm{_n}d"), BatchNorm(4, _n))
    register(getattr(nn, f"InstanceNorm{_n}d"), InstanceNorm())
register(qnn.QWhiteningBatchNorm2d, WhiteningBatchNorm())
register(qnn.QLayerNorm, LayerNorm())
register(nn.LayerNorm, RealLayerNorm())
register(qnn.QGroupNorm, GroupNorm())
register(nn.GroupNorm, RealGroupNorm())
