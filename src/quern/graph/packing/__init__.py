"""Networks for the C runtime: what operations become there.

A value is a :class:`Packed`: some axes of a buffer, as torch's own strides describe them, with the batch as one axis of
an impossible stride. The runtime takes one sample at a time, so the batch is in none of its operations; an operation
that mixes it with other axes is refused. Moving axes costs nothing until somebody needs the numbers in order.
"""

from quern.graph.packing.functions import FUNCTIONS, gelu
from quern.graph.packing.images import adaptive, average, interpolate, maximum
from quern.graph.packing.rearranging import cat, pad, reshape
from quern.graph.packing.values import BATCH, Binary, Packed, Packer, in_order, strided

__all__ = ["BATCH", "FUNCTIONS", "Binary", "Packed", "Packer", "adaptive", "average", "cat", "gelu", "in_order"]
__all__ += ["interpolate", "maximum", "pad", "reshape", "strided"]
