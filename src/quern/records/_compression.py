"""What the files of ``quern train`` and ``quern compress`` hold, as kinds for :mod:`quern.records.schema`. Keys that
may be missing are those that older files lack."""

import base64
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from quern.records._experiments import DeadBy, Environment
from quern.records._metric import Metric, Tested
from quern.records._size import Size
from quern.records._training import Epoch
from quern.records.intervals import tango, wilson
from quern.records.schema import Between, Count, Milliseconds, Positive, Seconds, Share, Text
from quern.records.text import in_epochs

Norm = Literal["none", "after_conv", "after_activation"]
Side = Annotated[int, Between(1.0, 65536.0)]


class ImageFormat(TypedDict, total=False):
    """What a network takes and gives: ``shape`` is channels, height and width, ``mean`` and ``std`` are per channel for
    pixels from 0 to 1, ``top`` is the value of white, ``classes`` are their names and ``name`` that of the set."""

    name: Text
    shape: list[Side]
    mean: list[float]
    std: list[Positive]
    top: Annotated[int, Between(1.0, 255.0)]
    classes: list[Text]


class Options(TypedDict, total=False):
    """Arguments of a network, where they were asked for."""

    norm: Norm
    dropout: Share
    width: Side
    depth: Side


class Stages(TypedDict):
    """How ``quern compress`` trains."""

    epochs: Count
    grind: Count
    heal: Count
    lr: float
    batch: Count
    heal_lr: NotRequired[float | None]
    distill: NotRequired[Share]
    crop: NotRequired[Count]
    flip: NotRequired[bool]
    seed: NotRequired[int]
    device: NotRequired[str]
    weight_decay: NotRequired[float]
    label_smoothing: NotRequired[float]
    schedule: NotRequired[Text]
    ema: NotRequired[float]
    precision: NotRequired[Text]


class Request(TypedDict):
    """What both commands are asked for."""

    command: Text
    dataset: Text
    data_dir: Text | None
    image_size: Side | None
    gray: NotRequired[bool | None]
    model: str | None
    options: Options
    threads: Annotated[int, Between(1.0, 4096.0)] | None


class TrainRequest(Request):
    settings: dict[str, Any]


class CompressRequest(Request):
    start: Text | None
    loss: NotRequired[Text | None]
    metric: NotRequired[Text | None]
    lower_is_better: NotRequired[bool]
    from_scratch: NotRequired[bool]
    teacher: NotRequired[Text | None]
    penalty: list[dict[str, Any]] | None
    budget: dict[str, Any]
    stages: Stages


class TrainConfig(TrainRequest):
    """config.json of ``quern train``: what was asked for, of which data, where."""

    sums: dict[Text, str]
    environment: NotRequired[Environment]


class CompressConfig(CompressRequest):
    """config.json of ``quern compress``; its ``settings`` are all that follows from the rest."""

    sums: dict[Text, str]
    environment: NotRequired[Environment]


class Task(TypedDict):
    """What a network is trained for, where that is not classification: names of functions, and which way is better."""

    loss: Text
    metric: Text
    lower_is_better: bool


class StageSettings(TypedDict):
    """The settings of both trainings and the budget, as plain values."""

    dense: dict[str, Any] | None
    small: dict[str, Any]
    budget: dict[str, Any]
    task: NotRequired[Task]
    scratch: NotRequired[dict[str, Any]]
    teacher: NotRequired[Text]  # a checksum of its weights


class Begun(TypedDict):
    """What config.json of every run of ``quern compress`` or ``quern.compress`` has."""

    settings: StageSettings
    command: NotRequired[Text | None]
    stages: NotRequired[Any]
    environment: NotRequired[Environment]


@dataclass(frozen=True)
class PackedSize:
    """The packed network: bytes of its file, of the memory that it takes on a microcontroller (arena and stack), and
    the median time of the C runtime for one input here, with all the memory that it can make use of."""

    bytes: Count
    ram: Count
    latency_ms: Milliseconds


@dataclass(frozen=True, kw_only=True)
class Network(Tested, Size):
    """One column of the table: the network's size, and what it does. ``test_accuracy`` is None where there was nothing
    to test with; judged by a metric of the user's own, it has ``val_metric`` and ``test_metric`` in their place.
    ``latency_ms`` is the median time of onnxruntime for one input on one thread, ``seconds`` how long it was trained.
    ``packed`` is None in older files, and where there was no compiler."""

    test_accuracy: Share | None
    val_accuracy: Share | None
    macs: Count
    bytes: Count
    onnx_bytes: Count
    latency_ms: Milliseconds
    seconds: Seconds
    packed: PackedSize | None = None
    test_metric: float | None = None
    val_metric: float | None = None


