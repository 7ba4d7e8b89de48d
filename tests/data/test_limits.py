"""Data that asks for more than it may: bombs, pipes and devices are one sentence, with little memory and no waiting."""

import io
import os
import resource
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quern import data
from quern.data import _archives, _cifar10, _mnist, _pictures, _sources
from quern.data._archives import BadFile
from quern.errors import DataError
from tests.commands import refused

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EndComments\nshowpage\n"


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """No test may take more than 700 MB beyond what the process has."""
    have = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (have + (700 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def one_sentence(reason: BaseException) -> str:
    said = str(reason)
    assert "\n" not in said
    assert said.endswith(".")
    assert said.count(". ") == 0
    return said


# Images.


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int = 6, height: int = 4, before: bytes = b"", pixels: bytes | None = None) -> bytes:
    """A gray PNG; ``before`` are chunks before its pixels, ``pixels`` the compressed ones."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = zlib.compress(bytes((width + 1) * height)) if pixels is None else pixels
    return b"\x89PNG\r\n\x1a\n" + head + before + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def zeros(count: int) -> bytes:
    """The deflate stream of many zeros, without a header: one flushed megabyte again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packer.compress(bytes(1 << 20))
    packer.flush(zlib.Z_FULL_FLUSH)
    megabyte = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15)
    return megabyte * (count >> 20) + end.compress(bytes(count % (1 << 20))) + end.flush()


def checksum(head: bytes, count: int) -> int:
    """Of ``head`` and zeros; where they are so many that nobody gets to their end, it does not matter."""
    return zlib.crc32(head + bytes(count)) if count < 1 << 20 else 0


def pictures(root: Path, count: int = 10) -> Path:
    for name in "ab":
        (root / name).mkdir(parents=True)
        for n in range(count):
            (root / name / f"{n}.png").write_bytes(png())
    return root


def write(make: Callable[..., bytes], *args: Any, **options: Any) -> Callable[[Path], object]:
    """Writes what ``make`` makes, which is not before it is asked."""
    return lambda path: path.write_bytes(make(*args, **options))


def with_chunk(kind: bytes, head: bytes, zeros: int = 0, copies: int = 1) -> bytes:
    """An image with a chunk before its pixels: ``head`` and so many zeros, compressed."""
    return png(before=chunk(kind, head + zlib.compress(bytes(zeros)) if zeros else head) * copies)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(png()[:33] + struct.pack(">I", (1 << 30)) + b"juNk")
        file.truncate((1 << 30) + 100)


UNREADABLE = {
    "eps": write(bytes, EPS),
    "gif": write(bytes, b"GIF89a" + bytes(40)),
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("nothing"),
    "loop": lambda path: path.symlink_to(path),
    "empty": write(bytes),
    "cut": write(lambda: png()[:-20]),
    "header only": write(lambda: png()[:33]),
    "12000 x 12000": write(png, 12000, 12000),
    "20000 x 20000": write(png, 20000, 20000, pixels=b""),
    "60000 x 60000": write(png, 60000, 60000, pixels=b""),
    "text bomb": write(with_chunk, b"zTXt", b"a\0\0", 200 << 20),
    "many texts": write(with_chunk, b"tEXt", b"a\0" + b"x" * 1_000_000, copies=70),
    "profile bomb": write(with_chunk, b"iCCP", b"a\0\0", 200 << 20),
    "broken frames": write(with_chunk, b"acTL", b"\0\0"),
    "huge chunk": sparse,
}


WHY = {
    "12000 x 12000": "its 12000 x 12000 pixels are more than 50,000,000",
    "huge chunk": "its 1.1 GB are more than 536.9 MB",
    "pipe": "it is not a regular file",
    "folder": "it is a folder",
    "device": "it is not a regular file",
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_image_of_bearable_size_is_one_sentence(tmp_path: Path, kind: str) -> None:
    root = pictures(tmp_path / "mine")
    bad = root / "b" / "bad.png"
    UNREADABLE[kind](bad)
    with pytest.raises(DataError) as caught:
        data.load(root, size=4)
    said = one_sentence(caught.value)
    assert said.startswith(f"{bad} cannot be read as an image ({WHY.get(kind, '')}")
    assert said.endswith("): mend or remove it.")


def test_no_other_program_is_started_for_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript is not to be asked")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", refuse)
    Image.init()
    root = pictures(tmp_path / "mine")
    for name in ("x.png", "x.jpg", "x.jpeg"):
        bad = root / "a" / name
        bad.write_bytes(EPS)
        with pytest.raises(DataError, match="cannot identify image file"):
            data.load(root)
        bad.unlink()


