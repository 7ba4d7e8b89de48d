"""The folder of a run: finished ones are read, damaged ones are refused in one sentence."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import quern
from quern._files import claimed
from quern.errors import RecordError, TrainingError
from quern.pipeline import Compressed
from tests.pipeline.conftest import SHORT
from tests.small_tasks import Own, same

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


@pytest.mark.slow
@pytest.mark.xdist_group("pipeline")
def test_a_finished_folder_is_read_and_not_trained(
    run: tuple[Path, Compressed, nn.Module], loaders: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    finished, found, _ = run
    shutil.copytree(finished, folder := tmp_path / "run")
    for function in ("fit", "to_onnx", "to_packed"):
        monkeypatch.setattr(f"quern.pipeline._stages.{function}", never)
    said: list[str] = []
    left = [".record.json.a1b2c3d4.tmp", "dense/.model.onnx.a1b2c3d4.tmp", "small/.history.jsonl.a1b2c3d4.tmp"]
    for name in (*left, "small/.mine.a1b2c3d4.tmp"):
        (folder / name).write_text("half a file")
    with claimed(folder / "small"):
        again = quern.compress(
            Own(), *loaders, **SHORT, max_params=1200, out=folder, resume=True, tell=lambda text: said.append(text)
        )
    assert [(folder / name).exists() for name in left] == [False, False, True]  # somebody else is at the last
    assert (folder / "small" / ".mine.a1b2c3d4.tmp").exists()
    assert said[:2] == ["the dense network is there", "the small network is there"]
    for ours, theirs in ((again.dense, found.dense), (again.small, found.small)):
        assert ours.packed is not None
        assert theirs.packed is not None
        untimed = [
            dataclasses.replace(one, latency_ms=0.0, packed=dataclasses.replace(packed, latency_ms=0.0))
            for one, packed in ((ours, ours.packed), (theirs, theirs.packed))
        ]
        assert untimed[0] == untimed[1]
    same(again.small_network, found.small_network)
    with pytest.raises(TrainingError, match="already holds a run: go on with resume"):
        quern.compress(Own(), *loaders, **SHORT, max_params=1200, out=folder)


@pytest.mark.xdist_group("pipeline")
@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("config.json", '"settings"', '"setting"', "settings is missing"),
        ("dense/result.json", '"best_epoch": ', '"best_epoch": -', "best_epoch is -"),
        ("small/result.json", '"kind": "', '"kind": 3, "k": "', r"sparsity.layers[0].kind is 3"),
        ("small/result.json", "{", "[" * 50_000, "nested too deeply"),
    ],
)
def test_damaged_files_of_a_run_are_one_sentence(
    run: tuple[Path, Compressed, nn.Module],
    loaders: tuple[Any, ...],
    tmp_path: Path,
    name: str,
    old: str,
    new: str,
    said: str,
) -> None:
    shutil.copytree(run[0], folder := tmp_path / "run")
    (folder / name).write_text((folder / name).read_text().replace(old, new, 1))
    with pytest.raises(RecordError, match=re.escape(said)) as caught:
        quern.compress(Own(), *loaders, **SHORT, max_params=1200, out=folder, resume=True)
    assert str(caught.value).startswith(str(folder / name))
