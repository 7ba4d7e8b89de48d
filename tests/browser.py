"""Pages in a headless Chromium; the fixture that starts it is ``chromium``."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IN_BROWSER = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),  # what they share takes long to make
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="SKIPPED: no chromium; install with make chromium"),
]


@contextmanager
def window(chromium: Any, width: int = 1280, scheme: str = "light", touch: bool = False) -> Iterator[Any]:
    """A window of some width and colours; what goes wrong in it is collected in ``page.wrong``."""
    size = {"width": width, "height": 900}
    context = chromium.new_context(viewport=size, color_scheme=scheme, has_touch=touch, is_mobile=touch)
    page = context.new_page()
    page.wrong = []
    page.on("console", lambda said: page.wrong.append(said.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("requestfailed", lambda request: page.wrong.append(request.url))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or page.wrong.append(request.url))
    yield page
    context.close()
