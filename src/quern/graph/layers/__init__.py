"""One Spec per kind of layer, in a file per family. Importing this registers all of them."""

from quern.graph.layers import (  # noqa: F401
    activation,
    attention,
    convolution,
    dropout,
    embedding,
    linear,
    norm,
    pool,
    readout,
    recurrent,
)
