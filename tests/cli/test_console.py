"""What is said to the user."""

import warnings
from pathlib import Path

import pytest

from quern.errors import QuernError, QuernWarning
from tests.commands import here


def test_every_warning_of_quern_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    class OtherWarning(QuernWarning):
        pass

    def show(*_: object) -> None:
        warnings.warn("it is [bold]late.", OtherWarning, stacklevel=1)
        raise QuernError("it is over.")

    monkeypatch.setattr("quern.cli._show.begun", lambda run: {})
    monkeypatch.setattr("quern.cli._show._show_compressed", show)
    for _ in range(2):
        assert here("show", tmp_path, code=1) == ("", "quern: warning: it is [bold]late.\nquern: it is over.\n")
    assert not recwarn
