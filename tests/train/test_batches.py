"""Loaders of a user's own: the same weights stopped or not, and what is refused."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from quern import io
from quern.data import Images
from quern.errors import Stopped, TrainingError
from quern.penalties import GammaL1
from quern.train import Loaders, Result, Settings, fit
from tests.small_tasks import Own, digit_loaders, few_digits, same, tensors
from tests.train.test_train import Stop

PLAIN = Settings(epochs=2, lr=1e-2)


@pytest.fixture(scope="module")
def loaders() -> tuple[Any, ...]:
    return digit_loaders()


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Images with noise of torch's generator, as random crops would have."""

    def __init__(self, images: Images) -> None:
        self.x, self.labels = tensors(images).tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
        return self.x[n] + 0.1 * torch.randn(4, 8, 8), self.labels[n]


def test_shuffled_and_noisy_loaders_give_the_same_weights_stopped_or_not(tmp_path: Path) -> None:
    images = few_digits()
    data = Loaders(DataLoader(Noisy(images.train), 32, shuffle=True), DataLoader(tensors(images.val), 100))
    runs = []
    for noise in (1, 2):
        net = Own()
        torch.manual_seed(noise)
        fit(net, data, PLAIN)
        runs.append(net)
    same(*runs)
    for n, after in enumerate((3, 4)):
        with pytest.raises(Stopped):
            fit(Own(), data, PLAIN, tmp_path, n > 0, [Stop(after, 15)])
    net = Own()
    fit(net, data, PLAIN, tmp_path, resume=True)
    same(net, runs[0])
    other = Own()
    fit(other, data, dataclasses.replace(PLAIN, seed=1))
    assert not torch.equal(other.head.weight, net.head.weight)


def test_without_test_images_there_is_no_test_accuracy(loaders: tuple[Any, ...], tmp_path: Path) -> None:
    train, val, test = loaders
    once = dataclasses.replace(PLAIN, epochs=1)
    net = Own()
    found = fit(net, Loaders(train, val), once, tmp_path)
    assert (found.test_accuracy, found.test_loss) == (None, None)
    assert io.describe(tmp_path / "model.safetensors")["metrics"] == {"val_accuracy": found.val_accuracy}
    assert Result.from_dict(json.loads((tmp_path / "result.json").read_text())) == found
    x, labels = next(iter(test))
    right = float((net(x).argmax(1) == labels).double().mean())
    assert fit(Own(), Loaders(train, val, test), once).test_accuracy == pytest.approx(right)


class Short:
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2, 4, 8, 8), torch.zeros(2, dtype=torch.long))] * 2)


def test_loaders_that_do_not_fit_are_refused(loaders: tuple[Any, ...]) -> None:
    train, val, _ = loaders
    x, labels = next(iter(val))
    for wrong, said in (
        (Loaders((pair for pair in train), val), "must have a length"),
        (Loaders([], val), "at least one batch"),
        (Loaders(train, []), "no batches"),
        (Loaders(train, iter(val)), "to validate with can be gone through only once"),
        (Loaders(train, val, (pair for pair in val)), "to test with can be gone through only once"),
        (Loaders([x], val), "pairs of tensors"),
        (Loaders([(x, labels, labels)], val), "pairs of tensors"),
        (Loaders([(x, list(range(len(x))))], val), "pairs of tensors"),
        (
            Loaders([(x, labels.float())], val),
            "100 inputs with labels .* torch.float32, but each input needs one class",
        ),
        (Loaders([(x, labels[:-1])], val), "one class number"),
        (Loaders(train, [(x, torch.zeros(100, 10, dtype=torch.long))]), r"shape \(100, 10\)"),
        (Loaders(Short(), val), "ended after 2 of its 3 batches"),
    ):
        with pytest.raises(TrainingError, match=rf"{said}.*\.$"):
            fit(Own(), wrong, PLAIN)
    for change in ({"crop": 1}, {"flip": True}):
        with pytest.raises(TrainingError, match="let your own loader do it"):
            fit(Own(), Loaders(train, val), dataclasses.replace(PLAIN, **change))


def test_a_network_that_was_compacted_is_left_in_eval_mode(loaders: tuple[Any, ...]) -> None:
    net = Own()
    fit(net, Loaders(*loaders), Settings(epochs=1, penalty=GammaL1(1.0), compact_every=1))
    assert not net.training
