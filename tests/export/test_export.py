"""The real form of a network, and the files of it, compute the same without quern."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import data, models, train
from quern import functional as F
from quern import nn as qnn
from quern.compact import compact
from quern.errors import DeadNetworkWarning, ExportError, QuernError
from quern.export import Pixels, accuracy, open_session, to_int8, to_onnx, to_pt2, to_real
from quern.export._onnx import run
from quern.testing import assert_same_function
from tests.builders import images_for, normed, takes
from tests.networks import Wired, random_values
from tests.nn.cases import CASES, Case

F64 = torch.float64
ONNX = ("qresnet20", "mnist_cnn")  # it takes seconds each
PIXELS = {1: Pixels((0.4,), (0.3,)), 3: Pixels((0.4, 0.5, 0.6), (0.3, 0.2, 0.25))}


@torch.no_grad()
def lived_in(model: nn.Module, x: Tensor) -> nn.Module:
    """With statistics and scales as after some training."""
    model.train()
    for _ in range(3):
        model(torch.randn_like(x))
    for norm in model.modules():
        if isinstance(norm, (nn.BatchNorm2d, qnn.QBatchNorm2d)):
            for p in norm.parameters():
                p.add_(torch.randn_like(p) / 4)
    return model


def check(model: nn.Module, *inputs: Tensor) -> Any:
    """The real form is the same function and has nothing of quern."""
    real = to_real(model)
    assert_same_function(real, model.eval(), *inputs)
    assert not real.training
    assert not [m for m in real.modules() if type(m).__module__.startswith("quern")]
    assert "quern" not in real.code
    return real


# ---------------------------------------------------------------------------------------------------------- to_real


@pytest.mark.parametrize("case", [c for c in CASES if not c.training], ids=lambda case: case.name)
def test_every_layer_has_a_real_form(case: Case) -> None:
    layer, inputs = case.build(), case.draw()
    if getattr(layer, "track_running_stats", True) is False:
        with pytest.raises(ExportError, match=r"keeps no running statistics, so .* depends on the batch\.$"):
            to_real(layer)
        return
    check(WithState(layer) if case.name == "gru" else layer, *inputs)


class WithState(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: Tensor) -> Any:
        y, state = self.layer(x, state)
        return y * 2, state


@st.composite
def convolutions(draw: Any) -> tuple[Callable[[], Any], int]:
    """A convolution from 12 channels, and its number of spatial axes."""
    space, groups, bias = draw(st.integers(1, 3)), draw(st.sampled_from((1, 3))), draw(st.booleans())
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(space))
    stride, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    if draw(st.booleans()):
        kind = (qnn.QConvTranspose1d, qnn.QConvTranspose2d, qnn.QConvTranspose3d)[space - 1]
        extra = draw(st.integers(0, 1)) if max(stride, dilation) > 1 else 0
        padding = draw(st.integers(0, 1))
        return partial(kind, 12, 24, kernel, stride, padding, extra, groups, bias, dilation), space
    kind = (qnn.QConv1d, qnn.QConv2d, qnn.QConv3d)[space - 1]
    mode = draw(st.sampled_from(("zeros", "circular", "reflect", "replicate")))
    padding = draw(st.sampled_from((0, 1, "valid", "same")))
    parts = draw(st.sampled_from(("rijk", "r", "ijk", "ik")))
    if padding == "same":
        stride = 1
    if len(parts) > 1 and 12 // len(parts) % groups:
        groups = 1
    make = partial(kind, 12, 24, kernel, stride, padding, dilation, groups, bias, mode, input_parts=parts)
    return make, space


@pytest.mark.slow
@given(convolutions(), st.booleans(), st.booleans())
def test_convolutions_of_every_kind(layer: tuple[Callable[[], Any], int], constant: bool, last: bool) -> None:
    make, space = layer
    conv = make()
    if constant:
        conv.constant = nn.Parameter(torch.randn(4, 6, 1, *conv.kernel_size))
    if last and space > 1:
        conv = conv.to(memory_format=(torch.channels_last, torch.channels_last_3d)[space - 2])
    model = random_values(nn.Sequential(conv, nn.Identity()))
    x = torch.randn(2, 12, *(7, 6, 5)[:space], dtype=F64)
    real = check(model, x)
    assert real.get_submodule("0").kernel_size == conv.kernel_size
    check(model, x[..., 1:])  # nothing depends on the size of the input
    if last and space == 2 and conv.groups == 1 and conv.kernel_size != (1, 1):
        assert real.get_submodule("0").weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("norm", ["none", "after_conv", "after_activation"])
@pytest.mark.parametrize("name", models.BUILDERS)
def test_every_network_has_a_real_form(name: str, norm: str) -> None:
    if norm != "none" and not takes(name, "norm"):
        return
    model = models.BUILDERS[name](**({"norm": norm} if takes(name, "norm") else {}))
    x = images_for(name, 2)
    real = check(random_values(model), x.double())
    left = sum(isinstance(m, nn.BatchNorm2d) for m in real.modules())
    assert left == 0 or norm == "after_activation"


def test_submodules_keep_their_names() -> None:
    real = to_real(models.qresnet20(widths=(8, 8, 8)))
    assert type(real.get_submodule("3.body.0")) is nn.Conv2d
    assert real.get_submodule("6.shortcut.0").bias is not None  # folded into it
    assert type(real.get_submodule("13")) is nn.Flatten


def test_real_norms_after_quaternion_layers_disappear_too() -> None:
    model = nn.Sequential(qnn.QConv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8), nn.Flatten())
    model.append(qnn.QLinear(72, 8))
    real = check(random_values(model), torch.randn(3, 4, 5, 5, dtype=F64))
    assert not [m for m in real.modules() if isinstance(m, nn.BatchNorm2d)]


def test_functions_of_quern_become_functions_of_torch() -> None:
    def wiring(m: Any, x: Tensor) -> Any:
        h = qnn.cat([qnn.encode_rgb(x), m.conv(qnn.encode_rgb(x)), F.encode_gray(x)])
        h = F.dropout(F.mod_relu(h, m.shift), 0.3, m.training)
        pooled, where = m.pool(h)
        return F.layer_norm(pooled.movedim(1, -1), (24,)), where, F.modulus(h, dim=1), m.again(m.again(h))

    model = Wired(
        wiring,
        conv=qnn.QConv2d(4, 8, 1),
        pool=qnn.QMaxPool2d(2, return_indices=True),
        shift=nn.Parameter(torch.zeros(6)),
        again=qnn.QConv2d(24, 24, 1, groups=2),
    )
    check(random_values(model), torch.randn(2, 3, 6, 6, dtype=F64))


def test_attention_with_a_mask_of_its_own_and_extra_places() -> None:
    for batch_first in (True, False):
        layer = qnn.QMultiheadAttention(16, 2, batch_first=batch_first, add_bias_kv=True, add_zero_attn=True)
        model = Wired(lambda m, x: m.a(x, x, x, attn_mask=m.mask)[0], a=layer)
        model.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).triu(1))
        x = torch.randn(3, 5, 16, dtype=F64)
        check(random_values(model), x if batch_first else x.transpose(0, 1))
    with pytest.raises(ExportError, match=r"^a \(QMultiheadAttention\) is called with a mask that is computed"):
        to_real(Wired(lambda m, x: m.a(x, x, x, attn_mask=x[0] > 0), a=layer))


def test_long_rows_of_an_embedding_are_shortened() -> None:
    model = nn.Sequential(qnn.QEmbedding(7, 8, max_norm=1.0), nn.ReLU()).double()
    real = to_real(model)
    x = torch.tensor([[1, 6, 0], [2, 2, 3]])
    assert_same_function(real, model, x)


def test_what_has_no_real_form_is_named() -> None:
    weight = nn.Parameter(torch.randn(4, 2, 2))
    with pytest.raises(
        ExportError, match=r"^linear calls quern's function linear, which has no real form: use a layer"
    ):
        to_real(Wired(lambda m, x: F.linear(x, m.w), w=weight))
    with pytest.raises(ExportError, match=r"^the network drops quaternions at random, training or not"):
        to_real(Wired(lambda m, x: F.dropout(m.a(x), 0.5), a=qnn.QLinear(8, 8)))
    hooked = nn.Sequential(qnn.QLinear(8, 8))
    hooked[0].register_forward_hook(lambda *args: args[2] * 2)
    with pytest.raises(ExportError, match=r"^0 \(QLinear\) has forward hooks, which cannot be followed\.$"):
        to_real(hooked)
    with pytest.raises(QuernError, match=r"^the network cannot be traced by torch\.fx: .* a tensor's value"):
        to_real(Wired(lambda m, x: x if x.sum() > 0 else m.a(x), a=qnn.QLinear(8, 8)))

    class QNew(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    QNew.__module__ = "quern.nn._new"
    with pytest.raises(ExportError, match=r"^0 \(QNew\) has no real form that quern knows\.$"):
        to_real(nn.Sequential(QNew()))


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.slow
def test_files_run_where_there_is_no_quern(tmp_path: Path) -> None:
    x = torch.randn(3, 8, 6, 6)
    layers = (qnn.QConv2d(8, 8, 3, padding=1, groups=2), qnn.QBatchNorm2d(8), qnn.QModReLU(8), qnn.QMaxPool2d(2))
    model = random_values(nn.Sequential(*layers, nn.Flatten(), qnn.QLinear(72, 8), qnn.Modulus())).float()
    torch.save(to_real(model), tmp_path / "real.pt")
    to_pt2(model, tmp_path / "real.pt2", x)
    torch.save((x, model(x).detach()), tmp_path / "pair.pt")
    script = """
