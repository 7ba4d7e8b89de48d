"""Images of the user's own in an npz file."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quern import data
from quern.errors import DataError
from tests.data.made_sets import LABELS, PIXELS, Arrays, contents, draw, wanted


@pytest.mark.parametrize("layout", ["nhw", "nhw1", "nhw3", "n1hw", "n3hw"])
@pytest.mark.parametrize("with_test", [False, True])
def test_npz_layouts(tmp_path: Path, layout: str, with_test: bool) -> None:
    channels = 3 if "3" in layout else 1
    pixels, labels = draw(40, channels, 4, 5), np.arange(40) % 3
    test_pixels, test_labels = draw(9, channels, 4, 5), np.arange(9, dtype=np.int16) % 2

    def laid(a: np.ndarray) -> np.ndarray:
        if layout == "nhw":
            return a[:, 0]
        return a if layout[1] in "13" else a.transpose(0, 2, 3, 1)

    arrays = {"images": laid(pixels), "labels": labels}
    if with_test:
        arrays |= {"test_images": laid(test_pixels), "test_labels": test_labels}
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, remark=np.array(["2020-01-01"], "datetime64[D]"), **arrays)
    found = data.npz(path)
    assert found.name == "mine"
    assert found.shape == (channels, 4, 5)
    assert found.classes == ("0", "1", "2")
    if with_test:
        assert np.array_equal(found.test.pixels.numpy(), test_pixels)
        assert found.test.labels.tolist() == test_labels.tolist()
        assert contents(found.train, found.val) == wanted(pixels, labels)
        assert len(found.val) == 4
    else:
        assert contents(found.train, found.val, found.test) == wanted(pixels, labels)
        assert (len(found.train), len(found.val), len(found.test)) == (31, 3, 6)
    assert found.sums == {k: hashlib.sha256(v.tobytes()).hexdigest() for k, v in arrays.items()}
    scaled = found.train.pixels.numpy() / 255
    np.testing.assert_allclose(found.mean, scaled.mean((0, 2, 3)), atol=6e-5)
    np.testing.assert_allclose(found.std, scaled.std((0, 2, 3)), atol=6e-5)
    again = data.load(str(path))
    assert torch.equal(again.val.pixels, found.val.pixels)


def test_a_channel_without_contrast_can_be_normalized(tmp_path: Path) -> None:
    np.savez(tmp_path / "black.npz", images=np.zeros((20, 4, 4), np.uint8), labels=np.arange(20) % 2)
    found = data.npz(tmp_path / "black.npz")
    assert found.normalize(found.test.pixels).abs().max() == 0


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"pictures": PIXELS}, "has no array 'images'; it has pictures"),
        ({}, "has no array 'images'; it has none"),
        ({"images": PIXELS}, "has no array 'labels'"),
        ({"images": PIXELS.astype(float), "labels": LABELS}, r"must be bytes \(uint8\), but are float64"),
        ({"images": draw(30, 16), "labels": LABELS}, r"their shape is \(30, 16\)"),
        ({"images": draw(30, 4, 4, 2), "labels": LABELS}, "1 or 3 channels"),
        ({"images": np.uint8(3), "labels": LABELS}, "1 or 3 channels"),
        ({"images": PIXELS, "labels": LABELS[:-1]}, r"there are 30 images, but the shape of the labels is \(29,\)"),
        ({"images": PIXELS, "labels": LABELS[:, None]}, r"the labels is \(30, 1\)"),
        ({"images": PIXELS, "labels": LABELS - 1}, "whole numbers from 0"),
        ({"images": PIXELS, "labels": LABELS / 2}, "whole numbers from 0"),
        ({"images": PIXELS, "labels": LABELS.astype(str)}, "whole numbers from 0"),
        ({"images": PIXELS, "labels": LABELS.astype("timedelta64[s]")}, "whole numbers from 0"),
        ({"images": PIXELS, "labels": LABELS + 10**12}, "whole numbers from 0 to 65,535"),
        ({"images": PIXELS, "labels": (LABELS - 1).astype(np.uint64)}, "whole numbers from 0 to 65,535"),
        ({"images": PIXELS, "labels": LABELS.astype(object)}, "cannot be read as an npz file"),
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, "there are no images"),
        ({"images": PIXELS[:, :0], "labels": LABELS}, "there are no images"),
        ({"images": PIXELS[:19], "labels": LABELS[:19]}, "has 19 images, too few"),
        ({"images": PIXELS, "labels": LABELS, "test_images": PIXELS}, "both test_images and test_labels"),
        ({"images": PIXELS, "labels": LABELS, "test_labels": LABELS}, "both test_images and test_labels"),
        (
            {"images": PIXELS, "labels": LABELS, "test_images": PIXELS[:, :2], "test_labels": LABELS},
            "must have the size and the classes",
        ),
        (
            {"images": PIXELS, "labels": LABELS, "test_images": PIXELS, "test_labels": LABELS + 1},
            "must have the size and the classes",
        ),
        (
            {"images": PIXELS, "labels": LABELS, "test_images": PIXELS[:0], "test_labels": LABELS[:0]},
            "there are no images",
        ),
    ],
)
def test_npz_refusals(tmp_path: Path, arrays: Arrays, said: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, allow_pickle=True, **arrays)
    with pytest.raises(DataError, match=said) as caught:
        data.load(path)
    assert "mine" in str(caught.value)
    assert "\n" not in str(caught.value)


def saved(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def test_what_is_no_npz_file(tmp_path: Path) -> None:
    path, other = tmp_path / "mine.npz", io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("images", "text")
        archive.writestr("labels", "text")
    for content in (b"", b"garbage", saved(np.save, PIXELS), other.getvalue()):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"mine\.npz"):
            data.npz(path)
    with pytest.raises(DataError, match=r"none\.npz cannot be read as an npz file"):
        data.npz(tmp_path / "none.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_damaged_npz_file_never_gives_other_data(tmp_path: Path, save: Callable, place: float, bit: int) -> None:
    path, whole = tmp_path / "mine.npz", saved(save, images=PIXELS, labels=LABELS)
    at = int(place * len(whole))
    path.write_bytes(whole[:at])
    with pytest.raises(DataError, match="cannot be read as an npz file"):
        data.npz(path)
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:
        found = data.npz(path)
        assert contents(found.train, found.val, found.test) == wanted(PIXELS, LABELS)
    except DataError as reason:
        assert str(path) in str(reason)  # noqa: PT017
