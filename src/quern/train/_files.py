"""The folder of a training: checkpoints, history and result, each there and whole or not there."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from quern._files import claimed, sweep, write_text
from quern.errors import TrainingError
from quern.records import Epoch
from quern.records.schema import to_plain
from quern.train import checkpoint
from quern.train._resume import State

# What is in the folder of a training, with what quern compress adds.
NAMES = ("config.json", "history.jsonl", "last.safetensors", "best.safetensors", "model.safetensors", "result.json")
NAMES += ("model.onnx",)


class Files:
    """What a training keeps in ``folder``: the checkpoints ``last``, with all that is needed to go on, and ``best``,
    with the best weights; one line of ``history.jsonl`` an epoch; and ``config`` as ``config.json``, if there is any.
    Without a folder, or in a process that does not lead (``writes`` is False), nothing is written."""

    def __init__(self, folder: Path | None, writes: bool, config: dict[str, Any] | None = None) -> None:
        self.folder, self.writes, self.config = folder, writes and folder is not None, config

    @property
    def begun(self) -> bool:
        """Whether there is something to go on from."""
        return self.folder is not None and (self.folder / "last.safetensors").exists()

    @contextmanager
    def prepared(self, resume: bool) -> Iterator[None]:
        """The folder made, or found as it should be, and nobody else's meanwhile: two trainings in one would mix their
        checkpoints."""
        if self.folder is None and resume:
            raise TrainingError("there is nothing to resume without the folder of a run: say out=.")
        if self.folder is None or not self.writes:
            yield
            return
        if resume and not self.folder.is_dir():
            raise TrainingError(f"{self.folder} is not there, so there is no run to resume.")
        if not resume and self.begun:
            raise TrainingError(f"{self.folder} already holds a run: go on with --resume, or choose another folder.")
        with self.writing(""):
            self.folder.mkdir(parents=True, exist_ok=True)
        with claimed(self.folder) as ours:
            if not ours:
                raise TrainingError(f"another training is at {self.folder}: wait for it, or choose another folder.")
            with self.writing(""):
                sweep(self.folder, NAMES)  # by a run that was killed while it saved
            if self.config is not None and not resume:
                with self.writing("config.json") as path:
                    write_text(path, json.dumps(self.config, indent=1))
            yield

    def save(self, name: str, tensors: dict[str, Tensor], state: State) -> None:
        """Write the checkpoint of that name."""
        if self.writes:
            with self.writing(f"{name}.safetensors") as path:
                checkpoint.save(path, tensors, to_plain(state))

    def load(self, name: str) -> tuple[dict[str, Tensor], State]:
        """The checkpoint of that name, checked as far as it can be without the training."""
        assert self.folder is not None
        return checkpoint.load(self.folder / f"{name}.safetensors", State)

    def write_history(self, lines: Sequence[Epoch]) -> None:
        if self.writes:
            with self.writing("history.jsonl") as path:
                write_text(path, "".join(json.dumps(line.to_dict()) + "\n" for line in lines))

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """The path of a file of that name, and one sentence if it cannot be written."""
        assert self.folder is not None
        try:
            yield self.folder / name
        except OSError as reason:
            raise TrainingError(
                f"{self.folder / name} could not be written ({reason.strerror or reason}): make room or choose another "
                "folder; the files that were there are as they were."
            ) from reason
