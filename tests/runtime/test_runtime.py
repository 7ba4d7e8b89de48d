"""Packed networks run from Python: same bits every time, in threads, on every build; what is wrong gets a sentence."""

import copy
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import export, models, runtime
from quern import nn as qnn
from quern.errors import PackedError
from quern.export._packed import pack
from quern.export._program import Program
from quern.runtime import format as qrn
from tests.runtime.mutations import corpus, operations, sealed, whole_numbers

pytestmark = pytest.mark.skipif(not runtime.is_built(), reason="the C runtime was not built: no compiler")


def on(build: str, blob: bytes) -> runtime.PackedNetwork:
    """A packed network that is run by this build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "builds", lambda: (build,))
        return runtime.PackedNetwork(blob)


def inputs_of(network: runtime.PackedNetwork, count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(count, *t.shape)).astype(t.dtype)
        if t.dtype.kind == "f"
        else rng.integers(0, 4, (count, *t.shape)).astype(t.dtype)
        for t in network.inputs
    ]


def outputs_of(network: runtime.PackedNetwork, inputs: list[np.ndarray], arena: int | None = None) -> list[np.ndarray]:
    made = [np.full((len(inputs[0]), *t.shape), 77, t.dtype) for t in network.outputs]
    network.run_into(inputs, made, network.arena if arena is None else arena)
    return made


def bits(arrays: list[np.ndarray]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


# ------------------------------------------------------------------------------------------------------- same bits


@pytest.mark.parametrize("build", runtime.builds())
def test_same_input_same_bits(build: str) -> None:
    """Again, in a batch or alone, with other memory: every network there is."""
    for blob in corpus():
        network = on(build, blob)
        inputs = inputs_of(network, 3)
        for arena in {network.arena, network.least_arena}:
            wanted = outputs_of(network, inputs, arena)
            again = outputs_of(on(build, blob), inputs, arena)
            alone = [outputs_of(network, [x[n : n + 1] for x in inputs], arena) for n in range(3)]
            assert bits(again) == bits(wanted)
            assert bits([np.concatenate(parts) for parts in zip(*alone, strict=True)]) == bits(wanted)


def test_threads_share_a_network() -> None:
    torch.manual_seed(0)
    network = runtime.PackedNetwork(
        pack(Program(models.digits_qcnn().eval(), torch.randn(2, 1, 8, 8), None), "float32")[0]
    )
    batches = [inputs_of(network, 40, seed) for seed in range(6)]
    wanted = [bits(outputs_of(network, batch)) for batch in batches]
    found: list[list[list[bytes]]] = [[] for _ in batches]
    ready = threading.Barrier(len(batches))

    def work(n: int) -> None:
        ready.wait()
        found[n] += [bits(outputs_of(network, batches[n])) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[one] * 10 for one in wanted]


def test_builds_agree() -> None:
    """Within the rounding of floats; in whole numbers exactly."""
    assert runtime.builds()
    for blob in corpus():
        first, *others = (on(build, blob) for build in runtime.builds())
        inputs = inputs_of(first, 2)
        wanted = outputs_of(first, inputs)
        for other in others:
            assert (other.inputs, other.outputs) == (first.inputs, first.outputs)
            for a, b in zip(wanted, outputs_of(other, inputs), strict=True):
                if a.dtype.kind != "f":
                    assert (a == b).all()
                    continue
                fine = np.isfinite(a) & (np.abs(a) < 1e20)
                scale = np.abs(a[fine]).max(initial=1e-3)
                assert np.abs(a[fine] - b[fine]).max(initial=0.0) <= 1e-5 * scale
                assert (np.isfinite(b) & (np.abs(b) < 1e20))[fine].all()


def _pairs(least: int, most: int) -> Any:
    return st.tuples(st.integers(least, most), st.integers(least, most))


@settings(max_examples=80)
@given(
    quaternion=st.booleans(),
    outputs=st.integers(1, 4),
    kernel=_pairs(1, 3),
    padding=_pairs(0, 2),
    stride=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]),
    size=_pairs(1, 9),
    activation=st.sampled_from([nn.ReLU, nn.Tanh]),
    seed=st.integers(0, 99),
)
# Without the row that is not pooled, and with its border, the plane of these is as large as the input.
@pytest.mark.slow
@example(False, 3, (1, 1), (0, 1), (1, 1), (3, 4), nn.ReLU, 0)
@example(True, 1, (1, 2), (1, 0), (1, 1), (6, 4), nn.Tanh, 0)
def test_poolings_joined_to_convolutions(
    quaternion: bool, outputs: int, kernel: Any, padding: Any, stride: Any, size: Any, activation: Any, seed: int
) -> None:
    """Of any geometry, other along each axis: rows that are not pooled are not computed, on no build."""
    size = [max(n, k + s - 2 * p, 1) for n, k, s, p in zip(size, kernel, stride, padding, strict=True)]
    torch.manual_seed(seed)
    kind, unit = (qnn.QConv2d, 4) if quaternion else (nn.Conv2d, 1)
    layer = kind(2 * unit, outputs * unit, kernel, stride=stride, padding=padding)
    model = nn.Sequential(layer, activation(), nn.MaxPool2d(2)).eval()
    x = torch.randn(2, 2 * unit, *size)
    blob = pack(Program(model, x, None), "float32")[0]
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(x.double()).numpy()
    for build in runtime.builds():
        network = on(build, blob)
        for arena in (network.arena, network.least_arena):
            np.testing.assert_allclose(outputs_of(network, [x.numpy()], arena)[0], wanted, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------- one sentence each


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = qnn.QEmbedding(11, 8), qnn.QLinear(8, 8)

    def forward(self, words: Tensor, x: Tensor) -> Tensor:
        return self.last(self.words(words) + x)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("packed") / "net.qrn"
    export.to_packed(Looked().eval(), path, (torch.randint(0, 11, (2,)), torch.randn(2, 8)))
    return path


def refused(*arguments: Any, network: Any) -> str:
    """The sentence that is said."""
    with pytest.raises(PackedError) as caught:
        network(*arguments)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


WORDS, X = np.array([1, 2, 3]), np.zeros((3, 8), np.float32)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((WORDS,), "takes 2 inputs, but was given 1"),
        ((WORDS, X, X), "takes 2 inputs, but was given 3"),
        ((), "takes 2 inputs, but was given 0"),
        ((X[:, 0], X), r"takes int32 of shape \(batch\), but was given float32 of shape \(3,\)"),
        ((WORDS, WORDS), r"takes float32 of shape \(batch, 8\), but was given int64 of shape \(3,\)"),
        ((WORDS, X[:, :7]), r"of shape \(3, 7\)"),
        ((WORDS, X[0]), r"of shape \(8,\)"),
        ((WORDS, np.zeros((3, 8), np.complex64)), "complex64"),
        ((WORDS, np.full((3, 8), "a")), "takes float32"),
        ((WORDS, None), "takes float32"),
        ((np.array(1), X), r"of shape \(\)"),
        ((WORDS > 2, X), "bool"),
        ((WORDS, X[:2]), "batches of the same size"),
        ((np.array([1, 11, 1]), X), "entry that its table does not have"),
        ((np.array([1, -1, 1]), X), "entry that its table does not have"),
        ((np.array([1, (1 << 32) + 1, 1]), X), "do not fit int32"),
    ],
)
def test_inputs_that_do_not_fit(given: tuple[Any, ...], said: str, path: Path) -> None:
    network = runtime.load(path)
    found = refused(*given, network=network)
    assert re.search(said, found)
    assert str(path) in found
    assert network(WORDS, X).shape == (3, 8)  # and it still runs


def test_an_empty_batch_and_other_types(path: Path) -> None:
    network = runtime.load(path)
    assert network(WORDS[:0], X[:0]).shape == (0, 8)
    wide = network(torch.from_numpy(WORDS), torch.from_numpy(X).double())
    assert wide.tobytes() == network(WORDS.astype(np.int8), X[::1]).tobytes()


def test_memory_that_is_too_small(path: Path) -> None:
    """One byte less than the least is refused, for every network there is, and nothing is written behind it."""
    for blob in (path.read_bytes(), *corpus()):
        network = runtime.PackedNetwork(blob, "it")
        assert 0 < network.least_arena <= network.arena
        inputs = inputs_of(network, 1)
        for arena in (0, network.least_arena - 1):
            said = refused(network, inputs, arena, network=outputs_of)
            assert said == f"it needs at least {network.least_arena} bytes to work with, not {arena}."


def _files(path: Path) -> dict[str, bytes]:
    whole = path.read_bytes()
    return {
        "is empty": b"",
        "no packed network": b"This is a text, which is no network but longer than its header is.\n" * 4,
        "is no packed network": whole[:20],
        "cut short": whole[:-4],
        "something behind": whole + b"\0\0\0\0",
        "checksum": whole[:-1] + bytes([whole[-1] ^ 1]),
        "of a version": whole[:12] + b"\1\0\0\0" + whole[16:],
    }


@pytest.mark.parametrize("said", _files(Path(__file__)))
def test_files_that_are_none(said: str, path: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.qrn"
    wrong.write_bytes(_files(path)[said])
    found = refused(wrong, network=runtime.load)
    assert found.startswith(f"{wrong} cannot be run: it")
    assert said in found
    said_of_bytes = refused(wrong.read_bytes(), network=runtime.PackedNetwork)
    assert said_of_bytes.startswith("the packed network cannot be run: it")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing.qrn"
    assert refused(missing, network=runtime.load) == f"{missing} cannot be read: No such file or directory."
    assert refused(tmp_path, network=runtime.load) == f"{tmp_path} cannot be read: Is a directory."


def test_bytes_at_an_odd_place(path: Path) -> None:
    shifted = memoryview(b"." + path.read_bytes())[1:]
    assert "multiple of 4" in refused(shifted, network=runtime.PackedNetwork)


@pytest.mark.parametrize("build", runtime.builds())
@pytest.mark.parametrize("components", [1, 4])
def test_a_weight_that_cannot_be_negated(components: int, build: str) -> None:
    """-128 has no negative among bytes: some processors would multiply by it, some by 128."""
    blob = whole_numbers(components, 1.0, seed=3)
    words = np.frombuffer(blob, np.uint32)
    conv = next(place + 2 for place, _ in operations(blob) if words[place] == qrn.OP_CONV)
    first = int(words[conv + qrn.CONV_WEIGHTS + qrn.W_VALUES]) - qrn.IN_BLOB
    assert on(build, blob).outputs
    wrong = sealed(blob[:first] + b"\x80" + blob[first + 1 :])
    assert "weights of a convolution" in refused(build, wrong, network=on)
