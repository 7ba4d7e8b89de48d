"""Small sets of images, as files of every kind, and a machine to fetch them on."""

import dataclasses
import gzip
import hashlib
import io
import json
import socketserver
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quern import data
from quern.data._registry import SOURCES

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


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, arrays: Arrays, **changes) -> None:
    """Make ``arrays`` the published set of that name."""
    sums = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in arrays.items()}
    shape = arrays["train_images"].shape[1:]
    monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], sums=sums, shape=shape, **changes))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def numbered(count: int) -> np.ndarray:
    """Images of 2 x 2 pixels whose bytes are their number."""
    return np.arange(count, dtype=">u4").view(np.uint8).reshape(count, 1, 2, 2)


def number_of(images: data.Images) -> list[int]:
    return np.ascontiguousarray(images.pixels.numpy()).reshape(-1, 4).view(">u4")[:, 0].tolist()


def flipped(content: bytes) -> bytes:
    return content[:-2] + bytes([content[-2] ^ 4]) + content[-1:]


PIXELS, LABELS = draw(30, 4, 4), np.arange(30) % 3


def solid(value: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def pictures(root: Path, classes: str = "ab", count: int = 10) -> Path:
    """A folder per class with images of one colour each: 10, 20, ... in the first class, one more in the next."""
    for number, name in enumerate(classes):
        put(root / name, {f"{n}.png": picture(solid(10 * (n + 1) + number)) for n in range(count)})
    return root


def wanted(pixels: np.ndarray, labels: np.ndarray) -> Counter:
    return Counter((p.tobytes(), int(n)) for p, n in zip(pixels, labels, strict=True))


def contents(*parts: data.Images) -> Counter:
    """How often each image with its label is in the parts."""
    pairs = ((p.numpy().tobytes(), int(n)) for part in parts for p, n in zip(part.pixels, part.labels, strict=True))
    return Counter(pairs)
