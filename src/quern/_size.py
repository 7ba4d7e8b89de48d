"""How large a network is, as it stands."""

from torch import nn

from quern.graph.listing import neurons
from quern.records import Size


def size_of(model: nn.Module) -> Size:
    """The neurons of ``model``, quaternion ones or real ones if there are no others, and its parameters: what is known
    without running it or looking at a number. Who counted more, as :func:`quern.sparsity.measure` does, adds it."""
    parameters = sum(p.numel() for p in model.parameters())
    return Size(neurons=neurons(model), parameters=parameters, macs=None, bytes=None)