def test_an_animation_is_its_first_image(tmp_path: Path) -> None:
    root = pictures(tmp_path / "mine")
    frames = [Image.fromarray(np.full((4, 6), value, np.uint8)) for value in (7, 200)]
    frames[0].save(root / "a" / "moving.png", save_all=True, append_images=frames[1:])
    found = data.image_folder(root, gray=True)
    values = {int(v) for part in (found.train, found.val, found.test) for v in part.pixels.unique()}
    assert values == {0, 7}


def test_a_set_that_would_not_fit_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    root = pictures(tmp_path / "mine")
    for side in (6000, 1_000_000, 10**30):
        with pytest.raises(DataError, match=f"20 images of {side} x {side} pixels take .* GB of memory") as caught:
            data.load(root, size=side, gray=False)
        assert "smaller --image-size" in one_sentence(caught.value)
    said = refused("train", "--dataset", root, "--image-size", 1_000_000)
    assert "say a smaller --image-size (size=), or give fewer images." in said


def test_many_images_that_would_not_fit_are_refused_at_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pictures(tmp_path / "mine")
    monkeypatch.setattr(_pictures, "SET_BYTES", 20 * 3 * 6 * 4)
    assert len(data.load(root, gray=False).test) == 3
    (root / "b" / "one more.png").write_bytes(png())
    with pytest.raises(DataError, match="21 images of 4 x 6 pixels take"):
        data.load(root, gray=False)


def test_images_beyond_the_memory_of_the_machine(tmp_path: Path) -> None:
    root = pictures(tmp_path / "mine")
    with pytest.raises(DataError, match="the memory does not suffice for 20 images of 5000 x 5000 pixels") as caught:
        data.load(root, size=5000, gray=False)
    one_sentence(caught.value)


# npz files.


