"""``compress`` by two processes, against one."""

import json
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

import quern
from quern.errors import LastPathWarning, Lost, TrainingError
from quern.pipeline import Compressed
from tests.pairs import in_pair
from tests.pipeline import conftest
from tests.small_tasks import Own, few_digits, few_milestones, tensors

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("team"), pytest.mark.usefixtures("no_onnx")]

IMAGES: dict[str, Any] = {"epochs": 1, "grind": 2, "heal": 1, "lr": 2e-3, "batch": 48, "crop": 1, "max_drop": 5.0}
LOADERS: dict[str, Any] = {"epochs": 1, "grind": 2, "heal": 1, "lr": 2e-3, "distill": 0.5, "max_params": 1200}


class Real(nn.Module):
    """Quaternion and real layers, with biases that a normalisation takes away again."""

    def __init__(self) -> None:
        super().__init__()
        own = Own()
        self.body, self.norm, self.last = own, nn.BatchNorm1d(12), nn.Linear(12, 10)
        own.head, own.stem.bias = nn.Linear(16, 12), nn.Parameter(torch.full((4, 4), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.body(x)).relu())


class Loader(DataLoader[Any]):
    """Kills the second process in place of a batch."""

    left: int | None = None

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            if self.left is not None and dist.is_initialized() and dist.get_rank() == 1:
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def _loaders(**options: Any) -> tuple[Any, ...]:
    """Batches of 31 to train with, one of 5 at the end, and others to judge by."""
    images = few_digits(129)
    train, val, test = (tensors(part) for part in (images.train, images.val, images.test))
    return Loader(train, 31, shuffle=True, **options), DataLoader(val, 33), DataLoader(test, 100)


@contextmanager
def _quick() -> Iterator[None]:
    """In any process: without what takes longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch, few_milestones(4), warnings.catch_warnings():
        warnings.simplefilter("ignore", LastPathWarning)
        conftest.without_onnx(patch)
        patch.setattr("quern.pipeline._stages.to_packed", lambda *_, **__: None)
        yield


def _of_images(out: Path) -> Compressed:
    torch.manual_seed(0)
    network = quern.models.digits_qcnn(norm="after_conv", dropout=0.0)
    with _quick():
        return quern.compress(network, few_digits(200), **IMAGES, out=out)


def _of_loaders(out: Path, killed_at: int | None = None, resume: bool = False) -> Compressed:
    loaders = _loaders(num_workers=1, multiprocessing_context="fork")
    loaders[0].left = killed_at
    with _quick():
        return quern.compress(Real(), *loaders, **LOADERS, out=out, resume=resume)


def _refusals() -> Iterator[str]:
    """What is said of loaders that two processes cannot share."""
    train, val, _ = _loaders()
    odd = [(x, y[:-1]) for x, y in train]
    for loader in (
        DataLoader(train.dataset, 32, sampler=DistributedSampler(train.dataset)),
        [(x[:1], y[:1]) for x, y in train],
        odd,
    ):
        with pytest.raises(TrainingError) as said, _quick():
            quern.compress(Own(), loader, val, loss=_loss, **LOADERS)
        yield str(said.value)


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs[: len(labels)], labels)


def _lost(folder: Path) -> str:
    with pytest.raises(Lost) as said:
        _of_loaders(folder, killed_at=8)
    return str(said.value)


def _all(folder: Path) -> Any:
    made = _of_images(folder / "images"), _of_loaders(folder / "loaders", resume=True)
    return *made, list(_refusals())


def _same(two: Compressed, one: Compressed) -> None:
    for ours, theirs in ((two.dense_network, one.dense_network), (two.small_network, one.small_network)):
        torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), rtol=1e-4, atol=1e-4)
    assert [two.dense.neurons, two.small.neurons] == [one.dense.neurons, one.small.neurons]
    assert two.small.parameters == one.small.parameters < one.dense.parameters
    assert two.small.value == one.small.value
    assert two.answers == one.answers


def test_two_processes_make_the_network_that_one_makes(tmp_path: Path) -> None:
    together, alone = tmp_path / "two", tmp_path / "one"
    said, none = in_pair(_lost, together / "loaders", killed=1)
    assert (said, none) == ("another of the 2 processes was lost; go on with resume=True.", None)
    assert not (together / "loaders" / "record.json").exists()
    first, second = in_pair(_all, together)
    images, loaders = _of_images(alone / "images"), _of_loaders(alone / "loaders")
    for made in (first, second):
        _same(made[0], images)
        _same(made[1], loaders)
    for name in ("images", "loaders"):
        files, wanted = (
            sorted(p.relative_to(root) for p in root.rglob("*")) for root in (together / name, alone / name)
        )
        assert files == wanted
        plans = [json.loads((root / name / "record.json").read_text())["layers"] for root in (together, alone)]
        assert plans[0] == plans[1]
    assert first[2] == second[2]
    for sentence, reason in zip(
        first[2], ("no DistributedSampler", "a batch of 1 cannot", "the first axis"), strict=True
    ):
        assert reason in sentence