import sys, warnings
sys.modules["quern"] = None
warnings.simplefilter("error")
import torch
x, wanted = torch.load("pair.pt")
for network in (torch.load("real.pt", weights_only=False), torch.export.load("real.pt2").module()):
    torch.testing.assert_close(network(x).detach(), wanted)
    torch.testing.assert_close(network(x[:1]).detach(), wanted[:1])
assert not [name for name in sys.modules if name.startswith("quern.")]
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", models.BUILDERS)
def test_every_network_can_be_written(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x = images_for(name, 4)
    model = lived_in(normed(name), x)
    raw = (x.abs() * 100).clamp(0, 255).to(torch.uint8)
    writers = {"pt2": to_pt2, "onnx": to_onnx} if name in ONNX else {"pt2": to_pt2}
    for suffix, write in writers.items():
        report = write(model, tmp_path / f"net.{suffix}", raw, pixels=PIXELS[x.shape[1]])
        assert report.difference < 1e-5
        assert report.batches == (1, 3, 4)
        assert report.bytes == (tmp_path / f"net.{suffix}").stat().st_size
    assert model.training
    assert {p.name for p in tmp_path.iterdir()} == {f"net.{suffix}" for suffix in writers}
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_layers_beyond_the_networks_can_be_written(tmp_path: Path) -> None:
    conv = qnn.QConv2d(8, 16, (2, 3), padding="same")
    conv.constant = nn.Parameter(torch.randn(4, 4, 1, 2, 3))
    layers = (conv, qnn.QMaxPool2d(3, 2, 1), qnn.QModReLU(16), qnn.QConvTranspose2d(16, 8, 3, 2, 1, 1, groups=2))
    model = random_values(nn.Sequential(*layers, qnn.QWhiteningBatchNorm2d(8), nn.AdaptiveAvgPool2d(1))).float()
    to_onnx(model, tmp_path / "image.onnx", torch.randn(3, 8, 6, 7))
    sequence = Wired(
        lambda m, x: m.norm(m.lstm(x)[0]) + m.attention(x, x, x)[0],
        lstm=qnn.QLSTM(8, 4, bidirectional=True, batch_first=True),
        norm=qnn.QLayerNorm(8),
        attention=qnn.QMultiheadAttention(8, 2, batch_first=True),
    )
    to_onnx(random_values(sequence).float(), tmp_path / "sequence.onnx", torch.randn(3, 5, 8))


@pytest.mark.slow
def test_an_onnx_file_says_what_it_takes(tmp_path: Path) -> None:
    import onnx

    def wiring(m: Any, x: Tensor) -> Any:
        return m.a(x), m.b(x)

    to_onnx(Wired(wiring, a=qnn.QLinear(8, 8), b=qnn.QLinear(8, 4)), tmp_path / "two.onnx", torch.randn(1, 8), opset=18)
    file = onnx.load(str(tmp_path / "two.onnx"))
    (image,) = file.graph.input
    assert image.name == "image"
    assert image.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [y.name for y in file.graph.output] == ["scores_0", "scores_1"]
    assert file.opset_import[0].version == 18
    assert str(Path.cwd()).encode() not in (tmp_path / "two.onnx").read_bytes()


class Branches(nn.Module):
    """Two branches that are joined, an input that is optional, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.camera = nn.Sequential(qnn.QConv2d(4, 16, 3, padding=1), qnn.QBatchNorm2d(16), nn.ReLU())
        self.motion, self.last = qnn.QLinear(8, 16), nn.Linear(32, 5)

    def forward(self, photo: Tensor, scores: Tensor, mask: Tensor | None = None, idle: Tensor | None = None) -> Tensor:
        y = qnn.cat([self.camera(photo).mean((2, 3)), torch.relu(self.motion(scores))])
        if mask is None:
            y = torch.tanh(y)
        return self.last(y if mask is None else y * mask)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_networks_of_several_inputs_have_every_form(count: int, tmp_path: Path) -> None:
    import onnx

    model = random_values(Branches()).float()
    for layer in (model.get_submodule("camera.0"), model.get_submodule("motion")):
        assert isinstance(layer, (qnn.QConv2d, qnn.QLinear))
        layer.weight.data[:, :2], layer.bias.data[:, :2] = 0, 0  # pyright: ignore[reportOptionalMemberAccess]
    inputs = (torch.randn(5, 4, 6, 7), torch.randn(5, 8), torch.randn(5, 32), torch.randn(5, 1))[:count]
    small, wanted = compact(model, inputs), model(*inputs)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, small))
    assert after < before if count == 2 else after == before  # a mask of its own width needs all channels
    one = tuple(t[:1] for t in inputs)
    path, coarse = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    for report in (to_pt2(small, tmp_path / "net.pt2", inputs), to_onnx(small, path, inputs)):
        assert report.difference < 1e-5
        assert report.batches == (1, 3, 5)
    read = torch.export.load(tmp_path / "net.pt2").module()
    forms = [small, to_real(small, inputs), read, lambda *x: run(open_session(path), *x)[0]]
    if count == 2:
        forms.append(to_real(small))  # optional inputs are left out
    for form in forms:
        torch.testing.assert_close(form(*inputs), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(form(*one), wanted[:1], rtol=1e-4, atol=1e-5)
    graph = onnx.load(str(path)).graph
    assert [x.name for x in graph.input] == ["photo", "scores_in", "mask", "idle"][:count]
    assert {x.type.tensor_type.shape.dim[0].dim_param for x in (*graph.input, *graph.output)} == {"batch"}
    many = tuple(torch.cat([t, torch.randn(95, *t.shape[1:])]) for t in inputs)
    answers = model(*many).argmax(1)
    assert accuracy(path, many, answers) == 1
    to_int8(path, coarse, many)
    assert accuracy(coarse, many, answers) > 0.8


@pytest.mark.parametrize("write", [to_onnx, to_pt2])
def test_inputs_that_do_not_fit_are_one_sentence(write: Callable[..., Any], tmp_path: Path) -> None:
    photo, pose = torch.randn(2, 4, 6, 6), torch.randn(2, 8)
    for example, options, said in (
        ((photo, pose[:1]), {}, r"the example must be batches of the same size, but its shape is .* and \(1, 8\)"),
        ((photo, 1.0), {}, "a file takes tensors, but input 1 of the example is of type float: .*"),
        ((photo, pose[:, 1:]), {}, r"the network does not take inputs of shapes \(2, 4, 6, 6\) and \(2, 7\): .*"),
        ((photo, pose), {"pixels": PIXELS[3]}, "pixels are for networks with one input, but the example has 2"),
        (photo, {}, r"the example has 1 inputs, but the network takes 2 to 4: give several as one tuple, \(x, y\)"),
        ((2, 4, 6, 6), {}, r"the example must be an input, not its shape: torch\.randn\(2, 4, 6, 6\)"),
    ):
        with pytest.raises(QuernError, match=rf"^{said}\.$"):
            write(Branches(), tmp_path / "net", example, **options)
        assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[data.ImageSet, nn.Module, Path]:
    """The images, a network trained on them, and a file of it."""
    images = data.digits()
    torch.manual_seed(0)
    model = models.digits_qcnn("after_conv", widths=(8, 16))
    train.fit(model, images, train.Settings(epochs=6, batch=100, lr=5e-3))
    path = tmp_path_factory.mktemp("digits") / "net.onnx"
    to_onnx(model, path, images.train.pixels[:5], pixels=Pixels(images.mean, images.std, top=images.top))
    return images, model, path


@pytest.mark.slow
def test_raw_pixels_are_normalised_inside(digits: Any, tmp_path: Path) -> None:
    images, model, path = digits
    raw, labels = images.val.pixels, images.val.labels
    with torch.no_grad():
        right = float((model(images.normalize(raw)).argmax(1) == labels).float().mean())
    assert right > 0.9
    assert accuracy(path, raw, labels, threads=1, batch=64) == pytest.approx(right)
    of_one = Pixels(images.mean, images.std, "float32")
    to_onnx(model, tmp_path / "floats.onnx", raw[:5] / images.top, pixels=of_one)
    assert accuracy(tmp_path / "floats.onnx", raw / images.top, labels, threads=1) == pytest.approx(right)


@pytest.mark.parametrize("calibration", ["minmax", "percentile", "entropy"])
def test_int8_keeps_the_accuracy_and_a_third_of_the_bytes(digits: Any, tmp_path: Path, calibration: Any) -> None:
    import onnx

    images, _, path = digits
    report = to_int8(path, tmp_path / "int8.onnx", images.train.pixels[:250], calibration=calibration)
    assert report.bytes == (tmp_path / "int8.onnx").stat().st_size < 0.45 * report.bytes_before
    before, after = (
        accuracy(file, images.val.pixels, images.val.labels, threads=1) for file in (path, tmp_path / "int8.onnx")
    )
    assert after > before - 0.02
    nodes = onnx.load(str(tmp_path / "int8.onnx")).graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output}
    for node in nodes:  # what normalises the pixels got them as they were
        if node.op_type in ("Mul", "Sub"):
            assert "DequantizeLinear" not in {made_by.get(name) for name in node.input}
    assert sum(node.op_type == "QuantizeLinear" for node in nodes) >= 3


@pytest.mark.slow
def test_int8_of_a_residual_network(tmp_path: Path) -> None:
    raw = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8)
    model = lived_in(models.qresnet20(widths=(8, 8, 16)), torch.randn(8, 3, 8, 8)).eval()
    to_onnx(model, tmp_path / "net.onnx", raw[:4], pixels=PIXELS[3])
    to_int8(tmp_path / "net.onnx", tmp_path / "int8.onnx", raw[:50], weight_bits=7)
    with torch.no_grad():
        x = (raw / 255 - torch.tensor(PIXELS[3].mean).view(3, 1, 1)) / torch.tensor(PIXELS[3].std).view(3, 1, 1)
        labels = model(x).argmax(1)
    assert accuracy(tmp_path / "int8.onnx", raw, labels, threads=1) > 0.8


# ---------------------------------------------------------------------------------------------- what cannot be done


def refused(said: str, folder: Path, action: Callable[[], Any]) -> None:
    """One sentence, and no file."""
    before = sorted(folder.iterdir())
    with pytest.raises(ExportError, match=said) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("write", [to_onnx, to_pt2])
def test_what_cannot_be_written_leaves_no_file(write: Callable[..., Any], tmp_path: Path) -> None:
    model, x = nn.Sequential(qnn.QLinear(8, 8)), torch.randn(2, 8)
    attempt = partial(refused, folder=tmp_path)
    path = tmp_path / "net"
    attempt("cannot be written: there is no folder", action=lambda: write(model, tmp_path / "no" / "net", x))
    attempt("cannot be written: ", action=lambda: write(model, "/proc/net.onnx", x))
    attempt("does not take an input of shape", action=lambda: write(model, path, torch.randn(2, 9)))
    attempt("must be a batch of inputs", action=lambda: write(model, path, torch.randn(0, 8)))
    attempt("must be a batch of inputs", action=lambda: write(model, path, torch.tensor(1.0)))
    attempt("is not finite", action=lambda: write(model, path, x / 0))
    attempt(
        "has no real form",
        action=lambda: write(Wired(lambda m, x: F.linear(x, m.w), w=nn.Parameter(torch.ones(4, 2, 2))), path, x),
    )
    fixed = Wired(lambda m, x: m.a(x).view(4, 4), a=model)
    attempt("for batches of any size", action=lambda: write(fixed, path, x))
    attempt("must return a tensor", action=lambda: write(Wired(lambda m, x: {"y": m.a(x)}, a=model), path, x))
    raw = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    attempt("must be raw images", action=lambda: write(model, path, raw.float(), pixels=PIXELS[3]))
    attempt("must be raw images", action=lambda: write(model, path, raw, pixels=PIXELS[1]))


def test_what_onnx_does_not_know_is_named(tmp_path: Path) -> None:
    refused("bessel_j0", tmp_path, lambda: to_onnx(Bessel(), tmp_path / "net.onnx", torch.randn(2, 8)))


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


def test_a_file_that_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quern.export import _program

    wrong = nn.Sequential(nn.Linear(8, 8))
    monkeypatch.setattr(_program, "real_form", lambda model, count: wrong)
    for write in (to_onnx, to_pt2):
        refused(
            "does not compute the same: its scores differ by",
            tmp_path,
            partial(write, nn.Sequential(qnn.QLinear(8, 8)), tmp_path / "net", torch.randn(2, 8)),
        )


def dead() -> Any:
    """The last layer sees nothing but constants."""
    model: Any = nn.Sequential(qnn.QConv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 3))
    model[0].weight.data.zero_()
    return model


@pytest.mark.slow
def test_a_dead_network_is_one_warning_in_every_form(tmp_path: Path) -> None:
    model, x, path = dead(), torch.randn(4, 4, 5, 5), tmp_path / "dead.onnx"
    writes: list[Callable[[], Any]] = [
        lambda: to_real(model),
        lambda: to_onnx(model, path, x),
        lambda: to_pt2(model, tmp_path / "dead.pt2", x),
        lambda: to_int8(path, tmp_path / "int8.onnx", x),
    ]
    for write in writes:
        with pytest.warns(DeadNetworkWarning) as said:
            write()
        (one,) = said
        assert "its output does not depend on its input; train it with a weaker penalty" in str(one.message)
    pixels = Pixels((0.4,) * 4, (0.3,) * 4)
    with pytest.warns(DeadNetworkWarning, match="is dead"):
        to_pt2(model, tmp_path / "raw.pt2", torch.randint(0, 256, (2, 4, 5, 5), dtype=torch.uint8), pixels=pixels)
    assert all((tmp_path / name).exists() for name in ("dead.onnx", "dead.pt2", "int8.onnx", "raw.pt2"))


def test_nothing_is_said_of_networks_that_live_or_that_cannot_be_followed(tmp_path: Path) -> None:
    """pytest makes an error of any warning."""
    model = dead()
    model[0].weight.data[:, 0] = 1
    to_real(model)
    to_pt2(model, tmp_path / "living.pt2", torch.randn(4, 4, 5, 5))
    strange = nn.Sequential(dead(), nn.Softmax(1))  # there is no rule for softmax
    to_pt2(strange, tmp_path / "strange.pt2", torch.randn(4, 4, 5, 5))


def test_int8_that_is_too_coarse_for_the_network_is_said(tmp_path: Path) -> None:
    """Of all that one image in a hundred makes of the range, the others are less than one step."""
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    x = torch.randn(100, 4) * 1e-6
    to_onnx(model, tmp_path / "fine.onnx", x)
    ranges = torch.cat([x, torch.full((100, 4), 1e6)])
    with pytest.warns(DeadNetworkWarning, match="every image the same scores; find the ranges with other images"):
        to_int8(tmp_path / "fine.onnx", tmp_path / "coarse.onnx", ranges)


def test_int8_and_accuracy_refuse_what_they_cannot_use(tmp_path: Path) -> None:
    net, out = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    to_onnx(nn.Sequential(qnn.QLinear(8, 8)), net, torch.randn(2, 8))
    (tmp_path / "text.onnx").write_text("no network")
    x = torch.randn(4, 8)
    attempt = partial(refused, folder=tmp_path)
    attempt("cannot read", action=lambda: to_int8(tmp_path / "none.onnx", out, x))
    attempt("cannot read", action=lambda: to_int8(tmp_path / "text.onnx", out, x))
    attempt("but was given", action=lambda: to_int8(net, out, torch.randn(4, 9)))
    attempt("there are none", action=lambda: to_int8(net, out, x[:0]))
    attempt("cannot be written", action=lambda: to_int8(net, tmp_path / "no" / "int8.onnx", x))
    attempt("each image needs a label", action=lambda: accuracy(net, x, torch.zeros(3)))
    attempt("but was given", action=lambda: accuracy(net, x.double(), torch.zeros(4)))


@pytest.mark.parametrize(
    "arguments",
    [((0.5,), (0.0,)), ((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (1.0,), "uint8", 0)],
)
def test_pixels_must_make_sense(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ExportError, match=r"Pixels"):
        Pixels(*arguments)
