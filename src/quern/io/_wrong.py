"""One sentence for whatever is wrong with a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quern._files import foreign_kind
from quern.errors import FileError
from quern.records.schema import Wrong


@contextmanager
def sentences(path: Path, done: str) -> Iterator[None]:
    """Whatever is wrong with a file becomes one FileError."""
    try:
        yield
    except Wrong as reason:
        said = str(reason)
        if done == "read" and (kind := foreign_kind(path)):
            said = f"is {kind}, but should be a network as a .safetensors file that quern.io.save or a run wrote"
        if done == "read" and (inside := path / "model.safetensors").is_file():
            said += f": give {inside}"
        raise FileError(f"{path} {said}.") from reason
    except OSError as reason:
        if done == "read" and isinstance(reason, FileNotFoundError):
            raise FileError(f"{path} is not there.") from reason
        raise FileError(f"{path} could not be {done}: {reason.strerror or reason}.") from reason
    except MemoryError as reason:
        raise FileError(f"{path} could not be {done}: the memory does not suffice.") from reason
