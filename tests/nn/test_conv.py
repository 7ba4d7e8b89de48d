"""What is particular to convolutions and linear layers: input parts, layouts, the cache, refusals."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from quern import functional
from quern import nn as qnn
from quern.functional import products


@pytest.mark.parametrize(("parts", "encode", "channels"), [("r", qnn.encode_gray, 2), ("ijk", qnn.encode_rgb, 6)])
def test_input_parts_equal_the_encoded_image(parts: str, encode, channels: int) -> None:
    x = torch.randn(2, channels, 5, 5, dtype=torch.float64)
    raw = qnn.QConv2d(channels, 8, 3, input_parts=parts, dtype=torch.float64)
    full = qnn.QConv2d(8, 8, 3, dtype=torch.float64)
    full.load_state_dict(raw.state_dict())
    torch.testing.assert_close(raw(x), full(encode(x)), rtol=1e-12, atol=1e-12)
    flat_raw, flat_full = qnn.QLinear(channels, 8, input_parts=parts), qnn.QLinear(8, 8)
    flat_full.load_state_dict(flat_raw.state_dict())
    row = torch.randn(3, channels)
    torch.testing.assert_close(flat_raw(row), flat_full(encode(row)))


def test_encoding_puts_the_image_where_the_convention_says() -> None:
    gray, rgb = torch.randn(2, 1, 3, 3), torch.randn(2, 3, 3, 3)
    assert torch.equal(qnn.encode_gray(gray), torch.cat([gray, torch.zeros(2, 3, 3, 3)], 1))
    assert torch.equal(qnn.encode_rgb(rgb), torch.cat([torch.zeros(2, 1, 3, 3), rgb], 1))
    with pytest.raises(ValueError, match="needs 3 channels"):
        qnn.encode_rgb(gray)


def test_cat_joins_quaternion_channels() -> None:
    a, b = torch.randn(2, 8, 3), torch.randn(2, 4, 3)
    joined = qnn.cat([a, b])
    parts = [torch.cat([p, q], 1) for p, q in zip(a.chunk(4, 1), b.chunk(4, 1), strict=True)]
    assert torch.equal(joined, torch.cat(parts, 1))
    assert torch.equal(qnn.cat([a.mT, b.mT], dim=-1), joined.mT)
    images = torch.randn(2, 8, 3, 3).to(memory_format=torch.channels_last)
    assert qnn.cat([images, images]).is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="should be on dim 3"):
        qnn.cat([a, b], dim=3)
    with pytest.raises(ValueError, match="at least one"):
        qnn.cat([])


@pytest.mark.parametrize("form", ["block", "hadamard"])
def test_channels_last_is_kept_by_grouped_convolutions(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "choose_conv_form", lambda *sizes: form)
    layer, x = qnn.QConv2d(16, 8, 3, groups=2), torch.randn(2, 16, 5, 5)
    found = layer(x.to(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, layer(x))


@pytest.mark.parametrize("parts", ["r", "ijk", "rijk"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_channels_last_is_taken_from_the_module_and_kept(parts: str, kernel: int) -> None:
    layer = qnn.QConv2d(len(parts), 8, kernel, input_parts=parts)
    x = torch.randn(2, len(parts), 6, 6)
    wanted = layer(x)
    assert wanted.is_contiguous()
    moved: Any = copy.deepcopy(layer)
    moved = moved.to(memory_format=torch.channels_last)
    if kernel > 1:  # a 1x1 kernel over one channel has no layout to carry
        assert moved(x).is_contiguous(memory_format=torch.channels_last)
        copied = copy.deepcopy(moved).double().float()
        copied.load_state_dict(layer.state_dict())
        assert copied(x).is_contiguous(memory_format=torch.channels_last)
        back = moved.to(memory_format=torch.contiguous_format)
        assert back(x).is_contiguous()
    torch.testing.assert_close(moved(x), wanted)
    last = x.to(memory_format=torch.channels_last)
    if len(parts) > 1:
        assert layer(last).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(last), wanted)


def test_channels_last_3d() -> None:
    layer: Any = qnn.QConv3d(8, 8, 3)
    x = torch.randn(2, 8, 4, 4, 4)
    wanted = layer(x)
    found = layer.to(memory_format=torch.channels_last_3d)(x)
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("form", ["block", "hadamard"])
@pytest.mark.parametrize(
    "make",
    [lambda: qnn.QLinear(8, 8), lambda: qnn.QConv2d(8, 8, 3), lambda: qnn.QConvTranspose1d(8, 8, 3)],
    ids=["linear", "conv", "transposed"],
)
class TestCache:
    """The expanded weight is kept in eval, and never a moment longer than it is right."""

    @pytest.fixture(autouse=True)
    def _setup(self, form: str, make, monkeypatch: pytest.MonkeyPatch) -> None:
        for choice in ("choose_conv_form", "choose_linear_form"):
            monkeypatch.setattr(products, choice, lambda *sizes: form)
        self.built = 0
        for name in ("block_weight", "hadamard_weights"):
            original = getattr(products, name)

            def counting(*arguments, original=original, **options):
                self.built += 1
                return original(*arguments, **options)

            monkeypatch.setattr(products, name, counting)
        self.layer = make().eval()
        self.x = torch.randn(2, 8, *[5] * (self.layer.weight.dim() - 3))

    def fresh(self) -> Tensor:
        """What a new layer with the same weights says."""
        other = copy.deepcopy(self.layer)
        with torch.no_grad():
            return other(self.x)

    @torch.no_grad()
    def test_it_is_built_once(self) -> None:
        for _ in range(3):
            self.layer(self.x)
        assert self.built == 1

    @torch.no_grad()
    @pytest.mark.parametrize(
        "edit",
        [
            lambda w: w.mul_(2),
            lambda w: w.data.mul_(2),
            lambda w: w.data[:, 0].zero_(),
            lambda w: w.detach().numpy().__imul__(3),
            lambda w: setattr(w, "data", w.data * 2),
        ],
        ids=["in_place", "data", "one_neuron", "numpy", "new_data"],
    )
    def test_any_edit_is_seen(self, edit) -> None:
        before = self.layer(self.x).clone()
        edit(self.layer.weight)
        assert not torch.equal(self.layer(self.x), before)
        assert torch.equal(self.layer(self.x), self.fresh())

    def test_load_state_dict_and_optimizer_steps_are_seen(self) -> None:
        with torch.no_grad():
            self.layer(self.x)
        self.layer.load_state_dict({k: v * 2 for k, v in self.layer.state_dict().items()})
        with torch.no_grad():
            assert torch.equal(self.layer(self.x), self.fresh())
        self.layer(self.x).square().sum().backward()
        for foreach in (False, True):
            torch.optim.Adam(self.layer.parameters(), lr=0.1, foreach=foreach).step()
            with torch.no_grad():
                assert torch.equal(self.layer(self.x), self.fresh())

    def test_gradients_flow_in_eval(self) -> None:
        with torch.no_grad():
            wanted = self.layer(self.x)
        found = self.layer(self.x)
        assert torch.equal(found, wanted)
        found.sum().backward()
        assert self.layer.weight.grad is not None

    def test_training_drops_it(self) -> None:
        with torch.no_grad():
            self.layer(self.x)
            assert self.layer._cache._state[1]
            self.layer.train()
            assert not self.layer._cache._state[1]
            self.layer(self.x)
            assert not self.layer._cache._state[1]

    @torch.no_grad()
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it
    def test_tracers_leave_nothing_behind(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        wanted = self.fresh()
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            self.layer(mode.from_tensor(self.x))
        assert torch.equal(self.layer(self.x), wanted)
        torch.func.jvp(self.layer, (self.x,), (self.x,))
        assert torch.equal(self.layer(self.x), wanted)

    @torch.no_grad()
    def test_tracers_do_not_take_it_for_a_constant(self) -> None:
        zeros = {name: torch.zeros_like(p) for name, p in self.layer.named_parameters()}
        self.layer(self.x)
        graph = make_fx(lambda p, x: torch.func.functional_call(self.layer, p, (x,)))(
            dict(self.layer.named_parameters()), self.x
        )
        assert float(graph(zeros, self.x).abs().max()) == 0

    def test_inference_mode_leaves_nothing_unusable(self) -> None:
        with torch.inference_mode():
            wanted = self.layer(self.x).clone()
        for p in self.layer.parameters():
            p.requires_grad_(False)
        x = self.x.clone().requires_grad_()
        found = self.layer(x)
        found.sum().backward()
        assert torch.equal(found.detach(), wanted)
        with torch.no_grad():
            assert torch.equal(self.layer(self.x), wanted)

    @torch.no_grad()
    def test_other_dtypes_and_functional_call(self) -> None:
        self.layer(self.x)
        assert self.layer.double()(self.x.double()).dtype == torch.float64
        weights = {name: p * 2 for name, p in self.layer.named_parameters()}
        found = torch.func.functional_call(self.layer, weights, (self.x.double(),))
        self.layer.load_state_dict(weights)
        torch.testing.assert_close(found, self.layer(self.x.double()))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: qnn.QLinear(6, 8), "in_features is 6, but it must be a positive multiple of 4"),
        (lambda: qnn.QLinear(8, 10), "out_features is 10"),
        (lambda: qnn.QLinear(0, 8), "in_features is 0"),
        (
            lambda: qnn.QConv2d(3, 8, 3),
            "in_channels is 3, but quaternions have 4 components: say input_parts='ijk' for",
        ),
        (lambda: qnn.QConv2d(1, 8, 3), "say input_parts='r' for gray images"),
        (lambda: qnn.QConv2d(6, 8, 3), "in_channels is 6, but it must be a positive multiple of 4"),
        (lambda: qnn.QConv2d(4, 8, 3, input_parts="ijk"), "in_channels is 4, but it must be a positive multiple of 3"),
        (lambda: qnn.QConv2d(4, 8, 3, input_parts="kji"), "in that order"),
        (lambda: qnn.QConv2d(4, 8, 3, input_parts=""), "in that order"),
        (lambda: qnn.QConv2d(8, 8, 3, groups=4), "groups=4 must divide the quaternion channels: 2 in and 2 out"),
        (lambda: qnn.QConv2d(8, 8, (3, 3, 3)), "kernel_size is (3, 3, 3), but it must be one number or 2 numbers"),
        (lambda: qnn.QConv2d(8, 8, 3, padding="half"), "must be 'same' or 'valid'"),
        (lambda: qnn.QConv2d(8, 8, 3, stride=2, padding="same"), "needs stride 1"),
        (lambda: qnn.QConv2d(8, 8, 3, padding_mode="mirror"), "padding_mode is 'mirror'"),
        (lambda: qnn.QConvTranspose2d(8, 8, 3, padding_mode="reflect"), "knows zeros"),
        (lambda: qnn.QConv2d(8, 8, 3)(torch.ones(1, 4, 5, 5)), "takes (batch, 8, *space) or (8, *space)"),
        (lambda: qnn.QConv2d(8, 8, 3)(torch.ones(8, 5)), "but the input's shape is (8, 5)"),
        (lambda: qnn.QLinear(8, 8)(torch.ones(2, 7)), "the last axis of the input must have size 8"),
        (lambda: qnn.QConvTranspose1d(4, 4, 3, stride=2)(torch.ones(1, 4, 3), [12]), "this layer can make 7 to 8"),
        (lambda: qnn.QConvTranspose2d(4, 4, 3)(torch.ones(1, 4, 3, 3), [5]), "it must name 2 sizes"),
        (lambda: qnn.QConv2d(4, 4, 3, stride=0), "stride is 0, but it must be at least 1"),
        (lambda: qnn.QConv2d(4, 4, 0), "kernel_size is 0, but it must be at least 1"),
        (lambda: qnn.QConv2d(4, 4, 3, padding=-1), "padding is -1, but it must be at least 0"),
        (lambda: qnn.Modulus()(torch.ones(8)), "the quaternions should be on dim 1, but the input's shape is (8,)"),
        (lambda: qnn.QModReLU(8, dim=-3)(torch.ones(2, 8)), "the quaternions should be on dim -3"),
        (lambda: qnn.QDropout2d()(torch.ones(8, 4, 4)), "QDropout2d takes (batch, 4*C, height, width)"),
    ],
)
def test_refusals_are_one_clear_sentence(make, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [7, 8])
def test_transposed_output_size(size: int) -> None:
    layer, x = qnn.QConvTranspose1d(8, 4, 3, stride=2, padding=0), torch.randn(2, 8, 3)
    assert layer(x, output_size=[size]).shape == (2, 4, size)
    assert layer(x, output_size=[2, 4, size]).shape == (2, 4, size)


def test_transposed_convolution_is_the_adjoint_of_the_conjugate_convolution() -> None:
    w = torch.randn(4, 3, 2, 3, 3, dtype=torch.float64)
    x = torch.randn(1, 8, 6, 6, dtype=torch.float64)
    y = torch.randn(1, 12, 4, 4, dtype=torch.float64)
    adjoint = w.clone()
    adjoint[1:] *= -1
    left = (functional.conv(x, w) * y).sum()
    right = (x * functional.conv_transpose(y, adjoint.transpose(1, 2))).sum()
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("form", ["block", "hadamard"])
def test_empty_and_single_batches(batch: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "choose_conv_form", lambda *sizes: form)
    layer = qnn.QConv2d(8, 4, 3)
    y = layer(torch.randn(batch, 8, 5, 5))
    y.sum().backward()
    assert y.shape == (batch, 4, 3, 3)


def test_parameter_count_is_a_quarter_and_repr_is_like_torchs() -> None:
    real, ours = nn.Conv2d(8, 16, 3, padding=1, bias=False), qnn.QConv2d(8, 16, 3, padding=1, bias=False)
    assert sum(p.numel() for p in ours.parameters()) * 4 == sum(p.numel() for p in real.parameters())
    assert repr(ours) == "Q" + repr(real)
    assert repr(qnn.QLinear(8, 4)) == "Q" + repr(nn.Linear(8, 4))
    assert repr(qnn.QConv2d(3, 4, 1, input_parts="ijk")).endswith("input_parts='ijk')")


@pytest.mark.unchecked
def test_sizes_of_other_types() -> None:
    layer = qnn.QConv2d(8, 8, np.int64(3), padding=np.int64(1))  # pyright: ignore
    assert layer.kernel_size == (3, 3)
    assert layer(torch.ones(1, 8, 4, 4)).shape == (1, 8, 4, 4)
    with pytest.raises(ValueError, match="padding of a transposed convolution must be numbers"):
        qnn.QConvTranspose2d(4, 4, 3, padding="same")  # pyright: ignore
