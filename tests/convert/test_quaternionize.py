"""Networks of torch as people write them: converted, rewritten, trained, compacted, or refused with the reason."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from torch import Tensor, nn

import quern
from quern import nn as qnn
from quern.compact import compact
from quern.convert import conversion
from quern.errors import ConversionError
from quern.export import to_real


class NormAct(nn.BatchNorm2d):
    """A normalisation with an activation inside, computed by hand."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        numbers = (self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps)
        return self.act(TF.batch_norm(input, *numbers))


class SuperAct(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return torch.relu(super().forward(input))


class ChannelsLastNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        y = TF.layer_norm(input.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class Classifier(nn.Module):
    """Words to classes by a recurrent layer."""

    def __init__(self, kind: type[nn.Module], **options: object) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16, padding_idx=0)
        self.recurrent = kind(16, 8, batch_first=True, bidirectional=True, **options)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(self.words(x))
        return self.head(self.drop(states.mean(1)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu")
        self.embed = nn.Linear(12, 16)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 6, 16))
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.embed(x)], 1)
        return self.head(self.encoder(x + self.places)[:, 0])


class Vision(nn.Module):
    """A vision transformer that makes its heads by views."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.proj = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.1)
        self.attention_drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        b, n, c = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = self.attention_drop((q @ k.transpose(-2, -1) / math.sqrt(8)).softmax(-1))
        x = x + self.drop(self.proj((weights @ v).transpose(1, 2).reshape(b, n, c)))
        return self.head(x.mean(1))


class Shuffle(nn.Module):
    """Units of ShuffleNet V2: channels in two halves, one through a depthwise convolution, and shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.point = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).chunk(2, dim=1)
        y = torch.cat([a, self.point(self.norm(self.depthwise(b)))], dim=1)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(y.mean([2, 3]))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), NormAct(8))
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(8, 16), nn.PReLU(16))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.smooth = nn.Upsample(scale_factor=2)
        self.last = nn.Sequential(nn.Conv2d(32, 8, 3, padding=1), ChannelsLastNorm(8), nn.GELU(), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x)
        deep = self.deep(first)
        return self.last(torch.cat((first, self.up(deep), self.smooth(deep)), 1))


