"""How large a network is, as it stands."""

from torch import nn

from quern.graph.listing import neurons
from quern.records import Size


def size_of(model: nn.Module) -> Size:
    """The quaternion neurons and the parameters of ``model``: what is known without running it or looking at a number.
    Who counted more, as :func:`quern.sparsity.measure` does, adds it."""
    parameters = sum(p.numel() for p in model.parameters())
    return Size(neurons=neurons(model), parameters=parameters, macs=None, bytes=None)