@dataclass(frozen=True, kw_only=True)
class Scratch(Tested):
    """The small network's structure with fresh weights, after so many ``epochs`` without a penalty."""

    epochs: Count
    seconds: Seconds
    test_accuracy: Share | None
    val_accuracy: Share | None
    test_metric: float | None = None
    val_metric: float | None = None

    @property
    def title(self) -> str:
        return f"its structure from scratch, {in_epochs(self.epochs)}"


@dataclass(frozen=True)
class Chance:
    """What there is to beat without looking at the input: the share of the largest class among so many
    inputs."""

    largest_class: Share
    inputs: Annotated[int, Between(1.0, 1e15)]

    def interval(self, accuracy: float) -> tuple[float, float]:
        """Where an accuracy on these inputs lies, with 95 % certainty."""
        return wilson(accuracy, self.inputs)


@dataclass(frozen=True)
class Answers:
    """Of the inputs of the class ``name``: how many both networks answer right, only one of them, or neither."""

    name: Text
    both: Count
    only_dense: Count
    only_small: Count
    neither: Count

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ValueError("it has no inputs")

    @staticmethod
    def total(classes: Iterable["Answers"]) -> "Answers":
        """The inputs of one class or more, together."""
        return Answers("all", *map(sum, zip(*(astuple(one)[1:] for one in classes), strict=True)))

    @property
    def inputs(self) -> int:
        return self.both + self.only_dense + self.only_small + self.neither

    @property
    def dense(self) -> float:
        """The accuracy of the dense network."""
        return (self.both + self.only_dense) / self.inputs

    @property
    def small(self) -> float:
        return (self.both + self.only_small) / self.inputs

    def intervals(self) -> tuple[tuple[float, float], ...]:
        """The 95 % intervals of both accuracies, and of how much higher that of the small network is."""
        difference = tango(self.only_small, self.only_dense, self.inputs)
        return wilson(self.dense, self.inputs), wilson(self.small, self.inputs), difference


@dataclass(frozen=True)
class Verdict:
    """A limit of the budget, and what came of it."""

    what: str
    limit: float
    value: float
    met: bool

    def __str__(self) -> str:
        asked = f"{self.what}: {_number(self.value)}, asked for {_number(self.limit)}"
        return f"{asked}: {'met' if self.met else f'missed by {_number(abs(self.value - self.limit))}'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.2f}"


@dataclass(frozen=True)
class LayerSizes:
    """Neurons of a layer before and after."""

    name: str
    kind: str
    dense: Count
    small: Count

    @property
    def share(self) -> float:
        """Of its neurons, percent that are left."""
        return 100 * self.small / self.dense if self.dense else 0.0


class Histories(TypedDict):
    dense: list[Epoch]
    small: list[Epoch]
    scratch: NotRequired[list[Epoch]]


class Compression(TypedDict):
    """record.json of ``quern compress``. Of the parts that may be missing, a run without the command line has none."""

    settings: StageSettings
    dense: Network
    small: Network
    layers: list[LayerSizes]
    history: Histories
    metric: NotRequired[Metric]
    dead_by: NotRequired[DeadBy]
    budget: NotRequired[list[Verdict]]
    chance: NotRequired[Chance | None]
    scratch: NotRequired[Scratch | None]
    answers: NotRequired[tuple[Answers, ...]]
    environment: NotRequired[Environment]
    command: NotRequired[Text | None]
    dataset: NotRequired[Text | None]
    data_dir: NotRequired[Text | None]
    image_size: NotRequired[Side | None]
    gray: NotRequired[bool | None]
    model: NotRequired[str | None]
    start: NotRequired[Text | None]
    loss: NotRequired[Text | None]
    options: NotRequired[dict[str, str | float]]
    sums: NotRequired[dict[Text, str]]
    images: NotRequired[ImageFormat | None]


@dataclass(frozen=True)
class Png:
    """A picture in base64."""

    data: str

    @staticmethod
    def from_plain(data: Any) -> "Png":
        """The picture, if it is one: else nothing is seen, and nobody knows why."""
        if not isinstance(data, str) or not base64.b64decode(data, validate=True).startswith(b"\x89PNG"):
            raise ValueError("it should be a picture in base64")
        return Png(data)


class SampleRow(TypedDict):
    """A test image with both networks' answers."""

    png: Png
    label: Count
    dense: Count
    dense_confidence: Share
    small: Count
    small_confidence: Share


class Samples(TypedDict):
    """samples.json."""

    classes: list[Text]
    samples: list[SampleRow]
