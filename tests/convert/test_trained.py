"""Trained real networks become the quaternion networks that are nearest to them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import quern
from quern import nn as qnn
from quern.convert import conversion
from quern.convert._grouping import gains, grouped, incoming, kept, outgoing
from quern.errors import ConversionError
from quern.export import to_real
from quern.functional.products import block_weight, nearest_weight
from quern.graph import spec_of

LAYERS = {
    "linear": (lambda: nn.Linear(8, 12), (8,)),
    "of colours": (lambda: nn.Conv2d(3, 8, 2), (3, 2, 2)),
    "of gray": (lambda: nn.Conv1d(1, 8, 3), (1, 3)),
    "in groups": (lambda: nn.Conv1d(16, 8, 2, groups=2), (16, 2)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 2, groups=8), (8, 2, 2)),
    "transposed": (lambda: nn.ConvTranspose1d(8, 8, 3), (8, 1)),
    "transposed in groups": (lambda: nn.ConvTranspose2d(8, 16, 2, groups=2), (8, 1, 1)),
}


def randomised(module: nn.Module, seed: int) -> nn.Module:
    """With numbers of its own in all parameters and statistics."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, t in (*module.named_parameters(), *module.named_buffers()):
            if t.is_floating_point():
                t.uniform_(0.5, 2) if "var" in name else t.normal_()
    return module.eval()


