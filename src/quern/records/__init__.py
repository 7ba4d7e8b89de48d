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
``history``        a line per epoch: ``epoch``, ``phase``, ``loss``, ``val_accuracy``, three sparsities, ``seconds``;
                   with ``curves`` in the settings also ``test_accuracy``, which nothing is chosen by, and
                   ``compacted_neurons``, how many neurons compaction would leave (None if it refuses)
``result``         ``test_accuracy``, ``val_accuracy``, ``best_epoch``, ``seconds`` and ``sparsity`` (the three shares,
                   ``neurons``, ``neurons_left``, ``parameters``, ``nonzero_parameters``, ``tol``, ``layers``)
``small``          the network with all that counts as zero set to zero, and compacted: ``test_accuracy``, ``neurons``,
                   ``parameters``, ``nonzero_parameters``, ``bytes`` of its file, ``macs``, ``latency_ms`` and
                   ``memory`` of onnxruntime for one image (the most, in bytes; older records lack it)
``dense``          the same, but for the accuracy, of the network with nothing removed
``moduli``         how the moduli of the weights are spread: ``edges`` as exponents of ten, ``counts`` between them
                   (the first and the last take what lies outside), ``zeros``
``zeros_by``       "modulus": a quaternion counts as zero when its modulus is at most ``tol``; older records lack it,
                   and count one whose four components are
=================  ===================================================================================================
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quern._files import claimed, sweep, write_text
from quern.errors import RecordError
from quern.records import schema
from quern.records._comparison import Budget, Comparison, Verdict
from quern.records._kinds import (
    Answers,
    Begun,
    Chance,
    CompressConfig,
    Compression,
    Dataset,
    Environment,
    Epoch,
    Family,
    Histories,
    LayerCounts,
    Method,
    Moduli,
    Network,
    Record,
    SampleRow,
    Samples,
    Sizes,
    StageSettings,
    Timings,
    TrainConfig,
    TrialRow,
    Trials,
)
from quern.records._penalty import Written, WrittenTerm, respelled
from quern.records._runs import (
    DATASETS,
    FAMILIES,
    FIGURE2,
    METHODS,
    NEURONS,
    PAPER,
    TABLE1,
    Run,
    check_known,
    without_penalty,
)
from quern.records._sparsity import LayerSparsity, Sparsity
from quern.records._training import Course, Result

__all__ = ["DATASETS", "FAMILIES", "FIGURE2", "METHODS", "NEURONS", "PAPER", "TABLE1", "Answers", "Begun", "Chance"]
__all__ += [
    "Budget",
    "Comparison",
    "CompressConfig",
    "Course",
    "LayerSparsity",
    "Result",
    "Sparsity",
    "Verdict",
    "Written",
    "WrittenTerm",
]
__all__ += ["Compression", "Dataset", "Environment", "Epoch", "Family", "Histories", "LayerCounts", "Method"]
__all__ += ["Moduli", "Network", "Record", "Run", "SampleRow", "Samples", "Sizes", "StageSettings", "Timings"]
__all__ += ["TrainConfig", "TrialRow", "Trials", "check_known", "check_writable", "keep", "read", "read_compression"]
__all__ += ["read_record", "record_path", "respelled", "without_penalty", "write"]


def record_path(folder: Path, run: Run) -> Path:
    return folder / f"{run.name}.json"


def read_record(path: Path) -> Record:
    """The record of a run; one sentence if the file is not one."""
    return schema.read(path, Record, "the record of a run", "remove it, and run quern reproduce again")


def read_compression(path: Path) -> Compression:
    """The record of a run of ``quern compress``; one sentence if the file is not one."""
    return schema.read(path, Compression, "a run of quern compress", "go on with --resume to make it again")


def read(folder: Path) -> Iterator[tuple[Run, Record]]:
    """All records of runs in a folder, in the order of their names."""
    for dataset in DATASETS:
        for family in FAMILIES:
            for path in sorted((folder / dataset).glob(f"{family}-*.json")):
                found = read_record(path)
                if record_path(folder, found["run"]) != path:
                    other = found["run"].name
                    raise RecordError(f"{path} holds the record of another run, {other}: give it its name back.")
                yield found["run"], found


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
    keep(path, json.dumps({"run": asdict(run), **record}, indent=None, separators=(",", ":")) + "\n")
    return path


def keep(path: Path, text: str) -> None:
    """Write a file of records, in a folder that is made if need be; what killed writers of it left is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with claimed(path.parent) as ours:  # while it is, nobody else is writing here
        if ours:
            sweep(path.parent, [path.name])
        write_text(path, text)
