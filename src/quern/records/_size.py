"""How large a network is, as numbers."""

from dataclasses import dataclass

from quern.records.schema import Count


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a network is. ``parameters`` counts all numbers in parameters, ``nonzero_parameters`` those that are
    not zero; ``macs`` are real multiply-adds for one input, None where no input was given to count them by; ``bytes``
    are those of its ``.safetensors`` file, or of its tensors where there is no file. Older files lack some."""

    neurons: Count
    parameters: Count
    nonzero_parameters: Count | None = None
    macs: Count | None
    bytes: Count
