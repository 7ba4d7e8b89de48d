"""``quern report`` as a user runs it."""

from pathlib import Path

import pytest

from tests.commands import here, refused
from tests.sample_records import write_compress


@pytest.mark.slow
def test_the_command_reports_runs_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write_compress(tmp_path / name)
    out, _ = here("report", "one", "two")
    assert out.split() == ["one/report.html", "two/report.html"]
    out, _ = here("report", "one", "two", "--out", "pages")
    assert out.split() == ["pages/one/report.html", "pages/two/report.html"]
    assert (tmp_path / "pages/two/report.html").read_bytes() == (tmp_path / "two/report.html").read_bytes()


def test_the_command_reports_results_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_compress(tmp_path / "results" / "small-1")
    assert here("report")[0] == "report/index.html\n"
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.slow
def test_the_command_refuses_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_compress(tmp_path / "bad", dense=None)
    (tmp_path / "empty").mkdir()
    for arguments in (["nowhere"], ["empty"], ["bad"], ["bad", "bad/"], []):
        assert refused("report", *arguments)
