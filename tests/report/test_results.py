"""docs/results is made from results/."""

from pathlib import Path

import pytest

from quern.report._experiments import Page, read_experiments
from quern.report._tables import to_csv, to_markdown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
SHOWN = ("claims", "table1-mnist", "table1-cifar10", "table2-mnist", "table2-cifar10", "neurons-cifar10")


@pytest.fixture(scope="module")
def page() -> Page:
    return read_experiments(ROOT / "results")


def test_tables_are_those_of_the_records(page: Page) -> None:
    for table in page.tables():
        for suffix, form in (("md", to_markdown), ("csv", to_csv)):
            assert (RESULTS / "tables" / f"{table.name}.{suffix}").read_text() == form(table), table.name
    assert {path.stem for path in (RESULTS / "tables").glob("*.md")} == {table.name for table in page.tables()}


def test_the_page_in_words_shows_the_same_rows(page: Page) -> None:
    written = set((RESULTS / "README.md").read_text().splitlines())
    tables = {table.name: table for table in page.tables()}
    for name in SHOWN:
        rows = [line for line in to_markdown(tables[name]).splitlines() if line.startswith("|")]
        assert len(rows) > 4
        assert not [row for row in rows if row not in written], name
