"""Pages hold what they were given as text, and nothing else."""

import json
from pathlib import Path

from quern.report import write_report, write_run_report
from tests.report.pages import HOSTILE, assert_self_contained
from tests.sample_records import sample_record, write_compress


def test_strings_that_mean_harm_are_only_text(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "run"
    environment = {"cpu": "</style><img src=x onerror=alert(1)>"}
    named = {"name": HOSTILE, "both": 1, "only_dense": 1, "only_small": 0, "neither": 0}
    write_compress(
        folder,
        command=f"quern {HOSTILE}",
        dataset=f"/data/{HOSTILE}",
        model=HOSTILE,
        environment=environment,
        answers=[named],
    )
    (folder / "samples.json").write_text(json.dumps(sample_record((HOSTILE, *"123456789"))))
    (folder / "record.json").write_text((folder / "record.json").read_text().replace("QConv2d", "<b>&$"))
    for path in (write_run_report(folder), write_report(tmp_path / "results", tmp_path / "report")):
        seen = assert_self_contained(path)
        assert HOSTILE in seen.text
        assert "b" not in seen.tags
    row = (tmp_path / "report" / "tables" / "compress.tex").read_text()
    assert r"\textless{}script\textgreater{}alert('\&\_\%')" in row
