"""What is particular to convolutions and linear layers: input parts, layouts, refusals."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quern import nn as qnn
from quern.functional import products


@pytest.mark.parametrize(("parts", "encode", "channels"), [("r", qnn.encode_gray, 2), ("ijk", qnn.encode_rgb, 6)])
def test_input_parts_equal_the_encoded_image(parts: str, encode, channels: int) -> None:
    x = torch.randn(2, channels, 5, 5, dtype=torch.float64)
    raw = qnn.QConv2d(channels, 8, 3, input_parts=parts, dtype=torch.float64)
    full = qnn.QConv2d(8, 8, 3, dtype=torch.float64)
    full.load_state_dict(raw.state_dict())
    torch.testing.assert_close(raw(x), full(encode(x)), rtol=1e-12, atol=1e-12)
    flat_raw, flat_full = qnn.QLinear(channels, 8, input_parts=parts), qnn.QLinear(8, 8)
    flat_full.load_state_dict(flat_raw.state_dict())
    row = torch.randn(3, channels)
    torch.testing.assert_close(flat_raw(row), flat_full(encode(row)))


@pytest.mark.parametrize("form", ["block", "hadamard", "stacked"])
def test_channels_last_is_kept_by_grouped_convolutions(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "choose_conv_form", lambda *sizes: form)
    layer, x = qnn.QConv2d(16, 8, 3, groups=2), torch.randn(2, 16, 5, 5)
    found = layer(x.to(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, layer(x))


@pytest.mark.parametrize("parts", ["r", "ijk", "rijk"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_channels_last_is_taken_from_the_module_and_kept(parts: str, kernel: int) -> None:
    layer = qnn.QConv2d(len(parts), 8, kernel, input_parts=parts)
    x = torch.randn(2, len(parts), 6, 6)
    wanted = layer(x)
    assert wanted.is_contiguous()
    moved: Any = copy.deepcopy(layer)
    moved = moved.to(memory_format=torch.channels_last)
    if kernel > 1:  # a 1x1 kernel over one channel has no layout to carry
        assert moved(x).is_contiguous(memory_format=torch.channels_last)
        copied = copy.deepcopy(moved).double().float()
        copied.load_state_dict(layer.state_dict())
        assert copied(x).is_contiguous(memory_format=torch.channels_last)
        back = moved.to(memory_format=torch.contiguous_format)
        assert back(x).is_contiguous()
    torch.testing.assert_close(moved(x), wanted)
    last = x.to(memory_format=torch.channels_last)
    if len(parts) > 1:
        assert layer(last).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(last), wanted)


def test_channels_last_3d() -> None:
    layer: Any = qnn.QConv3d(8, 8, 3)
    x = torch.randn(2, 8, 4, 4, 4)
    wanted = layer(x)
    found = layer.to(memory_format=torch.channels_last_3d)(x)
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: qnn.QLinear(6, 8), "in_features is 6, but it must be a positive multiple of 4"),
        (lambda: qnn.QLinear(8, 10), "out_features is 10"),
        (lambda: qnn.QLinear(0, 8), "in_features is 0"),
        (
            lambda: qnn.QConv2d(3, 8, 3),
            "in_channels is 3, but quaternions have 4 components: say input_parts='ijk' for",
        ),
        (lambda: qnn.QConv2d(1, 8, 3), "say input_parts='r' for gray images"),
        (lambda: qnn.QConv2d(6, 8, 3), "in_channels is 6, but it must be a positive multiple of 4"),
        (lambda: qnn.QConv2d(4, 8, 3, input_parts="ijk"), "in_channels is 4, but it must be a positive multiple of 3"),
        (lambda: qnn.QConv2d(4, 8, 3, input_parts="kji"), "in that order"),
        (lambda: qnn.QConv2d(4, 8, 3, input_parts=""), "in that order"),
        (lambda: qnn.QConv2d(8, 8, 3, groups=4), "groups=4 must divide the quaternion channels: 2 in and 2 out"),
        (lambda: qnn.QConv2d(8, 8, (3, 3, 3)), "kernel_size is (3, 3, 3), but it must be one number or 2 numbers"),
        (lambda: qnn.QConv2d(8, 8, 3, padding="half"), "must be 'same' or 'valid'"),
        (lambda: qnn.QConv2d(8, 8, 3, stride=2, padding="same"), "needs stride 1"),
        (lambda: qnn.QConv2d(8, 8, 3, padding_mode="mirror"), "padding_mode is 'mirror'"),
        (lambda: qnn.QConvTranspose2d(8, 8, 3, padding_mode="reflect"), "knows zeros"),
        (lambda: qnn.QConv2d(8, 8, 3)(torch.ones(1, 4, 5, 5)), "takes (batch, 8, *space) or (8, *space)"),
        (lambda: qnn.QConv2d(8, 8, 3)(torch.ones(8, 5)), "but the input's shape is (8, 5)"),
        (lambda: qnn.QLinear(8, 8)(torch.ones(2, 7)), "the last axis of the input must have size 8"),
        (lambda: qnn.QConvTranspose1d(4, 4, 3, stride=2)(torch.ones(1, 4, 3), [12]), "this layer can make 7 to 8"),
        (lambda: qnn.QConvTranspose2d(4, 4, 3)(torch.ones(1, 4, 3, 3), [5]), "it must name 2 sizes"),
        (lambda: qnn.QConv2d(4, 4, 3, stride=0), "stride is 0, but it must be at least 1"),
        (lambda: qnn.QConv2d(4, 4, 0), "kernel_size is 0, but it must be at least 1"),
        (lambda: qnn.QConv2d(4, 4, 3, padding=-1), "padding is -1, but it must be at least 0"),
        (lambda: qnn.Modulus()(torch.ones(8)), "the quaternions should be on dim 1, but the input's shape is (8,)"),
        (lambda: qnn.QModReLU(8, dim=-3)(torch.ones(2, 8)), "the quaternions should be on dim -3"),
        (lambda: qnn.QDropout2d()(torch.ones(8, 4, 4)), "QDropout2d takes (batch, 4*C, height, width)"),
    ],
)
def test_refusals_are_one_clear_sentence(make, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [7, 8])
def test_transposed_output_size(size: int) -> None:
    layer, x = qnn.QConvTranspose1d(8, 4, 3, stride=2, padding=0), torch.randn(2, 8, 3)
    assert layer(x, output_size=[size]).shape == (2, 4, size)
    assert layer(x, output_size=[2, 4, size]).shape == (2, 4, size)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("form", ["block", "hadamard", "stacked"])
def test_empty_and_single_batches(batch: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "choose_conv_form", lambda *sizes: form)
    layer = qnn.QConv2d(8, 4, 3)
    y = layer(torch.randn(batch, 8, 5, 5))
    y.sum().backward()
    assert y.shape == (batch, 4, 3, 3)


def test_parameter_count_is_a_quarter_and_repr_is_like_torchs() -> None:
    real, ours = nn.Conv2d(8, 16, 3, padding=1, bias=False), qnn.QConv2d(8, 16, 3, padding=1, bias=False)
    assert sum(p.numel() for p in ours.parameters()) * 4 == sum(p.numel() for p in real.parameters())
    assert repr(ours) == "Q" + repr(real)
    assert repr(qnn.QLinear(8, 4)) == "Q" + repr(nn.Linear(8, 4))
    assert repr(qnn.QConv2d(3, 4, 1, input_parts="ijk")).endswith("input_parts='ijk')")


@pytest.mark.unchecked
def test_sizes_of_other_types() -> None:
    layer = qnn.QConv2d(8, 8, np.int64(3), padding=np.int64(1))  # pyright: ignore
    assert layer.kernel_size == (3, 3)
    assert layer(torch.ones(1, 8, 4, 4)).shape == (1, 8, 4, 4)
    with pytest.raises(ValueError, match="padding of a transposed convolution must be numbers"):
        qnn.QConvTranspose2d(4, 4, 3, padding="same")  # pyright: ignore
