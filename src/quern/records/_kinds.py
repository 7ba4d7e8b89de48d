"""What the files of runs hold, as kinds for :mod:`quern.records.schema`. Keys that may be missing are those that older
files lack."""

import base64
import itertools
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from quern.records._runs import DATASETS, FAMILIES, METHODS, Run
from quern.records.intervals import tango, wilson
from quern.records.schema import Between, Count, Measured, Milliseconds, OneOf, Positive, Seconds, Share, Text

Dataset = Annotated[str, OneOf(tuple(DATASETS))]
Family = Annotated[str, OneOf(tuple(FAMILIES))]
Method = Annotated[str, OneOf(tuple(METHODS))]
Environment = dict[str, str | int | None]
Norm = Literal["none", "after_conv", "after_activation"]
Side = Annotated[int, Between(1.0, 65536.0)]


class Epoch(TypedDict):
    """A line of a history."""

    epoch: Count
    phase: Literal["warmup", "train", "grind", "heal"]
    loss: Annotated[float, Between(-1e9, 1e9)]
    val_accuracy: Share
    component_sparsity: Share
    quaternion_sparsity: Share
    neuron_sparsity: Share
    neurons_left: Count
    seconds: Seconds
    penalty: Measured
    strength: Measured
    lr: Measured
    val_loss: Measured
    parameters: NotRequired[Count]
    images_per_second: NotRequired[Measured]
    peak_memory_mb: NotRequired[Measured | None]
    test_accuracy: NotRequired[Share]
    compacted_neurons: NotRequired[Count | None]


class LayerCounts(TypedDict):
    name: str
    kind: str
    quaternions: Count
    zero_components: Count
    zero_quaternions: Count
    neurons: Count
    dead_neurons: Count


class Zeros(TypedDict):
    """The sparsity of a trained network."""

    component_sparsity: Share
    quaternion_sparsity: Share
    neuron_sparsity: Share
    neurons: Count
    neurons_left: Count
    parameters: Count
    nonzero_parameters: Count
    tol: float
    layers: list[LayerCounts]
    bytes: NotRequired[Count]
    macs: NotRequired[Count | None]
    nonzero_macs: NotRequired[Count | None]
    notes: NotRequired[list[str]]


class Reached(TypedDict):
    test_accuracy: Share
    val_accuracy: Share
    best_epoch: Count
    seconds: Seconds
    sparsity: Zeros
    test_loss: NotRequired[Measured]


class Sizes(TypedDict):
    neurons: Count
    parameters: Count
    bytes: Count
    nonzero_parameters: NotRequired[Count]
    macs: NotRequired[Count | None]
    latency_ms: NotRequired[Milliseconds | None]
    memory: NotRequired[Annotated[float, Between(0.0, 1e15)] | None]


class Cut(Sizes):
    test_accuracy: Share


@dataclass(frozen=True)
class Moduli:
    """Counts of \\|w\\| between powers of ten, ``edges`` being the exponents, and how many are zero."""

    edges: tuple[Annotated[float, Between(-400.0, 400.0)], ...]
    counts: tuple[Count, ...]
    zeros: Count

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in itertools.pairwise(self.edges))
        if not self.counts or len(self.edges) != len(self.counts) + 1 or not rising:
            raise ValueError(f"{len(self.edges)} edges do not part {len(self.counts)} counts of moduli")

    def share_up_to(self, tol: float) -> float | None:
        """The share of quaternions with \\|w\\| up to ``tol``; None if that is no edge, so that it is not known."""
        below = self.zeros
        if tol > 0:
            level = next((n for n, edge in enumerate(self.edges) if math.isclose(10**edge, tol)), None)
            if level is None:
                return None
            below += sum(self.counts[:level])
        return below / max(1, self.zeros + sum(self.counts))


# The record of a run, as the table above has it.
Record = TypedDict(
    "Record",
    {
        "run": Run,
        "settings": dict[str, Any],
        "model": str,
        "options": NotRequired[dict[str, Any]],
        "lambda": Positive | None,
        "images": dict[str, Count],
        "sums": dict[Text, str],
        "environment": Environment,
        "history": list[Epoch],
        "result": Reached,
        "small": Cut,
        "dense": Sizes,
        "moduli": Moduli,
        "zeros_by": NotRequired[Literal["modulus"]],
    },
)


