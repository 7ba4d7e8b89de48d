"""One short run of ``compress`` for all tests, and steerings with few milestones."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import quern
from quern.bench import Timing
from quern.errors import LastPathWarning
from quern.pipeline import Compressed
from tests.small_tasks import Own, digit_loaders, few_milestones

SHORT: dict[str, Any] = {"warmup": 1, "epochs": 1, "grind": 1, "heal": 1, "lr": 1e-2}


@pytest.fixture(scope="session")
def loaders() -> tuple[Any, ...]:
    return digit_loaders()


@pytest.fixture(autouse=True, scope="module")
def _few_milestones() -> Iterator[None]:
    with few_milestones():
        yield


@pytest.fixture
def no_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting and timing take longer than all the rest."""
    without_onnx(monkeypatch)


def without_onnx(patch: pytest.MonkeyPatch) -> None:
    def export(network: nn.Module, path: Path, example: Tensor) -> None:
        path.write_bytes(b"onnx")

    def times(files: dict[str, Path], shape: Any) -> dict[str, Timing]:
        return {name: Timing(name, "onnxruntime", 1, 1, 1.0, 1.0, 1.0) for name in files}

    patch.setattr("quern.pipeline._stages.to_onnx", export)
    patch.setattr("quern.pipeline._stages.time_onnx", times)


@pytest.fixture(scope="session")
def run(loaders: tuple[Any, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compressed, nn.Module]:
    """A whole run in its folder, which tests only read: what it made, and the network that it began with.

    Tests that use it stand in one group, so that one worker makes it.
    """
    folder, net = tmp_path_factory.mktemp("runs") / "run", Own()
    with few_milestones(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LastPathWarning)
        found = quern.compress(net, *loaders, **SHORT, max_params=1200, out=folder)
    for network in (found.dense_network, found.small_network):
        network.eval()
    return folder, found, net
