"""Damaged files, by the thousand: every command that reads one must do its work or say one sentence.

    python -m benchmarks.fuzz_files                  (5,000 files; a quarter of an hour)
    python -m benchmarks.fuzz_files --count 300 --seed 7

Half of the damaged checkpoints and networks get a right checksum again, as somebody who means harm would give them.
Prints a line per kind of file and command, and exits with 1 if there was a traceback, a hang or an unclear error.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from benchmarks.damage import damaged_json, damaged_lines, damaged_tensors, damaged_toml
from rich.console import Console

from quern import train
from quern.cli import main
from quern.cli._compress import AT_CHANCE
from quern.errors import Stopped
from quern.pipeline import compress
from quern.train.progress import Lines

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 120  # for one command


class Hang(BaseException):
    """A command took too long."""


@dataclass(frozen=True)
class Kind:
    """A file in a folder of whole ones, how it is damaged, the command that reads it, and how often it is tried."""

    folder: str
    file: str
    damage: Callable[[bytes, random.Random], bytes]
    command: tuple[str, ...]
    share: int


AT = "FOLDER"  # in commands
SHOW, REPORT = ("show", "--history", AT), ("report", AT, "--out", f"{AT}/out")
TRAIN, COMPRESS = ("train", "--resume", "--quiet", "--out", AT), ("compress", "--resume", "--quiet", "--out", AT)
TUNE = ("tune", "--dataset", "digits", "--family", "quern", "--method", "rql", "--trials", "1", "--images", "64")
TUNE += ("--epochs", "1", "--lambdas", f"{AT}/lambdas.toml", "--storage", f"{AT}/journal", "--results", AT)
REPRODUCE = ("reproduce", "table1", "--dataset", "mnist", "--family", "quern", "--method", "rq", "--dry-run")
REPRODUCE += ("--results", AT, "--lambdas", f"{AT}/lambdas.toml", "--work", f"{AT}/work")
COMPACT = ("compact", f"{AT}/model.safetensors", "--out", f"{AT}/small.safetensors")

KINDS = (
    Kind("finished", "config.json", damaged_json, SHOW, 4),
    Kind("finished", "result.json", damaged_json, SHOW, 8),
    Kind("stopped", "history.jsonl", damaged_lines, SHOW, 4),
    Kind("compressed", "config.json", damaged_json, SHOW, 3),
    Kind("compressed", "record.json", damaged_json, SHOW, 6),
    Kind("unfinished", "config.json", damaged_json, SHOW, 3),
    Kind("unfinished", "dense/history.jsonl", damaged_lines, SHOW, 2),
    Kind("compressed", "record.json", damaged_json, REPORT, 6),
    Kind("compressed", "samples.json", damaged_json, REPORT, 3),
    Kind("results", "mnist/quern-rq-20-0.json", damaged_json, REPORT, 4),
    Kind("results", "mnist/table2.json", damaged_json, REPORT, 2),
    Kind("results", "mnist/tuning.json", damaged_json, REPORT, 2),
    Kind("results", "run/record.json", damaged_json, REPORT, 2),
    Kind("results", "mnist/quern-rq-20-0.json", damaged_json, REPRODUCE, 6),
    Kind("results", "lambdas.toml", damaged_toml, REPRODUCE, 4),
    Kind("tuned", "journal", damaged_lines, TUNE, 6),
    Kind("tuned", "digits/tuning.json", damaged_json, TUNE, 3),
    Kind("tuned", "lambdas.toml", damaged_toml, TUNE, 2),
    Kind("stopped", "config.json", damaged_json, TRAIN, 4),
    Kind("stopped", "last.safetensors", damaged_tensors, TRAIN, 20),
    Kind("stopped", "best.safetensors", damaged_tensors, TRAIN, 10),
    Kind("unfinished", "config.json", damaged_json, COMPRESS, 3),
    Kind("unfinished", "dense/result.json", damaged_json, COMPRESS, 3),
    Kind("unfinished", "dense/model.safetensors", damaged_tensors, COMPRESS, 4),
    Kind("unfinished", "small/last.safetensors", damaged_tensors, COMPRESS, 12),
    Kind("finished", "model.safetensors", damaged_tensors, COMPACT, 16),
)


class _Stop(Lines):
    """Ends a training after so many steps."""

    def __init__(self, after: int) -> None:
        super().__init__(Console(quiet=True))
        self.steps = after

    def step(self, *_: Any, **__: Any) -> None:
        self.steps -= 1
        if self.steps == 0:
            signal.raise_signal(signal.SIGTERM)


def prepare(folder: Path, wanted: set[str]) -> None:
    """Folders of whole files, of trainings as short as can be."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 17, (60, 8, 8), dtype=np.uint8)
    data = folder / "data.npz"
    np.savez(data, images=images, labels=np.arange(60) % 3)
    common = ("--dataset", str(data), "--model", "digits_qcnn", "--batch", "15", "--threads", "1", "--quiet")
    options = ("--norm", "after_conv", "--penalty", "rql", "--lambda", "30", "--penalty", "gamma", "--lambda", "2")
    options += ("--epochs", "2", "--heal", "2", "--compact-every", "1")
    _whole("train", *common, *options, "--out", str(folder / "finished"))
    _stop_training(folder)
    if wanted & {"compressed", "unfinished"}:
        stages = ("--epochs", "1", "--grind", "2", "--heal", "1", "--max-params", "500")
        _whole("compress", *common, *stages, "--out", str(folder / "compressed"))
        _stop_compressing(folder)
    results = folder / "results"
    for name in ("mnist/quern-rq-20-0.json", "mnist/quern-none-20-0.json", "mnist/table2.json", "mnist/tuning.json"):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "results" / name, results / name)
    (results / "run").mkdir()
    shutil.copy(ROOT / "results" / "mnist-1500" / "record.json", results / "run" / "record.json")
    weights = ROOT / "src" / "quern" / "paper" / "lambdas.toml"
    shutil.copy(weights, results / "lambdas.toml")
    (folder / "tuned").mkdir()
    shutil.copy(weights, folder / "tuned" / "lambdas.toml")
    _whole(*(part.replace(AT, str(folder / "tuned")) for part in TUNE))


