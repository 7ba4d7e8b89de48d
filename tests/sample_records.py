"""Records of runs that never were, with numbers that are known."""

import base64
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

from quern.records import Record
from quern.records.schema import check

ENVIRONMENT = {"quern": "0.1.0", "commit": "a" * 40, "torch": "2.13.0", "python": "3.11", "cpu": "a CPU", "threads": 1}
EDGES = [n / 4 for n in range(-24, 9)]
LAYERS = (("0", "QConv2d", 25, 4), ("4", "QConv2d", 800, 8), ("9", "QLinear", 2000, 10))
# How far a method drives zeros, and what it leaves of the accuracy.
REACH = {"none": (0.0, 0.99), "l2": (0.42, 0.967), "l1": (0.3, 0.94), "rq": (0.6, 0.97), "rql": (0.72, 0.965)}
REACH |= {"none-bn": (0.0, 0.991), "rq-bn": (0.65, 0.975), "rql-bn": (0.75, 0.97), "gamma-bn": (0.9, 0.96)}
REACH |= {"gamma-beta-bn": (0.88, 0.962)}
REST = {"penalty": 0.5, "strength": 1.0, "lr": 0.002, "val_loss": 0.4}  # of a line that no report shows
WITHOUT = ("none", "none-bn")  # a penalty


def run_record(
    dataset: str, family: str, method: str, seed: int = 0, epochs: int = 6, **changed: Any
) -> dict[str, Any]:
    """A record as :func:`quern.records.read` takes it; ``changed`` are numbers of ``result`` or of its sparsity."""
    share, accuracy = REACH[method]
    share, accuracy = max(0.0, share - 0.01 * seed), min(1.0, accuracy + 0.002 * seed)
    sparsity = {
        "component_sparsity": min(1.0, share + 0.03),
        "quaternion_sparsity": share,
        "neuron_sparsity": share / 2,
        "neurons": 22,
        "neurons_left": round(22 * (1 - share / 2)),
        "parameters": 11_688,
        "nonzero_parameters": round(11_688 * (1 - share)),
        "tol": 0.001 if family == "paper" else 0.0,
        "layers": [
            {
                "name": name,
                "kind": kind,
                "quaternions": quaternions,
                "zero_components": round(4 * quaternions * share),
                "zero_quaternions": round(quaternions * share),
                "neurons": neurons,
                "dead_neurons": round(neurons * share / 2),
            }
            for name, kind, quaternions, neurons in LAYERS
        ],
    }
    result = {"test_accuracy": accuracy, "val_accuracy": accuracy, "best_epoch": epochs, "seconds": 1800.0}
    cut = changed.pop("cut_accuracy", accuracy - 0.001)
    for key, value in changed.items():
        (sparsity if key in sparsity else result)[key] = value
    size = {"neurons": 22, "parameters": 11_688, "nonzero_parameters": 11_000, "bytes": 50_000, "macs": 10**6}
    small = {"neurons": 4, "parameters": 2000, "nonzero_parameters": 1900, "bytes": 10_000, "macs": 10**5}
    return {
        "run": {"dataset": dataset, "family": family, "method": method, "epochs": epochs, "seed": seed},
        "settings": {"lr": 0.002},
        "model": f"{dataset}_qcnn",
        "lambda": None if method in WITHOUT else 3.2,
        "images": {"train": 55_000, "val": 5000, "test": 10_000},
        "sums": {"train_images": "0f" * 32},
        "environment": ENVIRONMENT,
        "history": [_line(n, epochs, family, share, accuracy) for n in range(1, epochs + 1)],
        "result": {**result, "sparsity": sparsity},
        "small": {**small, "test_accuracy": cut, "latency_ms": 0.25, "memory": 41_000_000},
        "dense": {**size, "latency_ms": 1.0, "memory": 62_000_000},
        "moduli": _moduli(family, share),
        "zeros_by": "modulus",
    }


def record_of(*which: Any, **changed: Any) -> Record:
    """The same as it is read."""
    return check(run_record(*which, **changed), Record)


def _line(epoch: int, epochs: int, family: str, share: float, accuracy: float) -> dict[str, Any]:
    done = min(1.0, 1.5 * epoch / epochs)
    return {
        "epoch": epoch,
        "phase": "heal" if family == "quern" and epoch > 2 * epochs / 3 else "grind",
        "loss": 1.0 / epoch,
        "val_accuracy": accuracy - 0.05 / epoch,
        "component_sparsity": min(1.0, share + 0.03) * done,
        "quaternion_sparsity": share * done,
        "neuron_sparsity": share / 2 * done,
        "neurons_left": round(22 * (1 - share / 2 * done)),
        "seconds": 1.0,
        **REST,
    }


def _moduli(family: str, share: float) -> dict[str, Any]:
    counts = [round(1000 * math.exp(-((edge + 1) ** 2) * 4) * (1 - share)) for edge in EDGES[:-1]]
    if family == "paper":
        counts = [n + round(800 * share * math.exp(-((edge + 4) ** 2))) for n, edge in zip(counts, EDGES, strict=False)]
    return {"edges": EDGES, "counts": counts, "zeros": 0 if family == "paper" else round(2825 * share)}


