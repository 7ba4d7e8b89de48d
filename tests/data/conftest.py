"""A machine with an empty cache, two web sites and npm."""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.data.made_sets import CIFAR10, IDX_NAMES, MNIST, Server, World, idx_files, numbered, pretend, put


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def world(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> World:
    """MNIST and CIFAR-10 are the small sets above, at addresses of the local server."""
    server.site.clear()
    server.asked.clear()
    world = World(tmp_path, server)
    world.folder.mkdir(exist_ok=True)
    monkeypatch.setenv("QUERN_DATA", str(world.cache))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(tempfile, "tempdir", str(world.temporary))
    mirrors = tuple(tuple(world.address(f"/{site}/{name}.gz") for name in IDX_NAMES) for site in "ab")
    pretend(monkeypatch, "mnist", MNIST, addresses=mirrors)
    pretend(monkeypatch, "cifar10", CIFAR10, addresses=((world.address("/c/cifar.tar.gz"),),))
    caplog.set_level("INFO", "quern.data")
    return world


@pytest.fixture
def large(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """MNIST with enough images for the split."""
    count = 5203
    arrays = {"train_images": numbered(count), "train_labels": (np.arange(count) % 10).astype(np.uint8)}
    arrays |= {"test_images": numbered(40)[::-1].copy(), "test_labels": (np.arange(40) % 7).astype(np.uint8)}
    pretend(monkeypatch, "mnist", arrays)
    put(world.folder, idx_files(arrays))
    return world
