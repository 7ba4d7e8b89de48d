"""Reports as a reader sees them: in a browser, on a phone and on a desk, light and dark, and on paper."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quern.report import write_report, write_run_report
from tests.browser import IN_BROWSER, window
from tests.sample_records import write_compress, write_experiments

pytestmark = IN_BROWSER
VIEWS = [(width, scheme) for width in (360, 390, 1280) for scheme in ("light", "dark")]
DOCS = Path(__file__).parents[2] / "docs"

# Text and the first background behind it that is not transparent, as pairs of colours, with the text itself.
COLOURS = """() => {
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c !== 'rgba(0, 0, 0, 0)' && c !== 'transparent') return c;
    }
    return getComputedStyle(document.documentElement).colorScheme.includes('dark')
      && matchMedia('(prefers-color-scheme: dark)').matches ? 'rgb(0, 0, 0)' : 'rgb(255, 255, 255)';
  };
  const texts = [...document.querySelectorAll('h1, h2, h3, p, li, th, td, dt, dd, a, figcaption, code, svg text')];
  return texts.filter(e => e.textContent.trim()).map(e => {
    const style = getComputedStyle(e);
    return [e.closest('svg') ? style.fill : style.color, behind(e), e.textContent.trim().slice(0, 40)];
  });
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    results = write_experiments(folder / "results", ("mnist",), ("none", "rq", "gamma-bn"))
    long = "quern compress --dataset " + "a-folder-with-a-very-long-name/" * 8
    run = write_compress(folder / "run", command=long)
    return {"experiments": write_report(results, folder / "report"), "run": write_run_report(run)}


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def view(request: pytest.FixtureRequest, chromium: Any) -> Iterator[Any]:
    with window(chromium, *request.param) as page:
        yield page


def unfold(view: Any) -> None:
    view.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")


def luminance(colour: str) -> float:
    """Relative luminance by the WCAG, of ``rgb(1, 2, 3)``."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", ["experiments", "run"])
def test_a_page_can_be_read(view: Any, pages: dict[str, Path], name: str) -> None:
    view.goto(pages[name].as_uri())
    assert view.wrong == []
    unfold(view)
    width = view.viewport_size["width"]
    assert view.evaluate("document.scrollingElement.scrollWidth") <= width
    view.evaluate("window.scrollTo(500, 0)")
    assert view.evaluate("window.scrollX") == 0

    sizes = view.evaluate("[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().toJSON())")
    assert len(sizes) >= 3
    for size in sizes:
        assert size["width"] >= min(300, width - 40)
        assert size["height"] >= 90
        assert 0 <= size["left"] < size["right"] <= width

    tables = view.evaluate("[...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth, e.clientWidth])")
    assert tables
    assert all(inner <= outer for inner, outer in tables)  # nobody has to move one to read it

    for text, behind, said in view.evaluate(COLOURS):
        assert contrast(text, behind) >= 4.5, (text, behind, said)


@pytest.mark.parametrize("name", ["experiments", "run"])
def test_every_value_stands_next_to_the_name_of_its_column(view: Any, pages: dict[str, Path], name: str) -> None:
    view.goto(pages[name].as_uri())
    unfold(view)
    labels = view.evaluate("""() => [...document.querySelectorAll('td[data-label]:not(:empty)')].map(e => {
      const head = e.closest('table').querySelector('thead').getBoundingClientRect();
      return [getComputedStyle(e).display, head.height, getComputedStyle(e, '::before').content, e.dataset.label];
    })""")
    assert labels
    for display, height, before, label in labels:
        if display == "table-cell":
            assert height > 10
        else:  # a card
            assert view.viewport_size["width"] < 400
            assert before in (f'"{label}"', f'"{label}" / ""') or label in ("from", "family")
    tree = view.locator("body").aria_snapshot()
    assert tree.count("- table") == view.locator("table").count()
    assert "- columnheader" in tree
    assert "- cell" in tree


def test_folded_the_experiments_are_short_and_say_their_numbers(view: Any, pages: dict[str, Path]) -> None:
    for page in (pages["experiments"], DOCS / "results" / "index.html"):
        view.goto(page.as_uri())
        assert view.evaluate("document.documentElement.scrollHeight") < 6000
        assert view.locator("details").count() == 11
        for text in view.locator("summary span").all_inner_texts():
            assert re.search(r"\d.*\.$", text)


def test_a_link_opens_the_section_it_leads_to(view: Any, pages: dict[str, Path]) -> None:
    opened = "[...document.querySelectorAll('details[open]')].map(e => e.id)"
    view.goto(pages["experiments"].as_uri())
    assert view.evaluate(opened) == []
    view.goto(pages["experiments"].as_uri() + "#neurons")
    assert view.evaluate(opened) == ["neurons"]
    assert -1 < view.locator("#neurons").bounding_box()["y"] < 900
    view.goto(pages["experiments"].as_uri() + "#nowhere")
    assert view.wrong == []


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.svg")), ids=lambda path: path.name)
def test_no_label_of_a_picture_is_cut(view: Any, path: Path) -> None:
    view.goto(path.as_uri())
    width, height, boxes = view.evaluate("""() => {
      const seen = document.documentElement.viewBox.baseVal;
      const boxes = [...document.querySelectorAll('text')].map(e => [e.textContent, e.getBBox()]);
      return [seen.width, seen.height, boxes.map(([said, b]) => [said, b.x, b.y, b.x + b.width, b.y + b.height])];
    }""")
    assert boxes
    for said, left, top, right, bottom in boxes:
        assert left >= 0, said
        assert top >= 0, said
        assert right <= width, said
        assert bottom <= height, said


def test_letters_of_figures_can_be_read_on_a_phone(view: Any, pages: dict[str, Path]) -> None:
    view.goto(pages["experiments"].as_uri())
    unfold(view)
    heights = view.evaluate(
        "[...document.querySelectorAll('figure svg text')].map(e => e.getBoundingClientRect().height)"
    )
    assert heights
    assert min(height for height in heights if height) >= 6


def test_samples_are_drawn_in_large_pixels(view: Any, pages: dict[str, Path]) -> None:
    view.goto(pages["run"].as_uri())
    images = view.evaluate(
        "[...document.querySelectorAll('.samples img')].map(e => "
        "[e.complete, e.naturalWidth, e.clientWidth, getComputedStyle(e).imageRendering, e.alt])"
    )
    assert len(images) == 12
    for complete, own, shown, rendering, alt in images:
        assert (complete, own, rendering) == (True, 8, "pixelated")
        assert shown >= 64
        assert alt.startswith("an image of ")


@pytest.mark.parametrize("name", ["experiments", "run"])
def test_a_page_can_be_printed(view: Any, pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    view.goto(pages[name].as_uri())
    folded = view.locator("details:not([open])").count()
    assert folded
    view.emulate_media(media="print")
    assert all(view.evaluate("[...document.querySelectorAll('details > :last-child')].map(e => e.checkVisibility())"))
    view.emulate_media(media="screen")
    view.pdf(path=tmp_path / "page.pdf", format="A4")
    assert view.locator("details:not([open])").count() == 0
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert len(content) > 20_000
    view.emulate_media(media="print")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert view.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
