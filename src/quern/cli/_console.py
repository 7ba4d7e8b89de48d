"""Speaking to the user: results on standard output, everything else on standard error."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from quern._files import printable
from quern.errors import QuernWarning

# A pipe has no width: tables are not cut to fit one.
out_console = Console(emoji=False) if sys.stdout.isatty() else Console(width=120, emoji=False)
err_console = Console(stderr=True, emoji=False)


def say(text: str, console: Console = out_console) -> None:
    """One line as it is: not wrapped, not coloured, brackets in paths left alone."""
    console.print(printable(text), highlight=False, soft_wrap=True, markup=False)


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Warnings of quern as one sentence on standard error, each once; those of others as Python shows them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", QuernWarning)
        others, shown = warnings.showwarning, set[str]()

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, QuernWarning):
                others(message, category, *place, **more)
            elif str(message) not in shown:  # Python itself forgets what it showed whenever somebody sets a filter
                shown.add(str(message))
                say(f"quern: warning: {message}", err_console)

        warnings.showwarning = show
        yield


class Fetching:
    """Shows the download of a data set, and what the data module has to say, unless ``quiet``."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Any:
        import logging

        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=err_console, disable=self.quiet or not err_console.is_terminal)
        self.handler = logging.Handler()
        self.handler.emit = lambda record: say(record.getMessage(), err_console)
        self.logger = logging.getLogger("quern.data")
        self.logger.addHandler(self.handler)
        self.level = self.logger.level
        self.logger.setLevel(logging.WARNING if self.quiet else logging.INFO)
        return self.report

    def report(self, what: str, done: int, total: int | None) -> None:
        if what not in self.tasks:
            if not self.tasks:
                self.progress.start()
            self.tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(self.tasks[what], completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self.tasks:
            self.progress.stop()
        self.logger.removeHandler(self.handler)
        self.logger.setLevel(self.level)
