"""Max-pooling in C: torch's own, bit by bit, in values and gradients."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern import _native
from quern import nn as qnn
from quern.functional import native, split_max_pool
from quern.functional.split_max_pool import can_pool, split_max_pool2d
from tests.functional.native_kernels import assert_in_bounds, assert_no_warnings, each_compiler_and_build

pytestmark = pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last).detach().requires_grad_()


def passed(pool, x: Tensor, grad: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = pool(x, 2)
    return [y.detach(), *torch.autograd.grad(y, x, grad)]


def assert_torchs(x: Tensor, grad: Tensor) -> None:
    assert can_pool(x, 2, 2, 0, 1)
    found, wanted = passed(split_max_pool2d, x, grad), passed(TF.max_pool2d, x, grad)
    for one, other in zip(found, wanted, strict=True):
        assert one.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(2, 13), st.integers(2, 13)),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
    st.integers(0, 2**31),
)
def test_it_is_torchs(shape: tuple[int, int, int, int], ties: bool, bad: float, seed: int) -> None:
    """The first of equal numbers gets the gradient; what is not a number stays visible, infinities are numbers."""
    torch.manual_seed(seed)
    x = torch.randn(shape)
    x = x.round() if ties else x
    for value in (float("nan"), float("inf"), -float("inf")):
        x[torch.rand(shape) < bad] = value
    assert_torchs(last(x), torch.randn(*shape[:2], shape[2] // 2, shape[3] // 2))


@pytest.mark.parametrize("build", _native.builds(native.PACKAGE))
@pytest.mark.parametrize("threads", [1, 3])
def test_every_build_and_any_number_of_threads(build: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_max_pool, "NUMBERS_OF_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    builds = _native.builds(native.PACKAGE)
    monkeypatch.setattr(_native, "builds", lambda _: builds[: builds.index(build) + 1])
    assert_torchs(last(torch.randn(9, 20, 15, 12)), torch.randn(9, 20, 7, 6))


def test_derivatives_of_derivatives() -> None:
    x = last(torch.randn(2, 8, 5, 7))

    def twice(pool) -> Tensor:
        (first,) = torch.autograd.grad(pool(x, 2).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(twice(split_max_pool2d), twice(TF.max_pool2d))


def test_an_activation_may_be_done_in_place() -> None:
    x = last(torch.randn(2, 8, 6, 6))
    (found,) = torch.autograd.grad(torch.relu_(split_max_pool2d(x, 2)).sum(), x)
    (wanted,) = torch.autograd.grad(torch.relu(TF.max_pool2d(x, 2)).sum(), x)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "options", [{"kernel_size": 3}, {"kernel_size": 2, "stride": 1}, {"kernel_size": 2, "ceil_mode": True}]
)
def test_other_windows_are_left_to_torch(options: dict) -> None:
    x = last(torch.randn(2, 8, 7, 7))
    assert torch.equal(split_max_pool2d(x, **options), TF.max_pool2d(x, **options))


def test_what_it_cannot_do_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 8, 6, 6)
    sizes = (2, 2, 0, 1)
    assert can_pool(last(x), *sizes)
    assert not can_pool(x, *sizes)
    assert not can_pool(last(x).double(), *sizes)
    assert not can_pool(last(x)[:0], *sizes)
    assert not can_pool(last(x), 2, 2, 1, 1)
    assert not can_pool(last(x).detach(), *sizes)
    with torch.no_grad():
        assert not can_pool(last(x), *sizes)
        assert can_pool(last(torch.randn(16, 8, 16, 16)), *sizes)  # soon enough begun for so many
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_pool(last(x), *sizes)
    program = torch.export.export(qnn.SplitMaxPool2d(2), (last(x),))
    assert "max_pool2d" in str(program.graph)
    monkeypatch.setenv("QUERN_NATIVE", "0")
    assert not can_pool(last(x), *sizes)


@each_compiler_and_build
def test_compilers_have_nothing_to_say(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_no_warnings("max_pool", compiler, flags, tmp_path)


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    assert_in_bounds("max_pool", tmp_path, "48 poolings\n")
