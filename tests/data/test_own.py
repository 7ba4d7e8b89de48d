"""Folders of images."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from quern import data
from quern.errors import DataError
from tests.data.made_sets import LABELS, PIXELS, contents, draw, picture, pictures, put, solid, wanted


def test_a_folder_of_images(tmp_path: Path) -> None:
    root = pictures(tmp_path / "mine")
    put(root / "b", {"notes.txt": b"no image"})
    put(root / ".hidden", {"x.png": b""})
    found = data.image_folder(root, gray=False)
    assert found.name == "mine"
    assert found.classes == ("a", "b")
    assert found.shape == (3, 4, 6)
    assert (len(found.train), len(found.val), len(found.test)) == (16, 1, 3)
    pixels = np.stack([solid(10 * (n + 1) + c).transpose(2, 0, 1) for c in (0, 1) for n in range(10)])
    assert contents(found.train, found.val, found.test) == wanted(pixels, np.arange(20) // 10)
    again = data.load(root, gray=False)
    assert torch.equal(again.test.pixels, found.test.pixels)
    assert again.sums == found.sums


def test_colours_jpeg_gray_and_16_bits(tmp_path: Path) -> None:
    colour, deep = solid(0), np.full((4, 6), 77 * 257, np.uint16)
    colour[:] = 200, 100, 50
    root = pictures(tmp_path)
    put(root / "c", {"1.jpg": picture(colour, "JPEG", quality=95), "2.JPEG": picture(colour, "JPEG", quality=95)})
    put(root / "d", {"1.png": picture(deep), "2.png": picture(solid(9)[:, :, 0])})
    colours, gray = data.image_folder(root), data.image_folder(root, gray=True)
    assert gray.shape == (1, 4, 6)

    def of(images: data.ImageSet, label: int) -> np.ndarray:
        parts = [part.pixels[part.labels == label] for part in (images.train, images.val, images.test)]
        return torch.cat(parts)[:, :, 0, 0].numpy().astype(int)

    np.testing.assert_allclose(of(colours, 2), [[200, 100, 50]] * 2, atol=3)
    np.testing.assert_allclose(of(gray, 2), [[0.299 * 200 + 0.587 * 100 + 0.114 * 50]] * 2, atol=3)
    assert sorted(of(colours, 3).tolist()) == [[9] * 3, [77] * 3]
    assert sorted(of(gray, 3).tolist()) == [[9], [77]]


def test_images_are_turned_as_their_camera_says(tmp_path: Path) -> None:
    root = pictures(tmp_path)
    lying = np.concatenate([solid(250, 6, 2), solid(10, 6, 2)], 1)  # 6 x 4 pixels, bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # the first column is the top
    put(root / "b", {"turned.jpg": picture(lying, "JPEG", quality=100, subsampling=0, exif=exif)})
    found = data.image_folder(root, gray=False)
    assert found.shape == (3, 4, 6)
    everything = torch.cat([found.train.pixels, found.val.pixels, found.test.pixels])
    (turned,) = [image for image in everything if int(image.max()) > 200]
    assert int(turned[:, :2].min()) > 200
    assert int(turned[:, 2:].max()) < 60


def test_images_are_resized(tmp_path: Path) -> None:
    root = pictures(tmp_path)
    half = np.concatenate([solid(0, 40, 10), solid(250, 40, 10)], 1)
    put(root / "b", {"half.png": picture(half)})
    found = data.load(root, size=5, gray=False)
    assert found.shape == (3, 5, 5)
    everything = torch.cat([found.train.pixels, found.val.pixels, found.test.pixels])
    (resized,) = [image for image in everything if int(image.max()) > 240]
    assert int(resized[:, :, 0].max()) < 20
    assert int(resized[:, :, 4].min()) > 230
    assert Counter(everything.flatten(1).float().std(1).lt(1).tolist()) == {True: 20, False: 1}
    for size in (0, -3):
        with pytest.raises(DataError, match=f"the image size is {size}"):
            data.load(root, size=size)


def test_train_and_test_folders(tmp_path: Path) -> None:
    pictures(tmp_path / "train")
    pictures(tmp_path / "test", count=2)
    found = data.image_folder(tmp_path)
    assert (len(found.train), len(found.val), len(found.test)) == (18, 2, 4)
    assert found.test.pixels[:, 0, 0, 0].tolist() == [10, 20, 11, 21]
    assert found.test.labels.tolist() == [0, 0, 1, 1]
    assert set(found.sums) == {"images", "labels", "test_images", "test_labels"}


def spoil_size(root: Path) -> None:
    put(root / "b", {"5.png": picture(solid(0, 6, 4))})


def spoil_test_sizes(root: Path) -> None:
    for part, height in (("train", 4), ("test", 5)):
        for name in "ab":
            put(root / part / name, {f"{n}.png": picture(solid(n, height)) for n in range(20)})


def spoil_test_classes(root: Path) -> None:
    pictures(root / "train")
    pictures(root / "test", "abc")


def spoil_test_class(root: Path) -> None:
    pictures(root / "train", "abc")
    pictures(root / "test", "ab")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_size, r"b/5\.png has 4 x 6 pixels, others 6 x 4: say --image-size"),
        (lambda root: put(root / "b", {"3.png": b"garbage"}), r"b/3\.png cannot be read as an image"),
        (lambda root: put(root / "b", {"3.jpg": b""}), r"b/3\.jpg cannot be read as an image"),
        (lambda root: put(root / "a", {"3.png": picture(draw(4, 6, 3))[:-30]}), r"a/3\.png cannot be read as an image"),
        (lambda root: (root / "b" / "x.png").mkdir(), r"b/x\.png cannot be read as an image"),
        (lambda root: (root / "c").mkdir(), "c has no PNG or JPEG files"),
        (lambda root: pictures(root / "train"), "has a folder train only: it needs both train and test"),
        (lambda root: pictures(root / "test"), "has a folder test only"),
        (spoil_test_sizes, "differ in size between train and test: say --image-size"),
        (spoil_test_classes, "test/c is a class without training images"),
        (spoil_test_class, "test/c has no PNG or JPEG files"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, spoil: Callable[[Path], object], said: str) -> None:
    root = pictures(tmp_path / "mine")
    spoil(root)
    with pytest.raises(DataError, match=said) as caught:
        data.load(root)
    assert "\n" not in str(caught.value)


def test_folders_with_too_little(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least two classes, but has 0"):
        data.load(tmp_path)
    with pytest.raises(DataError, match="at least two classes, but has 1"):
        data.load(pictures(tmp_path, "a"))
    with pytest.raises(DataError, match="has 12 images, too few"):
        data.load(pictures(tmp_path / "few", count=6))
    with pytest.raises(DataError, match="nothing is not a folder"):
        data.image_folder(tmp_path / "nothing")


def folder_of(root: Path, images: list[np.ndarray], kind: str = "png") -> Path:
    """A folder with two classes of 12 images each; those that are not given are black."""
    for number in range(24):
        place = root / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = images[number] if number < len(images) else np.zeros_like(images[0])
        Image.fromarray(pixels).save(place / f"{number:02d}.{kind}")
    return root


@given(st.data())
def test_a_folder_is_gray_if_no_pixel_has_a_colour(data_: st.DataObject) -> None:
    """Any mixture of gray and RGB files, one of which may have one pixel with a colour, wherever it stands."""
    gray = hnp.arrays(np.uint8, (3, 2))
    images = [
        np.repeat(pixels[..., None], 3, 2) if as_rgb else pixels
        for pixels, as_rgb in data_.draw(st.lists(st.tuples(gray, st.booleans()), min_size=1, max_size=24))
    ]
    coloured = data_.draw(st.none() | st.integers(0, len(images) - 1))
    if coloured is not None:
        images[coloured] = np.repeat(images[coloured].reshape(3, 2, -1)[..., :1], 3, 2)
        images[coloured][data_.draw(st.integers(0, 2)), 1, data_.draw(st.integers(0, 2))] ^= 128
    with tempfile.TemporaryDirectory() as root:
        guessed = data.image_folder(folder_of(Path(root), images))
        as_told = data.image_folder(root, gray=coloured is None)
    assert guessed.shape[0] == (1 if coloured is None else 3)
    assert guessed.sums == as_told.sums


def test_gray_and_colour_in_train_and_test_go_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gray = np.full((4, 4), 7, np.uint8)
    colour = np.dstack([gray, gray, gray + 1])
    for one, other in ((gray, colour), (colour, gray)):
        root = tmp_path / str(one.ndim)
        folder_of(root / "train", [one])
        folder_of(root / "test", [other])
        with caplog.at_level("INFO", "quern.data"):
            found = data.image_folder(root)
        assert found.shape == (3, 4, 4)
        assert found.sums == data.image_folder(root, gray=False).sums
        assert f"{root} is read as colour images; --gray (gray=True) reads it otherwise." in caplog.messages
    with caplog.at_level("INFO", "quern.data"):
        data.image_folder(folder_of(tmp_path / "gray", [gray]))
    assert caplog.messages[-1].endswith("gray is read as gray images; --color (gray=False) reads it otherwise.")


def test_sets_of_ones_own_are_not_taken_for_known_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", images=PIXELS, labels=LABELS)
    assert data.npz(tmp_path / "digits.npz").name == "digits.npz"
    for name in ("cifar10", "mine"):
        for kind in ("a", "b"):
            (tmp_path / name / kind).mkdir(parents=True)
            for n in range(12):
                Image.fromarray(np.full((4, 4), n, np.uint8)).save(tmp_path / name / kind / f"{n}.png")
    assert data.image_folder(tmp_path / "cifar10").name == "cifar10/"
    assert data.image_folder(tmp_path / "mine").name == "mine"
