"""Random networks with zeros in them, drawn from a ``random.Random``: for the tests of compaction, for benchmarks.

drawn = draw(random.Random(7))
drawn.model, drawn.inputs     # in float64 and eval mode; the first input is the example, the others differ in size
"""

import random

import torch

from tests.networks.by_hand import kill, numbers, smaller, two, widths
from tests.networks.comparing import (
    Halves,
    cast,
    cloned,
    difference,
    measure,
    measure_halves,
    outputs,
    shapes,
    tensors_of,
)
from tests.networks.images import image_network
from tests.networks.numbered import numbered_network
from tests.networks.parts import F64, Drawn, Inputs, Numbered, Wired, random_values, random_zeros
from tests.networks.sequences import sequence_network

__all__ = ["F64", "Drawn", "Halves", "Inputs", "Numbered", "Wired", "cast", "cloned", "difference", "draw"]
__all__ += ["image_network", "kill", "measure", "measure_halves", "numbered_network", "numbers", "outputs"]
__all__ += ["random_values", "random_zeros", "sequence_network", "shapes", "smaller", "tensors_of", "two", "widths"]


def draw(rng: random.Random) -> Drawn:
    """A network that takes at least its example."""
    while True:
        torch.manual_seed(rng.randrange(1 << 31))
        try:
            drawn = (image_network if rng.random() < 0.75 else sequence_network)(rng)
        except RuntimeError:  # images became too small on the way
            continue
        if outputs(drawn.model, drawn.inputs[0]) is not None:
            return drawn
