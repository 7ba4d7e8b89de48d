"""``quern report``."""

from pathlib import Path
from typing import Annotated

import typer

from quern.cli._console import say
from quern.errors import RecordError

EXAMPLES = """
Examples:

  quern report                                  (results/ into report/)

  quern report results --out public

  quern report runs/digits                      (of quern compress)
"""

_Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FOLDER", help="Records of quern reproduce, or a run of quern compress; else results."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the report; of several, one in it for each.", show_default="report; a run's own folder"
    ),
]


def report(folders: _Folders = None, out: _Out = None) -> None:
    """Make pages, figures and tables from records: one HTML file that needs nothing else."""
    from quern.report import write_report, write_run_report

    folders = folders or [Path("results")]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise RecordError(
            f"two of the folders are called {max(names, key=names.count)}: report on one after the other."
        )
    for folder, name in zip(folders, names, strict=True):
        if (folder / "record.json").exists():
            page = write_run_report(folder, out and (out / name if len(folders) > 1 else out))
        else:
            base = out or Path("report")
            page = write_report(folder, base / name if len(folders) > 1 else base)
        say(str(page))
