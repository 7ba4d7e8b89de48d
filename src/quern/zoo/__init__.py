"""Small trained networks that come with quern: to run, to start from, to compare with.

    quern.zoo.names()                               # what there is
    network = quern.zoo.load("digits-1k")           # for torch, in eval mode
    scores = quern.zoo.packed("digits-1k")(images)  # the same in int8 by the C runtime: bytes of images in, no torch
    print(quern.zoo.card("digits-1k"))              # how it was made, and what it does

Each is two files and a card: ``NAME.safetensors`` with weights in 16 bits, ``NAME.qrn`` packed in less than 100 KB.
``benchmarks/zoo.py`` makes them of runs in ``results/zoo``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from quern.errors import ZooError, instead_of
from quern.records import schema
from quern.records.intervals import wilson
from quern.records.schema import Between, Count, Milliseconds, Share, Text

if TYPE_CHECKING:
    from torch import nn

    from quern.runtime import PackedNetwork

__all__ = ["PREFIX", "Board", "Card", "card", "load", "names", "packed", "path_of"]

PREFIX = "zoo:"  # of a name on the command line
_FOLDER = Path(__file__).parent / "networks"


@dataclass(frozen=True)
class Board:
    """What the packed network takes on an emulated Cortex-M4F: bytes of the whole program, of memory (arena and stack),
    and instructions for one image."""

    flash: Count
    ram: Count
    instructions: Count


@dataclass(frozen=True)
class Card:
    """How a network of the zoo was made, and what it does.

    ``command`` trained it, with this ``seed`` at this ``commit``, on data with these SHA-256 ``sums``.
    ``test_accuracy`` is that of the torch network with its weights in 16 bits, ``packed_accuracy`` that of the packed
    one in int8, by as many ``test_images``. ``latency_ms`` is the median time of the C runtime for one image on
    one thread of ``cpu``.
    """

    name: Text
    dataset: Text
    command: Text
    seed: int
    commit: Text
    sums: dict[Text, Text]
    neurons: Count
    parameters: Count
    macs: Count
    test_images: Annotated[int, Between(1.0, 1e15)]
    test_accuracy: Share
    packed_accuracy: Share
    bytes: Count
    packed_bytes: Count
    latency_ms: Milliseconds
    cpu: Text
    board: Board

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy of the packed network lies, with 95 % certainty (Wilson)."""
        return wilson(self.packed_accuracy, self.test_images)

    def __str__(self) -> str:
        low, high = self.interval
        board = self.board
        rows = (
            ("test accuracy", f"{100 * self.test_accuracy:.2f} %"),
            ("packed, int8", f"{100 * self.packed_accuracy:.2f} % (95 % interval {100 * low:.2f} to {100 * high:.2f})"),
            ("parameters", f"{self.parameters:,}, {self.neurons:,} neurons, {self.macs:,} multiply-adds an image"),
            ("bytes", f"{self.packed_bytes:,} packed, {self.bytes:,} for torch"),
            ("C runtime here", f"{1000 * self.latency_ms:,.1f} µs an image, one thread of {self.cpu}"),
            ("Cortex-M4F", f"{board.flash:,} bytes of flash for the whole program, {board.ram:,} of memory,"),
            ("", f"{board.instructions / 1e6:.2f} million instructions an image (emulated)"),
            ("trained by", self.command),
            ("seed, commit", f"{self.seed}, {self.commit[:12]}"),
            *(("data, SHA-256", f"{part} {value}") for part, value in self.sums.items()),
        )
        return "\n".join([f"{self.name}: {self.dataset}", *(f"  {what:16}{text}" for what, text in rows)])


def names() -> tuple[str, ...]:
    """The networks of the zoo: data set and size, small ones first."""
    order = ("digits", "mnist", "cifar10")
    cards = sorted(map(card, _stems()), key=lambda one: (order.index(one.dataset), one.parameters))
    return tuple(one.name for one in cards)


def _stems() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def path_of(name: str, suffix: str) -> Path:
    """The file of a network, for torch (".safetensors"), packed (".qrn") or its card (".json")."""
    if name not in _stems():
        raise ZooError(f"there is no network {name} in the zoo: {instead_of(name, _stems())}")
    return _FOLDER / f"{name}{suffix}"


def card(name: str) -> Card:
    """How a network was made, and what it does."""
    return schema.read(path_of(name, ".json"), Card, "a card of the zoo", "install quern again")


def load(name: str) -> "nn.Module":
    """A network for torch, in eval mode and float32: to look at, to train on, to make smaller."""
    from quern import io

    return io.load(path_of(name, ".safetensors")).float()


def packed(name: str) -> "PackedNetwork":
    """A network for the C runtime, in int8. It takes images as they are in files: bytes, ``(batch, channels, height,
    width)``, numpy or torch."""
    from quern import runtime

    return runtime.load(path_of(name, ".qrn"))