def npy(shape: tuple[int, ...], dtype: str = "|u1", fortran: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": fortran, "shape": shape})
    return file.getvalue()


def bomb(path: Path, head: bytes, count: int, says: int | None = None) -> None:
    """An npz file whose ``images`` are ``head`` and ``count`` zeros, of which the zip's table ``says`` a size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH) + zeros(count)
    size = len(head) + count if says is None else says
    name, numbers = b"images.npy", struct.pack("<III", checksum(head, count), len(stream), min(size, 0xFFFFFFFF))
    local = struct.pack("<IHHHHH", 0x04034B50, 20, 0, 8, 0, 0) + numbers + struct.pack("<HH", len(name), 0) + name
    table = struct.pack("<IHHHHHH", 0x02014B50, 20, 20, 0, 8, 0, 0) + numbers
    table += struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, 0) + name
    start = len(local) + len(stream)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(table), start, 0)
    path.write_bytes(local + stream + table + end)


@pytest.mark.parametrize(
    ("head", "count", "says", "said"),
    [
        (npy((3_900_000, 1000)), 3_900_000_000, None, "takes 3.9 GB, and a set may have 2.1 GB"),
        (npy((2, 10, 10)), 3_900_000_000, None, "has not the size it claims"),
        (npy((2, 10, 10)), 3_900_000_000, 328, "another kind of file, or damaged"),  # the checksum, at most
        (npy((1 << 30, 1)), 100, None, "has not the size it claims"),
        (npy((1 << 30, 1)), 100, (1 << 30) + 128, "cut short|damaged"),
        (npy((1 << 40, 1 << 40)), 100, None, "takes .* GB"),
        (npy((-1, -100)), 100, None, "has the shape"),
        (npy((100,), "|O"), 800, None, "must hold plain numbers"),
        (npy((100,), "|V8"), 800, None, "must hold plain numbers"),
        (npy((1 << 60,), "|S0"), 0, None, "cannot be read as an npz file"),
        (b"\x93NUMPY\2\0" + struct.pack("<I", 3_000_000_000), 3_000_000_000, None, "EOF: reading array header"),
        (b"\x93NUMPY\3\0" + struct.pack("<I", 64) + b" " * 64, 10, None, "a format of numpy that is not known"),
    ],
    ids=["bomb", "longer", "lies", "empty", "lies more", "huge", "negative", "objects", "void", "none", "header", "3"],
)
def test_an_npz_file_that_unpacks_to_too_much(
    tmp_path: Path, head: bytes, count: int, says: int | None, said: str
) -> None:
    path = tmp_path / "mine.npz"
    bomb(path, head, count, says)
    assert path.stat().st_size < 10_000_000
    with pytest.raises(DataError, match=said) as caught:
        data.load(path)
    assert one_sentence(caught.value).startswith(f"{path} cannot be read as an npz file: ")


def test_arrays_together_may_not_be_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, images=np.zeros((30, 4, 4), np.uint8), labels=np.arange(30) % 3)
    monkeypatch.setattr("quern.data._npz.SET_BYTES", 30 * 16 + 30 * 8)
    assert len(data.npz(path).classes) == 3
    monkeypatch.setattr("quern.data._npz.SET_BYTES", 30 * 16 + 30 * 8 - 1)
    with pytest.raises(DataError, match="the array 'labels' takes"):
        data.npz(path)


def test_fortran_order_is_read(tmp_path: Path) -> None:
    path, pixels = tmp_path / "mine.npz", np.random.RandomState(0).randint(0, 256, (30, 4, 5)).astype(np.uint8)
    np.savez_compressed(path, images=np.asfortranarray(pixels), labels=np.arange(30) % 3)
    with zipfile.ZipFile(path) as archive:
        assert b"'fortran_order': True" in archive.read("images.npy")
    found = data.npz(path)
    parts = [part.pixels.numpy() for part in (found.train, found.val, found.test)]
    assert sorted(p.tobytes() for part in parts for p in part) == sorted(p.tobytes() for p in pixels)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_an_npz_file_that_is_no_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "mine.npz")
    with pytest.raises(DataError, match="cannot be read as an npz file: it is not a regular file"):
        data.load(tmp_path / "mine.npz")


# The known sets.


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE, **more: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT if kind == tarfile.GNUTYPE_SPARSE else tarfile.DEFAULT_FORMAT)


def packed(head: bytes, count: int = 0) -> bytes:
    """A gzip file that begins with ``head``, after which there are ``count`` zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    end = struct.pack("<II", checksum(head, count), len(head) + count & 0xFFFFFFFF)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + start + zeros(count) + end


def test_a_gzip_bomb_in_a_folder_or_an_archive(tmp_path: Path) -> None:
    name = "train-images-idx3-ubyte.gz"
    content = packed(b"", 2 << 30)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=f"{name} has more than 67.1 MB, so it is no file of a known set"):
        _mnist.read_mnist(_archives.in_folder(tmp_path))
    (tmp_path / "mnist.tgz").write_bytes(
        packed(member(name, len(content)) + content + bytes(-len(content) % 512), 4096)
    )
    with pytest.raises(BadFile, match=f"{name} has more than 67.1 MB, so it is no file of a known set"):
        _mnist.read_mnist(_archives.in_archive(tmp_path / "mnist.tgz", _mnist.MNIST.files))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "count", "said"),
    [
        (member("x/data_batch_1.bin", 2 << 30), 2 << 30, "data_batch_1.bin has more than 67.1 MB"),
        (member("x/other", 2 << 30), 2 << 30, "unpacks to more than 268.4 MB"),
        (member("x/data_batch_1.bin", 1 << 40), 100, "cut short"),
        (b"".join(member(f"x/{n}_lables.json", 0) for n in range(9)), 2 << 30, None),
        (member("long", 2 << 30, tarfile.GNUTYPE_LONGNAME), 2 << 30, "unpacks to more than 268.4 MB"),
        (member("pax", 2 << 30, tarfile.XHDTYPE), 2 << 30, "unpacks to more than 268.4 MB"),
    ],
    ids=["member", "other", "says", "end", "name", "pax"],
)
def test_a_bomb_of_an_archive(tmp_path: Path, head: bytes, count: int, said: str | None) -> None:
    path = tmp_path / "it.tar.gz"
    path.write_bytes(packed(head, count))
    if said is None:  # two empty blocks are the end of an archive: nobody reads what comes after
        with pytest.raises(FileNotFoundError):
            _archives.in_archive(path, _cifar10.CIFAR10.files)("data_batch_1.bin")
        return
    with pytest.raises(BadFile, match=said):
        _archives.in_archive(path, _cifar10.CIFAR10.files)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE]
)
def test_members_that_are_no_files_are_not_there(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "it.tar.gz"
    path.write_bytes(packed(member("x/data_batch_1.bin", 0, kind, linkname="/etc/passwd"), 4096))
    with pytest.raises(FileNotFoundError):
        _archives.in_archive(path, _cifar10.CIFAR10.files)("data_batch_1.bin")


def test_a_sparse_member_is_not_there(tmp_path: Path) -> None:
    path, head = tmp_path / "it.tar.gz", bytearray(member("x/data_batch_1.bin", 512, tarfile.GNUTYPE_SPARSE))
    head[386:410] = b"%011o\0%011o\0" % (0, 512)  # one piece of data
    head[483:495] = b"%011o\0" % (4 << 30)  # in four gigabytes of holes
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head)
    path.write_bytes(packed(bytes(head), 8192))
    with tarfile.open(path) as archive:
        assert next(iter(archive)).size == 4 << 30
    with pytest.raises(FileNotFoundError):
        _archives.in_archive(path, _cifar10.CIFAR10.files)("data_batch_1.bin")


