"""Calls that a layer remembers: the same as calls that are chosen anew, whatever changed since."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quern import functional as F
from quern import nn as qnn
from quern.functional import native, winograd

LAYERS: dict[str, Callable[[], Any]] = {
    "block": lambda: qnn.QConv2d(8, 8, 3, padding=1),
    "5x5": lambda: qnn.QConv2d(8, 8, 5, padding=2),
    "gray": lambda: qnn.QConv2d(1, 8, 5, input_parts="r"),
    "winograd": lambda: qnn.QConv2d(32, 32, 3, padding=1),
    "1d": lambda: qnn.QConv1d(8, 8, 3),
    "3d": lambda: qnn.QConv3d(8, 8, 2),
    "words": lambda: qnn.QConv2d(8, 8, 4, padding="same"),
    "transposed": lambda: qnn.QConvTranspose2d(8, 8, 3),
    "linear": lambda: qnn.QLinear(8, 12),
}


def an_input(layer: Any, batch: int, size: int) -> Tensor:
    if isinstance(layer, qnn.QLinear):
        return torch.randn(batch, size, layer.in_features)
    return torch.randn(batch, layer.in_channels, *[size] * layer.space)


def fresh(layer: Any, x: Tensor) -> Tensor:
    """What a copy says, which remembers nothing."""
    with torch.no_grad():
        return copy.deepcopy(layer)(x)


# What may happen between two calls.
def _stride(layer: Any) -> None:
    if isinstance(layer, qnn.QConv2d) and layer.padding != "same":
        layer.stride = (2, 2)


def _padding(layer: Any) -> None:
    if isinstance(layer, qnn.QConv2d):
        layer.padding = (3, 3)


def _double(layer: Any) -> None:
    layer.double()


def _single(layer: Any) -> None:
    layer.float()


def _channels_last(layer: Any) -> None:
    if layer.weight.dim() == 5:
        layer.to(memory_format=torch.channels_last)


def _weight(layer: Any) -> None:
    layer.weight.data[:, 0] *= 2


def _one_number(layer: Any) -> None:
    layer.weight.data.view(-1)[3] += 1


def _bias(layer: Any) -> None:
    layer.bias.data += 1


def _no_bias(layer: Any) -> None:
    layer.bias = None


def _loaded(layer: Any) -> None:
    layer.load_state_dict({name: 3 * t for name, t in layer.state_dict().items()})


def _trained(layer: Any) -> None:
    layer.train()
    layer.eval()


EVENTS = [_stride, _padding, _double, _single, _channels_last, _weight, _one_number, _loaded, _trained]


@given(
    kind=st.sampled_from(list(LAYERS)),
    events=st.lists(st.sampled_from([*EVENTS, _bias, None]), max_size=6),
    sizes=st.lists(st.tuples(st.sampled_from([1, 1, 2]), st.sampled_from([6, 6, 9, 18])), min_size=7, max_size=7),
    no_bias=st.booleans(),
    laid=st.booleans(),
)
def test_every_call_is_that_of_a_new_layer(
    kind: str, events: list[Any], sizes: list[tuple[int, int]], no_bias: bool, laid: bool
) -> None:
    torch.manual_seed(0)
    layer = LAYERS[kind]().eval()
    if no_bias:
        _no_bias(layer)
    for event, (batch, size) in zip([None, *events], sizes, strict=False):
        if event is not None and not (no_bias and event is _bias):
            event(layer)
        for _ in range(2):  # the second time it may be remembered
            x = an_input(layer, batch, size).to(layer.weight.dtype)
            x = x.to(memory_format=torch.channels_last) if laid and x.dim() == 4 else x
            with torch.no_grad():
                found = layer(x)
            torch.testing.assert_close(found, fresh(layer, x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    "option", [{"stride": (2, 2)}, {"padding": (2, 2)}, {"dilation": (2, 2)}, {"padding": "valid"}]
)
@pytest.mark.parametrize("kind", ["block", "5x5", "winograd"])
def test_other_options_are_another_call(kind: str, option: dict[str, Any]) -> None:
    layer = LAYERS[kind]().eval()
    x = an_input(layer, 1, 18)
    layer(x)
    for name, value in option.items():
        setattr(layer, name, value)
    torch.testing.assert_close(layer(x), fresh(layer, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["block", "5x5", "gray", "winograd", "1d", "3d", "linear"])
def test_the_second_call_is_remembered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "winograd" and not native.is_available():
        pytest.skip("THE TRAINING KERNELS ARE NOT BUILT HERE")
    layer = LAYERS[kind]().eval()
    x = an_input(layer, 1, 18 if kind == "winograd" else 8)
    with torch.no_grad():
        wanted = layer(x)
        chosen = []
        monkeypatch.setattr(F.products, "choose_conv_form", lambda *sizes: chosen.append(sizes))
        monkeypatch.setattr(F.products, "choose_linear_form", lambda *sizes: chosen.append(sizes))
        torch.testing.assert_close(layer(x), wanted, rtol=1e-4, atol=1e-5)
    assert not chosen


@pytest.mark.parametrize("kind", ["block", "5x5", "winograd", "linear"])
class TestWatchers:
    """What was remembered without gradients is not used where somebody differentiates, records or changes types."""

    @pytest.fixture(autouse=True)
    def _setup(self, kind: str) -> None:
        torch.manual_seed(0)
        self.layer = LAYERS[kind]().eval()
        self.x = an_input(self.layer, 1, 18)
        with torch.no_grad():
            for _ in range(2):
                self.wanted = self.layer(self.x)

    def test_gradients(self) -> None:
        x = self.x.clone().requires_grad_()
        self.layer(x).sum().backward()
        assert x.grad is not None
        assert self.layer.weight.grad is not None

    @torch.no_grad()
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it
    def test_forward_mode(self) -> None:
        """The map is affine: its derivative along x is its value without the bias."""
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(self.x, self.x)
            tangent = torch.autograd.forward_ad.unpack_dual(self.layer(dual)).tangent
        zero = self.layer(torch.zeros_like(self.x))
        torch.testing.assert_close(tangent, self.wanted - zero, rtol=1e-3, atol=1e-4)

    @torch.no_grad()
    def test_autocast(self) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            assert self.layer(self.x).dtype == torch.bfloat16
        assert self.layer(self.x).dtype == torch.float32

    @torch.no_grad()
    def test_other_weights_for_one_call(self) -> None:
        zeros = {name: torch.zeros_like(p) for name, p in self.layer.named_parameters()}
        assert float(torch.func.functional_call(self.layer, zeros, (self.x,)).abs().max()) == 0
        torch.testing.assert_close(self.layer(self.x), self.wanted, rtol=1e-4, atol=1e-5)

    @torch.no_grad()
    def test_kernels_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("QUERN_NATIVE", "0")
        monkeypatch.setattr(winograd, "winograd_forward", None)
        torch.testing.assert_close(self.layer(self.x), self.wanted, rtol=1e-3, atol=1e-4)

    @torch.no_grad()
    def test_it_is_in_no_state_and_no_copy(self) -> None:
        assert self.layer._cache._last[0] is not None
        assert set(self.layer.state_dict()) == {"weight", "bias"}
        assert copy.deepcopy(self.layer)._cache._last[0] is None
        assert self.layer.train()._cache._last[0] is None
