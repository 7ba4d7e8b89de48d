"""Damaged files, by the thousand: every command that reads one must do its work or say one sentence.

    python benchmarks/fuzz_files.py                  (5,000 files; a quarter of an hour)
    python benchmarks/fuzz_files.py --count 300 --seed 7

Half of the damaged checkpoints and networks get a right checksum again, as somebody who means harm would give them.
Prints a line per kind of file and command, and exits with 1 if there was a traceback, a hang or an unclear error.
"""

import argparse
import contextlib
import hashlib
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load

from quern import train
from quern.cli import main
from quern.errors import Stopped
from quern.io.tensorfile import head_of, kinds_of, write_tensors
from quern.pipeline import compress
from quern.train.progress import Lines

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 120  # for one command
ODD: list[Any] = [None, True, False, -1, 0, 1, 3, 2**31, 2**53, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e-320]
ODD += [1e308, -1e308, float("nan"), float("inf"), "", "x", "x" * 3000, "\x1b[31mred", "\r\n", "\0", "\ud800", "é"]
ODD += ["../../etc/passwd", "nan", "0-2000000000", [], {}, [[]], [None], {"": None}, {"epoch": []}]


class Hang(BaseException):
    """A command took too long."""


# ---- how files are damaged


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Flipped, lost, doubled or foreign bytes."""
    data = bytearray(content)
    place = chance.randrange(max(1, len(data)))
    how = chance.choice(["flip", "flip", "flip", "cut", "cut", "lose", "double", "insert", "zeros", "whole"])
    if how == "flip":
        for _ in range(chance.choice([1, 1, 1, 5])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del data[place:]
    elif how == "lose":
        del data[place : place + chance.choice([1, 8, 100])]
    elif how == "double":
        data[place:place] = data[place : place + 50]
    elif how == "insert":
        data[place:place] = chance.choice([b"\xff", b"\x00", b"}", b"]", b'"', b",", b"\n", chance.randbytes(20)])
    elif how == "zeros":
        data[place : place + 64] = bytes(64)
    else:
        whole = [b"", b"{}", b"[]", b"null", b"3", b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000]
        return chance.choice([*whole, b"\xff\xfe" + content, b"\xef\xbb\xbf" + content, content * 2])
    return bytes(data)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with a key in it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield value, key
        yield from places(one)


def damaged_value(value: Any, chance: random.Random) -> Any:
    """A JSON value with some of it missing, exchanged or of another kind."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.choice([1, 1, 1, 2])):
        found = list(places(value))
        if not found:
            return chance.choice(ODD)
        container, key = chance.choice(found)
        other, elsewhere = chance.choice(found)
        one = container[key]
        how = chance.choice(["odd", "odd", "odd", "missing", "swap", "text", "scale", "wrap", "deep", "more"])
        if how == "odd":
            container[key] = chance.choice(ODD)
        elif how == "missing":
            del container[key]
        elif how == "swap":
            container[key] = json.loads(json.dumps(other[elsewhere]))
        elif how == "text":
            container[key] = str(one)
        elif how == "scale" and isinstance(one, int | float) and not isinstance(one, bool):
            container[key] = one * chance.choice([-1, 2, 10, 1e6, 1e30]) + chance.choice([0, 1])
        elif how == "deep":
            for _ in range(chance.choice([20, 40, 200])):
                one = [one]
            container[key] = one
        elif how == "more" and isinstance(one, list):
            container[key] = one * 2 + [chance.choice(ODD)]
        elif isinstance(container, dict):
            container[f"{key}{chance.choice(['', '2', ' '])}"] = [one]
    return value


