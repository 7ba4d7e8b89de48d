"""What the folder of a run says of itself, and whether a file can be written."""

import shlex
from pathlib import Path

from quern._files import check_new_folder, check_target
from quern.errors import QuernError, RecordError
from quern.records import Begun, schema


def is_compressed(run: Path) -> bool:
    """Whether a folder is a run of ``quern compress`` or ``quern.compress``, or the record of one, and not a run of
    ``quern train``."""
    return begun(run) is not None


def how_to_go_on(run: Path) -> str:
    """The command that goes on with what is in a folder."""
    config = begun(run)
    if config is not None and "stages" not in config:
        return "quern.compress(..., resume=True)"
    return f"quern {'train' if config is None else 'compress'} --resume --out {shlex.quote(str(run))}"


def begun(run: Path) -> Begun | None:
    """What a run of ``quern compress`` says of itself; None if the folder is not one, or does not say so."""
    for name in ("config.json", "record.json"):
        try:
            return schema.read(run / name, Begun, "a run of quern compress")
        except RecordError:
            continue
    return None


def check_out(path: Path, *, folder: bool = False) -> None:
    """One sentence, before any work is done, if ``path`` is nothing that a file, or a new folder, can be written to."""
    try:
        (check_new_folder if folder else check_target)(path)
    except OSError as reason:
        other = "folder" if folder else "file"
        raise QuernError(f"{path} cannot be written: {reason.strerror}; give another {other}.") from reason
