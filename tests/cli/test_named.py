"""``quern compress`` with a network, data, loss and metric of a user's own."""

import json
import sys
from pathlib import Path

import pytest

from quern.records import read_compression
from tests.commands import here, refused
from tests.small_tasks import few_milestones

OWN = """
import torch.nn.functional as F
from tests.tasks import mae, regression

loss = F.mse_loss
seven = 7


def network():
    return regression()[0]


def loaders():
    return regression()[1:]


def broken():
    raise RuntimeError("there is no disk")
"""
NAMES = ("--model", "own_task:network", "--dataset", "own_task:loaders")
NAMES += ("--loss", "own_task:loss", "--metric", "own_task:mae")
TAUGHT = ("--teacher", "own_task:network")
SHORT = ("--epochs", "1", "--grind", "1", "--heal", "1", "--lr", "0.01")


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_task.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_task", raising=False)


def test_what_is_named_is_compressed_and_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with few_milestones():
        out, err = here("compress", *NAMES, "--lower-is-better", "--max-params", "300", *TAUGHT, *SHORT, "--out", run)
    assert "validation mae" in out
    assert "own_task:network: 459 parameters" in err
    record = read_compression(run / "record.json")
    assert record["small"].parameters <= 300
    assert (record.get("model"), record.get("dataset")) == ("own_task:network", "own_task:loaders")
    config = json.loads((run / "config.json").read_text())
    assert (config["loss"], config["metric"], config["lower_is_better"]) == ("own_task:loss", "own_task:mae", True)
    assert "Validation mae" in (run / "report.html").read_text()
    before = (run / "small" / "model.safetensors").read_bytes()
    assert "validation mae" in here("compress", "--resume", "--out", run)[0]
    assert (run / "small" / "model.safetensors").read_bytes() == before
    assert "validation mae" in here("show", run)[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "no_such.module:net"), "--model no_such.module:net: there is no module no_such"),
        (("--model", "own_task:nets"), "--model own_task:nets: nets is not there in own_task"),
        (("--model", "own_task:seven"), "--model own_task:seven: seven is no function in own_task"),
        (("--model", "own_task:broken"), "--model own_task:broken fails: RuntimeError: there is no disk"),
        (("--model", "own_task:loaders"), "--model own_task:loaders gives a tuple, but must give a network"),
        (("--model", "mnist_qcnn"), "--model mnist_qcnn is for images of quern.data"),
        (("--dataset", "own_task:network"), "--dataset own_task:network gives a Turn, but must give loaders"),
        (("--loss", "mse"), "--loss is mse, but must name a function, package.module:function"),
        (("--metric", "own_task:wrong"), "--metric own_task:wrong: wrong is not there in own_task"),
        (("--teacher", "own_task:broken"), "--teacher own_task:broken fails: RuntimeError: there is no disk"),
        (("--norm", "none"), "--model own_task:network has its own: leave out --norm"),
        (("--batch", "20"), "--dataset own_task:loaders has its own: leave out --batch"),
    ],
)
def test_what_is_wrong_with_a_name_is_one_sentence(options: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    given = dict(zip(NAMES[::2], NAMES[1::2], strict=True)) | {options[0]: options[1]}
    words = [word for pair in given.items() for word in pair]
    assert sentence in refused("compress", *words, "--max-params", "300", "--out", tmp_path / "run")


def test_a_module_that_cannot_be_imported_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "own_task.py").write_text("import no_such_thing")
    wrong = refused("compress", *NAMES, "--max-params", "300", "--out", tmp_path / "run")
    assert "importing own_task fails, ModuleNotFoundError: No module named 'no_such_thing'" in wrong
