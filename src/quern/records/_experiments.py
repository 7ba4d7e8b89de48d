"""What the files of the experiments hold: records of runs, searches for λ, times of steps. What older files lack has a
default."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypedDict

from quern.records._runs import DATASETS, FAMILIES, METHODS, Run
from quern.records._size import Size
from quern.records._sparsity import LayerCounts
from quern.records._training import Course, Epoch
from quern.records.schema import Between, Count, Measured, Milliseconds, OneOf, Positive, Seconds, Share, Text

Dataset = Annotated[str, OneOf(tuple(DATASETS))]
Family = Annotated[str, OneOf(tuple(FAMILIES))]
Method = Annotated[str, OneOf(tuple(METHODS))]
DeadBy = Literal["compaction"]


class Environment(TypedDict, total=False):
    """The program and the machine that made a record; ``commit`` is None outside of a git tree."""

    quern: str
    commit: str | None
    torch: str
    numpy: str
    python: str
    cpu: str
    threads: Count


@dataclass(frozen=True, kw_only=True)
class Zeros:
    """The sparsity of a trained network: three shares, and counts. ``notes`` say what was not followed."""

    component_sparsity: Share
    quaternion_sparsity: Share
    neuron_sparsity: Share
    neurons: Count
    neurons_left: Count
    parameters: Count
    nonzero_parameters: Count
    bytes: Count | None = None
    macs: Count | None = None
    nonzero_macs: Count | None = None
    tol: float
    layers: tuple[LayerCounts, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What the training of a run reached."""

    best_epoch: Count
    val_accuracy: Share
    test_accuracy: Share
    test_loss: Measured | None = None
    seconds: Seconds
    sparsity: Zeros


@dataclass(frozen=True, kw_only=True)
class Deployed(Size):
    """A network as it is used: its size, and the time (median) and memory (the most, in bytes) of onnxruntime for one
    image."""

    macs: Count | None = None
    bytes: Count
    latency_ms: Milliseconds | None = None
    memory: Annotated[float, Between(0.0, 1e15)] | None = None


@dataclass(frozen=True, kw_only=True)
class Small(Deployed):
    """The network of a run with all that counts as zero set to zero, and compacted."""

    test_accuracy: Share


@dataclass(frozen=True)
class Moduli:
    """How the moduli \\|w\\| of the weights are spread: ``counts`` between powers of ten, ``edges`` being the exponents
    (the first and the last take what lies outside), and how many are zero."""

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


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a run of an experiment.

    ``model`` is the network's name in :mod:`quern.models`, ``options`` are its arguments; ``weight`` is the penalty's λ
    (``lambda`` in the file). ``images`` says how many there were to train on, to validate and to test; ``sums`` are the
    SHA-256 of the data. ``environment`` has versions, commit, processor, threads. ``dense`` is the network with nothing
    removed, ``small`` what is left of it.

    ``zeros_by`` "modulus" says that a quaternion counts as zero when its modulus is at most ``tol``; older records lack
    it, and count one whose four components are. ``dead_by`` "compaction" says that the dead neurons of the history and
    of the result are those that compaction removes; older records lack it, and have another definition.
    """

    run: Run
    settings: Course
    model: str
    options: dict[str, str | float] = field(default_factory=dict)
    weight: Positive | None = field(metadata={"key": "lambda"})
    images: dict[str, Count]
    sums: dict[Text, str]
    environment: Environment
    history: tuple[Epoch, ...]
    result: Reached
    moduli: Moduli
    zeros_by: Literal["modulus"] | None = None
    dead_by: DeadBy | None = None
    dense: Deployed
    small: Small

    @property
    def by_modulus(self) -> bool:
        """Whether quaternions count as zero by their modulus, in the history too."""
        return self.result.sparsity.tol == 0 or self.zeros_by == "modulus"

    @property
    def quaternion_sparsity(self) -> float:
        """By the modulus; what older records do not count so, their moduli may tell."""
        counted = self.result.sparsity
        told = None if self.by_modulus else self.moduli.share_up_to(counted.tol)
        return counted.quaternion_sparsity if told is None else told


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A λ that was tried."""

    weight: Positive | None = field(metadata={"key": "lambda"})
    family: Family
    method: Method
    val_accuracy: Share
    component_sparsity: Share
    quaternion_sparsity: Share
    neuron_sparsity: Share | None = None
    nonzero_parameters: Count
    died: str | None = None
    environment: Environment | None = None
    chosen: bool
    trained: dict[str, Count] | None = None


@dataclass(frozen=True, kw_only=True)
class Trials:
    """tuning.json."""

    dataset: Text | None = None
    trials: tuple[TrialRow, ...]


@dataclass(frozen=True)
class TimingRow:
    """What a step of training costs with a penalty; ``ratio`` is to that without any."""

    family: Family
    method: Method
    median_ms: Milliseconds
    ratio: Annotated[float, Between(0.0, 1e9)]


@dataclass(frozen=True, kw_only=True)
class Timings:
    """table2.json."""

    dataset: Text | None = None
    environment: Environment | None = None
    rounds: Count | None = None
    batch: Count | None = None
    rows: tuple[TimingRow, ...]