@torch.no_grad()
def matrix_of(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """All that a layer without bias does to one input of this shape: (everything out, everything in)."""
    size = int(np.prod(shape))
    return layer(torch.eye(size, dtype=torch.float64).view(size, *shape)).reshape(size, -1).T


def moved(matrix: Tensor, axis: int, places: Tensor) -> Tensor:
    channels = places.numel()
    apart = matrix.movedim(axis, 0).unflatten(0, (channels, -1))
    return apart[places.flatten()].flatten(0, 1).movedim(0, axis)


@settings(max_examples=20)
@given(name=st.sampled_from(sorted(LAYERS)), seed=st.integers(0, 1000))
def test_the_nearest_weight_is_the_least_squares_solution(name: str, seed: int) -> None:
    """Against numpy's: the columns are what the quaternion layer does by each number of its weight alone."""
    build, shape = LAYERS[name]
    old: Any = randomised(build().double(), seed)
    new: Any = spec_of(old).quaternion_form(old)
    old.bias = new.bias = None
    outs = torch.randperm(getattr(old, "out_channels", 0) or old.out_features).view(4, -1)
    ins = torch.randperm(shape[0]).view(min(4, shape[0]), -1)
    one = spec_of(old).nearest(old, new, ins, outs)
    wanted = moved(moved(matrix_of(old, shape), 0, outs), 1, ins)
    columns = []
    for n in range(new.weight.numel()):
        new.weight = nn.Parameter(torch.zeros_like(new.weight))
        new.weight.data.view(-1)[n] = 1
        columns.append(matrix_of(new, shape).flatten().numpy())
    best, _, _, _ = np.linalg.lstsq(np.stack(columns, 1), wanted.flatten().numpy(), rcond=None)
    np.testing.assert_allclose(one.tensors["weight"].flatten().numpy(), best, atol=1e-12)
    rest = np.stack(columns, 1) @ best - wanted.flatten().numpy()
    assert rest @ rest == pytest.approx(one.total - one.kept, abs=1e-9)


@pytest.mark.parametrize("parts", ["rijk", "ijk", "r"])
def test_what_is_a_block_comes_back_bit_by_bit(parts: str) -> None:
    weight = torch.randn(4, 3, 5, 2)
    real = block_weight(weight, parts).double().unflatten(1, (len(parts), -1)).unflatten(0, (4, -1))
    assert torch.equal(nearest_weight(real, parts).float(), weight)


class Unit(nn.Module):
    """Convolutions that are added and joined, and a linear layer after them: in whatever layers it is given."""

    def __init__(self, conv: Any, linear: Any, norm: Any) -> None:
        super().__init__()
        self.scale = norm(8)  # in front of all, where it is not folded
        self.first, self.second, self.third = conv(8, 8, 3, padding=1), conv(8, 8, 1), conv(8, 16, 1)
        self.join, self.act = conv(24, 8, 1), nn.PReLU(1)
        self.last, self.head = linear(32, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.first(self.scale(x)))
        b = self.act(self.second(a)) + a
        both = [b, torch.tanh(self.third(a))]
        y = torch.cat(both, 1) if isinstance(self.join, nn.Conv2d) else quern.functional.cat(both, 1)
        return self.head(self.last(self.join(y).flatten(1)))


@torch.no_grad()
def shuffled(network: nn.Module) -> None:
    """The same function with the hidden channels in other places."""
    layers: dict[str, Any] = dict(network.named_children())
    for makers, takers in (
        (("first", "second"), (("second", 0), ("third", 0), ("join", 0))),
        (("third",), (("join", 8),)),
    ):
        order = torch.randperm(layers[makers[0]].out_channels)
        for name in makers:
            for own in (layers[name].weight, layers[name].bias):
                own.copy_(own[order])
        for name, first in takers:
            part = layers[name].weight[:, first : first + len(order)]
            part.copy_(part[:, order])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_quaternion_network_written_as_a_real_one_comes_back(seed: int) -> None:
    quaternion = randomised(Unit(qnn.QConv2d, qnn.QLinear, qnn.QBatchNorm2d), seed)
    real: Any = to_real(quaternion)
    x = torch.randn(3, 8, 2, 2)
    twin: Any = Unit(nn.Conv2d, nn.Linear, nn.BatchNorm2d).eval()
    twin.load_state_dict({k: t for k, t in real.state_dict().items() if k in twin.state_dict()}, strict=False)
    twin.scale.eps = real.get_submodule("scale").eps
    # In the real form of the joined value components stand first, in the twin its two parts.
    order = torch.cat([torch.cat([torch.arange(2) + 2 * a, torch.arange(4) + 4 * a + 8]) for a in range(4)])
    twin.join.weight.data[:, order] = real.get_submodule("join").weight.detach()
    torch.testing.assert_close(twin(x), quaternion(x), atol=1e-2, rtol=1e-3)
    done = conversion(twin, keep=["head"], example=x, trained=True)
    for name, t in quaternion.state_dict().items():
        assert torch.equal(done.network.state_dict()[name], t), name
    assert done.network.get_submodule("scale").eps == quaternion.get_submodule("scale").eps
    assert "100 %" in str(done)
    shuffled(twin)
    torch.testing.assert_close(twin(x), quaternion(x), atol=1e-2, rtol=1e-3)
    again = conversion(twin, keep=["head"], example=x, trained=True)
    for row in again.rows:
        assert row.share is None or row.share > 0.8, row
    assert "grouped anew" in again.notes[0]


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_come_back(kind: str) -> None:
    class Words(nn.Module):
        def __init__(self, embedding: Any, recurrent: Any) -> None:
            super().__init__()
            self.words = embedding(9, 8)
            self.recurrent = recurrent(8, 12, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.recurrent(self.words(x))[0].mean(1))

    quaternion = randomised(Words(qnn.QEmbedding, getattr(qnn, f"Q{kind}")), 3)
    real = Words(nn.Embedding, getattr(nn, kind)).eval()
    written = to_real(quaternion).state_dict()
    real.load_state_dict({name: written[name] for name in real.state_dict()})
    order = torch.arange(24).view(2, 4, 3).transpose(0, 1).flatten()  # in torch one direction stands after the other
    real.head.weight.data[:, order] = written["head.weight"]
    tokens = torch.randint(9, (2, 5))
    done = conversion(real, keep="head", example=tokens, trained=True)
    states = done.network.state_dict()
    for name, t in quaternion.state_dict().items():
        if name != "words.weight":
            assert torch.equal(states[name], t), name
    torch.testing.assert_close(done.network(tokens), real(tokens))


def test_attention_keeps_its_heads() -> None:
    """What a transformer of quaternions does, a real one with its blocks does too, head by head."""
    new = randomised(qnn.QTransformerEncoderLayer(16, 2, 32, batch_first=True), 0)
    old = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    heads = torch.arange(16).view(4, 2, 2).transpose(0, 1).flatten()  # where a real head has its channels
    attention: Any = new.get_submodule("self_attn")
    with torch.no_grad():
        for n, part in enumerate((attention.q_proj, attention.k_proj, attention.v_proj)):
            old.self_attn.in_proj_weight[16 * n : 16 * n + 16] = block_weight(part.weight)[heads]
            old.self_attn.in_proj_bias[16 * n : 16 * n + 16] = part.bias.flatten()[heads]
        old.self_attn.out_proj.weight.copy_(block_weight(attention.out_proj.weight)[:, heads])
        old.self_attn.out_proj.bias.copy_(attention.out_proj.bias.flatten())
        for name in ("linear1", "linear2"):
            part: Any = new.get_submodule(name)
            old.get_submodule(name).load_state_dict({"weight": block_weight(part.weight), "bias": part.bias.flatten()})
        for name in ("norm1", "norm2"):
            norm: Any = new.get_submodule(name)
            state = {"weight": norm.weight.repeat(4) / 2, "bias": norm.bias.flatten()}
            old.get_submodule(name).load_state_dict(state)
    done = quern.quaternionize(nn.Sequential(old), trained=True)
    for name, t in new.state_dict().items():
        assert torch.equal(done.state_dict()[f"0.{name}"], t), name


def test_normalisations_go_on_as_they_were() -> None:
    """Channels that are scaled alike lose nothing, neither in eval mode nor while training goes on."""
    for norm, shape in (
        (nn.BatchNorm2d(8), (8, 8, 3, 3)),
        (nn.BatchNorm1d(8), (16, 8)),
        (nn.GroupNorm(1, 8), (4, 8, 6)),
    ):
        norm.weight.data.fill_(0.7)
        norm.bias.data.normal_()
        x = torch.randn(shape)
        if isinstance(norm, nn.GroupNorm):
            x = x - x.mean((0, 2), keepdim=True)
        else:
            x = (x - x.mean((0, *range(2, x.dim())), keepdim=True)) / x.std((0, *range(2, x.dim())), keepdim=True)
            norm(x)
        new: Any = quern.quaternionize(nn.Sequential(norm), trained=True)
        if not isinstance(norm, nn.GroupNorm):
            torch.testing.assert_close(new.eval()(x), norm.eval()(x))
            torch.testing.assert_close(new.train()(x), norm.train()(x), atol=1e-4, rtol=1e-4)
            var: Any = norm.running_var
            torch.testing.assert_close(new[0].running_var, var.view(4, 2).sum(0), atol=1e-5, rtol=1e-5)
        assert torch.equal(new[0].weight, torch.full((2,), 1.4))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), channels=st.sampled_from([4, 12, 24]))
