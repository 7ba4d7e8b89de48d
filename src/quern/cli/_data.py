"""``quern data``."""

from typing import Annotated

import typer

from quern.cli._console import Fetching, say
from quern.cli._help import Command, Group
from quern.cli._options import FETCHED, DataDir, Quiet
from quern.errors import QuernError

app = typer.Typer(help="Data sets: what there is, fetching, checking.", no_args_is_help=True, cls=Group)


@app.command("list", cls=Command)
def data_list() -> None:
    """The data sets quern knows, and where they are."""
    from quern import data

    for name in data.NAMES:
        if name == "digits":
            where = "comes with scikit-learn"
        else:
            path = data.cache_file(name)
            where = (
                f"{path} ({path.stat().st_size:,} bytes)" if path.exists() else f"not fetched: quern data fetch {name}"
            )
        say(f"{name:8s} {where}")


@app.command("fetch", cls=Command)
def data_fetch(
    names: Annotated[list[str], typer.Argument(help=", ".join(FETCHED))], data_dir: DataDir = None, quiet: Quiet = False
) -> None:
    """Fetch data sets into the cache, and check them."""
    from quern import data

    for name in names:
        with Fetching(quiet) as progress:
            path = data.fetch(name, data_dir, progress)
        if not quiet:
            say(f"{name}: {path}")


@app.command("verify", cls=Command)
def data_verify(
    names: Annotated[
        list[str] | None, typer.Argument(help=", ".join(FETCHED), show_default="those that were fetched")
    ] = None,
) -> None:
    """Check the data sets in the cache against their published SHA-256 sums."""
    from quern import data

    known = [name for name in data.NAMES if name != "digits"]
    if unknown := [name for name in names or [] if name not in known]:
        raise QuernError(f"there is no {unknown[0]} to verify: give {' or '.join(known)}.")
    fetched = [name for name in known if data.cache_file(name).exists()]
    wrong = False
    for name in names or fetched:
        problem = data.verify(name)
        wrong |= problem is not None
        say(problem or f"{name}: as published")
    if not names and not fetched:
        say(f"nothing to verify: none of {', '.join(known)} was fetched yet")
    if wrong:
        raise typer.Exit(1)
