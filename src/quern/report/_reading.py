"""Damaged records are one sentence, whatever is wrong with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quern.errors import RecordError

__all__ = ["reading"]


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """While plain values are taken out of ``path``: what is missing or of the wrong kind is a :class:`RecordError`."""
    try:
        yield
    except KeyError as reason:
        raise RecordError(f"{path} does not hold {what}, it has no {reason}: make it again.") from reason
    except (TypeError, ValueError, IndexError, AttributeError) as reason:
        said = " ".join(str(reason).split())
        raise RecordError(f"{path} does not hold {what} ({said}): make it again.") from reason
