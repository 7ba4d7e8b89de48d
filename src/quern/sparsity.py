"""How sparse and how large a network is.

Zero means \\|.\\| <= tol. **Component** sparsity is the share of zero numbers among the quaternion weights,
**quaternion** sparsity the share of quaternions whose modulus is zero, **neuron** sparsity the share of neurons that no
longer matter: those that :func:`quern.compact.plan` would remove. Biases count as parameters but not as weights.
A real layer is one whose weights have one component: its component and quaternion sparsity are the same, the share of
zero weights, and its neurons are real. The totals of a network are those of its quaternion layers, or of its real
layers if it has no others.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from quern.errors import QuernError
from quern.graph import Example, check_module, inputs_of, mapped, spec_of
from quern.graph.listing import zero_
from quern.graph.paths import has_bias, norms_behind
from quern.graph.precision import floating, in_float64, largest, widened
from quern.graph.reader import layer_plan, read
from quern.graph.spec import hooked
from quern.graph.trace import traced
from quern.graph.work import run_counting
from quern.records import LayerSparsity, Sparsity

__all__ = ["LayerSparsity", "Sparsity", "measure", "work"]

ALONE = "without an example input a neuron counts as dead if it has no weight or scale but zero, not if nobody needs it"


@torch.inference_mode(False)
@torch.no_grad()
def measure(model: nn.Module, example_input: Tensor | tuple[Any, ...] | None = None, tol: float = 0.0) -> Sparsity:
    """Sparsity and size of ``model``, with a row for every layer that has neurons, quaternion or real; numbers up to
    ``tol`` count as zero.

    With an ``example_input`` (or a tuple of arguments) the network runs once in eval mode to count multiply-adds; they
    are given for one sample, the first axis of the example being the batch. Then it is read as
    :func:`quern.compact.plan` reads it: dead neurons are those that a plan would remove. Without an example, or where
    the network cannot be read, each layer is looked at alone, and ``notes`` says so.
    """
    if not (tol >= 0 and math.isfinite(tol)):
        raise ValueError(f"tol is {tol}, but it must be a finite number that is not negative.")
    check_module(model)
    done = None if example_input is None else work(model, example_input, tol)
    dead, notes = _dead_neurons(model, example_input, tol)
    layers, seen = [], set()
    for name, layer in model.named_modules():
        spec, own = spec_of(layer), layer.named_parameters(recurse=False)
        if not (neurons := spec.neurons(layer)):
            continue
        weights = [w for key, w in own if key in spec.weights(layer) and id(w) not in seen]
        seen.update(map(id, weights))
        weights = weights if spec.components == 4 else [w.unsqueeze(0) for w in weights]
        zero = [w.abs() <= tol for w in weights]
        # Squares of tiny numbers are zero even in float64: for tol = 0 the components say it.
        gone = [z.all(0) & (w.abs().double().norm(dim=0) <= tol) for z, w in zip(zero, weights, strict=True)]
        macs, nonzero_macs = (None, None) if done is None else done.get(name, (0, 0))
        layers.append(
            LayerSparsity(
                name=name,
                kind=type(layer).__name__,
                quaternions=sum(z[0].numel() for z in zero),
                zero_components=sum(int(z.sum()) for z in zero),
                zero_quaternions=sum(int(g.sum()) for g in gone),
                neurons=neurons,
                dead_neurons=dead.get(name, 0),
                macs=macs,
                nonzero_macs=nonzero_macs,
                components=4 if spec.components == 4 else 1,
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
        notes=notes,
    )


def _dead_neurons(model: nn.Module, example: Example | None, tol: float) -> tuple[dict[str, int], tuple[str, ...]]:
    """How many neurons of each layer are dead, by its name, and notes."""
    network = copy.deepcopy(model) if tol or example is not None else model
    zero_(network, tol)
    if example is None:
        return _alone(network, ALONE)
    network.eval()
    inputs, most = mapped(inputs_of(network, example), Tensor.clone), largest(network)
    for layer in filter(hooked, network.modules()):  # they are kept whole, but nobody's hooks are to see this
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks):
            hooks.update(dict.fromkeys(hooks, lambda *_: None))
    wide = in_float64(network, floating(network))
    try:
        try:
            facts, _, _ = read(wide or network, mapped(inputs, widened) if wide else inputs, True, most)
        except QuernError:
            if wide is None:
                raise
            facts, _, _ = read(network, inputs, True, most)  # its forward insists on a type
    except QuernError as reason:
        return _alone(network, f"each layer was looked at alone: {reason}")
    kept, dead, notes = facts.settle(), dict[str, int](), list(facts.notes)
    for record in facts.records.values():
        outputs, neurons = layer_plan(record, kept).outputs, spec_of(record.layer).neurons(record.layer)
        if neurons and outputs is not None:  # one output of a recurrent layer is a neuron in every level
            dead[record.name] = (outputs.total - len(outputs.indices)) * neurons // outputs.total
    for name, layer in network.named_modules():
        if spec_of(layer).neurons(layer) and name not in dead:
            notes.append(f"{name} ({type(layer).__name__}) was not followed, so all its neurons count as alive")
    return dead, tuple(dict.fromkeys(notes))


def _alone(network: nn.Module, note: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """What each layer knows by itself, or by the normalisation behind it."""
    modules = dict(network.named_modules())
    silent = {name: spec_of(layer).silent(layer) for name, layer in modules.items() if spec_of(layer).neurons(layer)}

    try:
        traced(network)
    except QuernError as reason:
        note = f"each layer was looked at alone: {reason}"
    else:
        for name, norms in (norms_behind(network, has_bias) or {}).items():
            silent[name] |= torch.stack([_unscaled(modules[norm], modules[name]) for norm in norms]).all(0)
    return {name: int(which.sum()) for name, which in silent.items()}, (note,) if silent else ()


def _unscaled(norm: nn.Module, layer: nn.Module) -> Tensor:
    """Which neurons of a layer a normalisation multiplies by zero; none if these are not its channels."""
    spec, before = spec_of(norm), spec_of(layer)
    neurons, channels = before.neurons(layer), spec.sizes(norm)[0] or 0
    scales = [scale for scale in (getattr(norm, name) for name in spec.scales(norm)) if scale is not None]
    if not scales or channels * spec.components != neurons * before.components:
        return torch.zeros(neurons, dtype=torch.bool)
    zero = torch.stack([(scale.reshape(-1, channels) == 0).all(0) for scale in scales]).any(0).cpu()
    return zero.repeat(spec.components).view(before.components, neurons).all(0)  # by way of real channels


def _nonzero(t: Tensor, tol: float) -> int:
    return t.numel() - int((t.abs() <= tol).sum())  # what is not a number is not zero


def work(model: nn.Module, example_input: Tensor | tuple[Any, ...], tol: float = 0.0) -> dict[str, tuple[int, int]]:
    """Real multiply-adds of every weighted layer by name, with and without zeros, for one sample."""
    used: list[tuple[str, int, int]] = []

    def count(name: str, weight: Tensor, uses: int, products: int) -> None:
        used.append((name, products * uses * weight.numel(), products * uses * _nonzero(weight, tol)))

    samples = run_counting(model, example_input, count)
    done: dict[str, tuple[int, int]] = {}
    for name, whole, left in used:
        before = done.get(name, (0, 0))
        done[name] = (before[0] + whole // samples, before[1] + left // samples)
    return done
