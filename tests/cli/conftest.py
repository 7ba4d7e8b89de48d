"""Runs that several commands look at, trained once."""

import warnings
from pathlib import Path

import pytest

from quern.errors import LastPathWarning
from tests.commands import here

TRAIN = ["--epochs", "3", "--heal", "2", "--penalty", "rql", "--lambda", "20", "--batch", "32", "--threads", "1"]


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run of TRAIN that nothing happened to, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastPathWarning)  # so short a training takes a large λ
        return folder, *here("train", *TRAIN, "--out", folder, "--json")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended with dead neurons."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ["--norm", "after_conv", "--penalty", "gamma-beta", "--lambda", 4, "--ramp", 0, "--lr", 1e-2]
    here("train", *options, "--epochs", 6, "--heal", 1, "--threads", 1, "--quiet", "--out", folder)
    return folder


@pytest.fixture(scope="session")
def small(run: Path) -> Path:
    """What is left of it."""
    out, _ = here("compact", run, "--out", run / "small.safetensors")
    assert "0 of them are classified differently" in out
    return run / "small.safetensors"
