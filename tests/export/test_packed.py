"""Packed networks: what the C runtime computes is what torch computes, for every layer, geometry and build of it."""

import copy
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import export, models, runtime
from quern import nn as qnn
from quern.errors import ExportError
from quern.export import Pixels
from quern.export._packed import pack
from quern.export._program import Program
from quern.runtime import format as qrn
from tests import networks
from tests.builders import images_for, shape_of
from tests.nn.cases import CASES, Case
from tests.runtime.compilers import COMPILERS, scalar_library

RNG = st.randoms(use_true_random=False)
pytestmark = pytest.mark.skipif(not runtime.is_built(), reason="the C runtime was not built: no compiler")


def packed(model: nn.Module, inputs: tuple[Tensor, ...], dtype: Any = "float32") -> runtime.PackedNetwork:
    return runtime.PackedNetwork(pack(Program(model.eval(), inputs, None), dtype)[0])


def results(network: runtime.PackedNetwork, inputs: tuple[Tensor, ...], arena: int) -> list[np.ndarray]:
    """What a network gives with so much memory."""
    given = [np.ascontiguousarray(t.numpy(), kind.dtype) for t, kind in zip(inputs, network.inputs, strict=True)]
    outputs = [np.full((len(inputs[0]), *t.shape), -1, t.dtype) for t in network.outputs]
    network.run_into(given, outputs, arena)
    return outputs


def gap(network: runtime.PackedNetwork, inputs: tuple[Tensor, ...], wanted: list[Tensor], arena: int) -> float:
    """The largest difference of what the network gives with so much memory, relative to the largest number."""
    return networks.difference(wanted, [torch.from_numpy(y) for y in results(network, inputs, arena)])


def check(model: nn.Module, *inputs: Tensor, tolerance: float = 1e-5) -> runtime.PackedNetwork:
    """Fast with all the memory it can use, and slower with the least: the same as torch in float64."""
    network = packed(model, inputs)
    exact = networks.outputs(model.double(), networks.cast(inputs, torch.float64))
    model.float()
    assert exact is not None
    for arena in (network.arena, network.least_arena):
        assert gap(network, inputs, exact, arena) < tolerance
    return network


