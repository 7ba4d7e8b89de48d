"""Dropout of whole quaternions."""

import pytest
import torch

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
