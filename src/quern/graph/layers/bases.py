"""What Specs of several families have in common."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quern.algebra import UNITS
from quern.graph.functions import FunctionRules, unknown
from quern.graph.layer_plan import LayerPlan
from quern.graph.spec import Call, Select, Shape, Spec, take
from quern.graph.values import Value, of_layer


def nonzero(t: Tensor) -> Tensor:
    """Where a tensor is not zero; what is not a number is not zero."""
    return (t.detach() != 0).cpu()


def real_layer(kind: Callable[..., Any], *sizes: int, weight: Tensor, bias: Tensor | None, **options: Any) -> nn.Module:
    """A layer of torch with these parameters, and no time or random numbers spent on others."""
    layer = kind(*sizes, bias=bias is not None, device="meta", dtype=weight.dtype, **options)
    layer.weight = nn.Parameter(weight.detach().clone())  # clone keeps the memory layout
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def factory(layer: nn.Module) -> dict[str, Any]:
    """The device and the type of a layer's numbers, for another one."""
    own = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
    like = next((t for t in own if t.is_floating_point()), None)
    return {} if like is None else {"device": like.device, "dtype": like.dtype}


def order(places: Tensor | None, total: int, parts: int = 4) -> Tensor:
    """Which of ``total`` real channels is which component, ``(parts, n)``; as they stand if nothing else is said."""
    return torch.arange(total).view(parts, -1) if places is None else places.cpu()


def square(*tensors: Tensor) -> float:
    """The squared norm of all of them."""
    return sum(float(t.detach().double().square().sum()) for t in tensors)


def nearest_scale(scale: Tensor, places: Tensor) -> tuple[Tensor, float, float]:
    """One number for each quaternion in place of four: their mean is the nearest. Also what is kept, and of what."""
    mean = scale.detach().cpu().double()[places].mean(0)
    return mean, 4 * square(mean), square(scale)


def image_parts(channels: int) -> str:
    """Which components so many input channels are: those of gray or colour images, else all."""
    return {1: "r", 3: "ijk"}.get(channels, UNITS)


def grain(spec: Spec, reader: FunctionRules, layer: Any, value: Value, axis: int) -> int:
    """How many real channels along ``axis`` are one unit of a layer's input: a quaternion's four or, of a layer of real
    numbers, those of what it is given, or was given in an earlier call."""
    if spec.components == 4:
        return 4
    record = reader.facts.records.get(layer)
    if record is None or record.inputs is None:
        return value.parts if value.followed and value.axis == axis else 1
    return (spec.sizes(layer)[0] or 1) // len(record.inputs)


class Whole(Spec):
    """A real layer that mixes channels in a way that no plan narrows: all that it takes stay."""

    def follow(self, reader: FunctionRules, call: Call) -> Any:
        return reader.whole(call.values, call.out)


class OneToOne(Spec):
    """A layer that makes one tensor of one: :meth:`flow` says how."""

    def follow(self, reader: FunctionRules, call: Call) -> Any:
        values, tensors = call.values, call.tensors
        if not values:
            return unknown(call.out)
        if len(values) > 1 or not tensors or not isinstance(call.out, Tensor):
            return reader.opaque(call.title, values, call.out)
        return self.flow(reader, call, values[0], tensors[0])

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        """What becomes of the units of ``value``, which the layer is given as ``x``."""
        raise NotImplementedError


class Apart(OneToOne):
    """Each output channel depends on the same input channel alone, and on no number of its own."""

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        return reader.facts.through(call.title, value, call.out, again=of_layer(call.layer, value))

    def keeps_constants(self, layer: Any) -> bool:
        return True


class PerChannel(OneToOne):
    """Each output channel depends on the same input channel alone, and on numbers of its own, which stand on the last
    axes of parameters and buffers. ``size`` is the name under which the layer keeps how many real channels it has."""

    size = "num_features"
    tensors = ("weight", "bias", "running_mean", "running_var", "running_cov")

    def __init__(self, components: int) -> None:
        self.components = components

    def axis(self, layer: Any, x: Tensor) -> int:
        """The axis of the channels."""
        return 1

    def flow(self, reader: FunctionRules, call: Call, value: Value, x: Tensor) -> Value:
        axis = self.axis(call.layer, x)
        value = reader.facts.followed(value, x, axis, grain(self, reader, call.layer, value, axis))
        units = len(value.live)
        return reader.facts.scaled(call.name, call.layer, value, call.out, lambda: self.passing(call.layer, units))

    def passing(self, layer: Any, units: int) -> Tensor:
        """Which of so many units are not multiplied by zero."""
        passing = torch.ones(units, dtype=torch.bool)
        for scale in (getattr(layer, name) for name in self.scales(layer)):
            if scale is not None:
                passing &= nonzero(scale.reshape(-1, units)).any(0)
        return passing

    def sizes(self, layer: Any) -> tuple[int | None, int | None]:
        return getattr(layer, self.size) // self.components, None

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        return dict.fromkeys(self.tensors, take(-1, plan.left[0]))

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        setattr(layer, self.size, self.components * len(plan.left[0]))

    def shapes(self, layer: Any, ins: int | None, outs: int | None, constants: bool) -> dict[str, Shape] | None:
        own = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        return {name: (*t.shape[:-1], ins or 0) if name in self.tensors else tuple(t.shape) for name, t in own}
