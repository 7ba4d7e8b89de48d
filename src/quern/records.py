"""What was run and what came of it: the paper's numbers, and our own records, read and written without torch.

A *run* is one training of an experiment: a data set, a family, a method, a number of epochs and a seed. Its record is
one JSON file, ``FOLDER/mnist/quern-rq-20-0.json`` for seed 0, with these parts:

=================  ===================================================================================================
``run``            the fields of :class:`Run`
``settings``       all of :class:`quern.train.Settings`
``model``          the network in :mod:`quern.models`; ``options`` are its arguments, ``lambda`` the penalty's weight
``images``         how many to train on, to validate and to test
``sums``           the SHA-256 of the data
``environment``    versions, commit, processor, threads
``history``        a line per epoch: ``epoch``, ``phase``, ``loss``, ``val_accuracy``, the three sparsities, ``seconds``
``result``         ``test_accuracy``, ``val_accuracy``, ``best_epoch``, ``seconds`` and ``sparsity`` (the three shares,
                   ``neurons``, ``neurons_left``, ``parameters``, ``nonzero_parameters``, ``tol``, ``layers``)
``small``          the network with all that counts as zero set to zero, and compacted: ``test_accuracy``, ``neurons``,
                   ``parameters``, ``nonzero_parameters``, ``bytes`` of its file, ``macs``, ``latency_ms`` and
                   ``memory`` of onnxruntime for one image (the most, in bytes; older records lack it)
``dense``          the same, but for the accuracy, of the network with nothing removed
``moduli``         how the moduli of the weights are spread: ``edges`` as exponents of ten, ``counts`` between them
                   (the first and the last take what lies outside), ``zeros``
=================  ===================================================================================================
"""

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quern.errors import RecordError
from quern.files import write_text

__all__ = [
    "DATASETS",
    "FAMILIES",
    "FIGURE2",
    "METHODS",
    "NEURONS",
    "PAPER",
    "Run",
    "check_known",
    "check_writable",
    "read",
    "read_json",
    "read_record",
]
__all__ += ["TABLE1", "reading", "record_path", "without_penalty", "write"]

DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
# How each method is written. The last four stand on networks with batch normalisation.
METHODS = {
    "none": "none",
    "l2": "ℓ2",
    "l1": "ℓ1",
    "rq": "R_Q",
    "rql": "R_QL",
    "none-bn": "none + BN",
    "rq-bn": "R_Q + BN",
    "rql-bn": "R_QL + BN",
    "gamma-bn": "L1(BN)",
}
# What each family does with a penalty, and what it counts as zero.
FAMILIES = {
    "paper": "sub-gradient under Adam, zero below 0.001, no healing",
    "quern": "proximal steps, exact zeros, healing, compaction",
    "real": "the real-valued network of as many parameters",
}

# What the tables and figure 1, figure 2, and the claims about neurons are made of.
TABLE1 = ("none", "l2", "l1", "rq", "rql")
FIGURE2 = ("rq", "rq-bn", "rql-bn", "gamma-bn")
NEURONS = ("gamma-bn", "rq-bn", "rql-bn", "none-bn")


def without_penalty(method: str) -> str:
    """What a method is compared with: the same network, trained without penalty."""
    return "none-bn" if method.endswith("-bn") else "none"


def _row(*values: float) -> dict[str, float]:
    return dict(zip(TABLE1, values, strict=True))


# Tables 1 and 2 and the claims of the neuron-level section: shares in percent, times in seconds of the authors' GPU.
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "mnist": {
        "test_accuracy": _row(98.95, 96.69, 93.46, 96.81, 96.29),
        "component_sparsity": _row(1.71, 54.68, 34.08, 68.40, 75.08),
        "quaternion_sparsity": _row(0.0, 40.01, 23.45, 53.82, 69.42),
        "seconds": _row(179.35, 183.17, 185.43, 184.22, 186.22),
    },
    "cifar10": {
        "test_accuracy": _row(71.30, 72.58, 73.43, 72.03, 73.20),
        "component_sparsity": _row(0.77, 8.58, 44.24, 59.29, 35.91),
        "quaternion_sparsity": _row(0.0, 4.77, 42.61, 58.73, 31.89),
        "seconds": _row(924.77, 1146.89, 1160.48, 1151.50, 1168.37),
    },
}


def check_known(name: str, known: Iterable[str], what: str) -> None:
    """One sentence if there is none of that name."""
    if name not in (known := list(known)):
        raise RecordError(f"there is no {what} {name}: choose among {', '.join(known)}.")


@dataclass(frozen=True, order=True)
class Run:
    """One training of an experiment."""

    dataset: str
    family: str
    method: str
    epochs: int
    seed: int

    def __post_init__(self) -> None:
        for value, known, what in (
            (self.dataset, DATASETS, "data set"),
            (self.family, FAMILIES, "family"),
            (self.method, METHODS, "method"),
        ):
            check_known(value, known, what)
        if self.epochs < 1 or self.seed < 0:
            raise RecordError(f"{self.epochs} epochs with seed {self.seed} cannot be run: give at least 1 and 0.")

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.family}-{self.method}-{self.epochs}-{self.seed}"


def record_path(folder: Path, run: Run) -> Path:
    return folder / f"{run.name}.json"


def read_json(path: Path, what: str, keys: Iterable[str]) -> dict[str, Any]:
    """A JSON object that has ``keys``; one sentence if it is not ``what`` it should be."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path} is not there: {path.parent} does not hold {what}.") from None
    except (OSError, ValueError, RecursionError) as reason:
        raise RecordError(f"{path} cannot be read: {reason}.") from reason
    if not isinstance(found, dict) or any(key not in found for key in keys):
        raise RecordError(f"{path} does not hold {what}.")
    return found


_KEYS = ("run", "settings", "model", "lambda", "images", "sums", "environment", "history", "result", "small", "dense")
_KEYS += ("moduli",)


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """While plain values are taken out of ``path``: what is missing or of the wrong kind is a :class:`RecordError`."""
    try:
        yield
    except KeyError as reason:
        raise RecordError(f"{path} does not hold {what}, it has no {reason}: make it again.") from reason
    except (TypeError, ValueError, IndexError, AttributeError) as reason:
        said = " ".join(str(reason).split())
        raise RecordError(f"{path} does not hold {what} ({said}): make it again.") from reason


def read_record(path: Path) -> dict[str, Any]:
    return read_json(path, "the record of a run", _KEYS)


def read(folder: Path) -> Iterator[tuple[Run, dict[str, Any]]]:
    """All records of runs in a folder, in the order of their names."""
    for dataset in DATASETS:
        for family in FAMILIES:
            for path in sorted((folder / dataset).glob(f"{family}-*.json")):
                found = read_record(path)
                try:
                    run = Run(**found["run"])
                except (TypeError, RecordError) as reason:
                    said = str(reason).rstrip(".")
                    raise RecordError(f"{path} does not hold the record of a run: {said}.") from reason
                if record_path(folder, run) != path:
                    raise RecordError(f"{path} holds the record of another run, {run.name}: give it its name back.")
                yield run, found


def check_writable(folder: Path, option: str) -> None:
    """One sentence if nothing can be written to ``folder``, or to where it would be made, before there is anything to
    lose; it is not made yet."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as reason:
        said = reason.strerror or reason
        raise RecordError(f"{folder} cannot be written to ({said}): choose another {option}.") from reason


def write(folder: Path, run: Run, record: dict[str, Any]) -> Path:
    """Keep the record of a run, whole or not at all."""
    path = record_path(folder, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"run": asdict(run), **record}, indent=None, separators=(",", ":")) + "\n")
    return path
