"""Batch normalisation in C: the formula in float64, in values, statistics and gradients, wherever it can be had."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern import _native, functional
from quern import nn as qnn
from quern.functional import native, norms
from quern.functional.native import batch_norm
from tests.functional.native_kernels import ERROR, assert_in_bounds, assert_no_warnings, each_compiler_and_build

pytestmark = pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")

LAYOUTS = {2: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
EPS = 1e-5


def formula(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """Output, mean and variance, a neuron at a time."""
    components = x.unflatten(1, (4, -1)).movedim(0, 2).flatten(2)  # (4, n, batch * space)
    means = torch.stack([torch.stack([numbers.mean() for numbers in part]) for part in components])
    centred = components - means.unsqueeze(2)
    variances = torch.stack([centred[:, n].square().sum() / centred.shape[2] for n in range(centred.shape[1])])
    y = centred / (variances + EPS).sqrt().view(-1, 1)
    y = y if weight is None else y * weight.view(-1, 1)
    y = y if bias is None else y + bias.unsqueeze(2)
    return [y.unflatten(2, (x.shape[0], *x.shape[2:])).movedim(2, 0).flatten(1, 2), means, variances]


def kernels(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """The same by quern's function, the statistics as they come to the running ones."""
    x = x.contiguous(memory_format=LAYOUTS[x.dim()])
    assert batch_norm.can_take(x, weight, bias)
    mean, var = torch.zeros(4, x.shape[1] // 4), torch.zeros(x.shape[1] // 4)
    y = functional.batch_norm(x, mean, var, weight, bias, True, 1.0, EPS)
    assert y.stride() == x.stride()
    samples = x.numel() // x.shape[1]
    return [y, mean, var * (samples - 1) / samples]


def passed(form, given: list[Tensor | None], grad: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Output, statistics, and the gradients of what is there."""
    inputs = [None if t is None else t.detach().to(dtype).requires_grad_() for t in given]
    y, mean, var = form(*inputs)
    there = [t for t in inputs if t is not None]
    return [y.detach(), mean.detach(), var.detach(), *torch.autograd.grad(y, there, grad.to(dtype))]


def drawn(shape: tuple[int, ...], offset: float = 0.0) -> tuple[list[Tensor | None], Tensor]:
    n = shape[1] // 4
    return [torch.randn(shape) + offset, torch.randn(n), torch.randn(4, n)], torch.randn(shape)


def assert_all_near(found: list[Tensor], wanted: list[Tensor], error: float = ERROR) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert float((one.double() - other).abs().max()) <= error * float(other.abs().max())


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    space = draw(st.sampled_from([0, 2, 3]))
    sizes = draw(st.lists(st.integers(1, 9), min_size=space, max_size=space))
    return draw(st.integers(2, 40)), 4 * draw(st.integers(1, 40)), *sizes


@given(
    shapes(),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([1e-10, 1.0, 1e8]),
    st.sampled_from([0.0, -100.0]),
    st.integers(0, 2**31),
)
def test_it_is_the_formula(
    shape: tuple[int, ...], has: tuple[bool, bool], magnitude: float, offset: float, seed: int
) -> None:
    """A mean far from 0 costs as many digits as it is larger than the spread: they are not in the input."""
    torch.manual_seed(seed)
    (x, weight, bias), grad = drawn(shape, offset)
    assert x is not None
    inputs = [magnitude * x, weight if has[0] else None, bias if has[1] else None]
    wanted = passed(formula, inputs, grad, torch.float64)
    assert_all_near(passed(kernels, inputs, grad, torch.float32), wanted, ERROR * (1 + abs(offset)))


@given(
    shapes(),
    st.tuples(st.booleans(), st.booleans()),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1e-10, 1.0, 1e8]),
    st.integers(0, 2**31),
)
def test_an_addition_and_a_relu_behind_it(
    shape: tuple[int, ...], has: tuple[bool, bool], is_added: bool, relu: bool, magnitude: float, seed: int
) -> None:
    """Where the sum is 0 up to rounding a ReLU has no gradient to compare: the one that comes back is 0 there."""
    torch.manual_seed(seed)
    (x, weight, bias), grad = drawn(shape)
    assert x is not None
    given = [magnitude * x, weight if has[0] else None, bias if has[1] else None, torch.randn(shape)]
    given = given if is_added else given[:3]

    def plain(x: Tensor, weight: Tensor | None, bias: Tensor | None, added: Tensor | None = None) -> list[Tensor]:
        y, mean, var = formula(x, weight, bias)
        y = y if added is None else y + added
        return [y.relu() if relu else y, mean, var]

    def one_pass(x: Tensor, weight: Tensor | None, bias: Tensor | None, added: Tensor | None = None) -> list[Tensor]:
        x = x.contiguous(memory_format=LAYOUTS[x.dim()])
        mean, var, samples = torch.zeros(4, x.shape[1] // 4), torch.zeros(x.shape[1] // 4), x.numel() // x.shape[1]
        y = norms.batch_norm_and_relu(x, mean, var, weight, bias, added, True, 1.0, EPS, relu=relu)
        assert "BatchNorm" in type(y.grad_fn).__name__
        return [y, mean, var * (samples - 1) / samples]

    doubles: list[Any] = [None if t is None else t.double() for t in given]
    before = formula(*doubles[:3])[0] + (doubles[3] if is_added else 0)
    grad[before.abs() < 1e-3] = 0
    assert_all_near(passed(one_pass, given, grad, torch.float32), passed(plain, given, grad, torch.float64))


def test_a_long_sum_and_an_outlier_keep_their_digits() -> None:
    given, grad = drawn((64, 8, 40, 40))
    assert given[0] is not None
    given[0][0, :, 0, 0] = 1e4
    assert_all_near(passed(kernels, given, grad, torch.float32), passed(formula, given, grad, torch.float64))


@pytest.mark.parametrize("build", _native.builds(native.PACKAGE))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_build_and_any_number_of_threads(build: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same bits from as many threads, and from any other number: pieces are summed in one order."""
    monkeypatch.setattr(batch_norm, "NUMBERS_OF_A_THREAD", 1)
    builds = _native.builds(native.PACKAGE)
    monkeypatch.setattr(_native, "builds", lambda _: builds[: builds.index(build) + 1])
    given, grad = drawn((19, 20, 13, 10))

    def with_threads(count: int) -> list[Tensor]:
        monkeypatch.setattr(torch, "get_num_threads", lambda: count)
        return passed(kernels, given, grad, torch.float32)

    found = with_threads(threads)
    for one, again, alone in zip(found, with_threads(threads), with_threads(1), strict=True):
        assert torch.equal(one, again)
        assert torch.equal(one, alone)
    assert_all_near(found, passed(formula, given, grad, torch.float64))


def test_gradients_in_another_layout() -> None:
    (x, weight, bias), grad = drawn((3, 8, 5, 4))
    last = grad.contiguous(memory_format=torch.channels_last)
    for one, other in zip(
        passed(kernels, [x, weight, bias], grad, torch.float32),
        passed(kernels, [x, weight, bias], last, torch.float32),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_numbers_that_are_not_finite_stay_visible() -> None:
    for bad in (float("nan"), float("inf")):
        x = torch.randn(6, 8)
        x[2, 1] = bad
        y = functional.batch_norm(x, None, None, training=True)
        assert y[:, [1, 3, 5, 7]].isnan().all()  # the whole neuron
        assert y[:, [0, 2, 4, 6]].isfinite().all()


def test_derivatives_of_derivatives() -> None:
    given, grad = drawn((3, 8, 4, 5))

    def twice(form, dtype: torch.dtype) -> list[Tensor]:
        inputs = [t.to(dtype).requires_grad_() for t in given if t is not None]
        first = torch.autograd.grad(form(*inputs)[0], inputs, grad.to(dtype), create_graph=True)
        return list(torch.autograd.grad(torch.stack([t.square().sum() for t in first]).sum(), inputs[:2]))

    assert_all_near(twice(kernels, torch.float32), twice(formula, torch.float64), 10 * ERROR)


def test_what_it_cannot_do_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, weight, bias), _ = drawn((2, 8, 3, 3))
    assert x is not None
    assert not batch_norm.can_take(x, weight, bias)
    last = x.contiguous(memory_format=torch.channels_last)
    assert batch_norm.can_take(last, weight, bias)
    assert not batch_norm.can_take(last.double(), weight, bias)
    assert not batch_norm.can_take(last[:, :4], weight, bias)
    monkeypatch.setenv("QUERN_NATIVE", "0")
    assert not batch_norm.can_take(last, weight, bias)


def test_who_watches_gets_plain_operations() -> None:
    layer, x = qnn.QBatchNorm2d(8), torch.randn(4, 8, 5, 5).to(memory_format=torch.channels_last)
    wanted = layer(x)
    program = torch.export.export(layer, (x,))
    assert "var_mean" in str(program.graph)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x)
    for found in (program.module()(x), half):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@each_compiler_and_build
def test_compilers_have_nothing_to_say(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_no_warnings("batch_norm", compiler, flags, tmp_path)


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    assert_in_bounds("native/batch_norm", tmp_path, "192 normalisations\n")
