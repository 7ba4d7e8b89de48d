"""What a user sees of a training."""

import io
import math
import re

import pytest
from rich.console import Console

from quern.data import ImageSet
from quern.records.text import summary
from quern.train import Settings, fit
from quern.train.progress import Bar, Lines
from tests.train.short_runs import build


def terminal(terminal: bool) -> tuple[Console, io.StringIO]:
    seen = io.StringIO()
    return Console(file=seen, force_terminal=terminal, width=160, _environ={"TERM": "xterm"}), seen


class Looking(Bar):
    """A bar that keeps how much of it was full, and what stood beside it, after each step."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.full: list[float] = []
        self.beside: list[str] = []

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        super().step(epoch, phase, step, steps, loss)
        [task] = self.progress.tasks
        self.full.append(task.completed / (task.total or math.nan))
        self.beside.append(f"{task.description} {task.fields['status']}")


def test_a_bar_fills_step_by_step_and_leaves_a_line_for_each_epoch(images: ImageSet) -> None:
    console, seen = terminal(True)
    bar, settings = Looking(console), Settings(epochs=2, heal=1, batch=64)
    history = fit(build(), images, settings, watchers=[bar]).history
    steps = len(bar.full)
    assert steps == settings.total * 5
    assert bar.full == pytest.approx([n / steps for n in range(1, steps + 1)])
    for number, text in enumerate(bar.beside):
        line = history[number // 5]
        assert text.startswith(f"{line.phase} {line.epoch}/{settings.total} loss ")
        known = f"val {history[number // 5 - 1].val_accuracy:.2%}"
        assert (known in text) == (number >= 5)  # of the epoch before
        assert text.endswith(" left")
    assert bar.progress.finished
    assert not bar.progress.live.is_started
    for line in history:
        assert seen.getvalue().count(summary(line, settings.total)) == 1


def test_a_bar_that_was_not_begun_ends() -> None:
    console, seen = terminal(True)
    Bar(console).end()
    assert seen.getvalue() == ""


def test_lines_are_one_for_each_epoch_and_say_what_is_left(images: ImageSet) -> None:
    console, seen = terminal(False)
    settings = Settings(epochs=2, heal=1, batch=64)
    history = fit(build(), images, settings, watchers=[Lines(console)]).history
    lines = seen.getvalue().splitlines()
    assert len(lines) == len(history)
    for line, epoch in zip(lines, history, strict=True):
        assert re.fullmatch(re.escape(summary(epoch, settings.total)) + r", \d+:\d\d left", line)
    assert lines[-1].endswith(", 0:00 left")
