"""Facts about the program and the machine, for records."""

import platform
import subprocess
from pathlib import Path

import quern
from quern.records import Environment

__all__ = ["commit", "cpu", "facts"]


def cpu() -> str:
    """The processor's name, as Linux tells it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"


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
