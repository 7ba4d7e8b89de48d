"""Winograd's form: equal to the block form in float64, in values and gradients, wherever it says that it can be had."""

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
from quern.functional import native, winograd
from quern.functional.products import Geometry, block_convolution, block_weight
from tests.functional.native_kernels import (
    assert_in_bounds,
    assert_near,
    assert_no_warnings,
    each_compiler_and_build,
    passed,
)

pytestmark = pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")


def geometry(padding: int) -> Geometry:
    return Geometry((1, 1), (padding, padding), (1, 1), 1, False, (0, 0))


def drawn(images: int, inner: int, out: int, space: tuple[int, int], padding: int) -> tuple[Tensor, ...]:
    """Input, weight, bias and the gradient of the result, in float64."""
    high, wide = (size + 2 * padding - 2 for size in space)
    shapes = ((images, 4 * inner, *space), (4, out, inner, 3, 3), (4, out), (images, 4 * out, high, wide))
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)


def block_form(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    return block_convolution(x, block_weight(weight), bias, geometry(padding))


def winograd_form(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    assert winograd.can_convolve(x, weight, bias, geometry(padding))
    transformed = winograd.winograd_weights(weight.detach())
    return winograd.winograd_convolution(x, weight, bias, geometry(padding), transformed)


@given(
    st.integers(1, 5),
    st.integers(1, 37),
    st.integers(1, 37),
    st.tuples(st.integers(1, 14), st.integers(1, 14)),
    st.integers(0, 4),
    st.sampled_from([1e-10, 1.0, 1e8]),
    st.integers(0, 2**31),
)
def test_it_is_the_block_form(
    images: int, inner: int, out: int, space: tuple[int, int], padding: int, magnitude: float, seed: int
) -> None:
    """Tiles at the border, channels that fill no vector, more padding than a kernel has."""
    torch.manual_seed(seed)
    padding = max(padding, -(-(3 - min(space)) // 2))
    given = drawn(images, inner, out, space, padding)
    given = (magnitude * given[0], *given[1:])
    wanted = passed(block_form, given, padding, torch.float64)
    assert_near(passed(winograd_form, given, padding, torch.float32), wanted)


@pytest.mark.parametrize("build", _native.builds(native.PACKAGE))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_build_and_any_number_of_threads(build: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same bits again from as many threads."""
    given = drawn(9, 24, 20, (13, 10), 1)
    builds = _native.builds(native.PACKAGE)
    monkeypatch.setattr(_native, "builds", lambda _: builds[: builds.index(build) + 1])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found, again = (passed(winograd_form, given, 1, torch.float32) for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    assert_near(found, passed(block_form, given, 1, torch.float64))


def test_without_threads_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(3, 8, 8, (6, 6), 1)
    wanted = passed(winograd_form, given, 1, torch.float32)
    monkeypatch.setattr(native, "parallel", lambda: None)
    assert_near(passed(winograd_form, given, 1, torch.float32), [t.double() for t in wanted])


def test_the_layout_of_the_input_is_kept() -> None:
    x, weight, bias, _ = (t.float() for t in drawn(2, 8, 12, (7, 9), 1))
    plain = winograd_form(x, weight, bias, 1)
    last = winograd_form(x.to(memory_format=torch.channels_last), weight, bias, 1)
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, last)
    odd = winograd_form(torch.stack([x, x], -1)[..., 0], weight, bias, 1)
    assert torch.equal(plain, odd)


def test_derivatives_of_derivatives() -> None:
    given = drawn(2, 8, 8, (5, 6), 1)

    def twice(form: Any, dtype: torch.dtype) -> list[Tensor]:
        *inputs, grad = (t.to(dtype) for t in given)
        inputs = [t.detach().requires_grad_() for t in inputs]
        first = torch.autograd.grad(form(*inputs, 1), inputs, grad, create_graph=True)
        return list(torch.autograd.grad(torch.stack([t.square().sum() for t in first]).sum(), inputs[:2]))

    assert_near(twice(winograd_form, torch.float32), twice(block_form, torch.float64))


def test_what_it_cannot_do_is_left_to_other_forms() -> None:
    x, weight, bias, _ = (t.float() for t in drawn(2, 8, 8, (6, 6), 1))
    can, same = winograd.can_convolve, geometry(1)
    assert can(x, weight, bias, same)
    for other in (
        replace(same, stride=(2, 1)),
        replace(same, dilation=(2, 2)),
        replace(same, padding=(1, 0)),
        replace(same, groups=2),
        replace(same, transposed=True),
    ):
        assert not can(x, weight, bias, other)
    assert not can(x, weight[..., :1], bias, same)
    assert not can(x.double(), weight.double(), bias, same)
    assert not can(x[:0], weight, bias, same)
    assert not can(x[..., :2, :2], weight, bias, geometry(0))
    with torch.autocast("cpu", torch.bfloat16):
        assert not can(x, weight, bias, same)


def test_who_watches_gets_plain_operations() -> None:
    """Compilers and transforms of functions, with a layer of a size that takes this form otherwise."""
    layer, x = qnn.QConv2d(32, 32, 3, padding=1), torch.randn(4, 32, 16, 16)
    wanted = layer(x)
    assert winograd.can_convolve(x, layer.weight, layer.bias, geometry(1))
    program = torch.export.export(layer, (x,))
    assert "convolution" in str(program.graph) or "conv2d" in str(program.graph)
    each = torch.vmap(layer)(x.unsqueeze(0)).squeeze(0)
    for found in (program.module()(x), each):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_an_environment_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERN_NATIVE", "0")
    assert not native.is_available()
    monkeypatch.setenv("QUERN_NATIVE", "1")
    assert native.is_available()


def test_a_training_of_a_layer_takes_it() -> None:
    """And a layer that is evaluated keeps its transformed weight until that changes."""
    layer, x = qnn.QConv2d(32, 64, 3, padding=1), torch.randn(4, 32, 16, 16)
    y = layer(x)
    assert "NativeConvolution" in type(y.grad_fn).__name__
    layer.eval()
    with torch.no_grad():
        first = layer(x)
        assert torch.equal(first, layer(x))
        layer.weight.mul_(2)
        assert not torch.equal(first, layer(x))


@pytest.mark.slow
@each_compiler_and_build
def test_compilers_have_nothing_to_say(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_no_warnings("winograd", compiler, flags, tmp_path)


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    assert_in_bounds("winograd", tmp_path, "96 convolutions\n")


@pytest.mark.unchecked
def test_a_bias_of_another_type_is_refused_as_torch_does() -> None:
    """The kernels would read its bits as numbers of theirs."""
    conv = qnn.QConv2d(64, 64, 3, padding=1)
    assert conv.bias is not None
    conv.bias.data = conv.bias.data.double()
    with pytest.raises(RuntimeError, match=r"type"):
        conv(torch.randn(4, 64, 16, 16))
