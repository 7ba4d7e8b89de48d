"""What the folder of a run says of itself."""

import json
import shlex
from pathlib import Path
from typing import Any

__all__ = ["how_to_go_on", "is_compressed", "written"]


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
