"""The digits of scikit-learn."""

import hashlib

import numpy as np
import pytest
import torch

from quern import data
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


def test_other_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **_: (np.zeros((1797, 64)), np.zeros(1797)))
    with pytest.raises(DataError, match="install another version of scikit-learn"):
        data.digits()
