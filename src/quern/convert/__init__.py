"""Ways in: weights of the 2019 library, and networks written in ``torch.nn``."""

from quern.convert._orkis import from_orkis
from quern.convert._quaternionize import Conversion, conversion, quaternionize

__all__ = ["Conversion", "conversion", "from_orkis", "quaternionize"]
