"""One sentence for whatever is wrong with a file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quern._files import foreign_kind
from quern.errors import FileError, NotFiniteWarning
from quern.records.schema import Wrong, short


@contextmanager
def sentences(path: Path, done: str) -> Iterator[None]:
    """Whatever is wrong with a file becomes one FileError."""
    try:
        yield
    except Wrong as reason:
        sentence = str(reason)
        if done == "read" and (kind := foreign_kind(path)):
            sentence = f"is {kind}, but should be a network as a .safetensors file that quern.io.save or a run wrote"
        if done == "read" and (inside := path / "model.safetensors").is_file():
            sentence += f": give {inside}"
        raise FileError(f"{path} {sentence}.") from reason
    except OSError as reason:
        if done == "read" and isinstance(reason, FileNotFoundError):
            raise FileError(f"{path} is not there.") from reason
        raise FileError(f"{path} could not be {done}: {reason.strerror or reason}.") from reason
    except MemoryError as reason:
        raise FileError(f"{path} could not be {done}: the memory does not suffice.") from reason


def warn_of_numbers(spoilt: list[str], count: int, path: Path) -> None:
    """Say if a network holds NaN or infinity: it is a network all the same, but of no use."""
    if spoilt:
        warnings.warn(
            f"{path} holds NaN or infinity in {len(spoilt)} of {count} tensors, the first is {short(spoilt[0])}: "
            "what the network computes is of no use, so train it again.",
            NotFiniteWarning,
            stacklevel=3,
        )
