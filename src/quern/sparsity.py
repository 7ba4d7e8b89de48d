"""How sparse and how large a network is.

Zero means \\|.\\| <= tol. **Component** sparsity is the share of zero numbers among the quaternion weights,
**quaternion** sparsity the share of quaternions whose modulus is zero, **neuron** sparsity the share of
neurons that no longer matter: γ = 0, no non-zero incoming weight, or no non-zero outgoing weight, cascading through the
network (:mod:`quern.liveness`). Biases count as parameters but not as weights.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quern.graph import check_module, inputs_of, quaternion_weights, spec_of
from quern.liveness import liveness
from quern.records import LayerSparsity, Sparsity

__all__ = ["LayerSparsity", "Sparsity", "measure", "work"]


@torch.no_grad()
def measure(model: nn.Module, example_input: Tensor | tuple[Any, ...] | None = None, tol: float = 0.0) -> Sparsity:
    """Sparsity and size of ``model``; numbers up to ``tol`` count as zero.

    With an ``example_input`` (or a tuple of arguments) the network runs once in eval mode to count multiply-adds; they
    are given for one sample, the first axis of the example being the batch.
    """
    if not (tol >= 0 and math.isfinite(tol)):
        raise ValueError(f"tol is {tol}, but it must be a finite number that is not negative.")
    check_module(model)
    done = None if example_input is None else work(model, example_input, tol)
    found = liveness(model, tol)
    layers, seen = [], set()
    for name, layer in model.named_modules():
        if not spec_of(layer).neurons(layer):
            continue
        weights = [w for w in quaternion_weights(layer).values() if id(w) not in seen]
        seen.update(map(id, weights))
        zero = [w.abs() <= tol for w in weights]
        # Squares of tiny numbers are zero even in float64: for tol = 0 the components say it.
        gone = [z.all(0) & (w.double().norm(dim=0) <= tol) for z, w in zip(zero, weights, strict=True)]
        alive = found.alive[name]
        macs, nonzero_macs = (None, None) if done is None else done.get(name, (0, 0))
        layers.append(
            LayerSparsity(
                name=name,
                kind=type(layer).__name__,
                quaternions=sum(z[0].numel() for z in zero),
                zero_components=sum(int(z.sum()) for z in zero),
                zero_quaternions=sum(int(g.sum()) for g in gone),
                neurons=len(alive),
                dead_neurons=int((~alive).sum()),
                macs=macs,
                nonzero_macs=nonzero_macs,
            )
        )
    parameters = list(model.parameters())
    return Sparsity(
        layers=tuple(layers),
        parameters=sum(p.numel() for p in parameters),
        nonzero_parameters=sum(_nonzero(p, tol) for p in parameters),
        bytes=sum(t.numel() * t.element_size() for t in (*parameters, *model.buffers())),
        macs=None if done is None else sum(macs for macs, _ in done.values()),
        nonzero_macs=None if done is None else sum(rest for _, rest in done.values()),
        tol=tol,
        notes=found.notes,
    )


def _nonzero(t: Tensor, tol: float) -> int:
    return t.numel() - int((t.abs() <= tol).sum())  # what is not a number is not zero


def work(model: nn.Module, example_input: Tensor | tuple[Any, ...], tol: float = 0.0) -> dict[str, tuple[int, int]]:
    """Real multiply-adds of every weighted layer by name, with and without zeros, for one sample."""
    done: dict[str, tuple[int, int]] = {}
    args = inputs_of(model, example_input)
    batch = max(1, next((a.shape[0] for a in args if isinstance(a, Tensor)), 1))

    def count(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        for weight, uses, products in spec_of(layer).work(layer, args, kwargs, output):
            here, left = (products * uses * n // batch for n in (weight.numel(), _nonzero(weight, tol)))
            before = done.get(name, (0, 0))
            done[name] = (before[0] + here, before[1] + left)

    handles = [
        layer.register_forward_hook(partial(count, name), with_kwargs=True) for name, layer in model.named_modules()
    ]
    modes = {layer: layer.training for layer in model.modules()}
    try:
        model.eval()
        model(*args)
    finally:
        for handle in handles:
            handle.remove()
        for layer, training in modes.items():
            layer.train(training)  # the outer ones first, so that each ends as it was
    return done
