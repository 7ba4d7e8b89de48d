"""Reports that several files look at."""

from pathlib import Path

import pytest

from quern.report import write_report
from tests.sample_records import write_experiments


@pytest.fixture(scope="package")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Records, and the report made from them."""
    folder = tmp_path_factory.mktemp("experiments")
    write_experiments(folder / "results", ("mnist",), ("none", "rq", "gamma-bn"))
    return folder / "results", write_report(folder / "results", folder / "report").parent