def test_an_archive_that_leads_in_circles(tmp_path: Path) -> None:
    path, head = tmp_path / "it.tar.gz", bytearray(member("x/back", 0))
    head[124:136] = b"\xff" * 10 + b"\xfc\x00"  # 1024 bytes less than nothing: the next member is the one before
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head)
    path.write_bytes(packed(member("x/first", 0) + member("x/second", 0) + bytes(head), 8192))
    with pytest.raises(BadFile, match=r"it\.tar\.gz is no tar archive.*backwards"):
        _archives.in_archive(path, _cifar10.CIFAR10.files)


def test_labels_that_are_nested_or_too_many(tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.fromarray(np.zeros((2, 1024, 3), np.uint8)).save(image, "PNG")
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (tmp_path / f"{name}.png").write_bytes(image.getvalue())
    for content in (b"[" * 100_000, b"[" + b"[]," * 1_000_000 + b"[]]"):
        (tmp_path / "train_lables.json").write_bytes(content)
        with pytest.raises(BadFile, match=r"train_lables\.json is no list of labels"):
            _cifar10.read_cifar10_sprites(_archives.in_folder(tmp_path))


def test_a_sprite_of_too_many_pixels(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.png").write_bytes(png(1024, 60_000, pixels=b""))
    with pytest.raises(BadFile, match=r"data_batch_1.png is no PNG file.* 1024 x 60000 pixels are more than"):
        _cifar10.read_cifar10_sprites(_archives.in_folder(tmp_path))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()])
def test_original_files_that_are_no_files(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "it.tar.gz")
    with pytest.raises(BadFile, match=r"it\.tar\.gz is no tar archive, or is cut short: it is"):
        _sources._from_folder(_cifar10.CIFAR10, tmp_path)
    (tmp_path / "it.tar.gz").rename(tmp_path / "data_batch_1.bin")
    with pytest.raises(FileNotFoundError):
        _sources._from_folder(_cifar10.CIFAR10, tmp_path)


def test_a_cache_that_is_no_file_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERN_DATA", str(tmp_path))
    path = tmp_path / "mnist.safetensors"
    os.mkfifo(path)
    assert "it is not a regular file; fetch it anew" in str(data.verify("mnist"))
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "it has more than 268.4 MB; fetch it anew" in str(data.verify("mnist"))


def test_a_download_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.BytesIO):
        length = None

        def read(self, count: int | None = -1) -> bytes:
            return bytes(count or 1)

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Endless())
    monkeypatch.setattr(_sources, "ARCHIVE_BYTES", 1 << 20)
    with pytest.raises(BadFile, match="http://it sends more than"):
        _sources._download("http://it", tmp_path / "it", None)


def test_a_file_may_be_as_large_as_the_limit() -> None:
    assert len(_archives.bounded(io.BytesIO(bytes(_archives.FILE_BYTES)), "name")) == _archives.FILE_BYTES
    with pytest.raises(BadFile, match="name has more than"):
        _archives.bounded(io.BytesIO(bytes(_archives.FILE_BYTES + 1)), "name")
