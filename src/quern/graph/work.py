"""What a run of a network multiplies: asked of the Specs while it runs once on an example."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quern.graph.listing import quaternion_weights
from quern.graph.spec import spec_of
from quern.graph.trace import Example, inputs_of


def run_counting(model: nn.Module, example: Example, tell: Callable[[str, Tensor, int, int], None]) -> int:
    """Run ``model`` in eval mode and ``tell`` for each use of a weight: the layer's name, the weight, how often each of
    its numbers is used, and for how many products each time. Returns for how many samples all that is: the size of the
    example's first axis."""
    inputs = inputs_of(model, example)

    def count(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        for weight, uses, products in spec_of(layer).work(layer, args, kwargs, output):
            tell(name, weight, uses, products)

    handles = [
        layer.register_forward_hook(partial(count, name), with_kwargs=True) for name, layer in model.named_modules()
    ]
    modes = {layer: layer.training for layer in model.modules()}
    try:
        model.eval()
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
        for layer, training in modes.items():
            layer.train(training)  # the outer ones first, so that each ends as it was
    return max(1, next((a.shape[0] for a in inputs if isinstance(a, Tensor)), 1))


@torch.no_grad()
def quaternion_costs(model: nn.Module, example: Example) -> dict[str, float]:
    """The real multiply-adds that one quaternion of each weight takes for one sample, by the weight's name: 16 at each
    position that it is applied at, or 4 for each component that its input has. A weight that no layer told of when the
    network ran is not there."""
    names = {id(weight): name for name, weight in quaternion_weights(model).items()}
    totals: dict[str, int] = {}

    def add(_: str, weight: Tensor, uses: int, products: int) -> None:
        if (name := names.get(id(weight))) is not None:
            totals[name] = totals.get(name, 0) + 4 * uses * products

    samples = run_counting(model, example, add)
    return {name: total / samples for name, total in totals.items()}
