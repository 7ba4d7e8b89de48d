"""Reports: records of runs as pages, figures and tables. Reads plain files, so it does not wait for torch.

write_run_report(Path("runs/digits"))                  # report.html beside the record of quern compress
write_report(Path("results"), Path("report"))          # index.html, figures and tables of all experiments
write_network_page(Path("net.qrn"), Path("page.html"), images)      # a packed network that runs in the page
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quern._files import replacing
from quern.errors import RecordError
from quern.records import ImageFormat, schema

__all__ = ["write_network_page", "write_report", "write_run_report"]


def write_run_report(folder: Path, out: Path | None = None) -> Path:
    """Write ``report.html`` for a run of ``quern compress``, beside its record or into ``out``."""
    from quern.report._draw import pictures
    from quern.report._page import render
    from quern.report._run import read_run

    _check(folder)
    page = read_run(folder)
    text = render("run.html", page=page, drawn=pictures(page.curves) if page.curves else ())
    return _write({"report.html": text.encode()}, out or folder) / "report.html"


def write_network_page(packed: Path, out: Path, images: Mapping[str, Any], name: str = "A network") -> Path:
    """Write a page that runs a packed network offline, on images that are drawn, dropped or chosen: one file.

    ``packed`` takes pixels as bytes, as :func:`quern.export.to_packed` makes it with ``pixels``; ``images`` is what
    :func:`quern.io.save` takes: ``shape`` at least, and ``classes``, ``mean``, ``top`` and ``name`` if they are known.
    """
    from quern.report._live import read_network
    from quern.report._page import render

    try:
        known = schema.check(dict(images), ImageFormat)
    except ValueError as reason:
        raise RecordError(f"a page cannot be made for such images: {reason}.") from reason
    text = render("network.html", page=read_network(packed, known, name))
    return _write({out.name: text.encode()}, out.parent) / out.name


def write_report(folder: Path, out: Path) -> Path:
    """Write ``index.html``, ``figures/`` and ``tables/`` into ``out`` for all records of experiments in ``folder``."""
    from quern.report._draw import files, pictures
    from quern.report._experiments import read_experiments
    from quern.report._page import render
    from quern.report._tables import to_csv, to_latex, to_markdown

    _check(folder)
    page = read_experiments(folder)
    made: dict[str, bytes] = {}
    for table in page.tables():
        for kind, form in (("md", to_markdown), ("csv", to_csv), ("tex", to_latex)):
            made[f"tables/{table.name}.{kind}"] = form(table).encode()
    for figure in page.figures():
        made |= {f"figures/{name}": content for name, content in files(figure).items()}
    drawn = {figure.name: pictures(figure) for figure in page.figures()}
    made["index.html"] = render("experiments.html", page=page, drawn=drawn).encode()
    return _write(made, out) / "index.html"


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise RecordError(f"{folder} is not a folder: give one with records of quern reproduce or quern compress.")


def _write(made: dict[str, bytes], out: Path) -> Path:
    """Write all files, each whole or not at all, the page last; they are all made before the first is written."""
    for name, content in made.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    return out
