"""A running mean of a network's weights and statistics."""

# The operations on lists of tensors are documented, in spite of their names.
# pyright: reportPrivateImportUsage=false

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    r"""The mean :math:`a \leftarrow a + (1 - d)(w - a)` over the steps of a training, of everything in the network's
    state. It begins with what the network is, and forgets that soon: after step n the decay d is that of the
    settings, or :math:`n / (n + 9)` while that is less. What does not move, such as zeros that are held, is in the mean
    what it is in the network, to the bit.
    """

    def __init__(self, model: nn.Module, decay: float, steps: int = 0) -> None:
        self.model, self.decay, self.steps = model, decay, steps
        self.tensors = {name: t.detach().clone() for name, t in model.state_dict().items()}

    @torch.no_grad()
    def step(self) -> None:
        """Take the network as it is now into the mean."""
        self.steps += 1
        share = 1 - min(self.decay, self.steps / (self.steps + 9))
        state = self.model.state_dict()
        names = [name for name, t in state.items() if t.is_floating_point()]
        torch._foreach_lerp_([self.tensors[name] for name in names], [state[name] for name in names], share)
        for name in state.keys() - names:  # counters
            self.tensors[name].copy_(state[name])

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """The network is the mean within the block."""
        own = {name: t.clone() for name, t in self.model.state_dict().items()}
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, tensors: dict[str, Tensor]) -> None:
        for name, t in self.model.state_dict().items():
            t.copy_(tensors[name])
