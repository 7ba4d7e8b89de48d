"""What a network is shown: images, loaders of a user's own, seeds and shifts, and what is refused."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from quern import compress, io, models
from quern.data import Images, ImageSet
from quern.errors import Stopped, TrainingError
from quern.optim import ProximalAdam
from quern.penalties import GammaL1
from quern.train import Loaders, Result, Settings, augment, derived_seed, fit
from quern.train._batches import seed_global
from tests.small_tasks import Own, digit_loaders, few_digits, same, tensors
from tests.train.short_runs import SHORT, Stop, build

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


@pytest.mark.slow
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
        (Loaders([x], val), "pairs .* but gave a Tensor"),
        (Loaders([(x, labels, labels)], val), "pairs .* but gave 3 parts: several inputs are one tuple"),
        (Loaders([(x, list(range(len(x))))], val), "100 inputs with list, but each input needs one class number"),
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


@pytest.mark.unchecked
def test_data_and_settings_of_the_wrong_kind_are_refused(images: ImageSet) -> None:
    wrong: list[tuple[Any, Any, str]] = [
        ("digits", SHORT, r"the data must be .* is of type str: load it by quern\.data\.load\('digits'\)"),
        ([], SHORT, r"the data must be .* is of type list: wrap them, Loaders\(train, val\)"),
        (images, {"epochs": 1}, r"settings must be a quern\.train\.Settings, but is of type dict"),
    ]
    for data, settings, said in wrong:
        with pytest.raises(TrainingError, match=rf"^{said}\.$"):
            fit(build(), data, settings)
    with pytest.raises(TrainingError, match=r"^max_params is '15k', but must be a number\.$"):
        compress(build(norm="after_conv"), images, max_params="15k")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"^the penalty is 30, but must be one of quern\.penalties, .*\.$"):
        ProximalAdam(build(), 30)  # pyright: ignore[reportArgumentType]


def test_a_network_and_data_that_do_not_fit_are_one_sentence(images: ImageSet, tmp_path: Path) -> None:
    x = torch.randn(4, 1, 8, 8)
    good, late, negative = ([(x, torch.tensor([0, 1, 2, n]))] for n in (9, 10, -1))
    classes = "10 scores, for classes 0 to 9: count classes from 0, or give the network a score for each"
    cases: list[tuple[nn.Module, ImageSet | Loaders, str]] = [
        (models.digits_qcnn(classes=9), images, "a label is 9, but the network gives 9 scores, for classes 0 to 8: .*"),
        (build(), Loaders(late, good), f"a label is 10, but the network gives {classes}"),
        (build(), Loaders(good, late), f"a label is 10, but the network gives {classes}"),
        (build(), Loaders(good, good, late), f"a label is 10, but the network gives {classes}"),
        (build(), Loaders(negative, good), f"a label is -1, but the network gives {classes}"),
        (models.mnist_qcnn(), images, r"the network does not take inputs of shape \(2, 1, 8, 8\): .*"),
        (
            nn.Flatten(0),
            images,
            r".* gives a tensor of shape \(128,\), but must give scores .* loss= and metric=",
        ),
    ]
    for model, data, said in cases:
        with pytest.raises(TrainingError, match=rf"^{said}\.$"):
            fit(model, data, dataclasses.replace(SHORT, penalty=None))
    with pytest.raises(TrainingError, match="a label is 9, but the network gives 9 scores"):
        compress(models.digits_qcnn(classes=9, norm="after_conv"), images, epochs=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_larger_than_the_data_is_refused(images: ImageSet) -> None:
    with pytest.raises(TrainingError, match="there are 320 images to train on"):
        fit(build(), images, dataclasses.replace(SHORT, batch=321))


def test_augment_shifts_and_mirrors_and_nothing_else() -> None:
    pixels = torch.arange(1, 2 * 3 * 4 * 5 + 1).view(2, 3, 4, 5).to(torch.uint8).repeat(40, 1, 1, 1)
    out = augment(pixels, 2, True, torch.Generator().manual_seed(0))
    assert out.shape == pixels.shape
    assert out.dtype == torch.uint8
    padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, out, strict=True):
        found = []
        for down, right, mirrored in itertools.product(range(5), range(5), (False, True)):
            part = before[:, down : down + 4, right : right + 5]
            if torch.equal(part.flip(2) if mirrored else part, after):
                found.append((down, right, mirrored))
        assert found
        seen.add(found[0])
    assert len(seen) > 20
    assert torch.equal(augment(pixels, 0, False, torch.Generator()), pixels)
    whole = augment(pixels, 2, True, torch.Generator().manual_seed(1))
    part = augment(pixels[30:50], 2, True, torch.Generator().manual_seed(1), slice(30, 50), 80)
    assert torch.equal(part, whole[30:50])


def test_derived_seeds_differ() -> None:
    seeds = {
        derived_seed(seed, what, epoch, step) for seed in (0, 1) for what in "ab" for epoch in (0, 1) for step in (0, 1)
    }
    assert len(seeds) == 16
    assert derived_seed(3, "x") == derived_seed(3, "x")


def test_the_global_generator_gives_what_it_gives_by_manual_seed() -> None:
    seed_global(torch.device("cpu"), 3, "step", 4)
    found = torch.rand(5)
    torch.manual_seed(derived_seed(3, "step", 4))
    assert torch.equal(found, torch.rand(5))
