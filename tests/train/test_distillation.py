"""A teacher's share of the loss: the formula, and when the teacher is asked."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quern import models
from quern import nn as qnn
from quern.errors import TrainingError
from quern.penalties import GammaL1
from quern.train import Epoch, Loaders, Settings, fit
from tests.small_tasks import Own, digit_loaders, few_digits
from tests.train.short_runs import Stop


@pytest.fixture(scope="module")
def loaders() -> tuple[Any, ...]:
    return digit_loaders()


class Losses(Stop):
    def __init__(self) -> None:
        super().__init__(-1, 0)
        self.seen: list[tuple[str, float]] = []

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        self.seen.append((phase, loss))


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_loss_of_distillation_is_the_formula(loaders: tuple[Any, ...], share: float) -> None:
    x, labels = next(iter(loaders[1]))
    net, teacher = (nn.Sequential(nn.Flatten(), qnn.QLinear(256, 16), nn.ReLU(), nn.Linear(16, 10)) for _ in range(2))
    with torch.no_grad():
        scores, taught = net(x).double().numpy(), teacher(x).double().numpy()
    watcher = Losses()
    settings = Settings(epochs=0, heal=1, distill=share)
    fit(net, Loaders([(x, labels)], [(x, labels)]), settings, watchers=[watcher], teacher=teacher)
    entropy = -log_softmax(scores)[np.arange(len(labels)), labels.numpy()].mean()
    s, t = log_softmax(scores / 4), log_softmax(taught / 4)
    wanted = (1 - share) * entropy + share * 4**2 * (np.exp(t) * (t - s)).sum(1).mean()
    assert watcher.seen == [("heal", pytest.approx(wanted, rel=1e-5))]


class Asked(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.often = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.often += 1
        assert not self.training
        return self.inner(x)


def test_the_teacher_is_asked_without_a_penalty_and_stays_as_it_is(loaders: tuple[Any, ...]) -> None:
    gamma = GammaL1(1e-6)
    for net, data, penalty, often in (
        (Own(), Loaders(*loaders), gamma, {"grind": 1, "heal": 1 + 2 * 5}),  # once to see what it gives
        (Own(), Loaders(*loaders), None, {"train": 1 + 5, "heal": 1 + 3 * 5}),
        (models.digits_qcnn(norm="after_conv", widths=(8, 8)), few_digits(), gamma, {"grind": 1, "heal": 2}),
    ):  # the last of images, for which it is asked once
        settings = Settings(epochs=1, heal=2, distill=0.5, batch=32, penalty=penalty)
        teacher = Asked(copy.deepcopy(net)).train()
        before, asked = copy.deepcopy(teacher.state_dict()), {}

        class See(Losses):
            def epoch(self, line: Epoch, teacher: Asked = teacher, asked: dict = asked) -> None:
                asked[line.phase] = teacher.often

        fit(net, data, settings, watchers=[See()], teacher=teacher)
        assert asked == often
        torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)


def test_a_teacher_and_a_share_need_each_other(loaders: tuple[Any, ...]) -> None:
    data = Loaders(*loaders)
    with pytest.raises(TrainingError, match="distill needs a teacher"):
        fit(Own(), data, Settings(epochs=2, distill=0.5, heal=1))
    with pytest.raises(TrainingError, match="a teacher a share"):
        fit(Own(), data, Settings(epochs=2), teacher=Own())
    with pytest.raises(TrainingError, match=r"distill is 1\.5"):
        Settings(epochs=2, distill=1.5)
    with pytest.raises(TrainingError, match=r"the teacher gives outputs of shape \(2, 3\), but the network \(2, 10\)"):
        fit(Own(), data, Settings(epochs=2, distill=0.5), teacher=nn.Sequential(nn.Flatten(), nn.Linear(256, 3)))