# A λ that was tried, of tuning.json.
TrialRow = TypedDict(
    "TrialRow",
    {
        "lambda": Positive | None,
        "family": Family,
        "method": Method,
        "val_accuracy": Share,
        "component_sparsity": Share,
        "quaternion_sparsity": Share,
        "neuron_sparsity": NotRequired[Share],
        "nonzero_parameters": Count,
        "environment": NotRequired[Environment],
        "chosen": bool,
        "died": NotRequired[str | None],
        "trained": NotRequired[dict[str, Count]],
    },
)


class Trials(TypedDict):
    """tuning.json."""

    trials: list[TrialRow]


class TimingRow(TypedDict):
    family: Family
    method: Method
    median_ms: Milliseconds
    ratio: Annotated[float, Between(0.0, 1e9)]


class Timings(TypedDict):
    """table2.json."""

    rows: list[TimingRow]


class Options(TypedDict, total=False):
    """Arguments of a network, where they were asked for."""

    norm: Norm
    dropout: Share


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


class _Asked(TypedDict):
    """What both commands are asked for."""

    command: Text
    dataset: Text
    data_dir: Text | None
    image_size: Side | None
    gray: NotRequired[bool | None]
    model: str | None
    options: Options
    threads: Annotated[int, Between(1.0, 4096.0)] | None
    sums: dict[Text, str]
    environment: NotRequired[Environment]


class TrainConfig(_Asked):
    """config.json of ``quern train``."""

    settings: dict[str, Any]


class CompressConfig(_Asked):
    """config.json of ``quern compress``; its ``settings`` are all that follows from the rest."""

    start: Text | None
    penalty: list[dict[str, Any]] | None
    budget: dict[str, Any]
    stages: Stages


class StageSettings(TypedDict):
    """The settings of both trainings and the budget, as plain values."""

    dense: dict[str, Any] | None
    small: dict[str, Any]
    budget: dict[str, Any]


class Begun(TypedDict):
    """What config.json of every run of ``quern compress`` or ``quern.compress`` has."""

    settings: StageSettings
    command: NotRequired[Text | None]
    stages: NotRequired[Any]
    environment: NotRequired[Environment]


@dataclass(frozen=True)
class Network:
    """One column of the table. ``test_accuracy`` is None where there was nothing to test with. ``bytes`` are those of
    its ``.safetensors`` file, ``macs`` real multiply-adds for one input, ``latency_ms`` the median time of onnxruntime
    for one input on one thread, ``seconds`` how long it was trained."""

    test_accuracy: Share | None
    val_accuracy: Share
    neurons: Count
    parameters: Count
    bytes: Count
    onnx_bytes: Count
    macs: Count
    latency_ms: Milliseconds
    seconds: Seconds

    @property
    def judged_by(self) -> str:
        """The inputs that ``accuracy`` is about."""
        return "validation" if self.test_accuracy is None else "test"

    @property
    def accuracy(self) -> float:
        return self.val_accuracy if self.test_accuracy is None else self.test_accuracy


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


class VerdictRow(TypedDict):
    what: str
    limit: float
    value: float
    met: bool


class LayerSizes(TypedDict):
    """Neurons of a layer before and after."""

    name: str
    kind: str
    dense: Count
    small: Count


class Histories(TypedDict):
    dense: list[Epoch]
    small: list[Epoch]


class Compression(TypedDict):
    """record.json of ``quern compress``. Of the parts that may be missing, a run without the command line has none."""

    settings: StageSettings
    dense: Network
    small: Network
    layers: list[LayerSizes]
    history: Histories
    budget: NotRequired[list[VerdictRow]]
    chance: NotRequired[Chance | None]
    answers: NotRequired[tuple[Answers, ...]]
    environment: NotRequired[Environment]
    command: NotRequired[Text | None]
    dataset: NotRequired[Text | None]
    data_dir: NotRequired[Text | None]
    image_size: NotRequired[Side | None]
    gray: NotRequired[bool | None]
    model: NotRequired[str | None]
    start: NotRequired[Text | None]
    options: NotRequired[dict[str, str | float]]
    sums: NotRequired[dict[Text, str]]


@dataclass(frozen=True)
class Png:
    """A picture in base64."""

    data: str

    @staticmethod
    def from_plain(found: Any) -> "Png":
        """The picture, if it is one: else nothing is seen, and nobody knows why."""
        if not isinstance(found, str) or not base64.b64decode(found, validate=True).startswith(b"\x89PNG"):
            raise ValueError("it should be a picture in base64")
        return Png(found)


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
