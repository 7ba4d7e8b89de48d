"""What the folder of a run says of itself, and whether a file can be written."""

import json
import shlex
from pathlib import Path
from typing import Any

from quern.errors import QuernError
from quern.files import check_target

__all__ = ["check_out", "how_to_go_on", "is_compressed", "written"]


def is_compressed(run: Path) -> bool:
    """Whether a folder is a run of ``quern compress`` or ``quern.compress``, or the record of one, and not a run of
    ``quern train``."""
    return "budget" in (written(run).get("settings") or {})


def how_to_go_on(run: Path) -> str:
    """The command that goes on with what is in a folder."""
    if is_compressed(run) and "stages" not in written(run):
        return "quern.compress(..., resume=True)"
    return f"quern {'compress' if is_compressed(run) else 'train'} --resume --out {shlex.quote(str(run))}"


def written(run: Path) -> dict[str, Any]:
    """What a folder says of itself, if it does."""
    for name in ("config.json", "record.json"):
        try:
            found = json.loads((run / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and isinstance(found.get("settings"), dict):
            return found
    return {}


def check_out(path: Path) -> None:
    """One sentence, before any work is done, if ``path`` is nothing that a file can be written to."""
    try:
        check_target(path)
    except OSError as reason:
        raise QuernError(f"{path} cannot be written: {reason.strerror}; give another file.") from reason