class First(nn.Module):
    """A recurrent layer's outputs, the batch first."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.layer.batch_first
        output, state = self.layer(x if first else x.transpose(0, 1))
        last = state[0] if isinstance(self.layer, (qnn.QLSTM, nn.LSTM)) else state
        return output if first else output.transpose(0, 1), last.transpose(0, 1)


_REFUSED = {
    "linear_vector": "batch of two",
    "conv2d_unbatched": "batch of two",
    "split_conv2d_unbatched": "batch of two",
    "conv3d": "volumes",
    "conv_transpose3d": "volumes",
    "batch_norm2d_untracked": "depends on the batch",
    "max_pool3d": "height, width",
    "gru": "batch of two",  # its state has no batch in front
}


@pytest.mark.parametrize("case", [case for case in CASES if not case.training], ids=lambda case: case.name)
def test_every_layer_packs_or_is_named(case: Case) -> None:
    layer, inputs = case.build(torch.float32).eval(), tuple(case.draw(torch.float32))
    if isinstance(layer, (qnn.QRNN, qnn.QLSTM)):
        inputs = inputs if layer.batch_first else tuple(x.transpose(0, 1) for x in inputs)
        layer = First(layer)
    if case.name in _REFUSED:
        with pytest.raises(ExportError, match=_REFUSED[case.name]):
            packed(layer, inputs)
        return
    check(layer, *inputs)


@settings(max_examples=20)
@given(
    st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)),
    *[st.booleans()] * 3,
)
def test_recurrent_layers_of_torch(kind: Any, sizes: tuple[int, int, int], bias: bool, both: bool, first: bool) -> None:
    torch.manual_seed(sum(sizes))
    layer = kind(*sizes, bias=bias, bidirectional=both, batch_first=first)
    check(First(layer), torch.randn(2, 5, sizes[0]))


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_tables_of_torch(max_norm: float | None) -> None:
    torch.manual_seed(0)
    check(nn.Embedding(11, 5, max_norm=max_norm), torch.randint(0, 11, (3, 7)))


@st.composite
def geometries(draw: Any) -> tuple[Callable[[], nn.Module], tuple[int, ...]]:
    """A convolution of any kind, and the shape of an input that it takes."""
    space = draw(st.integers(1, 2))
    depthwise = draw(st.integers(0, 3)) == 0
    quaternion, transposed = (not depthwise and draw(st.booleans()) for _ in range(2))
    parts = draw(st.sampled_from(["rijk", "rijk", "r", "ijk", "ik"])) if quaternion and not transposed else "rijk"
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    unit = len(parts) if quaternion else 1
    ins, outs = (groups * draw(st.integers(1, 5)) for _ in range(2))
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 2))
    if depthwise:  # and so that it has a kernel of its own
        groups = ins = draw(st.integers(1, 5))
        outs, kernel, dilation = ins * draw(st.integers(1, 2)), 3, 1
        stride = draw(st.sampled_from([1, 1, 2]))
    padding = draw(st.integers(0, dilation * (kernel - 1) if transposed else 3))
    sizes = [draw(st.integers(1, 19)) for _ in range(space)]
    reach = dilation * (kernel - 1) + 1
    if not transposed:
        sizes = [max(n, reach - 2 * padding, 1) for n in sizes]
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    options["bias"] = draw(st.booleans())
    if transposed:
        extra = draw(st.integers(0, max(stride, dilation) - 1))
        options["output_padding"] = extra
        sizes = [max(n, 2 + (2 * padding) // stride) for n in sizes]
    else:
        mode = draw(st.sampled_from(["zeros", "zeros", "zeros", "reflect", "replicate", "circular"]))
        options["padding_mode"] = mode if padding < min(sizes) else "zeros"
    kinds = (qnn.QConvTranspose1d, qnn.QConvTranspose2d) if transposed else (qnn.QConv1d, qnn.QConv2d)
    real = (nn.ConvTranspose1d, nn.ConvTranspose2d) if transposed else (nn.Conv1d, nn.Conv2d)
    kind = (kinds if quaternion else real)[space - 1]
    if quaternion and not transposed:
        options["input_parts"] = parts
    return (lambda: kind(unit * ins, (4 if quaternion else 1) * outs, kernel, **options)), (2, unit * ins, *sizes)


def thinned(build: Any, share: float, constant: bool, seed: int) -> Any:
    """A layer with a share of its quaternions zero, and with the constant channel of compaction if it can have one."""
    torch.manual_seed(seed)
    layer = build()
    with torch.no_grad():
        layer.weight *= (torch.rand(layer.weight.shape[1:]) >= share).float()
        if constant and isinstance(layer, (qnn.QConv1d, qnn.QConv2d)) and layer.padding_mode == "zeros":
            layer.constant = nn.Parameter(torch.randn(4, layer.weight.shape[1], 1, *layer.kernel_size))
    return layer


@pytest.mark.slow
@settings(max_examples=150)
@given(
    made=geometries(),
    share=st.sampled_from([0.0, 0.0, 0.4, 0.9, 1.0]),
    constant=st.booleans(),
    seed=st.integers(0, 999),
)
def test_convolutions_of_every_geometry(made: Any, share: float, constant: bool, seed: int) -> None:
    """Any size, stride, border, group, storage; with the constant channel of compaction."""
    build, shape = made
    layer = thinned(build, share, constant, seed)
    model, x = nn.Sequential(layer, nn.Tanh()), torch.randn(shape)
    network = check(model, x)
    with torch.no_grad():
        wanted = model(x)
    for one in builds(network):
        for arena in (one.arena, one.least_arena):
            assert gap(one, (x,), [wanted], arena) < 1e-5


def builds(network: runtime.PackedNetwork) -> list[runtime.PackedNetwork]:
    """The same network in each build of the runtime that this processor runs, and in one without vectors."""
    found = []
    libraries = [runtime.open_library(name) for name in runtime.builds()]
    for library in [*libraries, scalar_library()] if COMPILERS else libraries:
        one = copy.copy(network)
        one._library = library
        one.arena, one.least_arena = (library.qrn_arena(one._blob, fast) for fast in (1, 0))
        assert library.qrn_arena(one._blob, qrn.LEAST_ON_DEVICE) == network.device_arena
        one._own = threading.local()
        found.append(one)
    return found


@pytest.mark.slow
@settings(max_examples=100)
@given(made=geometries(), share=st.sampled_from([0.0, 0.0, 0.4, 0.9]), constant=st.booleans(), seed=st.integers(0, 999))
def test_int8_is_the_same_to_the_bit_and_close(made: Any, share: float, constant: bool, seed: int) -> None:
    """Products, sums and scales are whole numbers, so memory, vectors and the order of sums change nothing."""
    build, shape = made
    layer = thinned(build, share, constant, seed)
    out = layer.out_channels
    last = qnn.QLinear(out, 8) if out % 4 == 0 and seed % 2 else nn.Linear(out, 8)
    pool = nn.AdaptiveMaxPool1d(1) if len(shape) == 3 else nn.AdaptiveMaxPool2d(1)
    model = nn.Sequential(layer, [nn.ReLU(), nn.SiLU(), nn.Identity()][seed % 3], pool, nn.Flatten(), last).eval()
    x = torch.randn(16, *shape[1:])
    network = packed(model, (x,), "int8")
    with torch.no_grad():
        wanted = model(x)
    everywhere = [results(one, (x,), arena) for one in builds(network) for arena in (one.arena, one.least_arena)]
    for found in everywhere:
        np.testing.assert_array_equal(found[0], everywhere[0][0])
    assert networks.difference([wanted], [torch.from_numpy(everywhere[0][0])]) < 0.08


def test_builds_agree() -> None:
    torch.manual_seed(0)
    for share in (0.0, 0.9):
        model, x = sparse(models.mnist_qcnn(), share).eval(), torch.randn(2, 1, 28, 28)
        with torch.no_grad():
            wanted = model(x)
        for one in builds(packed(model, (x,))):
            assert gap(one, (x,), [wanted], one.arena) < 1e-5
            assert gap(one, (x,), [wanted], one.least_arena) < 1e-5


@pytest.mark.slow
@settings(max_examples=60)
@given(rng=RNG)
def test_random_networks(rng: random.Random) -> None:
    drawn = networks.draw(rng)
    model = networks.random_zeros(networks.random_values(drawn.model), rng).float()
    inputs = networks.cast(drawn.inputs[0], torch.float32)
    network, refused = None, ""
    try:
        network = packed(model, tuple(inputs))
    except ExportError as reason:
        refused = str(reason)
    if network is None:
        known = ("volumes", "not a dict or tuples", "does not depend on its input", "sequence without a batch")
        assert any(word in refused for word in known), refused
        return
    wanted = networks.outputs(model.double(), networks.cast(inputs, torch.float64))
    assert wanted is not None
    assert gap(network, tuple(inputs), wanted, network.least_arena) < 1e-4


def sparse(model: nn.Module, share: float) -> nn.Module:
    """A share of the quaternions of every weight is zero."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 2 and p.shape[0] == 4:
                p *= (torch.rand(p.shape[1:]) >= share).float()
    return model