def _whole(*command: str) -> None:
    code, errors = run(command)
    assert code in (0, AT_CHANCE), (code, errors)  # so short a training learns nothing


def _stop_training(folder: Path) -> None:
    """A training that was stopped while healing, with masks, a plan and a best network."""
    from quern import data, models

    config = json.loads((folder / "finished" / "config.json").read_text())
    torch.manual_seed(0)
    network = models.digits_qcnn(norm="after_conv", classes=3)
    settings = train.Settings.from_dict(config["settings"])
    images = data.load(str(folder / "data.npz"))
    steps = len(images.train) // settings.batch
    with contextlib.suppress(Stopped):
        train.fit(network, images, settings, folder / "stopped", watchers=[_Stop(3 * steps + 1)], about=config)


def _stop_compressing(folder: Path) -> None:
    """A run of compress that was stopped while λ was steered."""
    from quern import data, models

    config = json.loads((folder / "compressed" / "config.json").read_text())
    shutil.copytree(folder / "compressed", folder / "unfinished")
    for left in ("record.json", "samples.json", "report.html", "small"):
        path = folder / "unfinished" / left
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    images = data.load(str(folder / "data.npz"))
    steps = len(images.train) // config["stages"]["batch"]
    config = {key: value for key, value in config.items() if key != "settings"}
    torch.manual_seed(0)
    network = models.digits_qcnn(norm="after_conv", classes=3)
    with contextlib.suppress(Stopped):
        compress(
            network, images, **config["budget"], **config["stages"], out=folder / "unfinished", resume=True,
            watchers=[_Stop(steps + 1)], about=config,
        )  # fmt: skip


