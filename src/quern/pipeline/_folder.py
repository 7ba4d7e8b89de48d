"""The folder of a run of ``compress``:

config.json   what is to be done, by which a run goes on
dense/        the dense network: history.jsonl, checkpoints, result.json, model.safetensors, model.onnx, model.qrn
small/        the same for the small one, ground, healed and compacted
scratch/      the structure of the small one trained from fresh weights, if that was asked for
samples.json  some test images with the answers of both networks, where the data are images of quern.data
record.json   settings, data, machine, histories, the table, and what the budget came to
"""

import json
from pathlib import Path
from typing import Any

from quern._files import claimed, sweep, write_text
from quern.errors import TrainingError
from quern.records import Begun, check_writable, respelled, schema
from quern.train import NAMES


def open_folder(out: Path, settings: dict[str, Any], origin: dict[str, Any], resume: bool) -> None:
    """Make a new folder that says what is to be done, or check that this one says the same."""
    path = out / "config.json"
    if not path.exists():
        check_writable(out, "folder")
        out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**origin, "settings": settings}, indent=1) + "\n")
    elif not resume:
        raise TrainingError(f"{out} already holds a run: go on with resume, or choose another folder.")
    else:
        before = schema.read(path, Begun, "the settings of a run of quern compress", "choose another folder")
        if respelled(dict(before["settings"])) != json.loads(json.dumps(settings)):
            raise TrainingError(f"{out} was begun with other settings: see {path}, or choose another folder.")
    if resume:
        _sweep(out)


def _sweep(out: Path) -> None:
    """Remove what a killed run left in a folder and in those of its stages, where nobody is at work."""
    for folder in (out, out / "dense", out / "small", out / "scratch"):
        if folder.is_dir():
            with claimed(folder) as ours:
                if ours:
                    sweep(folder, (*NAMES, "record.json", "samples.json", "report.html"))
