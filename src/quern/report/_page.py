"""Pages from templates: one HTML file with everything in it, and nothing loaded from elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING

from quern._files import printable
from quern.report._tables import MATHEMATICS, SIGNS, WORDS, amount

if TYPE_CHECKING:
    from markupsafe import Markup


def render(template: str, **values: object) -> str:
    """A page; whatever comes from records is escaped, and text: a command may name a path that is not UTF-8."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    room = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    room.filters |= {"amount": amount, "signs": _signs}
    room.filters["svg"] = Markup  # only what we drew
    return printable(room.get_template(template).render(**values, sign_of=SIGNS, words_of=WORDS))


def _signs(text: str) -> "Markup":
    """Escaped text, with the letters of R_Q and ℓ1 set low."""
    from markupsafe import Markup, escape

    return Markup(MATHEMATICS.sub(r"\1<sub>\2</sub>", str(escape(text))))
