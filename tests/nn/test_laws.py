"""Every law for every case."""

import pytest
import torch
from torch import nn

from quern import nn as qnn
from quern.functional import products
from quern.functional.products import Form
from quern.testing import assert_matches_real, assert_module_laws
from tests.nn.cases import CASES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(params=["block", "hadamard", "stacked"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form of the product, whatever the sizes say."""
    for choice in ("choose_conv_form", "choose_linear_form"):
        monkeypatch.setattr(products, choice, lambda *sizes: request.param)
    return request.param


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_the_real_layer_in_values_and_gradients(case: Case, dtype: torch.dtype, form: Form) -> None:
    assert_matches_real(case.build(dtype), case.real, *case.draw(dtype))


@every_case
def test_behaves_as_a_module(case: Case) -> None:
    assert_module_laws(case.make, *case.draw())


@every_case
def test_memory_layout_does_not_change_values(case: Case, form: Form) -> None:
    layer, inputs = case.build(), case.draw()
    wanted = layer(*inputs)
    odd = [torch.stack([t, t], -1)[..., 0] for t in inputs]  # the same values with gaps between them
    found = layer(*odd)
    first = lambda value: value if isinstance(value, torch.Tensor) else value[0]  # noqa: E731
    torch.testing.assert_close(first(found), first(wanted), rtol=1e-10, atol=1e-10)


@every_case
@pytest.mark.unchecked
def test_compiles_without_breaks(case: Case) -> None:
    layer, inputs = case.build(), case.draw()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_same = torch.testing.assert_close
        assert_same(compiled(*inputs), case.build()(*inputs), rtol=1e-8, atol=1e-8)


@every_case
@pytest.mark.unchecked
def test_exports(case: Case) -> None:
    layer, inputs = case.build().eval(), case.draw()
    program = torch.export.export(layer, tuple(inputs))
    torch.testing.assert_close(program.module()(*inputs), layer(*inputs), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "layer",
    [
        qnn.QDropout(0.5),
        qnn.QDropout2d(0.5),
        qnn.QBatchNorm2d(8),
        qnn.QWhiteningBatchNorm2d(8),
        qnn.QMaxPool2d(2),
        qnn.QModReLU(8),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layout_of_images_is_kept(layer: nn.Module, layout: torch.memory_format) -> None:
    x = torch.randn(3, 8, 6, 6).to(memory_format=layout)
    assert layer(x).is_contiguous(memory_format=layout)