class Squeeze(nn.Module):
    """MobileNet with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, bias=False), SuperAct(16))
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 16, 1))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.stem(x))
        y = TF.dropout(y * torch.sigmoid(self.gate(y)), 0.5, self.training)
        return self.head(y.mean((2, 3)))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 24, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(x, memory)))


IMAGES = (torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)),)
WORDS = (torch.randint(1, 20, (2, 7), generator=torch.Generator().manual_seed(0)),)
ARCHITECTURES = {
    "lstm": (lambda: Classifier(nn.LSTM), WORDS),
    "gru": (lambda: Classifier(nn.GRU, num_layers=2), WORDS),
    "rnn": (lambda: Classifier(nn.RNN, nonlinearity="relu"), WORDS),
    "transformer": (Transformer, (torch.randn(2, 5, 12),)),
    "decoder": (Decoder, (torch.randn(2, 5, 16), torch.randn(2, 4, 16))),
    "vision": (Vision, IMAGES),
    "shuffle": (Shuffle, IMAGES),
    "unet": (UNet, IMAGES),
    "squeeze": (Squeeze, IMAGES),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_goes_all_the_way(name: str) -> None:
    torch.manual_seed(0)
    build, inputs = ARCHITECTURES[name]
    real = build()
    keep = () if name == "unet" else "head"
    network = quern.quaternionize(real, keep=keep, example=inputs)
    assert network(*inputs).shape == real(*inputs).shape
    for old_name, old in real.named_modules():
        if isinstance(old, nn.Linear) and old_name != "head":
            new: Any = network.get_submodule(old_name)
            assert new.weight.numel() * 4 == old.weight.numel()
    network.train()(*inputs).square().mean().backward()
    used = [p for p in network.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in used)
    network.eval()
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, qnn.QConv2d) and layer.groups == 1 and layer.weight.shape[1] > 1:
                layer.weight[:, 0] = 0
        wanted = network(*inputs)
        torch.testing.assert_close(compact(network, inputs)(*inputs), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(to_real(network, inputs)(*inputs), wanted, rtol=1e-4, atol=1e-5)


def test_dropout_goes_where_the_quaternions_are_and_functions_ask_for_the_mode() -> None:
    vision = quern.quaternionize(Vision(), keep="head", example=IMAGES)
    assert isinstance(vision.drop, qnn.QDropout)
    assert vision.drop.dim == -1
    assert type(vision.attention_drop) is nn.Dropout  # of attention weights, which are real
    squeeze = quern.quaternionize(nn.Sequential(Squeeze(), nn.Linear(3, 3)), keep=[nn.Linear])
    assert type(squeeze.get_submodule("0")) is Squeeze  # nothing to rewrite, so the class stays

    class Joined(Squeeze):
        def forward(self, x: Tensor) -> Tensor:
            y = self.depthwise(self.stem(x))
            return TF.dropout(torch.cat([y, y], 1), 0.5, self.training)

    joined = quern.quaternionize(Joined(), keep="head")
    assert not torch.equal(joined.train()(*IMAGES), joined(*IMAGES))
    assert torch.equal(joined.eval()(*IMAGES), joined(*IMAGES))


def apart(x: Tensor, axis: int) -> np.ndarray:
    """Components first, channels on their axis: by numpy alone."""
    return np.stack(np.split(x.detach().numpy(), 4, axis))


class Rewritten(nn.Module):
    """Two linear maps that do nothing, and a function between them."""

    def __init__(self, function: Callable[..., Tensor], joins: int = 1) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(joins))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(*(layer(x) for layer in self.inputs))


@pytest.mark.parametrize(
    ("function", "law"),
    [
        (lambda x: x.chunk(2, 1)[1], lambda q: q[:, :, 1:]),
        (lambda x: x.split(4, dim=1)[1], lambda q: q[:, :, 1:]),
        (lambda x: torch.split(x, [4, 4], 1)[0], lambda q: q[:, :, :1]),
        (lambda x: x[:, 4:], lambda q: q[:, :, 1:]),
        (lambda x: x[:, :-4, 1], lambda q: q[:, :, :1, 1]),
        (lambda x: x.narrow(1, 4, 4), lambda q: q[:, :, 1:]),
        (lambda x: TF.channel_shuffle(x, 2), lambda q: q),  # two quaternions in two groups stay
        (lambda x: x.flatten(1), lambda q: q.reshape(4, 2, -1)),
        (lambda x: x.permute(0, 2, 3, 1).flatten(1), lambda q: np.moveaxis(q, 2, 4).reshape(4, 2, -1)),
    ],
)
def test_channels_are_cut_as_whole_quaternions(function, law) -> None:
    network = quern.quaternionize(Rewritten(function), example=torch.randn(2, 8, 3, 3))
    x = torch.randn(2, 8, 3, 3)
    before = apart(network.get_submodule("inputs.0")(x), 1)
    np.testing.assert_array_equal(apart(network(x), 1), law(before))


def test_cat_and_pixel_shuffle_of_whole_quaternions() -> None:
    joined = quern.quaternionize(Rewritten(lambda a, b: torch.cat([a, b], 1), 2))
    x = torch.randn(2, 8, 3, 3)
    first, second = (apart(joined.get_submodule(f"inputs.{n}")(x), 1) for n in range(2))
    np.testing.assert_array_equal(apart(joined(x), 1), np.concatenate([first, second], 2))
    wide = nn.Sequential(nn.Conv2d(8, 32, 1), nn.ReLU())

    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = wide

        def forward(self, x: Tensor) -> Tensor:
            return TF.pixel_shuffle(self.wide(x), 2)

    up = quern.quaternionize(Up())
    parts = apart(nn.Sequential(*up.get_submodule("wide").children())(x), 1)
    each = np.stack([TF.pixel_shuffle(torch.from_numpy(np.ascontiguousarray(p)), 2).numpy() for p in parts])
    np.testing.assert_array_equal(apart(up(x), 1), each)


def test_what_would_cut_components_apart_is_refused_by_kind() -> None:
    cases = {
        "no multiple of 4: getitem": lambda x: x[:, 2:6],
        "single channels out of quaternions: getitem": lambda x: x[:, 0],
        "not known to keep quaternions whole: einsum": lambda x: torch.einsum("nchw->nhwc", x),
        "repeated": lambda x: x.repeat(1, 2, 1, 1),
        "padded": lambda x: TF.pad(x, (0, 0, 0, 0, 1, 1)),
        "rolled": lambda x: torch.roll(x, 1, 1),
        "an index that is a tensor": lambda x: x[:, torch.tensor([0, 1])],
        "give an input as example=: view": lambda x: x.view(-1, 2, 4, 3, 3),
    }
    for words, function in cases.items():
        with pytest.raises(ConversionError) as caught:
            quern.quaternionize(Rewritten(function))
        kind, _, name = words.partition(": ")
        assert kind.split("=")[0] in str(caught.value)
        assert name in str(caught.value)
        assert len(str(caught.value).splitlines()) <= 4

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if x.sum() > 0 else x

    with pytest.raises(ConversionError, match="branches or loops on a tensor's value"):
        quern.quaternionize(Branching())


def test_keep_by_name_glob_type_and_function() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 6))

    def kept(keep: Any) -> list[str]:
        converted = quern.quaternionize(network(), keep=keep)
        return [name for name, layer in converted.named_modules() if type(layer) is nn.Linear]

    assert kept(["1", "2"]) == ["1.0", "2"]
    assert kept(["1.*", "2"]) == ["1.0", "2"]
    assert kept(nn.Linear) == ["0", "1.0", "2"]
    assert kept(lambda name, layer: getattr(layer, "out_features", 0) == 6) == ["2"]
    with pytest.raises(ConversionError, match="keep names body"):
        quern.quaternionize(network(), keep=["body.*"])
    with pytest.raises(ConversionError, match="keep names Conv2d"):
        quern.quaternionize(network(), keep=nn.Conv2d)


def test_the_table_and_grouped_errors() -> None:
    done = conversion(UNet(), keep="last.3")
    text = str(done)
    assert "ConvTranspose2d" in text
    assert "QConvTranspose2d" in text
    assert "groups of whole quaternions: 4 in place of 8" in text
    assert "by keep=" in text
    assert "cat" in text
    assert len(text.splitlines()) <= 16
    bad = nn.Sequential(*(nn.Linear(8 if n == 0 else 6, 6) for n in range(9)), nn.Bilinear(4, 4, 4))
    with pytest.raises(ConversionError) as caught:
        quern.quaternionize(bad)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert "multiples of 4): 0, 1, 2 and 6 more" in lines[1]
    assert "no quaternion form of Bilinear is known: 9" in lines[2]
    assert "keep=" in lines[3]


def test_a_subclass_with_a_way_of_its_own_is_refused() -> None:
    class Standardised(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return TF.conv2d(input, weight, self.bias, self.stride, self.padding)

    with pytest.raises(ConversionError, match="subclass of Conv2d that computes with its weight"):
        quern.quaternionize(nn.Sequential(Standardised(8, 8, 3)))

    class Padded(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return TF.conv2d(TF.pad(input, (1, 1, 1, 1)), self.weight, self.bias, self.stride, 0)

    padded = quern.quaternionize(nn.Sequential(Padded(8, 8, 3, padding=2)))
    assert padded(torch.randn(1, 8, 5, 5)).shape == (1, 8, 5, 5)

    class Renamed(nn.Linear):
        pass

    assert isinstance(quern.quaternionize(Renamed(8, 8)), qnn.QLinear)
