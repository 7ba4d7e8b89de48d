"""What is particular to functions of tensors: encodings, quaternion channels joined, adjoints, half precision."""

import pytest
import torch

from quern import functional
from quern import functional as F
from quern import nn as qnn
from quern.algebra import UNITS
from quern.functional import products
from quern.functional.products import block_weight


def test_encoding_puts_the_image_where_the_convention_says() -> None:
    gray, rgb = torch.randn(2, 1, 3, 3), torch.randn(2, 3, 3, 3)
    assert torch.equal(qnn.encode_gray(gray), torch.cat([gray, torch.zeros(2, 3, 3, 3)], 1))
    assert torch.equal(qnn.encode_rgb(rgb), torch.cat([torch.zeros(2, 1, 3, 3), rgb], 1))
    with pytest.raises(ValueError, match="needs 3 channels"):
        qnn.encode_rgb(gray)


def test_cat_joins_quaternion_channels() -> None:
    a, b = torch.randn(2, 8, 3), torch.randn(2, 4, 3)
    joined = qnn.cat([a, b])
    parts = [torch.cat([p, q], 1) for p, q in zip(a.chunk(4, 1), b.chunk(4, 1), strict=True)]
    assert torch.equal(joined, torch.cat(parts, 1))
    assert torch.equal(qnn.cat([a.mT, b.mT], dim=-1), joined.mT)
    images = torch.randn(2, 8, 3, 3).to(memory_format=torch.channels_last)
    assert qnn.cat([images, images]).is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="should be on dim 3"):
        qnn.cat([a, b], dim=3)
    with pytest.raises(ValueError, match="at least one"):
        qnn.cat([])


def test_transposed_convolution_is_the_adjoint_of_the_conjugate_convolution() -> None:
    w = torch.randn(4, 3, 2, 3, 3, dtype=torch.float64)
    x = torch.randn(1, 8, 6, 6, dtype=torch.float64)
    y = torch.randn(1, 12, 4, 4, dtype=torch.float64)
    adjoint = w.clone()
    adjoint[1:] *= -1
    left = (functional.conv(x, w) * y).sum()
    right = (x * functional.conv_transpose(y, adjoint.transpose(1, 2))).sum()
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["hadamard", "stacked"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_never_takes_a_form_that_needs_room(
    dtype: torch.dtype, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of four components of 20,000 are out of reach of float16, also under autocast, where inputs are float32."""
    for name in ("choose_linear_form", "choose_conv_form"):
        monkeypatch.setattr(products, name, lambda *_: form)
    weight, kernel = torch.randn(4, 8, 8) / 100, torch.randn(4, 8, 8, 3, 3) / 1000
    x, image = torch.full((5, 32), 20_000.0), torch.full((2, 32, 6, 6), 20_000.0)
    with torch.autocast("cpu", dtype):
        outputs = F.linear(x, weight), F.conv(image, kernel, padding=1)
        wanted = torch.nn.functional.linear(x, block_weight(weight, UNITS))
    assert outputs[0].dtype == outputs[1].dtype == dtype
    assert torch.equal(outputs[0], wanted)
    assert all(y.isfinite().all() for y in outputs)
