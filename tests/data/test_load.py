"""Sets by name, file or folder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from quern import data
from quern.data._registry import SOURCES
from quern.data._sources import obtain
from quern.errors import DataError
from tests.data.made_sets import CIFAR10, LABELS, PIXELS, World, pictures


def test_what_is_known_of_mnist_and_cifar10(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = data.mnist(large.folder)
    assert found.name == "mnist"
    assert found.shape == (1, 2, 2)
    assert found.classes == tuple("0123456789")
    assert found.sums == SOURCES["mnist"].sums
    assert found.train.pixels.dtype == torch.uint8
    assert found.train.labels.dtype == torch.int64
    found.train.pixels[0] = 0  # the pixels can be written to
    many = {k: np.repeat(v[:, :, :2, :1] if v.ndim == 4 else v, 600, 0) for k, v in CIFAR10.items()}
    monkeypatch.setattr("quern.data._load.obtain", lambda *_: many)
    colours = data.cifar10()
    assert colours.shape == (3, 2, 1)
    assert colours.classes[3] == "cat"
    assert len(colours.classes) == 10
    assert (colours.mean, colours.std) == ((0.5,) * 3, (0.5,) * 3)
    black_and_white = torch.tensor([[0] * 3, [255] * 3], dtype=torch.uint8).view(2, 3, 1, 1)
    torch.testing.assert_close(
        colours.normalize(black_and_white), torch.tensor([[-1.0] * 3, [1.0] * 3]).view(2, 3, 1, 1)
    )


def test_load_takes_names_files_and_folders(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(large.root))
    np.savez(large.root / "mine.npz", images=PIXELS, labels=LABELS)
    pictures(large.root / "folder")
    assert data.load("digits").name == "digits"
    assert data.load("mnist", large.folder).name == "mnist"
    assert data.load("~/mine.npz").name == "mine"
    assert data.load(large.root / "folder", size=3, gray=False).shape == (3, 3, 3)
    assert data.NAMES == ("mnist", "cifar10", "digits")


def test_what_load_refuses(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("text")
    for source in ("imagenet", tmp_path / "some.txt", str(tmp_path / "none.npz")):
        with pytest.raises(DataError) as caught:
            data.load(source)
        said = f"there is no data set {source}: give one of mnist, cifar10, digits, an .npz file, or a folder."
        assert str(caught.value) == said
    np.savez(tmp_path / "mine.npz", images=PIXELS, labels=LABELS)
    for source in ("mnist", "digits", tmp_path / "mine.npz"):
        with pytest.raises(DataError, match="--image-size is for folders of images"):
            data.load(source, size=8)


def test_gray_and_colour_are_for_folders(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=PIXELS, labels=LABELS)
    for source in ("digits", tmp_path / "mine.npz"):
        with pytest.raises(DataError, match="--gray and --color are for folders of images"):
            data.load(source, gray=True)


def test_paths_may_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERN_DATA", str(tmp_path / "cache"))
    np.savez(tmp_path / "mine.npz", images=PIXELS, labels=LABELS)
    assert data.npz(str(tmp_path / "mine.npz")).sums == data.npz(tmp_path / "mine.npz").sums
    with pytest.raises(DataError, match="is not a folder"):
        data.image_folder(str(tmp_path / "mine.npz"))
    with pytest.raises(DataError, match="is not a folder"):
        obtain(SOURCES["mnist"], str(tmp_path / "none"))


def test_the_set_that_was_meant_is_named() -> None:
    with pytest.raises(DataError, match=r"^there is no data set mnsit: did you mean mnist\?$"):
        data.load("mnsit")