def write_run(folder: Path, record: dict[str, Any]) -> Path:
    run = record["run"]
    path = folder / run["dataset"] / f"{run['family']}-{run['method']}-{run['epochs']}-{run['seed']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def write_experiments(
    folder: Path,
    datasets: tuple[str, ...] = ("mnist", "cifar10"),
    methods: tuple[str, ...] = tuple(REACH),
    epochs: int = 6,
) -> Path:
    """Everything that a report of experiments can show."""
    for dataset in datasets:
        for family in ("paper", "quern"):
            for method in methods:
                for seed in range(2):
                    write_run(folder, run_record(dataset, family, method, seed, epochs))
        write_run(folder, run_record(dataset, "real", "none", 0, epochs))
        ratios = {"none": 1.0, "l2": 1.02, "l1": 1.03, "rq": 1.04, "rql": 1.12}
        rows = [
            {"family": family, "method": method, "median_ms": 80 * ratio, "ratio": ratio}
            for family in ("paper", "quern")
            for method, ratio in ratios.items()
        ]
        common = {"dataset": dataset, "environment": ENVIRONMENT}
        (folder / dataset / "table2.json").write_text(json.dumps({**common, "rounds": 15, "batch": 400, "rows": rows}))
        trials = [
            _trial(family, method, n)
            for family in ("paper", "quern")
            for method in methods
            if method not in WITHOUT
            for n in range(6)
        ]
        (folder / dataset / "tuning.json").write_text(json.dumps({**common, "trials": trials}))
    write_compress(folder / "small-1")
    return folder


def _trial(family: str, method: str, n: int) -> dict[str, Any]:
    share, accuracy = REACH[method]
    return {
        "family": family,
        "method": method,
        "lambda": 0.5 * 2**n,
        "val_accuracy": accuracy + 0.004 - 0.003 * n - 0.004 * (n % 2),
        "quaternion_sparsity": min(0.99, share * (0.5 + 0.1 * n)),
        "component_sparsity": min(1.0, share * (0.5 + 0.1 * n) + 0.01),
        "nonzero_parameters": round(11_688 * (1 - share * (0.5 + 0.1 * n))),
        "chosen": n == 3,
    }


def compress_record() -> dict[str, Any]:
    """What ``quern compress`` writes down."""
    dense = {"test_accuracy": 0.99, "val_accuracy": 0.99, "neurons": 22, "parameters": 11_748, "bytes": 50_000}
    dense |= {"onnx_bytes": 180_000, "macs": 10**6, "latency_ms": 0.2, "seconds": 10.0}
    small = {"test_accuracy": 0.985, "val_accuracy": 0.985, "neurons": 9, "parameters": 1467, "bytes": 10_000}
    small |= {"onnx_bytes": 20_000, "macs": 10**5, "latency_ms": 0.05, "seconds": 20.0}
    return {
        "environment": ENVIRONMENT,
        "command": "quern compress --max-params 1500 --out runs/digits",
        "dataset": "digits",
        "budget": [
            {"what": "parameters", "limit": 1500.0, "value": 1467.0, "met": True},
            {"what": "times faster", "limit": 5.0, "value": 4.0, "met": False},
        ],
        "sums": {"images": "0f" * 32},
        "settings": {"dense": {"epochs": 3}, "small": {"epochs": 2, "heal_lr": None}, "budget": {"max_params": 1500}},
        "dense": dense,
        "small": small,
        "answers": [_answers(n) for n in range(10)],
        "layers": [
            {"name": "0", "kind": "QConv2d", "dense": 4, "small": 2},
            {"name": "9", "kind": "QLinear", "dense": 18, "small": 7},
        ],
        "history": {
            "dense": [_compress_line(n, "train", 22, 11_748) for n in range(1, 4)],
            "small": [_compress_line(n, "grind" if n < 3 else "heal", 9, 1467) for n in range(1, 6)],
        },
    }


def _answers(n: int) -> dict[str, Any]:
    """Of 20 inputs a class: 7 loses two, 3 gains one, so that 198 and 197 of all are right."""
    both, only_dense, only_small, neither = {7: (18, 2, 0, 0), 3: (18, 0, 1, 1)}.get(n, (20, 0, 0, 0))
    return {"name": str(n), "both": both, "only_dense": only_dense, "only_small": only_small, "neither": neither}


def _compress_line(epoch: int, phase: str, neurons: int, parameters: int) -> dict[str, Any]:
    counts = {"neurons_left": neurons, "parameters": parameters, "seconds": 0.5, **REST}
    counts |= dict.fromkeys(("component_sparsity", "quaternion_sparsity", "neuron_sparsity"), 0.25)
    return {"epoch": epoch, "phase": phase, "loss": 1 / epoch, "val_accuracy": 0.9 + 0.01 * epoch, **counts}


def write_compress(folder: Path, samples: bool = True, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps({**compress_record(), **changed}))
    if samples:
        (folder / "samples.json").write_text(json.dumps(sample_record()))
    return folder


def sample_record(classes: tuple[str, ...] = tuple("0123456789")) -> dict[str, Any]:
    return {"classes": list(classes), "samples": [_sample(n) for n in range(12)]}


def _sample(n: int) -> dict[str, Any]:
    answers = {"label": n % 10, "dense": n % 10, "small": (n + (n % 4 == 3)) % 10}
    return {"png": png(n), **answers, "dense_confidence": 0.98, "small_confidence": 0.61}


def png(n: int) -> str:
    """A grey image of 8 by 8, in base64."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes((20 * n + 9 * x * y) % 256 for x in range(8)) for y in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(whole).decode()
