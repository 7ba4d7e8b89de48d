from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from quern.functional.autograd import is_traced
from quern.nn._norm import QBatchNorm

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HOOKS_OF_ALL = tuple(f"_global{kind}" for kind in HOOKS)


def _is_watched(layer: nn.Module) -> bool:
    """Whether somebody wants to see what goes in or out of this layer."""
    return any(getattr(layer, hooks) for hooks in HOOKS) or any(getattr(hooks_of_all, hooks) for hooks in HOOKS_OF_ALL)


def _takes_in_more(layer: QBatchNorm) -> bool:
    """Whether this is a batch normalisation of ours that can do what comes behind it in the same pass."""
    own = type(layer).forward is QBatchNorm.forward and "forward" not in vars(layer)
    return own and layer.training and not _is_watched(layer)


class Sequential(nn.Sequential):
    """``torch.nn.Sequential`` whose quaternion batch normalisations do in training what comes behind them, a ReLU or
    the addition of a residual block, in one pass over the numbers. Values, names and files are those of torch's.

    :meth:`forward_and_add` is for residual blocks.
    """

    @no_type_check  # torch.fx traces it with stand-ins for tensors, which run-time type checks would refuse
    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._run(input, None, False) if self._may_be_one_pass(input) else super().forward(input)

    @no_type_check
    def forward_and_add(
        self, input: Float[Tensor, "..."], added: Float[Tensor, "..."], relu: bool = False
    ) -> Float[Tensor, "..."]:
        """``layers(input) + added``, through a ReLU if so asked."""
        if self._may_be_one_pass(input) and not _is_watched(self):
            return self._run(input, added, relu)
        y = self(input) + added
        return torch.relu(y) if relu else y

    def _may_be_one_pass(self, input: Any) -> bool:
        return self.training and type(input) is Tensor and not is_traced()

    def _run(self, input: Tensor, added: Tensor | None, relu: bool) -> Tensor:
        layers, n = list(self), 0
        while n < len(layers):
            layer, following = layers[n], layers[n + 1] if n + 1 < len(layers) else None
            n += 1
            if not (isinstance(layer, QBatchNorm) and _takes_in_more(layer)):
                input = layer(input)
            elif following is None:
                return layer.forward_and_add(input, added, relu)
            elif type(following) is nn.ReLU and not _is_watched(following):
                input = layer.forward_and_add(input, None, True)
                n += 1
            else:
                input = layer(input)
        input = input if added is None else input + added
        return torch.relu(input) if relu else input
