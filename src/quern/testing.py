"""The laws that quern's own layers are tested by, for your layers too.

``assert_matches_real`` compares a layer with a slow, obviously right version of it; ``assert_module_laws`` checks what
every layer owes its user besides the right values; ``assert_same_function`` compares two networks.
"""

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["assert_matches_real", "assert_module_laws", "assert_same_function", "tolerance"]


def tolerance(dtype: torch.dtype) -> float:
    """The relative difference that rounding explains: 1e-10 in float64, 1e-4 in float32."""
    return {torch.float64: 1e-10, torch.float32: 1e-4}[dtype]


def _tensors(value: Any) -> list[Tensor]:
    """All floating-point tensors of an output: a tensor, or tuples and lists of them."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, tuple | list):
        return [t for part in value for t in _tensors(part)]
    return []


def _assert_close(actual: Any, wanted: Any, name: str) -> None:
    pairs = list(zip(_tensors(actual), _tensors(wanted), strict=True))
    assert pairs, f"{name}: there is nothing to compare."
    for a, b in pairs:
        assert a.shape == b.shape, f"{name}: the shapes are {tuple(a.shape)} and {tuple(b.shape)}."
        if b.numel() == 0:
            continue
        scale = b.detach().abs().max().clamp_min(torch.finfo(b.dtype).tiny)
        worst = float((a.detach() - b.detach()).abs().max() / scale)
        assert worst <= tolerance(b.dtype), f"{name}: the largest relative difference is {worst:.3g}."


def assert_same_function(first: Callable[..., Any], second: Callable[..., Any], *inputs: Tensor) -> None:
    """Two networks give the same outputs for ``inputs``, up to rounding."""
    with torch.no_grad():
        _assert_close(first(*inputs), second(*inputs), "outputs")


def assert_matches_real(layer: nn.Module, real: Callable[..., Any], *inputs: Tensor) -> None:
    """``layer(*inputs)`` equals ``real(layer, *inputs)``, a slow and independent version of it, up to rounding.

    The gradients of a random combination of the outputs are compared with central differences of ``real``, one random
    direction for every input and parameter; for that the layer and the inputs must be float64.
    """
    output = layer(*inputs)
    _assert_close(output, real(layer, *inputs), "outputs")
    if _tensors(output)[0].dtype != torch.float64:
        return
    weights = [torch.randn_like(t) for t in _tensors(output)]

    def combine(value: Any) -> Tensor:
        return torch.stack([(t * w).sum() for t, w in zip(_tensors(value), weights, strict=True)]).sum()

    inputs = tuple(t.detach().clone() for t in inputs)  # the caller's stay as they are
    variables = [(f"input {n}", t) for n, t in enumerate(inputs) if t.is_floating_point()]
    variables += [(name, p) for name, p in layer.named_parameters() if p.requires_grad]
    leaves = [t.requires_grad_() for _, t in variables]
    gradients = torch.autograd.grad(combine(layer(*inputs)), leaves)
    for (name, variable), gradient in zip(variables, gradients, strict=True):
        assert gradient.isfinite().all(), f"the gradient of {name} is not finite."
        direction = torch.randn_like(variable)
        step = 1e-6
        with torch.no_grad():
            variable.add_(direction, alpha=step)
            above = combine(real(layer, *inputs))
            variable.sub_(direction, alpha=2 * step)
            below = combine(real(layer, *inputs))
            variable.add_(direction, alpha=step)
        slope, wanted = float((gradient * direction).sum()), float(above - below) / (2 * step)
        assert abs(slope - wanted) <= 1e-6 * max(1.0, abs(wanted)), f"d/d {name} is {slope}, not {wanted}."


def assert_module_laws(make: Callable[..., nn.Module], *inputs: Tensor) -> None:
    """What every layer owes its user. ``make(device=..., dtype=...)`` builds it; ``inputs`` are float64.

    State round trip, deepcopy, dtype changes, the meta device, a printable form, no dependence of eval on the batch
    before, and gradients that are finite, all-zero inputs included.
    """
    layer = make(device="cpu", dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in layer.parameters():  # away from special values, which a new layer has too
            parameter.add_(torch.rand_like(parameter) / 4)
        for buffer in layer.buffers():
            if buffer.is_floating_point():
                buffer.mul_(1.5)
    wanted = layer(*inputs)

    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = make(device="cpu", dtype=torch.float64).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same_function(other, layer, *inputs)
    assert_same_function(copy.deepcopy(layer), layer, *inputs)
    layer(*(torch.roll(t, 1, 0) for t in inputs))
    _assert_close(layer(*inputs), wanted, "eval after another input")

    narrow = copy.deepcopy(layer).to(torch.float32)
    narrow_inputs = [t.float() if t.is_floating_point() else t for t in inputs]
    assert all(t.dtype == torch.float32 for t in _tensors(narrow(*narrow_inputs))), "dtype float32 is not kept."
    for a, b in zip(_tensors(narrow(*narrow_inputs)), _tensors(wanted), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)

    meta = make(device="meta", dtype=torch.float64).eval()
    assert all(t.is_meta for t in (*meta.parameters(), *meta.buffers())), "a parameter is not on the meta device."
    for a, b in zip(_tensors(meta(*(t.to("meta") for t in inputs))), _tensors(wanted), strict=True):
        assert a.is_meta, "the output is not on the meta device."
        assert a.shape == b.shape, "the meta device gives another shape."

    assert type(layer).__name__ in repr(layer), "repr does not name the layer."
    for values in (inputs, [torch.zeros_like(t) for t in inputs]):
        layer.zero_grad()
        leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in values]
        total = torch.stack([t.sum() for t in _tensors(layer(*leaves))]).sum()
        if total.requires_grad:
            total.backward()
        for tensor in (*leaves, *layer.parameters()):
            assert tensor.grad is None or tensor.grad.isfinite().all(), "a gradient is not finite."