@pytest.mark.parametrize("share", [0.0, 0.7])  # more, and nothing reaches the end of the deeper ones
@pytest.mark.parametrize("name", models.BUILDERS)
def test_every_network_packs(name: str, share: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = sparse(networks.random_values(models.BUILDERS[name]()).float(), share).eval()
    report = export.to_packed(model, tmp_path / "net.qrn", images_for(name, 3))
    assert report.difference < 1e-5
    assert report.bytes == (tmp_path / "net.qrn").stat().st_size
    network = runtime.load(tmp_path / "net.qrn")
    assert (network.bytes, network.arena, network.least_arena) == (report.bytes, report.arena, report.least_arena)
    if name.startswith("q") or "_q" in name:  # zeros are not stored
        split = [layer.weight.flatten(0, 1)[None] for layer in model.modules() if isinstance(layer, qnn.SplitConv2d)]
        whole = [layer.weight for layer in model.modules() if isinstance(layer, qnn.QConv2d | qnn.QLinear)]
        weights = [*whole, *split]  # a split convolution has real numbers of its own
        stored = sum(int((p != 0).any(0).sum()) for p in weights)
        assert report.stored == (stored if share else sum(p[0].numel() for p in weights))
        assert report.bytes < 20 * report.stored + 64 * sum(p.shape[1] for p in weights) + 12_000


def test_bytes_follow_what_is_left(tmp_path: Path) -> None:
    """Each quaternion once, 16 bytes in float32 and 8 in float16, and about one more to say where it stands."""
    torch.manual_seed(0)
    model = sparse(models.cifar_qcnn(), 0.9).eval()
    image = torch.randn(2, 3, 32, 32)
    single, half = (
        export.to_packed(model, tmp_path / "net.qrn", image, dtype=dtype) for dtype in ("float32", "float16")
    )
    assert all(layer.sparse for layer in single.layers)
    assert 17.0 < single.bytes / single.stored < 17.6
    assert 9.0 < half.bytes / half.stored < 9.6
    dense = export.to_packed(models.cifar_qcnn(), tmp_path / "net.qrn", image)
    assert not any(layer.sparse for layer in dense.layers)


@given(channels=st.integers(1, 9), outputs=st.integers(1, 9), kernel=st.integers(1, 4))
def test_int8_takes_a_byte_for_each_number(channels: int, outputs: int, kernel: int) -> None:
    """And four for a bias; a scale where sums become floats alone. Depthwise ones, too, which have no pairs."""
    model = nn.Sequential(
        nn.Conv2d(4 * channels, 4 * channels, kernel, groups=4 * channels),
        nn.ReLU(),
        qnn.QConv2d(4 * channels, 4 * outputs, 1),
        nn.ReLU(),
        nn.Flatten(),
        qnn.QLinear(4 * outputs, 12),
    )
    model = networks.random_values(model).float().eval()  # the same bytes are kept once, so none are zero
    _, layers = pack(Program(model, torch.randn(4, 4 * channels, kernel, kernel), None), "int8")
    wanted = 4 * channels * (kernel**2 + 4), outputs * (4 * channels + 16), 3 * (4 * outputs + 16 + 4)
    for layer, size in zip(layers, wanted, strict=True):
        assert 0 <= layer.bytes - size < 4  # numbers of four bytes begin at multiples of four


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_raw_pixels_are_normalised_inside(kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = models.qresnet20(widths=(4, 8, 8)).eval()
    pixels = Pixels((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), kind)
    raw = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    given = raw if kind == "uint8" else raw.float() / 255
    export.to_packed(model, tmp_path / "net.qrn", given, pixels=pixels)
    mean, std = (torch.tensor(t).view(1, 3, 1, 1) for t in (pixels.mean, pixels.std))
    with torch.no_grad():
        wanted = model((raw.float() / 255 - mean) / std)
    torch.testing.assert_close(
        torch.from_numpy(runtime.load(tmp_path / "net.qrn")(given)), wanted, rtol=1e-4, atol=1e-4
    )


class Mixed(nn.Module):
    """Functions of torch on two inputs, of which one is whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = qnn.QEmbedding(11, 16)
        self.mix = qnn.QMultiheadAttention(16, 2, batch_first=True)
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 5)
        self.scale = nn.Parameter(torch.randn(16))

    def forward(self, words: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.words(words) * self.scale + x.unsqueeze(1)
        h = self.norm(self.mix(h, h, h)[0] + h)
        first, second = h.chunk(2, -1)
        h = torch.cat([torch.sigmoid(first) - second, second / 2], -1).permute(0, 2, 1).mean(-1)
        scores = self.last(h).softmax(-1)
        return scores, scores.argmax(-1)


def test_functions_and_several_inputs() -> None:
    torch.manual_seed(0)
    model = Mixed().eval()
    words, x = torch.randint(0, 11, (3, 7)), torch.randn(3, 16)
    network = packed(model, (words, x))
    with torch.no_grad():
        scores, best = model(words, x)
    got, index = network(words, x)
    torch.testing.assert_close(torch.from_numpy(got), scores, rtol=1e-4, atol=1e-5)
    assert (torch.from_numpy(index) == best).all()
    assert index.dtype == np.int32


def test_what_was_changed_in_place_is_changed_under_every_name() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        z = x.clone()
        torch.relu_(x)
        z += x
        return x - 3 * m.b(z)

    torch.manual_seed(0)
    check(networks.two(qnn.QLinear(8, 8), qnn.QLinear(8, 8), wiring).float(), torch.randn(3, 8))


class Mixing(nn.Module):
    def __init__(self, wiring: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.wiring = nn.Linear(4, 4), wiring

    def forward(self, x: Tensor) -> Tensor:
        return self.wiring(self.layer(x))


@pytest.mark.parametrize(
    ("wiring", "said"),
    [
        (lambda x: x - x.mean(0, keepdim=True), "samples of a batch"),
        (lambda x: x[:1] + x, "samples of a batch"),
        (lambda x: x.flatten().view(2, -1), "samples of a batch"),
        (lambda x: torch.cat([x, x], 0), "joins batches"),
        (lambda x: torch.fft.fft(x).real, "no such operation"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(wiring: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said) as caught:
        export.to_packed(Mixing(wiring), tmp_path / "net.qrn", torch.randn(2, 4))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["digits_qcnn", "qresnet20", "resnet20"])
def test_networks_in_int8(name: str, tmp_path: Path) -> None:
    """Residual sums, means and tables in 8 bits, from raw pixels."""
    torch.manual_seed(0)
    model = networks.random_values(models.BUILDERS[name]()).float().eval()
    shape = shape_of(name)
    raw = torch.randint(0, 256, (32, *shape), dtype=torch.uint8)
    pixels = Pixels((0.5,) * shape[0], (0.25,) * shape[0])
    single, small = (
        export.to_packed(model, tmp_path / f"{dtype}.qrn", raw, dtype=dtype, pixels=pixels)
        for dtype in ("float32", "int8")
    )
    assert small.difference < 0.1
    assert small.bytes < 0.4 * single.bytes
    assert small.least_arena < 0.6 * single.least_arena


def test_other_types_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "net.qrn", nn.Linear(4, 4)
    with pytest.raises(ExportError, match="only networks in float32"):
        export.to_packed(model.double(), path, torch.randn(2, 4, dtype=torch.float64))
    huge = nn.Linear(4, 4)
    nn.init.constant_(huge.weight, 1e6)
    with pytest.raises(ExportError, match="too large for float16"):
        export.to_packed(huge, path, torch.randn(2, 4), dtype="float16")
    assert not path.exists()


def test_a_file_that_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.PackedNetwork, "__call__", lambda self, x: np.ones((len(x), 4), np.float32))
    with pytest.raises(ExportError, match="does not compute the same"):
        export.to_packed(nn.Linear(4, 4), tmp_path / "net.qrn", torch.randn(2, 4))
    assert not list(tmp_path.iterdir())
