"""The page of all experiments."""

from pathlib import Path

import pytest

from quern.report import write_report
from quern.report._experiments import read_experiments
from tests.report.pages import assert_self_contained
from tests.sample_records import write_compress


@pytest.mark.slow
def test_the_report_of_experiments_is_whole_and_self_contained(experiments: tuple[Path, Path]) -> None:
    results, report = experiments
    seen = assert_self_contained(report / "index.html")
    for said in (
        "component sparsity",
        "quaternion sparsity",
        "beats the paper",
        "above the paper",
        "2.13.0",
        "0f" * 32,
    ):
        assert said in seen.text.lower()
    page = read_experiments(results)
    names = {f"figures/{f.name}.{kind}" for f in page.figures() for kind in ("svg", "png", "pdf")}
    names |= {f"tables/{t.name}.{kind}" for t in page.tables() for kind in ("md", "csv", "tex")}
    found = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    assert found == names | {"index.html"}
    for name, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert all(path.read_bytes().startswith(start) for path in report.glob(f"figures/*.{name}"))


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(experiments: tuple[Path, Path], tmp_path: Path) -> None:
    results, report = experiments
    again = write_report(results, tmp_path / "again").parent
    for path in report.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(report)).read_bytes(), path


def test_missing_experiments_are_one_line_each(tmp_path: Path) -> None:
    write_compress(tmp_path / "results" / "small-1")
    page = write_report(tmp_path / "results", tmp_path / "report")
    seen = assert_self_contained(page)
    assert seen.text.count("No records yet: MNIST, CIFAR-10.") == 8
    assert "11,748 → 1,467" in seen.text
