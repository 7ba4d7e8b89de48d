"""The ``quern`` command. Thin, and with its imports inside of functions: ``quern --help`` must not wait for torch."""

import io
import os
import signal
import sys
from typing import Annotated

import typer

import quern
from quern.cli import _bench, _compact, _compress, _data, _export, _report, _reproduce, _show, _train, _tune, _zoo
from quern.cli._console import err_console, say, warnings_as_sentences
from quern.cli._help import Command, Group
from quern.errors import QuernError, Repeated, Stopped
from quern.records.schema import visible

__all__ = ["app", "main"]

app = typer.Typer(
    help="Build quaternion neural networks and make them small.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    cls=Group,
)
for _function, _examples in (
    (_compress.compress, _compress.EXAMPLES),
    (_train.train, _train.EXAMPLES),
    (_show.show, None),
    (_reproduce.reproduce, _reproduce.EXAMPLES),
    (_tune.tune, _tune.EXAMPLES),
    (_report.report, _report.EXAMPLES),
    (_compact.compact, _compact.EXAMPLES),
    (_export.export, _export.EXAMPLES),
    (_bench.bench, _bench.EXAMPLES),
):
    app.command(cls=Command, epilog=_examples)(_function)
app.add_typer(_data.app, name="data")
app.add_typer(_zoo.app, name="zoo")


def main() -> None:
    """Run the command; errors that a user can mend are one sentence and exit code 1."""
    # Large tensors on large pages: fewer page faults, which are dear on virtual machines. Read when torch loads.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # Ended from outside, leave no temporary files behind; training sets its own handler, to save first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # A path need not be text, and a terminal may lack letters: what cannot be shown is shown as \x...
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings_as_sentences():
            app()
    except QuernError as reason:
        if not isinstance(reason, Repeated):
            say(f"quern: {visible(str(reason))}", err_console)
        sys.exit(128 + reason.signal if isinstance(reason, Stopped) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads; let exit be quiet
        sys.exit(1)
    except OSError as reason:  # a folder that may not be read, a name that is too long
        where = f"{reason.filename}: " if reason.filename else ""
        say(f"quern: {where}{reason.strerror or reason}; choose another folder or mend this one.", err_console)
        sys.exit(1)


def _version(show: bool) -> bool:
    if show:
        say(f"quern {quern.__version__}")
        raise typer.Exit
    return show


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass
