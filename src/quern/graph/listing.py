"""Which parameters of a network are quaternions, as the Specs of its layers say."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from quern.graph.reader import read
from quern.graph.spec import Spec, spec_of
from quern.graph.trace import Example, inputs_of, mapped
from quern.graph.values import evaluating


def _named(
    model: nn.Module, names_of: Callable[[Spec, nn.Module], Sequence[str]]
) -> Iterator[tuple[str, nn.Parameter]]:
    seen: set[int] = set()
    for prefix, layer in model.named_modules():
        names = names_of(spec_of(layer), layer) if spec_of(layer).components == 4 else ()
        for name, parameter in layer.named_parameters(prefix, recurse=False):
            if name.rpartition(".")[2] in names and id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter


def quaternion_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights ``(4, out, in, ...)`` of the quaternion layers in ``model`` by name; a shared one stands once.

    Biases, and everything in real-valued layers, are not among them.
    """
    return dict(_named(model, lambda spec, layer: spec.weights(layer)))


def quaternion_shifts(model: nn.Module) -> dict[str, nn.Parameter]:
    """The other quaternion parameters ``(4, ...)`` of ``model`` by name: biases of layers, shifts of normalisations."""
    return dict(_named(model, lambda spec, layer: spec.shifts(layer)))


def batch_norms(model: nn.Module) -> dict[str, Any]:
    """The batch normalisations of ``model`` that have a scale γ, by name; a shared γ stands once. They are those of
    quaternions, or if a network has neither neurons nor normalisations that are, of real numbers."""
    norms: dict[int, tuple[str, nn.Module]] = {}
    for name, layer in model.named_modules():
        if spec_of(layer).gamma and layer.weight is not None:
            norms.setdefault(id(layer.weight), (name, layer))
    components = max([neuron_components(model), *(spec_of(layer).components for _, layer in norms.values())])
    return {name: layer for name, layer in norms.values() if spec_of(layer).components == components}


@torch.inference_mode(False)
@torch.no_grad()
def removable(model: nn.Module, example: Example) -> dict[str, dict[str, tuple[int, int]]]:
    """The layers of which neurons may go, by name: where these stand in their parameters, as their Specs say. The
    output of ``model`` on ``example`` has the size that it has, and so the layers that it comes from."""
    with evaluating(model):
        inputs = mapped(inputs_of(model, example), torch.Tensor.clone)
        facts, _, _ = read(model, inputs, keep_unknown=True)
    found = {}
    for record in facts.records.values():
        axes = spec_of(record.layer).neuron_axes(record.layer)
        own = {name: where for name, where in axes.items() if getattr(record.layer, name, None) is not None}
        if own and record.outputs is not None and not facts.pinned(record.outputs):
            found[record.name] = own
    return found


def neuron_components(model: nn.Module) -> int:
    """What the neurons of a network are, where one number counts them: quaternions, 4, if any of its layers has
    neurons that are, else real numbers, 1."""
    quaternions = any(spec_of(layer).components == 4 and spec_of(layer).neurons(layer) for layer in model.modules())
    return 4 if quaternions else 1


def neurons(model: nn.Module) -> int:
    """How many neurons a network has: quaternion ones, or real ones if there are no others."""
    components, specs = neuron_components(model), ((layer, spec_of(layer)) for layer in model.modules())
    return sum(spec.neurons(layer) for layer, spec in specs if spec.components == components)


@torch.no_grad()
def zero_(model: nn.Module, tol: float) -> None:
    """Weights and scales up to ``tol`` become zero, and nothing else does.

    Not even subnormal numbers, which take CPUs many times longer: in float16 they begin at 6e-5, where they are weights
    like any other, and in wider types a large input or a small variance can make them count.
    """
    if not tol:
        return
    for layer in model.modules():
        spec = spec_of(layer)
        for p in (getattr(layer, name) for name in (*spec.weights(layer), *spec.scales(layer))):
            if p is not None and not p.is_meta:
                small = p.abs() <= tol
                if bool((small & (p != 0)).any()):
                    p.masked_fill_(small, 0)
