"""Pooling by modulus."""

import pytest
import torch
from torch import nn

from quern import functional as F
from quern import nn as qnn


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
