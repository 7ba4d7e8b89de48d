"""The C runtime compiled in other ways than it is when quern is installed."""

import runpy
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from quern import runtime

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "src" / "quern" / "runtime"
HERE = Path(__file__).parent
COMPILERS = tuple(name for name in ("gcc", "clang") if shutil.which(name))
# Divisions of floats by zero are missing: IEEE 754 says what they give, and a network may divide so.
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
WORK = 1 << 22  # products of one run that the program of hostile blobs takes: more would take long, thousands of times


@cache
def build_flags() -> dict[str, tuple[str, ...]]:
    """By the names of the libraries, the flags that they are built with when quern is installed."""
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    libraries = setup.call_args.kwargs["ext_modules"]
    own = [one for one in libraries if one.name.startswith("quern.runtime.")]
    return {one.name.rpartition(".")[2]: tuple(one.extra_compile_args) for one in own}


def vectors(name: str) -> tuple[str, ...]:
    """What chooses the instructions of a build; "scalar" has no vectors at all."""
    if name == "scalar":
        return ("-DLANES=1",)
    return tuple(flag for flag in build_flags()[name] if flag.startswith("-m"))


def compiled(compiler: str, out: Path, *flags: str, sources: Sequence[Path] = (RUNTIME / "quern_rt.c",)) -> str:
    """Compile to ``out``; what the compiler said. It must not fail."""
    command = [compiler, f"-I{RUNTIME}", *map(str, sources), "-o", str(out), *flags]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return made.stderr


@cache
def scalar_library() -> Any:
    """The runtime without vectors, as microcontrollers have it; None without a compiler."""
    if not COMPILERS:
        return None
    with tempfile.TemporaryDirectory(prefix="quern-") as folder:
        out = Path(folder) / "scalar.so"
        sources = (RUNTIME / "quern_rt.c", RUNTIME / "quern_native.c")
        compiled(COMPILERS[0], out, *build_flags()["_any"], *vectors("scalar"), "-shared", "-fPIC", sources=sources)
        return runtime.typed_library(out)


def hostile_program(folder: Path, name: str) -> Path:
    """The program that runs blobs of strangers, with the vectors of a build."""
    out = folder / f"hostile{name}"
    sources = (RUNTIME / "quern_rt.c", HERE / "hostile.c")
    flags = ("-std=c99", *SANITIZED, f"-DQRN_MAX_WORK={WORK}", *vectors(name), "-lm")
    compiled(COMPILERS[0], out, *flags, sources=sources)
    return out


class Harm(Exception):
    """A blob made the runtime do something that it must not: which one, and what the sanitizers said."""

    def __init__(self, blob: bytes, said: str) -> None:
        super().__init__(said)
        self.blob = blob


def outcomes(program: Path, blobs: Sequence[bytes], *arguments: str, seconds: int = 300) -> str:
    """A letter for each blob, as ``hostile.c`` has them. Harm and hangs are errors."""
    given = b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)
    try:
        ran = subprocess.run([program, *arguments], input=given, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        done = len(late.stdout or b"")
        raise Harm(blobs[done], f"blob {done} did not end") from late
    letters, said = ran.stdout.decode(), ran.stderr.decode(errors="replace")
    if ran.returncode != 0 or len(letters) != len(blobs):
        raise Harm(blobs[len(letters)], f"blob {len(letters)} ended it with {ran.returncode}:\n{said[:4000]}")
    return letters
