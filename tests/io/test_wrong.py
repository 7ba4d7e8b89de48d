"""Whatever is wrong with a path or a file, one sentence says so."""

import errno
import gzip
import os
import pickle
import re
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import quern.export
from quern import io, models
from quern._files import foreign_kind
from quern.errors import FileError
from tests.commands import refused as refused_by_command
from tests.io.hostile import TINY
from tests.io.network_files import one_sentence


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    model = models.digits_cnn(widths=(1, 1))
    os.mkfifo(tmp_path / "pipe")
    for path, sentence in {
        tmp_path: "could not be written: it is a folder",
        tmp_path / "pipe": "could not be written: it is not a regular file",
        Path("/dev/null"): "could not be written: it is not a regular file",
        tmp_path / "no" / "net": "could not be written: there is no folder",
        tmp_path / ("n" * 300): "could not be written: File name too long",
    }.items():
        with pytest.raises(FileError, match=sentence) as caught:
            io.save(model, path)
        one_sentence(caught.value, path)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_paths_that_are_not_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        tmp_path: "is a folder, but should be the file of a network",
        tmp_path / "no": "is not there",
        tmp_path / "no" / "net": "is not there",
        tmp_path / "pipe": "is not a regular file",
        Path("/dev/null"): "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
        tmp_path / "loop": "could not be read: Too many levels of symbolic links",
        tmp_path / ("n" * 300): "could not be read: File name too long",
    }
    for use in (io.load, io.describe):
        for path, sentence in cases.items():
            with pytest.raises(FileError, match=sentence) as caught:
                use(path)
            one_sentence(caught.value, path)
    path = tmp_path / "net"
    path.write_bytes(TINY)

    def refuse(*args: Any, **more: Any) -> None:  # a test that runs as root may read anything
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("quern.records.schema.open_regular", refuse)
    for use in (io.load, io.describe):
        with pytest.raises(FileError, match="could not be read: Permission denied") as caught:
            use(path)
        one_sentence(caught.value, path)


def test_a_checkpoint_of_a_training_is_not_a_network(tmp_path: Path) -> None:
    from quern.train import checkpoint

    checkpoint.save(tmp_path / "last", {"a": torch.ones(2)}, {"epoch": 3, "settings": {}})
    with pytest.raises(FileError, match=r"last is a checkpoint of a training: give the model\.safetensors"):
        io.load(tmp_path / "last")


def _onnx(path: Path) -> None:
    quern.export.to_onnx(nn.Sequential(nn.Linear(2, 2)), path, torch.ones(1, 2))


def _exported(path: Path) -> None:
    quern.export.to_pt2(nn.Sequential(nn.Linear(2, 2)), path, torch.ones(1, 2))


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("note.txt", "none")


FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "net.onnx": (_onnx, "an ONNX file"),
    "net.pt2": (_exported, "a file of torch.export"),
    "net.pt": (lambda path: torch.save(nn.Linear(2, 2).state_dict(), path), "a file of torch.save"),
    "old.pth": (
        lambda path: torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False),
        "a file of torch.save",
    ),
    "net.pkl": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "a pickle file"),
    "net.zip": (_zipped, "a zip archive"),
    "net.npz": (lambda path: np.savez(path, images=np.ones(2)), "an .npz file of numpy"),
    "net.npy": (lambda path: np.save(path, np.ones(2)), "an .npy file of numpy"),
    "net.gz": (lambda path: path.write_bytes(gzip.compress(b"none")), "a gzip archive"),
    "net.py": (lambda path: path.write_text("class Net:\n    pass\n"), "Python code"),
    "note": (lambda path: path.write_text("hi"), "a text file"),
    "words.txt": (lambda path: path.write_text("größer als 8 Bytes\n" * 99, encoding="utf-8"), "a text file"),
    "net.json": (lambda path: path.write_text('{"a": 1}' * 9), "a text file"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_kind_is_named(name: str, tmp_path: Path) -> None:
    write, kind = FOREIGN[name]
    path = tmp_path / name
    write(path)
    for use in (io.load, io.describe):
        with pytest.raises(FileError, match=re.escape(f" is {kind}, but should be a network as a .safetensors file")):
            use(path)
    sentence = refused_by_command("compact", path, "--out", tmp_path / "small.safetensors")
    assert sentence == f"quern: {path} is {kind}: give a network as a .safetensors file of quern, or a run's folder.\n"
    assert not (tmp_path / "small.safetensors").exists()


@given(st.integers(2, 1 << 39), st.binary(max_size=40))
def test_what_begins_as_our_files_do_is_of_no_other_kind(length: int, rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net"
        path.write_bytes(length.to_bytes(8, "little") + b"{" + rest)
        assert foreign_kind(path) is None


def test_the_folder_of_a_run_leads_to_its_network(tmp_path: Path) -> None:
    io.save(models.digits_cnn(), tmp_path / "model.safetensors")
    with pytest.raises(
        FileError, match=re.escape(f"is a folder, but should be the file of a network: give {tmp_path}/m")
    ):
        io.load(tmp_path)
