"""The laws of the algebra, over shapes, dtypes and magnitudes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern import algebra
from tests import oracle

DTYPES = [torch.float32, torch.float64]
EPS = {torch.float32: 2e-6, torch.float64: 4e-15}


@st.composite
def quaternions(draw: st.DrawFn, count: int = 1, low: float = 1e-15, high: float = 1e6) -> list[Tensor]:
    """``count`` tensors (4, n) of one dtype, each with its own magnitude, as far as the dtype allows: the square of the
    modulus of their product must be a normal number."""
    dtype = draw(st.sampled_from(DTYPES))
    low = max(low, (10 * torch.finfo(dtype).tiny) ** (1 / (2 * count)) * 10)
    n = draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scales = [10 ** draw(st.floats(math.log10(low), math.log10(high))) for _ in range(count)]
    return [torch.randn(4, n, generator=generator, dtype=dtype) * scale for scale in scales]


def assert_close(found: Tensor, wanted: Tensor, scale: Tensor | float, factor: float = 1.0) -> None:
    """Equal up to rounding, relative to ``scale``."""
    assert torch.isfinite(found).all()
    limit = factor * EPS[found.dtype] * torch.as_tensor(scale, dtype=found.dtype)
    assert ((found - wanted).abs() <= limit).all(), (found, wanted)


def unit(name: str) -> Tensor:
    return torch.eye(4)["rijk".index(name)].unsqueeze(1)


def test_units_satisfy_hamiltons_equations() -> None:
    i, j, k, one = unit("i"), unit("j"), unit("k"), unit("r")
    product = algebra.hamilton
    assert torch.equal(product(i, i), -one)
    assert torch.equal(product(j, j), -one)
    assert torch.equal(product(k, k), -one)
    assert torch.equal(product(product(i, j), k), -one)
    assert torch.equal(product(i, j), k)
    assert torch.equal(product(j, i), -k)


@given(quaternions(2))
def test_product_matches_complex_matrices(q: list[Tensor]) -> None:
    a, b = q
    wanted = torch.from_numpy(oracle.hamilton(a.double().numpy(), b.double().numpy())).to(a.dtype)
    assert_close(algebra.hamilton(a, b), wanted, a.norm(dim=0) * b.norm(dim=0))


@given(quaternions(3))
def test_product_is_associative_and_distributive(q: list[Tensor]) -> None:
    a, b, c = q
    product = algebra.hamilton
    scale = a.norm(dim=0) * b.norm(dim=0) * c.norm(dim=0)
    assert_close(product(product(a, b), c), product(a, product(b, c)), scale, 2)
    assert_close(product(a, b + c), product(a, b) + product(a, c), a.norm(dim=0) * (b.norm(dim=0) + c.norm(dim=0)), 2)


@given(quaternions(2))
def test_modulus_is_multiplicative(q: list[Tensor]) -> None:
    a, b = q
    wanted = algebra.modulus(a) * algebra.modulus(b)
    assert_close(algebra.modulus(algebra.hamilton(a, b)), wanted, wanted, 2)


@given(quaternions(2))
def test_conjugate_reverses_products(q: list[Tensor]) -> None:
    a, b = q
    wanted = algebra.hamilton(algebra.conjugate(b), algebra.conjugate(a))
    scale = a.norm(dim=0) * b.norm(dim=0)
    assert_close(algebra.conjugate(algebra.hamilton(a, b)), wanted, scale)
    square = algebra.hamilton(algebra.conjugate(a), a)
    assert_close(square[0], algebra.modulus(a) ** 2, algebra.modulus(a) ** 2)


@given(quaternions(2))
def test_matrices_multiply_from_their_side(q: list[Tensor]) -> None:
    a, b = q
    scale = a.norm(dim=0) * b.norm(dim=0)
    left = torch.einsum("mqn,qn->mn", algebra.left_matrix(a), b)
    right = torch.einsum("mqn,qn->mn", algebra.right_matrix(b), a)
    assert_close(left, algebra.hamilton(a, b), scale)
    assert_close(right, algebra.hamilton(a, b), scale)


@given(quaternions(1))
def test_inverse_and_normalize(q: list[Tensor]) -> None:
    (a,) = q
    one = torch.zeros_like(a)
    one[0] = 1
    assert_close(algebra.hamilton(a, algebra.inverse(a)), one, 1.0, 2)
    assert_close(algebra.modulus(algebra.normalize(a)), torch.ones_like(a[0]), 1.0)
    assert_close(algebra.normalize(a) * algebra.modulus(a), a, algebra.modulus(a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_inverse_and_normalize_in_the_whole_range_of_the_dtype(dtype: torch.dtype) -> None:
    one, a = torch.tensor([1.0, 0, 0, 0], dtype=dtype), torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=dtype)
    least, most = (math.log10(v) for v in (torch.finfo(dtype).tiny, torch.finfo(dtype).max))
    for power in np.linspace(least + 1, most - 1, 40):
        q = (a * 10.0 ** float(power)).requires_grad_()
        assert_close(algebra.normalize(q).detach(), a / a.norm(), 1.0, 2)
        assert_close(algebra.hamilton(q, algebra.inverse(q)).detach(), one, 1.0, 4)
        if abs(power) < 0.4 * most:  # beyond, the gradient itself is out of range
            (found,) = torch.autograd.grad(algebra.normalize(q)[0], q)
            wanted = (one - a[0] * a / a.norm() ** 2) / q.detach().double().norm()
            assert_close(found, wanted.to(dtype), float(wanted.abs().max()), 4)


@given(quaternions(1, low=1e-15, high=1.0))
def test_log_inverts_exp(q: list[Tensor]) -> None:
    (a,) = q
    a = a / max(1.0, float(a.abs().max()))  # the angle stays below pi
    assert_close(algebra.log(algebra.exp(a)), a, 1.0, 4)


@given(quaternions(1))
def test_exp_inverts_log(q: list[Tensor]) -> None:
    (a,) = q
    # An absolute error of ln|a| is a relative one of |a|.
    factor = 4 + 4 * float(algebra.modulus(a).log().abs().max())
    assert_close(algebra.exp(algebra.log(a)), a, algebra.modulus(a), factor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_and_log_of_real_numbers(dtype: torch.dtype) -> None:
    real = torch.tensor([[2.0, -3.0, -1.0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=dtype)
    assert torch.equal(algebra.exp(real)[1:], torch.zeros(3, 3, dtype=dtype))
    assert_close(algebra.exp(real)[0], real[0].exp(), real[0].exp())
    log = algebra.log(real)
    assert_close(log[0], real[0].abs().log(), 2.0)
    assert_close(log[1], torch.tensor([0, math.pi, math.pi], dtype=dtype), 4.0)
    assert_close(algebra.exp(log), real, 4.0, 2)


@given(quaternions(2))
def test_rotation_is_the_sandwich_product_and_an_isometry(q: list[Tensor]) -> None:
    turn, v4 = q
    v = v4[1:]
    pure = torch.cat([torch.zeros_like(v[:1]), v])
    sandwich = algebra.hamilton(algebra.hamilton(turn, pure), algebra.inverse(turn))
    found = algebra.rotate(v, turn)
    assert_close(found, sandwich[1:], v.norm(dim=0), 4)
    assert_close(sandwich[0], torch.zeros_like(sandwich[0]), v.norm(dim=0), 4)
    assert_close(found.norm(dim=0), v.norm(dim=0), v.norm(dim=0), 4)


def test_quarter_turn_about_k_takes_i_to_j() -> None:
    half = math.sqrt(0.5)
    turned = algebra.rotate(torch.tensor([1.0, 0, 0]), torch.tensor([half, 0, 0, half]))
    np.testing.assert_allclose(turned.numpy(), [0, 1, 0], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_finite_at_zero(dtype: torch.dtype) -> None:
    zero = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(algebra.modulus(zero).sum(), zero)
    assert torch.equal(gradient, torch.zeros_like(gradient))
    for function in (algebra.normalize, algebra.exp):
        (gradient,) = torch.autograd.grad(function(zero).sum(), zero)
        assert gradient.isfinite().all()
    one = torch.tensor([1.0, 0, 0, 0], dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(algebra.log(one).sum(), one)
    assert torch.equal(gradient, torch.ones_like(gradient))


@given(quaternions(1, low=1e-15, high=1e6))
def test_gradient_of_modulus_is_the_direction(q: list[Tensor]) -> None:
    a = q[0].requires_grad_()
    (gradient,) = torch.autograd.grad(algebra.modulus(a).sum(), a)
    assert_close(gradient, (a / a.norm(dim=0)).detach(), 1.0, 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: algebra.hamilton(a, b),
        lambda a, b: algebra.inverse(a) + b,
        lambda a, b: algebra.normalize(a) * b,
        lambda a, b: algebra.exp(a) + algebra.log(b),
        lambda a, b: algebra.rotate(b[1:], a),
        lambda a, b: algebra.left_matrix(a) * algebra.right_matrix(b),
    ],
)
def test_gradients_match_finite_differences(function) -> None:
    a, b = (torch.randn(4, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(function, (a, b))


def test_the_quaternion_axis_is_free_and_the_others_broadcast() -> None:
    a, b = torch.randn(4, 1, 5), torch.randn(4, 3, 5)
    wanted = algebra.hamilton(a, b)
    found = algebra.hamilton(a.movedim(0, -1), b.movedim(0, -1), dim=-1)
    torch.testing.assert_close(found.movedim(-1, 0), wanted)
    for function in (algebra.conjugate, algebra.inverse, algebra.normalize, algebra.exp, algebra.log):
        torch.testing.assert_close(function(b.movedim(0, 1), dim=1).movedim(1, 0), function(b))


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(ValueError, match=r"a needs size 4 along dim 0 .* \(3, 2\)"):
        algebra.hamilton(torch.ones(3, 2), torch.ones(4, 2))
    with pytest.raises(ValueError, match="size 3 along dim 0"):
        algebra.rotate(torch.ones(4), torch.ones(4))