def test_groups_keep_what_their_gains_say(seed: int, channels: int) -> None:
    torch.manual_seed(seed)
    into, out = torch.randn(channels, 12, 3), torch.randn(8, channels, 2)
    gain = gains([outgoing(into.flatten(2), 4), incoming(out.unsqueeze(3).movedim(3, 2))])
    start = torch.randperm(channels).view(4, -1)
    better = grouped(gain, start, 1.0)
    assert sorted(better.flatten().tolist()) == list(range(channels))

    def squares(places: Tensor) -> float:
        rows = into[places.flatten()].unflatten(1, (4, -1)).unflatten(0, (4, -1))
        columns = out[:, places.flatten()].unflatten(1, (4, -1)).unflatten(0, (4, -1))
        return sum(4 * float(nearest_weight(real).square().sum()) for real in (rows, columns))

    assert kept(gain, better) >= kept(gain, start)
    assert squares(better) - squares(start) == pytest.approx(kept(gain, better) - kept(gain, start), abs=1e-2)


def test_what_is_kept_stays_and_what_cannot_be_told_is_said() -> None:
    network: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 1), nn.Flatten(), nn.Linear(16, 3))
    x = torch.randn(2, 3, 3, 3)
    done = conversion(network, keep="4", example=x, trained=True)
    assert torch.equal(done.network.state_dict()["4.weight"], network[4].weight)
    assert any(note.endswith("order given: 2, because a layer that stays as it is takes them") for note in done.notes)
    assert torch.equal(done.network.state_dict()["2.bias"].flatten(), network[2].bias)
    assert sorted(done.network.state_dict()["0.bias"].flatten().tolist()) == sorted(network[0].bias.tolist())
    plain = conversion(network, keep="4", trained=True)
    assert "give example=" in plain.notes[0]
    assert torch.equal(plain.network.state_dict()["0.bias"].flatten(), network[0].bias)
    assert conversion(network, keep="4").notes == ()

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(16)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(torch.cat([self.layer(x), self.layer(x)], 1))

    with pytest.raises(ConversionError, match=r"joins or cuts channels \(cat\).*give an input as example="):
        quern.quaternionize(Joined(), trained=True)


def test_kept_columns_follow_what_is_joined() -> None:
    class Joined(nn.Module):
        def __init__(self, kind: type[nn.Module]) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(8, 8), nn.Linear(8, 4), kind(12)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([self.a(x), self.b(x)], 1))

    class Head(nn.Linear):
        pass

    real, x = Joined(lambda n: nn.Linear(n, 3)), torch.randn(5, 8)  # pyright: ignore[reportArgumentType]
    done = conversion(real, keep="head", example=x, trained=True)
    with torch.no_grad():
        for name in "ab":  # make the others exact, so that only the order is left to be wrong
            real.get_submodule(name).weight.copy_(block_weight(done.network.get_submodule(name).weight))  # pyright: ignore[reportArgumentType, reportCallIssue]
    torch.testing.assert_close(done.network(x), real(x))
    assert any("head stays real, its columns" in note for note in done.notes)
    with pytest.raises(ConversionError, match="stays real, but is given channels in another order"):
        quern.quaternionize(Joined(nn.BatchNorm1d), keep="head", example=x, trained=True)


def test_weights_that_are_no_numbers_are_refused() -> None:
    last = nn.Linear(16, 8)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), last)
    with torch.no_grad():
        last.weight[0, 0] = float("nan")
    with pytest.raises(ConversionError, match="weights that are not finite: load those of a training that went well"):
        quern.quaternionize(network, trained=True, example=torch.randn(2, 8))
