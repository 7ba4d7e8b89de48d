"""Looking into tables and pages."""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

from quern.records import METHODS
from quern.report._tables import Cell, Table

HOSTILE = "<script>alert('&_%')</script>"


SENTENCE = re.compile(r"[^\n]+\.")


TEMPLATE = files("quern.report").joinpath("templates", "base.html").read_text()


SCRIPT = TEMPLATE[TEMPLATE.index("<script>") : TEMPLATE.index("</script>") + len("</script>")]  # of every page


LIVE = f"<script>\n{files('quern.report').joinpath('templates', 'live.js').read_text()}</script>"  # of the panel


DATA = re.compile(r'<script type="application/json">(.*?)</script>', re.DOTALL)


def column(table: Table, name: str) -> list[Cell]:
    return [row[table.columns.index(name)] for row in table.rows]


def row(table: Table, method: str, who: str) -> dict[str, Cell]:
    found = [r for r in table.rows if (r[0].text, r[1].text) == (METHODS[method], who)]
    assert len(found) == 1
    return dict(zip(table.columns, found[0], strict=True))


def there(found: Any) -> Any:
    assert found is not None
    return found


class Outside(HTMLParser):
    """Collects what a page would load from elsewhere, its scripts, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            inside = (value or "").startswith(("#", "data:"))
            if name in ("src", "href", "xlink:href", "srcset", "data", "action") and not inside:
                self.loads.append(str(value))
            if name.startswith("on"):
                self.loads.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_self_contained(path: Path) -> Outside:
    page = path.read_text(encoding="utf-8")
    seen = Outside(page)
    assert seen.loads == []
    assert not seen.tags & {"iframe", "object", "embed"}
    live = DATA.findall(page)
    assert all(json.loads(one) for one in live)
    assert re.findall(r"<script.*?</script>", DATA.sub("", page), re.DOTALL) == [*[LIVE] * len(live), SCRIPT]
    assert ("default-src 'none'" in page) == bool(live)
    assert not re.search(r"@import|url\((?!#)", page)
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    return seen
