"""The digits of scikit-learn."""

import gzip
import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from quern import data
from quern.data import _digits
from quern.errors import DataError


def test_digits_are_there_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no network is needed")

    monkeypatch.setattr("socket.socket.connect", refuse)
    found = data.digits()
    assert (len(found.train), len(found.val), len(found.test)) == (1237, 200, 360)
    assert found.shape == (1, 8, 8)
    assert found.top == 16
    everything = torch.cat([found.train.pixels, found.val.pixels, found.test.pixels])
    assert int(everything.max()) == 16
    assert len({image.numpy().tobytes() for image in everything}) == len(everything)
    x = found.normalize(found.train.pixels)
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3
    assert hashlib.sha256(found.test.pixels.numpy().tobytes()).hexdigest()[:16] == "a1b64df42a338373"
    assert set(found.test.labels.tolist()) == set(range(10))


@pytest.mark.slow
def test_digits_are_those_that_scikit_learn_reads() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    arrays = _digits._arrays()
    assert np.array_equal(arrays["images"].reshape(-1, 64), pixels)
    assert np.array_equal(arrays["labels"], labels)


def test_other_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = _digits._arrays()
    arrays["images"][5, 0, 0, 0] += 1
    monkeypatch.setattr(_digits, "_arrays", lambda: arrays)
    with pytest.raises(DataError, match="install another version of scikit-learn"):
        data.digits()


@pytest.mark.parametrize("content", [None, b"1,2,x\n"], ids=["missing", "damaged"])
def test_digits_that_cannot_be_read_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "datasets" / "data").mkdir(parents=True)
        (tmp_path / "datasets" / "data" / "digits.csv.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(_digits, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    with pytest.raises(DataError, match=r"scikit-learn's digits cannot be read \(.*: install scikit-learn again\."):
        data.digits()
