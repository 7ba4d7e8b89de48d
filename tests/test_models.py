"""The networks: sizes as in the paper, twins of equal size, layouts, and that they can learn."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import functional as F
from quern import models
from quern import nn as qnn
from quern.testing import assert_same_function
from tests.builders import shape_of

every_builder = pytest.mark.parametrize(
    ("build", "shape"), [pytest.param(build, shape_of(name), id=name) for name, build in models.BUILDERS.items()]
)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_of_the_paper() -> None:
    assert count(models.mnist_qcnn()) == 11_688
    assert count(models.cifar_qcnn()) == 474_920


@pytest.mark.parametrize(
    ("ours", "twin"),
    [
        (models.mnist_qcnn, models.mnist_cnn),
        (models.cifar_qcnn, models.cifar_cnn),
        (models.digits_qcnn, models.digits_cnn),
        (models.qresnet20, models.resnet20),
        (models.small_qcnn, models.small_cnn),
    ],
)
def test_twins_have_as_many_parameters(ours, twin) -> None:
    assert abs(count(twin()) / count(ours()) - 1) < 0.02


@every_builder
def test_scores_and_gradients(build, shape: tuple[int, ...]) -> None:
    network = build()
    x = torch.randn(3, *shape)
    scores = network(x)
    assert scores.shape == (3, 10)
    if "q" in build.__name__:
        assert (scores >= 0).all()
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert network.eval()(x[:1]).shape == (1, 10)


@every_builder
def test_layout_makes_no_difference_and_the_network_runs_in_channels_last(build, shape: tuple[int, ...]) -> None:
    network = build().eval()
    x = torch.randn(2, *shape)
    assert network[0](x).is_contiguous(memory_format=torch.channels_last)
    wanted = network(x)
    torch.testing.assert_close(network.to(memory_format=torch.contiguous_format)(x), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("build", [models.mnist_qcnn, models.cifar_qcnn, models.digits_qcnn, models.mnist_cnn])
@pytest.mark.parametrize("norm", ["none", "after_conv", "after_activation"])
def test_norm_goes_where_it_is_told(build, norm) -> None:
    kinds = [type(layer) for layer in build(norm=norm)]
    norms = [n for n, kind in enumerate(kinds) if kind in (qnn.QBatchNorm2d, nn.BatchNorm2d)]
    convs = [n for n, kind in enumerate(kinds) if kind in (qnn.QConv2d, nn.Conv2d)]
    if norm == "none":
        assert not norms
    elif norm == "after_conv":
        assert norms == [n + 1 for n in convs]
    else:
        assert norms == [n + 2 for n in convs]
        assert all(kinds[n + 1] is nn.ReLU for n in convs)


def test_the_networks_are_the_papers_in_the_papers_order() -> None:
    """Pooling before ReLU is a rearrangement that changes nothing: against ReLU before pooling, written out."""
    network = models.cifar_qcnn().double().eval()
    convs = [m for m in network if isinstance(m, qnn.QConv2d)]
    linear = next(m for m in network if isinstance(m, qnn.QLinear))

    def written_out(x: Tensor) -> Tensor:
        for n, conv in enumerate(convs):
            x = torch.relu(conv(x))
            if n in (0, 1, 3):
                x = torch.max_pool2d(x, 2)
        return F.modulus(linear(x.flatten(1)))

    assert_same_function(network, written_out, torch.randn(2, 3, 32, 32, dtype=torch.float64))


@pytest.mark.unchecked
def test_unknown_norm() -> None:
    with pytest.raises(TypeError, match=r"^digits_qcnn has no option width: did you mean widths\?$"):
        models.digits_qcnn(width=(8, 8))  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^qresnet20 has no option norm: choose among widths, classes, channels\.$"):
        models.qresnet20(norm="none")  # pyright: ignore[reportCallIssue]
    for widths in (16, (8, 8, 8)):
        with pytest.raises(ValueError, match=r"^widths is .*, but must be 2 numbers, one for each convolution\.$"):
            models.mnist_cnn(widths=widths)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="must be one of none, after_conv, after_activation"):
        models.mnist_qcnn(norm="batch")  # pyright: ignore


def test_custom_sizes() -> None:
    assert models.mnist_qcnn(widths=(8, 16), classes=3)(torch.randn(2, 1, 28, 28)).shape == (2, 3)
    assert models.qresnet20(widths=(8, 8, 16))(torch.randn(2, 3, 16, 20)).shape == (2, 10)


@given(
    build=st.sampled_from([models.small_qcnn, models.small_cnn]),
    quarter=st.integers(1, 4),
    depth=st.integers(1, 3),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
)
def test_small_networks_take_images_of_any_size(
    build, quarter: int, depth: int, channels: int, height: int, width: int
) -> None:
    network = build(4 * quarter, depth, classes=3, channels=channels).eval()
    assert network(torch.randn(2, channels, height, width)).shape == (2, 3)
    convolutions = [
        layer for layer in network.modules() if isinstance(layer, qnn.QConv2d | qnn.SplitConv2d | nn.Conv2d)
    ]
    pointwise = [layer.out_channels for layer in convolutions if layer.kernel_size == (1, 1)]
    assert pointwise == [4 * quarter * stage for stage in (1, 2, 3) for _ in range(depth)]
    assert sum(layer.stride == (2, 2) for layer in convolutions) == 2


def test_small_networks_of_no_size() -> None:
    for width, depth in ((3, 1), (0, 1), (8, 0)):
        with pytest.raises(
            ValueError, match=rf"^width is {width} and depth {depth}, but width must be a positive multiple of 4, .*\.$"
        ):
            models.small_qcnn(width, depth)
    with pytest.raises(ValueError, match=r"^channels is 2, but it must be 3 \(RGB\) or 1 \(gray\)\.$"):
        models.small_qcnn(channels=2)


@pytest.mark.parametrize("norm", ["none", "after_conv"])
def test_a_network_learns(norm) -> None:
    """Two classes of images that differ in where they are bright."""
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    x = 0.3 * torch.randn(64, 1, 8, 8)
    x[labels == 1, :, :4] += 1
    network = models.digits_qcnn(norm=norm, classes=2)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), labels)
        loss.backward()
        optimizer.step()
    accuracy = (network.eval()(x).argmax(1) == labels).float().mean()
    assert accuracy > 0.95


@pytest.mark.unchecked
@every_builder
def test_networks_export(build, shape: tuple[int, ...]) -> None:
    network, x = build().eval(), torch.randn(3, *shape)
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: batch},))
    for n in (1, 3, 7):
        y = torch.randn(n, *shape)
        torch.testing.assert_close(program.module()(y), network(y), rtol=1e-3, atol=1e-3)


@pytest.mark.unchecked
def test_training_step_compiles_in_one_graph() -> None:
    plain, x = models.cifar_qcnn(dropout=0.0), torch.randn(8, 3, 32, 32)
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    wanted = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
    found = torch.autograd.grad(compiled(x).square().sum(), list(plain.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2 * float(b.abs().max()))


@pytest.mark.unchecked
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
@pytest.mark.filterwarnings("default")
def test_compiles_with_the_default_backend() -> None:
    network, x = models.digits_qcnn(dropout=0.0), torch.randn(4, 1, 8, 8)
    wanted = network(x)
    torch.testing.assert_close(torch.compile(network)(x), wanted, rtol=1e-3, atol=1e-4)
