"""Reports as a whole: written or not at all, without torch, and one sentence where there is nothing to report."""

import subprocess
import sys
from pathlib import Path

import pytest

from quern.errors import RecordError
from quern.report import write_report, write_run_report
from tests.report.pages import SENTENCE
from tests.sample_records import write_compress


def test_what_cannot_be_rendered_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_compress(tmp_path / "results" / "run")
    before = write_run_report(folder).read_bytes()

    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("no ink")

    monkeypatch.setattr("quern.report._page.render", fail)
    with pytest.raises(RuntimeError, match="no ink"):
        write_run_report(folder)
    with pytest.raises(RuntimeError, match="no ink"):
        write_report(tmp_path / "results", tmp_path / "report")
    assert {path.name for path in folder.iterdir()} == {"record.json", "samples.json", "report.html"}
    assert (folder / "report.html").read_bytes() == before
    assert not (tmp_path / "report").exists()


def test_folders_without_records_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("nowhere", "empty", "file"):
        with pytest.raises(RecordError) as caught:
            write_report(tmp_path / name, tmp_path / "report")
        assert SENTENCE.fullmatch(str(caught.value))
        assert "quern reproduce" in str(caught.value)


@pytest.mark.slow
def test_reports_do_not_wait_for_torch(tmp_path: Path) -> None:
    write_compress(tmp_path / "results" / "run")
    code = (
        "import sys; from pathlib import Path; from quern import report\n"
        "assert 'matplotlib' not in sys.modules and 'jinja2' not in sys.modules\n"
        "report.write_run_report(Path('results/run')); report.write_report(Path('results'), Path('report'))\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)
