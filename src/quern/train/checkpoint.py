"""The state of a training as one file of tensors, and everything else as JSON in its header, with a checksum.

The file is written under a temporary name and then renamed, so what is on disk is always one whole state. Nothing in it
is code.
"""

import json
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar

from torch import Tensor

from quern._files import replacing
from quern.errors import TrainingError
from quern.io.tensorfile import damaged, head_of, json_of, kinds_of, read_head, read_tensors, write_tensors
from quern.records.schema import Wrong, check, opened, short

__all__ = ["load", "save"]

HEADER_BYTES = 64 << 20  # the history of a hundred thousand epochs
T = TypeVar("T")


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write ``tensors`` and ``state`` (anything JSON knows) to ``path``; OSError if that fails, and then no trace."""
    head = head_of(kinds_of(tensors), json.dumps(state))
    if len(head) > HEADER_BYTES:
        raise OSError(f"its history takes more than {HEADER_BYTES >> 20} MB")
    with replacing(path) as temporary, temporary.open("wb") as file:
        write_tensors(file, head, tensors)


def load(path: Path, kind: type[T] | GenericAlias = dict[str, Any]) -> tuple[dict[str, Tensor], T]:
    """The reverse of :func:`save`, with the state as a ``kind`` (see :mod:`quern.records.schema`); TrainingError if
    the file is not just as it was saved."""

    def state(text: str | None) -> T:
        if text is None:
            raise Wrong("is not a checkpoint of quern")
        try:
            return check(json_of(text, nan=True), kind)
        except ValueError as reason:
            raise damaged(f"in its state {reason}") from reason

    try:
        with opened(path, "a checkpoint") as (file, size):
            head = read_head(file, size, state, HEADER_BYTES)
            return read_tensors(head, file)[0], head.own
    except FileNotFoundError:
        raise TrainingError(f"{path} is not there, so there is nothing to go on from.") from None
    except Wrong as reason:
        raise TrainingError(f"{path} {reason}; begin again in another folder.") from reason
    except (RuntimeError, MemoryError, OSError) as reason:
        raise TrainingError(f"{path} could not be read: {short(reason)}.") from reason
