"""Batch normalisations whose statistics are those of all processes that train together."""

import types
import warnings
from typing import TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quern.errors import QuernWarning
from quern.functional import synchronized
from quern.nn._norm import _RunningNorm

Module = TypeVar("Module", bound=nn.Module)


def convert_sync_batchnorm(module: Module) -> Module:
    """Let every batch normalisation in ``module``, quaternion or of torch, take its statistics from the joined batch of
    all processes of ``torch.distributed``, as :meth:`torch.nn.SyncBatchNorm.convert_sync_batchnorm` does, and on CPUs
    too. Gradients flow through them; the parts of the batch may differ in size.

    The layers are converted in place, and returned. They keep their types, parameters and buffers, so a network that
    was converted is compacted, exported and saved like any other; its files do not know of it. In eval mode, in one
    process and without a process group nothing changes. :func:`revert_sync_batchnorm` is the reverse.

    Convert before :class:`~torch.nn.parallel.DistributedDataParallel` wraps the network. ``quern train``,
    ``quern compress`` and their functions in Python do it by themselves.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _RunningNorm):
            layer.synchronized = True
        elif isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm):
            if _computes_as_torch(layer):
                layer.forward = types.MethodType(_forward, layer)
            elif not is_synchronized(layer):
                warnings.warn(
                    f"{name or 'the network'} ({type(layer).__name__}) has a forward of its own: its statistics stay "
                    "those of each process's part of the batch.",
                    QuernWarning,
                    stacklevel=2,
                )
    return module


def revert_sync_batchnorm(module: Module) -> Module:
    """Undo :func:`convert_sync_batchnorm`, in place."""
    for layer in module.modules():
        if isinstance(layer, _RunningNorm):
            layer.synchronized = False
        elif is_synchronized(layer):
            del layer.forward
    return module


def is_synchronized(layer: nn.Module) -> bool:
    """Whether this very layer takes statistics from all processes."""
    forward = vars(layer).get("forward")
    return getattr(layer, "synchronized", False) is True or getattr(forward, "__func__", None) is _forward


def _computes_as_torch(layer: _BatchNorm) -> bool:
    return "forward" not in vars(layer) and type(layer).forward is _BatchNorm.forward


def _forward(self: _BatchNorm, input: Tensor) -> Tensor:
    """What torch's batch normalisation does, with the statistics of all processes."""
    if not (self.training and synchronized.together()):
        return type(self).forward(self, input)
    self._check_input_dim(input)
    share, mean, var = 0.0, None, None
    if self.track_running_stats and self.running_mean is not None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        mean, var = self.running_mean.view(1, -1), self.running_var
    shift = None if self.bias is None else self.bias.view(1, -1)
    return synchronized.batch_norm(input, mean, var, self.weight, shift, share, self.eps, components=1)
