from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quern.functional.autograd import is_traced
from quern.nn._norm import QBatchNorm
from quern.nn._normed import first_run, is_relu, is_watched, takes_in_more


class Sequential(nn.Sequential):
    """``torch.nn.Sequential`` whose quaternion batch normalisations do in training what comes behind them, a ReLU or
    the addition of a residual block, in one pass over the numbers; and of what is depthwise or pointwise convolutions
    between them too. Values, names and files are those of torch's.

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
        if self._may_be_one_pass(input) and not is_watched(self):
            return self._run(input, added, relu)
        y = self(input) + added
        return torch.relu(y) if relu else y

    def _may_be_one_pass(self, input: Any) -> bool:
        return self.training and type(input) is Tensor and not is_traced()

    def _run(self, input: Tensor, added: Tensor | None, relu: bool) -> Tensor:
        layers, n = list(self), 0
        while n < len(layers):
            if run := first_run(layers[n:], input):
                n += run.length
                if n == len(layers) and not run.ends_in_relu and run.can_add(added):
                    return run(input, added, relu)
                input = run(input, None, run.ends_in_relu)
                continue
            layer, following = layers[n], layers[n + 1] if n + 1 < len(layers) else None
            n += 1
            if not (isinstance(layer, QBatchNorm) and takes_in_more(layer)):
                input = layer(input)
            elif following is None:
                return layer.forward_and_add(input, added, relu)
            elif is_relu(following):
                input = layer.forward_and_add(input, None, True)
                n += 1
            else:
                input = layer(input)
        input = input if added is None else input + added
        return torch.relu(input) if relu else input
