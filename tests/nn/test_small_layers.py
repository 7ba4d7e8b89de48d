"""Dropout, pooling, activations, embedding."""

import pytest
import torch
from torch import nn

from quern import functional as F
from quern import nn as qnn


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(qnn.QDropout(0.3), (200, 40)), (qnn.QDropout(0.3), (20, 40, 4, 4)), (qnn.QDropout(0.3, dim=-1), (20, 10, 40))],
)
def test_dropout_drops_whole_quaternions(layer: qnn.QDropout, shape: tuple[int, ...]) -> None:
    y = layer(torch.ones(shape))
    q = y.unflatten(layer.dim % y.dim(), (4, -1)).movedim(layer.dim % y.dim(), 0)
    assert torch.equal(q, q[:1].expand_as(q))
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert abs(float((y == 0).float().mean()) - 0.3) < 0.05
    assert torch.equal(layer.eval()(torch.ones(shape)), torch.ones(shape))
    layer.train()


def test_dropout2d_drops_whole_quaternion_channels() -> None:
    y = qnn.QDropout2d(0.3)(torch.ones(100, 40, 3, 3))
    q = y.unflatten(1, (4, -1))
    first = q[:, :1, :, :1, :1]
    assert torch.equal(q, first.expand_as(q))
    assert abs(float((first == 0).float().mean()) - 0.3) < 0.05


@pytest.mark.parametrize("make", [qnn.QDropout, qnn.QDropout2d])
def test_dropout_extremes_seed_and_refusal(make) -> None:
    x = torch.randn(2, 8, 3, 3)
    assert torch.equal(make(0.0)(x), x)
    assert torch.equal(make(1.0)(x), torch.zeros_like(x))
    torch.manual_seed(3)
    first = make(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(make(0.5)(x), first)
    changed = x.clone()
    torch.manual_seed(3)
    assert make(0.5, True)(changed) is changed
    assert torch.equal(changed, first)
    with pytest.raises(ValueError, match="between 0 and 1"):
        make(1.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        (qnn.QMaxPool1d, nn.MaxPool1d, (2, 8, 9)),
        (qnn.QMaxPool2d, nn.MaxPool2d, (2, 8, 9, 8)),
        (qnn.QMaxPool3d, nn.MaxPool3d, (2, 8, 5, 6, 7)),
    ],
)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pool_windows_are_torchs(ours, theirs, shape: tuple[int, ...], ceil_mode: bool) -> None:
    """The moduli of the winners are the maxima of the moduli, and the indices point at them."""
    x = torch.randn(shape)
    options = {"stride": 2, "padding": 1, "dilation": 1, "ceil_mode": ceil_mode, "return_indices": True}
    y, indices = ours(3, **options)(x)
    size, wanted = theirs(3, **options)(F.modulus(x))
    torch.testing.assert_close(F.modulus(y), size)
    assert torch.equal(indices, wanted)
    assert repr(ours(3)) == "Q" + repr(theirs(3))
    with pytest.raises(ValueError, match="axes"):
        ours(2)(torch.ones(8))
    torch.testing.assert_close(ours(2)(x[0]), ours(2)(x)[0])
    _, where = ours(2, return_indices=True)(x[0])
    assert torch.equal(where, ours(2, return_indices=True)(x)[1][0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("small", [1e-4, 300.0, 1e-25, 1e20])
def test_max_pool_compares_what_cannot_be_squared(dtype: torch.dtype, small: float) -> None:
    x = torch.tensor([small, 3 * small, 2 * small, 0.0]).repeat(4).view(1, 4, 4).to(dtype)
    if x.isfinite().all() and (x[0, 0, :3] > 0).all():
        assert torch.equal(qnn.QMaxPool1d(4)(x), x[:, :, 1:2])
    else:
        assert dtype == torch.float16  # such numbers do not exist there


@pytest.mark.parametrize(
    "layer",
    [
        qnn.QDropout(0.5),
        qnn.QDropout2d(0.5),
        qnn.QBatchNorm2d(8),
        qnn.QWhiteningBatchNorm2d(8),
        qnn.QMaxPool2d(2),
        qnn.QModReLU(8),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layout_of_images_is_kept(layer: nn.Module, layout: torch.memory_format) -> None:
    x = torch.randn(3, 8, 6, 6).to(memory_format=layout)
    assert layer(x).is_contiguous(memory_format=layout)


def test_mod_relu_commutes_with_rotation_and_is_zero_at_zero() -> None:
    from quern import algebra

    layer = qnn.QModReLU(4)
    layer.bias.data.fill_(-0.5)
    x, turn = torch.randn(50, 4), algebra.normalize(torch.randn(4))
    turned = algebra.hamilton(turn, x.T).T
    torch.testing.assert_close(layer(turned), algebra.hamilton(turn, layer(x).T).T)
    assert torch.equal(layer(torch.zeros(1, 4)), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="size 4 along dim 1"):
        layer(torch.ones(2, 8))


def test_modulus_of_a_size_that_is_no_multiple_of_four() -> None:
    with pytest.raises(ValueError, match=r"dim 1 is 6, but it must be a positive multiple of 4"):
        qnn.Modulus()(torch.ones(2, 6))


def test_embedding_padding_and_norm() -> None:
    table = qnn.QEmbedding(6, 8, padding_idx=-1)
    assert table.padding_idx == 5
    indices = torch.tensor([[0, 5], [2, 5]])
    y = table(indices)
    assert torch.equal(y[:, 1], torch.zeros(2, 8))
    y.sum().backward()
    assert table.weight.grad is not None
    assert torch.equal(table.weight.grad[:, 5], torch.zeros(4, 2))
    assert torch.equal(table.weight.grad[:, 0], torch.ones(4, 2))
    short = qnn.QEmbedding(6, 8, max_norm=0.5)
    before = short.weight.detach().clone()
    y = short(torch.tensor([1, 1, 3]))
    assert (y.norm(dim=1) <= 0.5 + 1e-6).all()
    assert torch.equal(short.weight[:, 0], before[:, 0])
    often = qnn.QEmbedding(3, 4, scale_grad_by_freq=True)
    often(torch.tensor([1, 1])).sum().backward()
    assert often.weight.grad is not None
    torch.testing.assert_close(often.weight.grad[:, 1], torch.ones(4, 1))
    assert not qnn.QEmbedding(6, 8, padding_idx=0, max_norm=0.0)(torch.tensor([0, 1])).isnan().any()
    with pytest.raises(ValueError, match="rows 0 to 5"):
        qnn.QEmbedding(6, 8, padding_idx=6)
