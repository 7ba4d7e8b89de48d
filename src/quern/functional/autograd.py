"""Who is watching a computation.

Hand-written backward passes and kept weights are for eager reverse-mode autograd in one precision; for anything else
the same formula is run as ordinary operations.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether operations are recorded or transformed instead of just being run."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def needs_plain(*tensors: Tensor | None) -> bool:
    """Whether something other than eager reverse-mode autograd in one precision is watching these tensors."""
    return is_traced() or any(
        t is not None
        and (
            (t.device.type != "meta" and torch.is_autocast_enabled(t.device.type))  # which knows no such device
            or torch.autograd.forward_ad.unpack_dual(t).tangent is not None
        )
        for t in tensors
    )


def needs_gradients_by_autograd(grad: Tensor) -> bool:
    """Whether a hand-written backward pass should step aside: for second derivatives, or gradients in batches."""
    in_batches = torch._C._functorch.is_legacy_batchedtensor(grad)  # pyright: ignore[reportAttributeAccessIssue]
    return torch.is_grad_enabled() or is_traced() or in_batches


def gradients_of(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], needs: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The backward pass of ``function`` by autograd, for second derivatives and transforms of a backward pass."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases, so that hooks on the inputs run where they belong: in the backward pass that called this one.
        aliases = [None if t is None else t.view_as(t) for t in inputs]
        wanted = [t for t, need in zip(aliases, needs, strict=True) if need and t is not None]
        gradients = iter(torch.autograd.grad(function(*aliases), wanted, grad, create_graph=again))
    return tuple(next(gradients) if need else None for need in needs)
