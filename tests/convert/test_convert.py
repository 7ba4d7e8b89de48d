"""Ways in: the 2019 library's weights, and torch networks."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as TF

import quern
from quern import nn as qnn


class Orkis(nn.Module):
    """A layer with that library's parameters; ``call`` computes from the rows of its block what that library does."""

    def __init__(self, shape: tuple[int, ...], bias: int, call) -> None:
        super().__init__()
        for part in "rijk":
            self.register_parameter(f"{part}_weight", nn.Parameter(torch.randn(shape)))
        self.bias = nn.Parameter(torch.randn(bias)) if bias else None
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        r, i, j, k = (getattr(self, f"{part}_weight") for part in "rijk")
        rows = [(r, -i, -j, -k), (i, r, -k, j), (j, k, r, -i), (k, -j, i, r)]
        return self.call(x, rows, self.bias)


def orkis_conv(x: Tensor, rows, bias: Tensor) -> Tensor:
    return TF.conv2d(x, torch.cat([torch.cat(row, 1) for row in rows], 0), bias, padding=1)


def orkis_transposed(x: Tensor, rows, bias: Tensor) -> Tensor:
    """That library cats along the same axes for (in, out) weights, so the block comes out transposed."""
    return TF.conv_transpose2d(x, torch.cat([torch.cat(row, 1) for row in rows], 0), bias, stride=2)


def orkis_linear(x: Tensor, rows, bias: Tensor | None) -> Tensor:
    y = x @ torch.cat([torch.cat(row, 0) for row in rows], 1)
    return y if bias is None else y + bias


def test_orkis_weights_give_the_same_outputs() -> None:
    theirs = nn.Sequential(
        Orkis((3, 2, 3, 3), 12, orkis_conv),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        Orkis((3, 2, 2, 2), 8, orkis_transposed),
        nn.Flatten(),
        Orkis((32, 5), 20, orkis_linear),
        Orkis((5, 2), 0, orkis_linear),
    ).eval()
    ours = nn.Sequential(
        qnn.QConv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        qnn.QConvTranspose2d(12, 8, 2, stride=2),
        nn.Flatten(),
        qnn.QLinear(128, 20),
        qnn.QLinear(20, 8, bias=False),
    ).eval()
    ours.load_state_dict(quern.from_orkis(theirs.state_dict(), ours))
    x = torch.randn(2, 8, 2, 2)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-3)
    single = qnn.QLinear(128, 20)
    single.load_state_dict(quern.from_orkis(theirs[5].state_dict(), single))
    torch.testing.assert_close(single.weight, ours[5].weight)


def test_orkis_problems_are_named() -> None:
    state = Orkis((8, 5), 20, orkis_linear).state_dict()
    with pytest.raises(ValueError, match="'a' of the state_dict lacks k_weight"):
        quern.from_orkis({f"a.{k}": v for k, v in state.items() if k != "k_weight"}, nn.Sequential())
    with pytest.raises(ValueError, match="has a layer 'a', but the model has none"):
        quern.from_orkis({f"a.{k}": v for k, v in state.items()}, nn.Sequential())
    with pytest.raises(ValueError, match="'a' of the state_dict lacks r_weight"):
        quern.from_orkis({f"a.{k}": v for k, v in state.items() if k != "r_weight"}, nn.Sequential())
    grouped = nn.Sequential(qnn.QConv2d(8, 8, 3, groups=2))
    with pytest.raises(ValueError, match="'0' has groups=2"):
        quern.from_orkis({f"0.{k}": v for k, v in state.items()}, grouped)
    with pytest.raises(ValueError, match="rotation layer"):
        quern.from_orkis({**state, "zero_kernel": torch.zeros(1)}, nn.Sequential())
    with pytest.raises(ValueError, match="is a ReLU"):
        quern.from_orkis({f"0.{k}": v for k, v in state.items()}, nn.Sequential(nn.ReLU()))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding="same"), nn.BatchNorm2d(16, momentum=0.2), nn.ReLU())
        self.shared = nn.Conv2d(16, 16, 3, padding=1, groups=2, padding_mode="reflect", bias=False)
        self.again = self.shared
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2, output_padding=1)
        self.drop = nn.Dropout2d(0.3)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 16))
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.again(torch.relu(self.shared(h)))
        return self.last(self.norm(self.head(self.drop(self.up(h)))))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


def test_a_torch_network_becomes_a_quaternion_one_of_the_same_widths() -> None:
    real = Branches().eval()
    before = {k: v.clone() for k, v in real.state_dict().items()}
    ours = quern.quaternionize(real, keep=["last"])
    x = torch.randn(2, 3, 8, 8)
    assert ours(x).shape == real(x).shape
    assert ours(x).isfinite().all()
    assert isinstance(ours, Branches)
    assert isinstance(ours.stem[0], qnn.QConv2d)
    assert ours.stem[0].input_parts == "ijk"
    assert ours.shared is ours.again
    assert isinstance(ours.norm, qnn.QLayerNorm)
    assert isinstance(ours.last, nn.Linear)
    assert not ours.training
    assert count(ours.shared) * 4 == count(real.shared)
    assert all(torch.equal(before[k], v) for k, v in real.state_dict().items())
    assert repr(ours.up).replace("QConv", "Conv") == repr(real.up)
    ours.train()(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters())


def test_every_layer_that_cannot_be_converted_is_named() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Sequential(nn.Conv2d(8, 6, 3)), nn.Flatten(), nn.Linear(54, 10)
    )
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        quern.quaternionize(network)
    assert "multiples of 4): 2.0, 4" in str(caught.value)
    with pytest.raises(ValueError, match="keep names head"):
        quern.quaternionize(network, keep=["head"])
    with pytest.raises(ValueError, match="the module"):
        quern.quaternionize(nn.Bilinear(4, 4, 4))


def test_empty_containers_modes_and_the_axis_of_dropout() -> None:
    network = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.2), nn.Sequential(), qnn.QModReLU(8))
    network[1].eval()
    ours = quern.quaternionize(network)
    assert isinstance(ours, nn.Sequential)
    assert [layer.training for layer in ours] == [layer.training for layer in network]
    assert isinstance(ours[2], qnn.QDropout)
    assert ours[2].dim == 1
    sequences = quern.quaternionize(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5, inplace=True)))
    assert isinstance(sequences, nn.Sequential)
    assert isinstance(sequences[1], qnn.QDropout)
    assert (sequences[1].dim, sequences[1].inplace) == (-1, True)
    assert sequences(torch.randn(2, 12, 8)).shape == (2, 12, 8)


def test_what_quaternionize_keeps_and_refuses() -> None:
    plain = nn.Sequential(nn.BatchNorm2d(8, affine=False, dtype=torch.float64))
    assert all(b.dtype == torch.float64 for b in quern.quaternionize(plain).buffers() if b.is_floating_point())
    named = quern.quaternionize(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 10)), keep="1")
    assert isinstance(named, nn.Sequential)
    assert isinstance(named[0], qnn.QLinear)
    with pytest.raises(ValueError, match="several axes"):
        quern.quaternionize(nn.LayerNorm([8, 6, 8]))


def test_a_single_layer() -> None:
    layer = quern.quaternionize(nn.Linear(8, 4, dtype=torch.float64))
    assert isinstance(layer, qnn.QLinear)
    assert layer.weight.dtype == torch.float64