def damaged_json(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return damaged_bytes(content, chance)
    text = json.dumps(damaged_value(json.loads(content), chance))
    if chance.random() < 0.05:  # a number that no machine has, and a key twice
        text = re.sub(r"\d+", "9" * chance.choice([400, 5000]), text, count=1)
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    return text.encode()


def damaged_lines(content: bytes, chance: random.Random) -> bytes:
    """A file with a JSON value a line."""
    lines = content.splitlines()
    n = chance.randrange(len(lines))
    how = chance.random()
    if how < 0.3:
        return damaged_bytes(content, chance)
    if how < 0.7:
        lines[n] = json.dumps(damaged_value(json.loads(lines[n]), chance)).encode()
    elif how < 0.8:
        del lines[n]
    elif how < 0.9:
        lines.insert(n, chance.choice(lines))
    else:
        return b"\n".join(lines)[: -chance.randrange(1, 60)]
    return b"".join(line + b"\n" for line in lines)


def damaged_toml(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        return damaged_bytes(content, chance)
    odd = ["0", "-1", "nan", "inf", "1e999", "'x'", "true", "[]", "{}", "1979-05-27", "9" * 500, "[" * 3000]
    swapped = [(r"= [\d.]+", f"= {chance.choice(odd)}"), (r"\[\w+\.", "[other."), (r"\n\w+ =", "\nother =")]
    pattern, new = chance.choice(swapped)
    found = list(re.finditer(pattern, content.decode()))
    one = chance.choice(found)
    return (content.decode()[: one.start()] + new + content.decode()[one.end() :]).encode()


def damaged_tensors(content: bytes, chance: random.Random) -> bytes:
    """A checkpoint or a network: as any file, or by someone who then puts a right checksum."""
    if chance.random() < 0.5:
        return damaged_bytes(content, chance)
    if chance.random() < 0.1:
        return resealed(damaged_bytes(content, chance))
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    state, tensors = json.loads(header["__metadata__"]["quern"]), load(content)
    names = list(tensors)
    how = chance.choice(["state", "state", "state", "drop", "swap", "rename", "shape", "type", "values", "add"])
    one, other = chance.choice(names), chance.choice(names)
    if how == "state":
        state = damaged_value(state, chance)
    elif how == "drop":
        del tensors[one]
    elif how == "swap":
        tensors[one], tensors[other] = tensors[other].clone(), tensors[one].clone()
    elif how == "rename":
        new = chance.choice(
            [f"{one}.x", "optimizer.999.exp_avg", "optimizer.x.step", "frozen.nothing", "model.nothing"]
        )
        tensors[new] = tensors.pop(one)
    elif how == "shape":
        shapes = [(-1,), (1, -1), (*tensors[one].shape, 1)]
        tensors[one] = tensors[one].reshape(chance.choice(shapes)) if tensors[one].numel() else torch.zeros(3)
    elif how == "type":
        tensors[one] = tensors[one].to(chance.choice([torch.float64, torch.float16, torch.int64, torch.bool]))
    elif how == "values":
        odd = [0, 1, -1, 1e30, float("nan"), float("inf")] if tensors[one].is_floating_point() else [0, 1]
        tensors[one] = torch.full_like(tensors[one], chance.choice(odd))
    else:
        tensors[chance.choice(["model.more", "optimizer.0.more", "frozen.more", "x"])] = torch.zeros(2, 2)
    file = io.BytesIO()
    write_tensors(file, head_of(kinds_of(tensors), json.dumps(state)), tensors)
    return file.getvalue()


def resealed(content: bytes) -> bytes:
    """``content`` with a right checksum, if it has a place for one."""
    if (found := re.search(rb'"sha256":"([0-9a-f]{64})"', content)) is None:
        return content
    start, stop = found.span(1)
    digest = hashlib.sha256(content[:start] + b"0" * 64 + content[stop:]).hexdigest()
    return content[:start] + digest.encode() + content[stop:]


# ---- what is damaged, and who reads it


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
    code, said = run(command)
    assert code == 0, said


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
            code, said = run(tuple(part.replace(AT, str(folder)) for part in kind.command))
        if code == 0:
            return "success", said
        lines = [line for line in said.splitlines() if line]
        if code != 1:
            return ("hang" if code == 98 else "traceback"), said
        if kind.command[0] == "tune":  # tells how far it is, and appends to its journal
            lines = lines[-1:]
        elif path.read_bytes() != content:
            return "changed on disk", said
        clear = len(lines) == 1 and lines[0].startswith("quern: ") and lines[0].endswith(".")
        harmless = not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)
        return ("sentence" if clear and harmless else "unclear"), said


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
            found: Counter[str] = Counter()
            for number in range(max(1, round(count * kind.share / everything))):
                what, said = tried(kind, whole, number, seed)
                found[what] += 1
                if what not in ("success", "sentence"):
                    tell(f"*** {what}: {kind.command[0]} with {kind.folder}/{kind.file}, number {number}\n{said}")
            total += found
            wrong += found.total() - found["success"] - found["sentence"]
            counts = ", ".join(f"{n} {what}" for what, n in found.items())
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
