"""Telling a user how a training goes: a bar on a terminal, plain lines elsewhere, event files for TensorBoard."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from quern.records import Epoch
from quern.records.text import clock, shown_value, summary

if TYPE_CHECKING:
    from quern.train._settings import Settings

__all__ = ["Bar", "Events", "Lines"]


class _TimeLeft:
    """Seconds left, from the steps done since the start of this process."""

    def __init__(self, done: int, total: int) -> None:
        self.began, self.first, self.total = time.monotonic(), done, total

    def at(self, done: int) -> str:
        rate = (time.monotonic() - self.began) / max(1, done - self.first)
        return clock(rate * (self.total - done))


class Lines:
    """One line an epoch, with the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, settings: "Settings", epoch: int, steps: int) -> None:
        self.total = settings.total
        self.left = _TimeLeft(epoch, settings.total)

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        pass

    def epoch(self, line: Epoch) -> None:
        left = self.left.at(line.epoch)
        self.console.print(f"{summary(line, self.total)}, {left} left", highlight=False, soft_wrap=True)

    def end(self) -> None:
        pass


class Bar:
    """A bar over all steps with loss, accuracy, sparsity and time left; finished epochs stand above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.task: TaskID | None = None
        self.known = ""

    def start(self, settings: "Settings", epoch: int, steps: int) -> None:
        self.total, done, whole = settings.total, epoch * steps, settings.total * steps
        self.left = _TimeLeft(done, whole)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[status]}"))
        self.progress = Progress(*columns, console=self.console, transient=True, expand=True)
        self.task = self.progress.add_task("", total=whole, completed=done, status="")
        self.progress.start()

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        assert self.task is not None
        done = (epoch - 1) * steps + step
        status = f"loss {loss:.3f}{self.known}  {self.left.at(done)} left"
        self.progress.update(self.task, description=f"{phase} {epoch}/{self.total}", completed=done, status=status)

    def epoch(self, line: Epoch) -> None:
        self.known = f"  val {shown_value(line)}  zero {line.quaternion_sparsity:.1%}"
        self.progress.console.print(summary(line, self.total), highlight=False)

    def end(self) -> None:
        if self.task is not None:
            self.progress.stop()


class Events:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.make = lambda epoch: SummaryWriter(str(folder), purge_step=epoch + 1 if epoch else None)

    def start(self, settings: "Settings", epoch: int, steps: int) -> None:
        self.writer = self.make(epoch)

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        pass

    def epoch(self, line: Epoch) -> None:
        for name, value in line.to_dict().items():
            if isinstance(value, (int, float)) and name != "epoch":
                self.writer.add_scalar(name, value, line.epoch)
        self.writer.flush()

    def end(self) -> None:
        self.writer.close()
