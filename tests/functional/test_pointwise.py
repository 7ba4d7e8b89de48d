"""Gradients of pointwise convolutions in C: those of torch in float64, wherever they can be had."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern import _native
from quern import nn as qnn
from quern.functional import native, pointwise
from tests.functional.native_kernels import assert_in_bounds, assert_near, assert_no_warnings, each_compiler_and_build

pytestmark = pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def drawn(images: int, space: tuple[int, int], channels: tuple[int, int]) -> list[Tensor]:
    """Input, weight, bias and the gradient of the result, in float64."""
    inner, out = channels
    shapes = ((images, inner, *space), (out, inner, 1, 1), (out,), (images, out, *space))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def passed(form: Any, given: list[Tensor], dtype: torch.dtype, bias: bool = True) -> list[Tensor]:
    """The result and all gradients."""
    x, weight, shift, grad = (t.to(dtype) for t in given)
    inputs = [t.detach().requires_grad_() for t in ([last(x), weight, shift] if bias else [last(x), weight])]
    y = form(*inputs) if bias else form(*inputs, None)
    return [y.detach(), *torch.autograd.grad(y, inputs, grad)]


@given(
    st.integers(1, 5),
    st.tuples(st.integers(1, 14), st.integers(1, 14)),
    st.tuples(st.integers(1, 80), st.integers(1, 80)),
    st.booleans(),
    st.sampled_from([1e-10, 1.0, 1e8]),
    st.integers(0, 2**31),
)
def test_gradients_are_those_of_torch(
    images: int, space: tuple[int, int], channels: tuple[int, int], bias: bool, magnitude: float, seed: int
) -> None:
    torch.manual_seed(seed)
    given = drawn(images, space, channels)
    given[0] *= magnitude
    found = passed(pointwise.pointwise_convolution, given, torch.float32, bias)
    assert_near(found, passed(F.conv2d, given, torch.float64, bias))


@pytest.mark.parametrize("build", _native.builds(native.PACKAGE))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_build_and_any_number_of_threads(build: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same bits from as many threads, and from any other number: pieces are summed in one order."""
    monkeypatch.setattr(pointwise, "PRODUCTS_OF_A_THREAD", 1)
    builds = _native.builds(native.PACKAGE)
    monkeypatch.setattr(_native, "builds", lambda _: builds[: builds.index(build) + 1])
    given = drawn(7, (13, 10), (44, 39))

    def with_threads(count: int) -> list[Tensor]:
        monkeypatch.setattr(torch, "get_num_threads", lambda: count)
        return passed(pointwise.pointwise_convolution, given, torch.float32)[1:]

    found = with_threads(threads)
    for one, again, alone in zip(found, with_threads(threads), with_threads(1), strict=True):
        assert torch.equal(one, again)
        assert torch.equal(one, alone)
    assert_near(found, passed(F.conv2d, given, torch.float64)[1:])


def test_a_layer_takes_it_and_who_watches_gets_plain_operations() -> None:
    layer, x = qnn.QConv2d(32, 48, 1).to(memory_format=torch.channels_last), last(torch.randn(4, 32, 8, 8))  # pyright: ignore[reportCallIssue]
    wanted = layer(x)
    assert "Pointwise" in type(wanted.grad_fn).__name__
    for other in (qnn.QConv2d(32, 48, 1, stride=2), qnn.QConv2d(32, 48, 1, padding=1), qnn.QConv2d(32, 16, 1)):
        assert "Pointwise" not in type(other.to(memory_format=torch.channels_last)(x).grad_fn).__name__  # pyright: ignore[reportCallIssue]
    program = torch.export.export(layer, (x,))
    assert "conv2d" in str(program.graph)
    each = torch.vmap(layer)(x.unsqueeze(0)).squeeze(0)
    for found in (program.module()(x), each):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_it_cannot_do_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, _ = (t.float() for t in drawn(2, (6, 6), (40, 40)))
    x, weight = last(x), weight.requires_grad_()
    can = pointwise.can_convolve
    assert can(x, weight, bias)
    assert not can(x.contiguous(), weight, bias)
    assert not can(x.double(), weight.double(), bias)
    assert not can(x, weight.detach(), bias)
    assert not can(x[:0], weight, bias)
    assert not can(x, torch.randn(40, 40, 3, 3, requires_grad=True), bias)
    with torch.no_grad():
        assert not can(x, weight, bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert not can(x, weight, bias)
    monkeypatch.setenv("QUERN_NATIVE", "0")
    assert not can(x, weight, bias)


def test_derivatives_of_derivatives() -> None:
    given = drawn(2, (3, 4), (33, 35))

    def twice(form: Any, dtype: torch.dtype) -> list[Tensor]:
        x, weight, bias, grad = (t.to(dtype) for t in given)
        inputs = [t.detach().requires_grad_() for t in (last(x), weight, bias)]
        first = torch.autograd.grad(form(*inputs), inputs, grad, create_graph=True)
        return list(torch.autograd.grad(torch.stack([t.square().sum() for t in first]).sum(), inputs[:2]))

    assert_near(twice(pointwise.pointwise_convolution, torch.float32), twice(F.conv2d, torch.float64))


@each_compiler_and_build
def test_compilers_have_nothing_to_say(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_no_warnings("pointwise", compiler, flags, tmp_path)


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    assert_in_bounds("pointwise", tmp_path, "64 convolutions\n")
