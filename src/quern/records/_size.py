"""How large a network is, as numbers."""

from dataclasses import dataclass

from quern.records.schema import Count


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a network is. ``neurons`` are its quaternion neurons, or its real ones if it has no others.
    ``parameters`` counts all numbers in parameters, ``nonzero_parameters`` those that are not zero; ``macs`` are real
    multiply-adds for one input; ``bytes`` are those of its ``.safetensors`` file, or of its tensors where there is no
    file. None is what nobody counted, and what older files lack."""

    neurons: Count
    parameters: Count
    nonzero_parameters: Count | None = None
    macs: Count | None
    bytes: Count | None