def run(command: tuple[str, ...]) -> tuple[int, str]:
    """The exit code of a command in this process, and what it said on standard error. 99: a traceback, 98: a hang."""
    out, err = io.StringIO(), io.StringIO()
    before, terminated = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = ["quern", *command]

    def late(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Hang:
        code = 98
    except BaseException:
        code = 99
        err.write(traceback.format_exc())
    finally:
        signal.alarm(0)
        sys.argv = before
        signal.signal(signal.SIGTERM, terminated)
        torch.set_num_threads(1)
    return code, err.getvalue()


def quick(really: bool) -> contextlib.ExitStack:
    """Without what takes long and reads none of the files, unless ``really``: figures, and networks in ONNX."""
    stack = contextlib.ExitStack()
    if not really:
        times = dict.fromkeys(("dense", "small"), mock.Mock(median_ms=1.0))
        stack.enter_context(mock.patch("quern.report._draw.files", return_value={}))
        stack.enter_context(mock.patch("quern.report._draw.pictures", return_value=()))
        stack.enter_context(mock.patch("quern.pipeline._stages.to_onnx", lambda _, path, __: path.write_bytes(b"?")))
        stack.enter_context(mock.patch("quern.pipeline._stages.time_onnx", return_value=times))
    return stack


def tried(kind: Kind, whole: Path, number: int, seed: int) -> tuple[str, str]:
    """One damaged file, read by its command: "success", "sentence", or what else came of it, and what was said."""
    chance = random.Random(f"{seed} {kind.folder} {kind.file} {kind.command[0]} {number}")
    with tempfile.TemporaryDirectory(prefix="quern-fuzz-") as name:
        folder = Path(name) / "run"
        shutil.copytree(whole / kind.folder, folder)
        path = folder / kind.file
        content = kind.damage(path.read_bytes(), chance)
        path.write_bytes(content)
        with quick(really=number % 25 == 24):
            code, errors = run(tuple(part.replace(AT, str(folder)) for part in kind.command))
        if code == 0:
            return "success", errors
        lines = [line for line in errors.splitlines() if line]
        if code != 1:
            return ("hang" if code == 98 else "traceback"), errors
        if kind.command[0] == "tune":  # tells how far it is, and appends to its journal
            lines = lines[-1:]
        elif path.read_bytes() != content:
            return "changed on disk", errors
        clear = len(lines) == 1 and lines[0].startswith("quern: ") and lines[0].endswith(".")
        harmless = not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", errors)
        return ("sentence" if clear and harmless else "unclear"), errors


def say(text: str) -> None:
    """Print at once: the whole takes a while."""
    print(text, flush=True)


def fuzz(count: int, seed: int, kinds: tuple[Kind, ...] = KINDS, tell: Callable[[str], None] = say) -> int:
    """Try ``count`` damaged files; how many gave neither success nor a sentence."""
    wrong, total, started = 0, Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quern-fuzz-") as name:
        prepare(whole := Path(name), {kind.folder for kind in kinds})
        everything = sum(kind.share for kind in kinds)
        for kind in kinds:
            outcomes: Counter[str] = Counter()
            for number in range(max(1, round(count * kind.share / everything))):
                outcome, errors = tried(kind, whole, number, seed)
                outcomes[outcome] += 1
                if outcome not in ("success", "sentence"):
                    tell(f"*** {outcome}: {kind.command[0]} with {kind.folder}/{kind.file}, number {number}\n{errors}")
            total += outcomes
            wrong += outcomes.total() - outcomes["success"] - outcomes["sentence"]
            counts = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
            tell(f"{kind.command[0]:<10} {kind.folder}/{kind.file:<28} {counts}")
    tell(f"{total.total()} files, seed {seed}: {dict(total)}, {time.monotonic() - started:.0f} s")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the name of a command or file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    chosen = tuple(k for k in KINDS if options.only in f"{k.command[0]} {k.folder}/{k.file}")
    sys.exit(1 if fuzz(options.count, options.seed, chosen) else 0)
