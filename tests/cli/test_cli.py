"""The command as a whole: its help, and how soon it answers."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import here


def test_help_is_quick_and_has_examples() -> None:
    code = "import sys, quern.cli; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    out, _ = here("train", "--help")
    assert "quern train --resume --out" in out
    assert here("--version")[0].startswith("quern ")


@pytest.mark.slow
def test_looking_at_what_is_there_does_not_wait_for_torch(straight: tuple[Path, str, str]) -> None:
    results = Path(__file__).parents[2] / "results"
    commands = (
        ["show", straight[0]],
        ["show", results / "cifar10-43"],
        ["data", "list"],
        ["data", "verify"],
        ["export", straight[0], "network.tflite"],  # refused at once
    )
    code = f"""
import contextlib, sys
from quern.cli import main
for arguments in {[list(map(str, command)) for command in commands]}:
    sys.argv = ["quern", *arguments]
    with contextlib.suppress(SystemExit):
        main()
    assert "torch" not in sys.modules, arguments
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_of_every_command() -> None:
    from quern.cli._options import MODELS

    commands = ("compress", "train", "show", "reproduce", "tune", "report", "compact", "export", "bench", "data fetch")
    for command in ("", *commands):
        out, _ = here(*command.split(), "--help")
        assert "<bool>" not in out, command
        assert "<list[float]>" not in out, command
        assert "Examples:" in out or command in ("", "show", "data fetch"), command
    for command in ("compress", "train"):
        assert all(name in here(command, "--help")[0] for name in MODELS)
