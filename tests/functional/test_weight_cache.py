"""The expanded weight of a layer in eval: kept, and never a moment longer than it is right."""

import copy

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from quern import nn as qnn
from quern.functional import hadamard, products


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
        for module, name in ((products, "block_weight"), (hadamard, "hadamard_weights")):
            original = getattr(module, name)

            def counting(*arguments, original=original, **options):
                self.built += 1
                return original(*arguments, **options)

            monkeypatch.setattr(module, name, counting)
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


def test_eval_cache_follows_the_weights() -> None:
    layer, x = qnn.QGRU(8, 8).eval(), torch.randn(3, 2, 8)
    with torch.no_grad():
        before = layer(x)[0]
        layer.get_parameter("weight_hh_l0").data.mul_(2)
        after = layer(x)[0]
        assert not torch.equal(before, after)
        layer.get_parameter("weight_hh_l0").data.div_(2)
        assert torch.equal(layer(x)[0], before)
