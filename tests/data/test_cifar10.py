"""CIFAR-10: binary batches and sprites to arrays."""

from pathlib import Path

import pytest

from quern.data import _archives, _cifar10
from quern.data._archives import BadFile
from tests.data.made_sets import CIFAR10, binary_files, draw, picture, put, same, sprite_files


def test_both_forms_of_cifar10_are_the_same_arrays(tmp_path: Path) -> None:
    binary, sprites = put(tmp_path / "bin", binary_files(CIFAR10)), put(tmp_path / "png", sprite_files(CIFAR10))
    assert same(_cifar10.read_cifar10_binary(_archives.in_folder(binary)), CIFAR10)
    assert same(_cifar10.read_cifar10_sprites(_archives.in_folder(sprites)), CIFAR10)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("data_batch_3.png", b"no picture", "data_batch_3.png is no PNG file"),
        (
            "data_batch_3.png",
            sprite_files(CIFAR10)["data_batch_3.png"][:900],
            "data_batch_3.png is no PNG file, or is cut",
        ),
        ("test_batch.png", picture(draw(2, 100, 3)), "test_batch.png has 100 pixels a row, not 1024"),
        ("train_lables.json", b"[1, 2", "train_lables.json is no list of labels"),
        ("train_lables.json", b"[1, 300]", "train_lables.json is no list of labels"),
        ("train_lables.json", b'{"a": 1}', "train_lables.json is no list of labels"),
        ("test_lables.json", b"\xff\xfe", "test_lables.json is no list of labels"),
    ],
)
def test_damaged_sprites_are_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    folder = put(tmp_path, {**sprite_files(CIFAR10), name: content})
    with pytest.raises(BadFile, match=said):
        _cifar10.read_cifar10_sprites(_archives.in_folder(folder))


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3074)])
def test_damaged_binary_batches_are_named(tmp_path: Path, content: bytes) -> None:
    folder = put(tmp_path, {**binary_files(CIFAR10), "data_batch_4.bin": content})
    with pytest.raises(BadFile, match=r"data_batch_4\.bin is no CIFAR-10 batch"):
        _cifar10.read_cifar10_binary(_archives.in_folder(folder))
