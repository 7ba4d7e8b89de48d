"""Sets that have a name: fetched, verified, registered, listed."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quern import data
from quern.data import _registry
from quern.data._registry import SOURCES
from quern.errors import DataError
from tests.data.made_sets import MNIST, World, flipped, idx_files, put


def test_fetch_and_verify(world: World) -> None:
    put(world.folder, idx_files(MNIST))
    assert data.verify("mnist") == "mnist is not in the cache; fetch it with: quern data fetch mnist"
    path = data.fetch("mnist", world.folder)
    assert path == world.cache / "mnist.safetensors"
    assert data.verify("mnist") is None
    path.write_bytes(flipped(path.read_bytes()))
    said = str(data.verify("mnist"))
    assert said.startswith(f"{path} does not hold mnist as published")
    assert said.endswith("fetch it anew with: quern data fetch mnist")
    assert path.exists()
    for call in (data.fetch, data.verify):
        with pytest.raises(DataError, match="digits is not a set that is fetched: give one of mnist, cifar10"):
            call("digits")


def quern(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quern", "data", *words]
    return subprocess.run(command, env={**os.environ, "QUERN_DATA": str(cache)}, capture_output=True, text=True)


def test_data_list_says_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, {"mnist.safetensors": bytes(1234)})
    done = quern(tmp_path, "list")
    assert done.returncode == 0
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert lines == [
        ["mnist", f"{tmp_path / 'mnist.safetensors'} (1,234 bytes)"],
        ["cifar10", "not fetched: quern data fetch cifar10"],
        ["digits", "comes with scikit-learn"],
    ]


def test_data_verify_of_a_missing_and_a_damaged_set(tmp_path: Path) -> None:
    put(tmp_path, {"cifar10.safetensors": b"garbage"})
    done = quern(tmp_path, "verify", "mnist", "cifar10")
    assert done.returncode == 1
    assert done.stderr == ""
    missing, damaged = done.stdout.splitlines()
    assert missing == "mnist is not in the cache; fetch it with: quern data fetch mnist"
    assert damaged.startswith(f"{tmp_path / 'cifar10.safetensors'} cannot be read")
    assert (tmp_path / "cifar10.safetensors").read_bytes() == b"garbage"
    assert quern(tmp_path, "verify").stdout == f"{damaged}\n"  # what was not fetched is not missed


def test_data_verify_before_anything_was_fetched_is_no_error(tmp_path: Path) -> None:
    done = quern(tmp_path, "verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "nothing to verify: none of mnist, cifar10 was fetched yet\n"


def test_data_fetch_of_an_unknown_name(tmp_path: Path) -> None:
    done = quern(tmp_path, "fetch", "imagenet")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "quern: imagenet is not a set that is fetched: give one of mnist, cifar10.\n"


def test_data_fetch_and_verify_of_a_whole_set(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    from quern.cli import _data

    put(world.folder, idx_files(MNIST))
    _data.data_fetch(["mnist"], world.folder)
    printed = capsys.readouterr()
    assert printed.out == f"mnist: {world.cache / 'mnist.safetensors'}\n"
    assert printed.err == f"mnist from {world.folder}, SHA-256 as published.\n"
    _data.data_verify(["mnist"])
    assert capsys.readouterr().out == "mnist: as published\n"


def test_a_set_that_is_registered_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "LOADERS", dict(_registry.LOADERS))
    monkeypatch.setattr("quern.data._load.LOADERS", _registry.LOADERS)
    mine = dataclasses.replace(data.digits(), name="mine")
    data.register("mine", lambda: mine)
    assert data.load("mine") is mine
    assert data.NAMES == ("mnist", "cifar10", "digits", "mine")
    for name in ("mine", "mnist"):
        with pytest.raises(DataError, match=f"^there is a data set {name} already: take another name\\.$"):
            data.register(name, lambda: mine)
    with pytest.raises(DataError, match=r"^mine has images of one size"):
        data.load("mine", size=3)
    with pytest.raises(DataError, match="mine is not a set that is fetched"):
        data.fetch("mine")


def test_a_source_that_is_registered_is_fetched_and_checked(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_registry, "SOURCES", dict(SOURCES))
    monkeypatch.setattr("quern.data._load.SOURCES", _registry.SOURCES)
    monkeypatch.setattr("quern.data._load.VALIDATION", 1)
    data.register("mine", dataclasses.replace(SOURCES["mnist"], addresses=(), package=None))
    folder = put(tmp_path / "files", idx_files(MNIST))
    assert data.load("mine", folder).name == "mine"
    assert data.cache_file("mine").exists()
    assert data.verify("mine") is None
    data.cache_file("mine").unlink()
    with pytest.raises(DataError, match="mine is not in the cache"):
        data.load("mine")
