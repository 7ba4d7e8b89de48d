"""A folded network computes the same, and what cannot be folded is left alone."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import models
from quern import nn as qnn
from quern.compact.folding import fold
from quern.errors import FoldingError, TraceError
from quern.models import recipe_of
from quern.testing import assert_same_function
from tests.networks import Wired, random_values

F64 = torch.float64
Q_CONV = (qnn.QConv1d, qnn.QConv2d, qnn.QConv3d)
Q_TRANSPOSED = (qnn.QConvTranspose1d, qnn.QConvTranspose2d, qnn.QConvTranspose3d)
REAL_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
REAL_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
Q_NORM = (qnn.QBatchNorm1d, qnn.QBatchNorm2d, qnn.QBatchNorm3d)
REAL_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def folded_names(model: nn.Module) -> list[str]:
    return [name for step in recipe_of(model).steps for name in step.get("fold", [])]


def check(model: nn.Module, x: Tensor, names: list[str]) -> nn.Module:
    """``names`` are folded, and the function stays."""
    model = random_values(model)
    before = copy.deepcopy(model.state_dict())
    folded = fold(model)
    assert folded_names(folded) == names
    assert_same_function(folded, model, x.to(F64))
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    for name in names:
        assert type(folded.get_submodule(name)) is nn.Identity
    return folded


@st.composite
def convolutions(draw: Any) -> tuple[Callable[[], Any], bool, bool]:
    """A convolution of 16 to 16 channels, whether it is a quaternion one, and whether it pads zeros (or is transposed,
    which comes to the same)."""
    space = draw(st.integers(0, 2))
    quaternion, transposed = draw(st.booleans()), draw(st.booleans())
    kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    groups, bias = draw(st.sampled_from((1, 2, 4))), draw(st.booleans())
    padding = draw(st.integers(0, 1))
    if transposed:
        kind = (Q_TRANSPOSED if quaternion else REAL_TRANSPOSED)[space]
        extra = draw(st.integers(0, 1)) if max(stride, dilation) > 1 else 0
        return partial(kind, 16, 16, kernel, stride, padding, extra, groups, bias, dilation), quaternion, True
    mode = draw(st.sampled_from(("zeros", "circular", "reflect", "replicate")))
    kind = (Q_CONV if quaternion else REAL_CONV)[space]
    layer = partial(kind, 16, 16, kernel, stride, padding, dilation, groups, bias, mode)
    return layer, quaternion, padding > 0 and mode == "zeros"


BETWEEN = st.sampled_from((nn.Identity, nn.Dropout, qnn.QDropout))


@pytest.mark.slow
@settings(max_examples=80)
@given(convolutions(), st.booleans(), st.booleans(), BETWEEN, st.booleans())
def test_a_convolution_takes_the_norm_next_to_it(
    layer: tuple[Callable[[], Any], bool, bool], q_norm: bool, before: bool, between: type[nn.Module], last: bool
) -> None:
    make, quaternion, pads = layer
    conv = make()
    space = len(conv.kernel_size)
    norm = (Q_NORM if q_norm else REAL_NORM)[space - 1](16, affine=last)
    parts = [norm, between(), conv] if before else [conv, between(), norm]
    takes = (q_norm or not quaternion) and not (before and pads)
    check(nn.Sequential(*parts), torch.randn(2, 16, *(7, 6, 5)[:space]), ["0" if before else "2"] if takes else [])


@pytest.mark.parametrize("layer", [qnn.QLinear, nn.Linear])
@pytest.mark.parametrize("norm", [qnn.QBatchNorm1d, nn.BatchNorm1d])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_takes_the_norm_on_either_side(layer: Any, norm: Any, bias: bool) -> None:
    takes = layer is nn.Linear or norm is qnn.QBatchNorm1d
    check(nn.Sequential(layer(8, 12, bias), norm(12)), torch.randn(5, 8), ["1"] if takes else [])
    check(nn.Sequential(norm(8), layer(8, 12, bias)), torch.randn(5, 8), ["0"] if takes else [])


def test_flattening_may_stand_between() -> None:
    x = torch.randn(3, 8, 2, 3)
    check(nn.Sequential(qnn.QBatchNorm2d(8), nn.Flatten(), qnn.QLinear(48, 8)), x, ["0"])
    check(nn.Sequential(nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(48, 8)), x, ["0"])
    check(Wired(lambda m, x: m.b(m.a(x).flatten(1)), a=qnn.QBatchNorm2d(8), b=qnn.QLinear(48, 8)), x, ["a"])
    to_one = qnn.QConv2d(8, 12, (2, 3))
    check(nn.Sequential(to_one, nn.Flatten(), qnn.QBatchNorm1d(12)), x, ["2"])
    check(nn.Sequential(qnn.QConv2d(8, 12, 1), nn.Flatten(), qnn.QBatchNorm1d(72)), x, [])
    check(nn.Sequential(qnn.QBatchNorm2d(8), nn.Flatten(2), qnn.QLinear(6, 8, input_parts="r")), x, [])


def test_parts_of_the_input_that_are_not_there() -> None:
    """Of quaternions with one part every real channel has its own scale; with three, a real norm does not fit."""
    x = torch.randn(3, 12, 5, 5)
    check(nn.Sequential(nn.BatchNorm2d(12), qnn.QConv2d(12, 8, 3, input_parts="r")), x, ["0"])
    check(nn.Sequential(nn.BatchNorm2d(12), qnn.QConv2d(12, 8, 3, input_parts="ijk")), x, [])
    check(nn.Sequential(qnn.QBatchNorm2d(12), qnn.QConv2d(12, 8, 3, input_parts="r")), x, [])


def test_the_constant_of_a_convolution_is_scaled_too() -> None:
    conv = qnn.QConv2d(8, 12, 3, padding=1)
    conv.constant = nn.Parameter(torch.randn(4, 3, 1, 3, 3))
    check(nn.Sequential(conv, qnn.QBatchNorm2d(12)), torch.randn(2, 8, 5, 5), ["1"])
    open_conv = qnn.QConv2d(8, 12, 3)
    open_conv.constant = nn.Parameter(torch.randn(4, 3, 1, 3, 3))
    check(nn.Sequential(qnn.QBatchNorm2d(8), open_conv), torch.randn(2, 8, 5, 5), ["0"])


def test_one_layer_takes_several_norms() -> None:
    parts = (qnn.QBatchNorm2d(8), qnn.QConv2d(8, 8, 3), qnn.QBatchNorm2d(8), qnn.QBatchNorm2d(8, affine=False))
    check(nn.Sequential(*parts), torch.randn(2, 8, 5, 5), ["0", "2", "3"])


def test_layouts_types_and_missing_parameters_are_kept() -> None:
    conv = qnn.QConv2d(8, 16, 3, bias=False).requires_grad_(False)
    model: Any = nn.Sequential(conv, qnn.QBatchNorm2d(16, fixed_scale=True), qnn.QLinear(4, 4))
    model = model.to(memory_format=torch.channels_last).half().train()
    folded: Any = fold(model)
    assert folded[0].weight.stride() == conv.weight.stride()
    assert folded[0].weight.dtype == folded[0].bias.dtype == torch.half
    assert not folded[0].bias.requires_grad
    assert all(module.training for module in folded.modules())


def twice(m: Any, x: Tensor) -> Tensor:
    return m.norm(m.conv(x)) + m.conv(x)


def shared_norm(m: Any, x: Tensor) -> Tensor:
    return m.norm(m.conv(m.norm(x)))


def seen(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    return m.norm(y) + y


def weight_read(m: Any, x: Tensor) -> Tensor:
    return m.norm(m.conv(x)) * m.conv.weight.sum()


def overwritten(m: Any, x: Tensor) -> Tensor:
    y = torch.tanh(x)
    z = m.norm(y)
    y.mul_(2)
    return m.conv(z)


def overwritten_by_module(m: Any, x: Tensor) -> Tensor:
    y = torch.tanh(x)
    z = m.norm(y)
    return m.conv(z) + m.relu(y)


@pytest.mark.parametrize(
    ("wiring", "names"),
    [
        (twice, []),
        (shared_norm, []),
        (seen, []),
        (weight_read, []),
        (overwritten, []),
        (overwritten_by_module, ["norm"]),
    ],
)
def test_what_others_see_is_not_folded(wiring: Callable[..., Any], names: list[str]) -> None:
    model = Wired(wiring, conv=qnn.QConv2d(8, 8, 1), norm=qnn.QBatchNorm2d(8), relu=nn.ReLU(inplace=True))
    check(model, torch.randn(2, 8, 4, 4), names)


def test_norms_of_the_batch_hooks_and_activations_are_left_alone() -> None:
    x = torch.randn(4, 8, 5, 5)
    check(nn.Sequential(qnn.QConv2d(8, 8, 3), qnn.QBatchNorm2d(8, track_running_stats=False)), x, [])
    check(nn.Sequential(qnn.QConv2d(8, 8, 3), nn.ReLU(), qnn.QBatchNorm2d(8)), x, [])
    hooked = nn.Sequential(qnn.QConv2d(8, 8, 3), qnn.QBatchNorm2d(8))
    hooked[0].register_forward_hook(lambda *args: args[2] * 2)
    check(hooked, x, [])


def test_a_layer_alone_is_returned_as_a_copy() -> None:
    layer = qnn.QLinear(8, 8)
    copied = fold(layer)
    assert copied is not layer
    assert recipe_of(copied).steps == ()


def test_the_steps_are_written_down_and_can_be_done_again() -> None:
    model = random_values(models.qresnet20(widths=(8, 16, 16)))
    folded = fold(model)
    names = folded_names(folded)
    assert len(names) == 21
    assert recipe_of(folded).builder == "qresnet20"
    again = fold(models.qresnet20(widths=(8, 16, 16)).double().eval(), names)
    again.load_state_dict(folded.state_dict())
    assert_same_function(again, model, torch.randn(2, 3, 8, 8, dtype=F64))
    assert recipe_of(again).steps == recipe_of(folded).steps
    assert folded_names(fold(model, ["1"])) == ["1"]
    assert recipe_of(fold(folded)).steps == recipe_of(folded).steps  # nothing more to do
    assert recipe_of(fold(model, [])).steps == ()


def test_what_cannot_be_done_is_said() -> None:
    model = nn.Sequential(qnn.QConv2d(4, 4, 3), nn.ReLU(), qnn.QBatchNorm2d(4))
    with pytest.raises(FoldingError, match=r"^2, nothing cannot be folded: no layer .* next to it\.$"):
        fold(model, ["2", "nothing"])
    with pytest.raises(TraceError, match=r"cannot be traced by torch\.fx: .* a tensor's value"):
        fold(Wired(lambda m, x: m.a(x) if x.sum() > 0 else x, a=qnn.QLinear(4, 4)))
