"""All forms of the product: equal to plain loops over Hamilton products, and to each other in values and gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern.functional import hadamard, products
from quern.functional.products import Geometry
from quern.testing import tolerance
from tests import oracle


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple, tuple[int, ...], tuple[int, ...], int, torch.dtype, float]:
    """The arguments of a Geometry, the shapes of input and weight, a seed, a dtype and a magnitude."""
    space = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inner, outs = draw(st.integers(1, 3)), groups * draw(st.integers(1, 2))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(space))

    transposed = draw(st.booleans())
    kernel, stride, dilation = per_axis(1, 3), per_axis(1, 2), per_axis(1, 2)
    most = 2 if transposed else 1  # so much that something is left
    padding = tuple(draw(st.integers(0, d * (k - 1) // most)) for k, d in zip(kernel, dilation, strict=True))
    extra = tuple(draw(st.integers(0, s - 1)) if transposed else 0 for s in stride)
    size = tuple(
        d * (k - 1) + 1 + draw(st.integers(0, 2)) if not transposed else draw(st.integers(2, 4))
        for k, d in zip(kernel, dilation, strict=True)
    )
    geometry = (stride, padding, dilation, groups, transposed, extra)
    x_shape = (draw(st.integers(1, 3)), 4 * groups * inner, *size)
    weight_shape = (4, outs, inner, *kernel)
    seed = draw(st.integers(0, 2**31))
    return (
        geometry,
        x_shape,
        weight_shape,
        seed,
        draw(st.sampled_from([torch.float32, torch.float64])),
        draw(st.sampled_from([1e-8, 1.0, 1e4])),
    )


def block_form(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    expanded = products.block_weight(weight, "rijk", geometry.groups, geometry.transposed)
    return products.block_convolution(x, expanded, bias, geometry)


def hadamard_form(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    pair = hadamard.hadamard_weights(weight, geometry.groups, geometry.transposed)
    return hadamard.hadamard_convolution(x, pair, bias, geometry)


FORMS = {"block": block_form, "hadamard": hadamard_form, "stacked": products.stacked_convolution}


def assert_near(found: Tensor, wanted: Tensor, limit: float) -> None:
    found, wanted = found.detach(), wanted.detach()
    scale = wanted.abs().max().clamp_min(torch.finfo(wanted.dtype).tiny)
    assert float((found - wanted).abs().max() / scale) <= limit


def loops(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    arrays = [None if t is None else t.detach().double().numpy() for t in (x, weight, bias)]
    g = geometry
    if g.transposed:
        y = oracle.conv_transpose(*arrays, g.stride, g.padding, g.output_padding, g.dilation, g.groups)  # pyright: ignore
    else:
        y = oracle.conv(*arrays, g.stride, [(p, p) for p in g.padding], g.dilation, g.groups)  # pyright: ignore
    return torch.from_numpy(y).to(x.dtype)


@given(convolutions(), st.booleans(), st.sampled_from([1, 1 << 10, 1 << 30]))
def test_forms_equal_loops_and_each_other(drawn, with_bias: bool, slice_bytes: int) -> None:
    arguments, x_shape, weight_shape, seed, dtype, magnitude = drawn
    geometry = Geometry(*arguments)
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator, dtype=dtype) * magnitude).requires_grad_()

    x, weight = leaf(*x_shape), leaf(*weight_shape)
    bias = (leaf(4, weight_shape[1]) * magnitude).detach().requires_grad_() if with_bias else None
    variables = [x, weight] if bias is None else [x, weight, bias]
    limit = tolerance(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hadamard, "SLICE_BYTES", slice_bytes)
        wanted = loops(x, weight, bias, geometry)
        gradient = torch.randn(wanted.shape, generator=generator, dtype=dtype)
        gradients = {}
        for name, form in FORMS.items():
            y = form(x, weight, bias, geometry)
            assert y.shape == wanted.shape
            assert_near(y, wanted, limit)
            gradients[name] = torch.autograd.grad(y, variables, gradient)
        for name in ("hadamard", "stacked"):
            for found, reference in zip(gradients[name], gradients["block"], strict=True):
                assert_near(found, reference, limit)


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gradients_and_second_derivatives_match_finite_differences(form, transposed: bool) -> None:
    geometry = Geometry((2, 1), (1, 0), (1, 2), 2, transposed, (1, 0) if transposed else (0, 0))
    x = torch.randn(2, 16, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def function(*arguments: Tensor) -> Tensor:
        return form(*arguments, geometry)

    assert torch.autograd.gradcheck(function, (x, weight, bias))
    small = torch.randn(1, 16, 1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(function, (small, weight, bias))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 6), st.booleans(), st.integers(0, 2**31))
def test_linear_forms_equal_loops(inner: int, outs: int, rows: int, with_bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(rows, 4 * inner, dtype=torch.float64)
    weight = torch.randn(4, outs, inner, dtype=torch.float64)
    bias = torch.randn(4, outs, dtype=torch.float64) if with_bias else None
    wanted = torch.from_numpy(oracle.linear(x.numpy(), weight.numpy(), None if bias is None else bias.numpy()))
    in_eight = hadamard.hadamard_linear(x, hadamard.hadamard_weights(weight), bias)
    for result in (in_eight, products.stacked_linear(x, weight, bias)):
        torch.testing.assert_close(result, wanted, rtol=1e-10, atol=1e-10)


def test_block_weight_is_left_multiplication() -> None:
    weight = torch.randn(4, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(products.block_weight(weight), torch.from_numpy(oracle.block(weight.numpy())))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layout_is_kept_and_the_output_may_be_changed_in_place(form, layout: torch.memory_format) -> None:
    geometry = Geometry((1, 1), (1, 1), (1, 1), 1, False, (0, 0))
    x = torch.randn(4, 64, 6, 6).to(memory_format=layout)
    weight = torch.randn(4, 16, 16, 3, 3, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hadamard, "SLICE_BYTES", 1)  # one sample a slice
        y = form(x, weight, None, geometry)
    assert y.is_contiguous(memory_format=layout)
    y.relu_().sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("form", [hadamard_form, products.stacked_convolution])
def test_autocast_works_in_every_form(form) -> None:
    geometry = Geometry((1, 1), (1, 1), (1, 1), 1, False, (0, 0))
    x, weight = torch.randn(2, 8, 4, 4), torch.randn(4, 2, 2, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        block, other = block_form(x, weight, None, geometry), form(x, weight, None, geometry)
    assert other.dtype == block.dtype == torch.bfloat16
    other.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
    torch.testing.assert_close(other, block, rtol=0.1, atol=0.3)


def test_the_choice_of_form_is_by_size_and_device() -> None:
    cpu = torch.device("cpu")
    assert products.choose_conv_form(cpu, 64, 128, 1, 9, 400 * 16, None) == "hadamard"
    assert products.choose_conv_form(cpu, 64, 128, 1, 9, 400 * 16, "winograd") == "winograd"
    assert products.choose_conv_form(cpu, 4, 128, 1, 9, 400 * 16, "winograd") == "block"
    for few, many in ((8, 8), (10, 64), (11, 11)):  # not whole vectors, or too few to be worth the transforms
        assert products.choose_conv_form(cpu, few, many, 1, 9, 6400, "winograd") == "block"
    for few, many in ((8, 16), (12, 12), (17, 17)):
        assert products.choose_conv_form(cpu, few, many, 1, 9, 6400, "winograd") == "winograd"
    assert products.choose_conv_form(cpu, 4, 8, 1, 25, 400 * 121, None) == "block"
    assert products.choose_conv_form(cpu, 64, 128, 1, 9, 16, "winograd") == "stacked"
    assert products.choose_conv_form(cpu, 512, 512, 1, 9, 128, "winograd") == "stacked"
    assert products.choose_conv_form(torch.device("cuda"), 64, 128, 1, 9, 400 * 16, "winograd") == "block"
    assert products.choose_linear_form(cpu, 512, 512, 400) == "hadamard"
    assert products.choose_linear_form(cpu, 2048, 10, 400) == "block"
    assert products.choose_linear_form(cpu, 512, 512, 1) == "stacked"
