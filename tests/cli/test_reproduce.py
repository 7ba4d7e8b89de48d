"""``quern reproduce`` as a user runs it."""

from pathlib import Path

import pytest

from quern import paper
from tests.commands import here, refused
from tests.paper.small_runs import SOME, lambdas_file

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


def test_the_command_times_every_data_set_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[object, ...]] = []
    monkeypatch.setattr(paper, "time_steps", lambda *given: timed.append(given) or tmp_path / "table2.json")
    results = tmp_path / "results"
    twice = ["--dataset", "digits", "--dataset", "digits", "--results", results, "--lambdas", lambdas_file(tmp_path)]
    _, err = here("reproduce", "table2", *twice)
    assert timed == [("digits", results, None)]
    assert f"in {tmp_path / 'table2.json'}" in err
    # With everything else it is timed only if it was not yet.
    everything = ["reproduce", "all", "--dataset", "digits", "--results", results, "--dry-run"]
    assert "digits/table2" in here(*everything)[0]
    paper.timing_path(results, "digits").parent.mkdir(parents=True)
    paper.timing_path(results, "digits").write_text("{}")
    assert "digits/table2" not in here(*everything)[0]
    here("reproduce", "table2", *twice)
    assert len(timed) == 2
    assert "all has no such runs" in refused(*everything, "--family", "real", "--method", "rq")
    (tmp_path / "file").write_text("")
    assert "choose another --results" in refused(
        "reproduce", "table2", "--dataset", "digits", "--results", tmp_path / "file"
    )
    assert len(timed) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "imagenet"], "there is no data set imagenet"),
        (["--seeds", 0], "--seeds is 0"),
        (["--seeds", -3], "--seeds is -3"),
        (["--epochs", 0], "--epochs is 0"),
        (["--jobs", 0], "--jobs is 0"),
        (["--family", "mine"], "there is no family mine"),
        (["--method", "rqq"], "there is no method rqq"),
        (["--family", "real", "--method", "rq"], "table1 has no such runs"),
        (["--address", "tcp://127.0.0.1:1"], "--address is of a cluster: say --backend dask"),
        (["--lambdas", "nowhere.toml"], "nowhere.toml is not there"),
    ],
)
def test_what_cannot_be_reproduced_is_one_sentence(
    arguments: list[object],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = [] if "--dataset" in arguments else ["--dataset", "digits"]
    assert said in refused("reproduce", "table1", *dataset, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_work_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    options = ["--family", "real", "--results", tmp_path / "results", "--work", tmp_path / "file"]
    _, err = here("reproduce", "table1", *SOME, *options, code=1)
    assert "could not be written" in err.splitlines()[-1]
    assert "Traceback" not in err
