"""``quern show``."""

import json
from pathlib import Path

from quern.train import Result
from tests.commands import here, quern, refused


def test_a_run_is_shown_with_what_it_reached(straight: tuple[Path, str, str]) -> None:
    folder = straight[0]
    result = Result.from_dict(json.loads((folder / "result.json").read_text()))
    shown, _ = here("show", folder)
    assert f"test accuracy {result.test_accuracy:.2%}" in shown
    assert "RQL(20)" in shown
    assert "QLinear" in shown
    assert len(here("show", folder, "--history")[0].splitlines()) == len(shown.splitlines()) + 5


def test_what_is_wrong_is_one_sentence(straight: tuple[Path, str, str], tmp_path: Path) -> None:
    assert "does not hold a run" in refused("show", tmp_path)
    assert "is a file" in refused("show", straight[0] / "model.safetensors")
    broken = tmp_path / "broken"
    broken.mkdir()
    config = (straight[0] / "config.json").read_text()
    (broken / "config.json").write_text(config)
    for line in ('{"epoch": 1', "3", "{}"):
        (broken / "history.jsonl").write_text(line)
        assert "does not hold the history of a run" in refused("show", broken)
    assert '"epochs": 3' in config
    (broken / "config.json").write_text(config.replace('"epochs": 3', '"epochs": "three"'))
    out, err = quern("show", broken, code=1)  # where tests check types, they would say more
    assert (out, err.count("\n")) == ("", 1)
    assert "does not hold settings of quern" in err
