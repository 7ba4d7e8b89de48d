"""Who is watching a computation. Hand-written backward passes are for eager reverse-mode autograd in one precision; for
anything else the same formula is run as ordinary operations."""

import torch
from torch import Tensor


def needs_plain(*tensors: Tensor | None) -> bool:
    """Whether something other than eager reverse-mode autograd in one precision is watching."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(t is not None and torch.is_autocast_enabled(t.device.type) for t in tensors)
        or any(t is not None and torch.autograd.forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    )
