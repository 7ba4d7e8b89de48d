"""Runs that several files look at, done once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quern import paper
from quern.paper import _run
from quern.records import Record
from tests.paper.small_runs import LAMBDAS, QUICK, RUNS


@pytest.fixture(scope="package")
def quick() -> Iterator[None]:
    """Runs without what takes longest of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("to_onnx", "time_onnx", "peak_memory"):
            patch.setattr(_run, name, getattr(_run, name))  # so that they come back
        exec(QUICK, {})
        yield


@pytest.fixture(scope="package")
def local(quick: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[paper.Task], dict[str, Record]]:
    """A run of each family, one after the other in this process."""
    folder = tmp_path_factory.mktemp("local")
    tasks = paper.survey(RUNS, folder / "results", folder / "work", LAMBDAS)
    found: dict[str, Record] = {}
    for task, record in paper.perform_all(tasks, folder / "results", folder / "work", jobs=1):
        assert isinstance(record, Record), record
        found[task.run.name] = record
    return folder, tasks, found
