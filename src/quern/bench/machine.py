"""Facts about the program and the machine, for records."""

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import quern
from quern import _native
from quern.records import Environment

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Library", "Machine", "commit", "cpu", "facts", "machine"]

INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512vl", "avx512_vnni", "asimd")  # what builds of quern, or torch, ask for


def _of_processor(*names: str) -> str | None:
    """What Linux tells of the processor by one of these names."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(names)), None)
    except OSError:
        return None


def cpu() -> str:
    """The processor's name, as Linux tells it."""
    return _of_processor("model name") or platform.processor() or "unknown"


@dataclass(frozen=True)
class Library:
    """A library in C: the build of it that is in use, or why there is none."""

    build: str | None
    why_not: str | None = None

    def __str__(self) -> str:
        return f"in use, the build for {self.build}" if self.build else f"not in use: {self.why_not}"


@dataclass(frozen=True)
class Machine:
    """What quern computes with here; print it with rich for a table. ``instructions`` are those for vectors that the
    processor has, as far as quern asks for them; None where the system does not tell."""

    cpu: str
    instructions: tuple[str, ...] | None
    training_kernels: Library
    runtime: Library
    torch: str
    torch_build: str
    threads: int
    quern: str

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        for name, value in (
            ("processor", self.cpu),
            (
                "vector instructions",
                "not known" if self.instructions is None else " ".join(self.instructions) or "none",
            ),
            ("training kernels in C", str(self.training_kernels)),
            ("C runtime", str(self.runtime)),
            ("torch", f"{self.torch}, {self.torch_build}, {self.threads} thread{'s' if self.threads > 1 else ''}"),
            ("quern", self.quern),
        ):
            table.add_row(name, Text(value))
        yield table


def machine() -> Machine:
    """What is in use, and what is not and why."""
    import torch

    from quern import runtime
    from quern.functional import native

    flags = _of_processor("flags", "Features")
    kernels = _library(native.PACKAGE)
    if kernels.build and not native.is_available():
        kernels = Library(None, f"QUERN_NATIVE={os.environ['QUERN_NATIVE']} turns them off")
    return Machine(
        cpu=cpu(),
        instructions=None if flags is None else tuple(name for name in INSTRUCTIONS if name in flags.split()),
        training_kernels=kernels,
        runtime=_library(runtime.__name__),
        torch=torch.__version__,
        torch_build=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        quern=quern.__version__,
    )


def _library(package: str) -> Library:
    """The library of a package, by the fastest build that this processor runs."""
    names = {"_any": "any processor", "_avx2": "AVX2", "_avx512": "AVX-512", "_vnni": "AVX-512 with VNNI"}
    builds = _native.builds(package)
    if builds:
        return Library(names[builds[-1]])
    return Library(None, "it was not built, because there was no C compiler when quern was installed")


def commit() -> str | None:
    """The commit of the source tree quern runs from, with "+" if files differ from it; None outside of a git tree."""
    here = Path(quern.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(quern.__file__).name)  # else the tree is that of another project
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def facts() -> Environment:
    import numpy
    import torch

    return {
        "quern": quern.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "cpu": cpu(),
        "threads": torch.get_num_threads(),
    }
