"""What is asked of every kernel in C: its error against float64, what compilers say, and what the sanitizers say."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quern.functional import native
from tests.runtime.compilers import COMPILERS, compiled

ERROR = 2e-5  # of the largest number
FOLDER = Path(native.__file__).parent

BUILDS = [(), ("-mavx2", "-mfma"), ("-mavx2", "-mfma", "-mavx512f", "-mavx512vl")]


def each_compiler_and_build(test: Any) -> Any:
    """Run a test of ``compiler`` and ``flags`` for all that there are."""
    test = pytest.mark.parametrize("compiler", COMPILERS)(pytest.mark.parametrize("flags", BUILDS)(test))
    return pytest.mark.skipif(not COMPILERS, reason="NO C COMPILER: the source of the kernels was not looked at")(test)


def passed(form: Any, given: tuple[Tensor, ...], geometry: Any, dtype: torch.dtype) -> list[Tensor]:
    """The result, and the gradients of all inputs."""
    *inputs, grad = (t.to(dtype) for t in given)
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = form(*inputs, geometry)
    return [y.detach(), *torch.autograd.grad(y, inputs, grad)]


def assert_near(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert float((one.double() - other).abs().max()) <= ERROR * float(other.abs().max())


def assert_no_warnings(name: str, compiler: str, flags: tuple[str, ...], folder: Path) -> None:
    warnings = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-O3", "-fPIC", "-c")
    assert not compiled(compiler, folder / f"{name}.o", *warnings, *flags, sources=(FOLDER / f"{name}.c",))


def assert_in_bounds(name: str, folder: Path, wanted: str) -> None:
    """A program that runs all passes under the sanitizers, in memory of just the size that they ask for."""
    if not COMPILERS:
        pytest.skip("NO C COMPILER: the sanitizers did not look at the kernels")
    program = folder / "sizes"
    flags = (
        "-std=c99",
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-mavx2",
        "-mfma",
        "-lm",
    )
    compiled(COMPILERS[0], program, *flags, f"-I{FOLDER}", sources=(Path(__file__).parent / f"{name}_sizes.c",))
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == wanted
