"""What was run and what came of it: the paper's numbers, and our own records, read and written without torch.

A *run* is one training of an experiment: a data set, a family, a method, a number of epochs and a seed. Its record is
one JSON file, ``FOLDER/mnist/quern-rq-20-0.json`` for seed 0. What each file holds is a class of this folder, by which
it is written, read and checked (:mod:`quern.records.schema`): :class:`Record` for runs of experiments, with
:class:`Course` for its settings and :class:`Epoch` for each line of its history; :class:`Trials` and :class:`Timings`;
:class:`Compression` for ``quern compress``; :class:`Result` for a training.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quern._files import claimed, sweep, write_text
from quern.errors import RecordError
from quern.records import schema
from quern.records._comparison import Budget, Comparison
from quern.records._compression import (
    Answers,
    Begun,
    Chance,
    CompressConfig,
    Compression,
    CompressRequest,
    Histories,
    ImageFormat,
    LayerSizes,
    Network,
    PackedSize,
    Request,
    SampleRow,
    Samples,
    Scratch,
    StageSettings,
    TrainConfig,
    TrainRequest,
    Verdict,
)
from quern.records._experiments import (
    Dataset,
    Deployed,
    Environment,
    Family,
    Method,
    Moduli,
    Reached,
    Record,
    Small,
    TimingRow,
    Timings,
    TrialRow,
    Trials,
    Zeros,
)
from quern.records._metric import ACCURACY, Judged, Metric
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
from quern.records._size import Size
from quern.records._sparsity import LayerCounts, LayerSparsity, Sparsity
from quern.records._training import Course, Epoch, Phase, Result

__all__ = ["ACCURACY", "Answers", "Begun", "Budget", "Chance", "Comparison", "CompressConfig", "CompressRequest"]
__all__ += ["DATASETS", "FAMILIES", "FIGURE2", "Compression", "Course", "Dataset", "Deployed", "Environment", "Epoch"]
__all__ += ["METHODS", "Family", "Histories", "ImageFormat", "Judged", "LayerCounts", "LayerSizes", "LayerSparsity"]
__all__ += ["NEURONS", "PAPER", "Method", "Metric", "Moduli", "Network", "PackedSize", "Phase", "Reached", "Record"]
__all__ += ["Request", "Result", "Run", "SampleRow", "Samples", "Scratch", "Size", "Small", "Sparsity", "StageSettings"]
__all__ += ["TABLE1", "TimingRow", "Timings", "TrainConfig", "TrainRequest", "TrialRow", "Trials", "Verdict", "Written"]
__all__ += ["WrittenTerm", "Zeros", "check_known", "check_writable", "keep", "read", "read_compression", "read_record"]
__all__ += ["record_path", "respelled", "without_penalty", "write"]


def record_path(folder: Path, run: Run) -> Path:
    return folder / f"{run.name}.json"


def read_record(path: Path) -> Record:
    """The record of a run; one sentence if the file is not one."""
    return schema.read(path, Record, "the record of a run", "remove it, and run quern reproduce again")


def read_compression(path: Path) -> Compression:
    """The record of a run of ``quern compress``; one sentence if the file is not one."""
    return schema.read(path, Compression, "a run of quern compress", "go on with --resume to make it again")


def read(folder: Path) -> Iterator[Record]:
    """All records of runs in a folder, in the order of their names."""
    for dataset in DATASETS:
        for family in FAMILIES:
            for path in sorted((folder / dataset).glob(f"{family}-*.json")):
                record = read_record(path)
                if record_path(folder, record.run) != path:
                    other = record.run.name
                    raise RecordError(f"{path} holds the record of another run, {other}: give it its name back.")
                yield record


def check_writable(folder: Path, option: str) -> None:
    """One sentence if nothing can be written to ``folder``, or to where it would be made, before there is anything to
    lose; it is not made yet."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as reason:
        wrong = reason.strerror or reason
        raise RecordError(f"{folder} cannot be written to ({wrong}): choose another {option}.") from reason


def write(folder: Path, record: Record) -> Path:
    """Keep the record of a run, whole or not at all."""
    path = record_path(folder, record.run)
    keep(path, json.dumps(schema.to_plain(record), indent=None, separators=(",", ":")) + "\n")
    return path


def keep(path: Path, text: str) -> None:
    """Write a file of records, in a folder that is made if need be; what killed writers of it left is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with claimed(path.parent) as ours:  # while it is, nobody else is writing here
        if ours:
            sweep(path.parent, [path.name])
        write_text(path, text)
