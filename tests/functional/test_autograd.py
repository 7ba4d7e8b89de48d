"""Who differentiates: function transforms, forward mode, hooks and batched gradients see through every form."""

import pytest
import torch
from torch import Tensor

from quern.functional.products import Geometry
from tests.functional.test_products import FORMS, assert_near, block_form

others = pytest.mark.parametrize("form", [FORMS["hadamard"], FORMS["stacked"]], ids=["hadamard", "stacked"])


@others
@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_the_gradients_asked_for(form, needs: tuple[bool, bool, bool]) -> None:
    geometry = Geometry((1,), (1,), (1,), 1, False, (0,))
    variables = [torch.randn(*s, dtype=torch.float64) for s in ((2, 8, 5), (4, 3, 2, 3), (4, 3))]
    for variable, need in zip(variables, needs, strict=True):
        variable.requires_grad_(need)
    wanted = [v for v in variables if v.requires_grad]
    found = torch.autograd.grad(form(*variables, geometry).square().sum(), wanted)
    reference = torch.autograd.grad(block_form(*variables, geometry).square().sum(), wanted)  # pyright: ignore
    for a, b in zip(found, reference, strict=True):
        assert_near(a, b, 1e-10)


@others
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it
def test_function_transforms_and_forward_mode_see_through(form) -> None:
    geometry = Geometry((1, 1), (1, 1), (1, 1), 1, False, (0, 0))
    x = torch.randn(3, 8, 4, 4, dtype=torch.float64)
    weight = torch.randn(4, 2, 2, 3, 3, dtype=torch.float64)

    def per_sample(chosen) -> Tensor:
        def loss(w: Tensor, sample: Tensor) -> Tensor:
            return chosen(sample.unsqueeze(0), w, None, geometry).square().sum()

        return torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)

    torch.testing.assert_close(per_sample(form), per_sample(block_form), rtol=1e-10, atol=1e-10)
    tangent = torch.randn_like(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        outputs = [chosen(dual, weight, None, geometry) for chosen in (block_form, form)]
        slopes = [torch.autograd.forward_ad.unpack_dual(y).tangent for y in outputs]
    assert slopes[0] is not None
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-10, atol=1e-10)


@others
def test_hooks_run_once_and_batched_gradients_work(form) -> None:
    geometry = Geometry((1, 1), (1, 1), (1, 1), 1, False, (0, 0))
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for chosen in (block_form, form):
        for create_graph in (False, True):
            h = x * 1
            h.register_hook(lambda g: g * 0.5)
            y = chosen(h, weight, None, geometry)
            found.append(torch.autograd.grad(y.square().sum(), x, create_graph=create_graph)[0])
    for gradient in found[1:]:
        torch.testing.assert_close(gradient, found[0], rtol=1e-10, atol=1e-10)
    several = torch.randn(3, 2, 8, 4, 4, dtype=torch.float64)
    rows = []
    for chosen in (block_form, form):
        y = chosen(x, weight, None, geometry)
        rows.append(torch.autograd.grad(y, [x, weight], several, is_grads_batched=True))
    for a, b in zip(*rows, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
