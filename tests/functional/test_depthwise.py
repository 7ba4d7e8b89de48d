"""Depthwise kernels: equal to the block form in float64, in values and gradients, wherever they can be had."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern import _native
from quern import nn as qnn
from quern.functional import depthwise, native
from quern.functional.products import Geometry, block_convolution, block_weight
from tests.functional.native_kernels import (
    assert_in_bounds,
    assert_near,
    assert_no_warnings,
    each_compiler_and_build,
    passed,
)

pytestmark = pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")


def block_form(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    return block_convolution(x, block_weight(weight, groups=geometry.groups), bias, geometry)


def depthwise_form(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    assert depthwise.can_convolve(x, weight, bias, geometry)
    return depthwise.depthwise_convolution(x, weight, bias, geometry)


def drawn(images: int, space: tuple[int, int], kernel: tuple[int, int], geometry: Geometry) -> tuple[Tensor, ...]:
    """Input, weight, bias and the gradient of the result, in float64."""
    units = geometry.groups
    shapes = ((images, 4 * units, *space), (4, units, 1, *kernel), (4, units))
    x, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return x, weight, bias, torch.randn_like(block_form(x, weight, bias, geometry))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[int, tuple[int, int], tuple[int, int], tuple]:
    """Images, space, kernel and the arguments of a Geometry.

    Padding and strides are larger than the kernel too, and some taps never meet the image.
    """

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    kernel, stride, dilation, padding = pair(1, 5), pair(1, 4), pair(1, 3), pair(0, 7)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    space = (least[0] + draw(st.integers(0, 11)), least[1] + draw(st.integers(0, 11)))
    return draw(st.integers(1, 5)), space, kernel, (stride, padding, dilation, draw(st.integers(2, 37)))


@given(convolutions(), st.booleans(), st.sampled_from([1e-10, 1.0, 1e8]), st.integers(0, 2**31))
def test_it_is_the_block_form(
    convolution: tuple[int, tuple[int, int], tuple[int, int], tuple], last: bool, magnitude: float, seed: int
) -> None:
    torch.manual_seed(seed)
    images, space, kernel, arguments = convolution
    geometry = Geometry(*arguments, output_padding=(0, 0))
    x, *rest = drawn(images, space, kernel, geometry)
    x = magnitude * (x.to(memory_format=torch.channels_last) if last else x)
    wanted = passed(block_form, (x, *rest), geometry, torch.float64)
    assert_near(passed(depthwise_form, (x, *rest), geometry, torch.float32), wanted)


SAME = Geometry((1, 1), (1, 1), (1, 1), 20, False, (0, 0))


@pytest.mark.parametrize("build", _native.builds(native.PACKAGE))
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_build_and_any_number_of_threads(
    build: str, threads: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same bits from as many threads, and from any other number: pieces are summed in one order."""
    monkeypatch.setattr(depthwise, "threads_for", lambda _: threads)
    builds = _native.builds(native.PACKAGE)
    monkeypatch.setattr(_native, "builds", lambda _: builds[: builds.index(build) + 1])
    geometry = replace(SAME, stride=(stride, stride))
    given = drawn(19, (13, 10), (3, 3), geometry)
    found, again = (passed(depthwise_form, given, geometry, torch.float32) for _ in range(2))
    monkeypatch.setattr(depthwise, "threads_for", lambda _: 1)
    alone = passed(depthwise_form, given, geometry, torch.float32)
    for one, *others in zip(found, again, alone, strict=True):
        assert all(torch.equal(one, other) for other in others)
    assert_near(found, passed(block_form, given, geometry, torch.float64))


def test_the_layout_of_the_input_is_kept() -> None:
    x, weight, bias, _ = (t.float() for t in drawn(2, (7, 9), (3, 3), SAME))
    last = x.to(memory_format=torch.channels_last)
    for images, layout in ((x, torch.contiguous_format), (last, torch.channels_last)):
        given = images.detach().requires_grad_()
        y = depthwise_form(given, weight, bias, SAME)
        assert y.is_contiguous(memory_format=layout)
        (grad,) = torch.autograd.grad(y.sum(), given)
        assert grad.is_contiguous(memory_format=layout)
    assert torch.equal(depthwise_form(x, weight, bias, SAME), depthwise_form(last, weight, bias, SAME))


def test_derivatives_of_derivatives() -> None:
    given = drawn(2, (5, 6), (3, 3), SAME)

    def twice(form: Any, dtype: torch.dtype) -> list[Tensor]:
        *inputs, grad = (t.to(dtype) for t in given)
        inputs = [t.detach().requires_grad_() for t in inputs]
        first = torch.autograd.grad(form(*inputs, SAME), inputs, grad, create_graph=True)
        return list(torch.autograd.grad(torch.stack([t.square().sum() for t in first]).sum(), inputs[:2]))

    assert_near(twice(depthwise_form, torch.float32), twice(block_form, torch.float64))


def test_what_it_cannot_do_is_left_to_other_forms() -> None:
    x, weight, bias, _ = (t.float() for t in drawn(2, (6, 6), (3, 3), SAME))
    can = depthwise.can_convolve
    assert can(x, weight, bias, SAME)
    assert not can(x, weight, bias, replace(SAME, transposed=True))
    assert not can(x, weight.view(4, 10, 2, 3, 3), bias, replace(SAME, groups=10))
    assert not can(x, torch.cat([weight, weight], 1), None, SAME)
    assert not can(x.double(), weight.double(), bias, SAME)
    assert not can(x[:0], weight, bias, SAME)
    assert not can(x[..., :2, :2], weight, bias, replace(SAME, padding=(0, 0)))
    assert not can(x[..., 0], weight[..., 0], bias, Geometry((1,), (1,), (1,), 20))
    with torch.autocast("cpu", torch.bfloat16):
        assert not can(x, weight, bias, SAME)


def test_a_layer_takes_it_and_who_watches_gets_plain_operations() -> None:
    layer, x = qnn.QConv2d(32, 32, 3, padding=1, groups=8), torch.randn(4, 32, 16, 16)
    wanted = layer(x)
    assert "NativeConvolution" in type(wanted.grad_fn).__name__
    program = torch.export.export(layer, (x,))
    assert "conv2d" in str(program.graph)
    each = torch.vmap(layer)(x.unsqueeze(0)).squeeze(0)
    for found in (program.module()(x), each):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@each_compiler_and_build
def test_compilers_have_nothing_to_say(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_no_warnings("depthwise", compiler, flags, tmp_path)


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    assert_in_bounds("depthwise", tmp_path, "432 convolutions\n")
