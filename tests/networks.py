"""Random networks with zeros in them, drawn from a ``random.Random``: for the tests of compaction, for benchmarks.

drawn = draw(random.Random(7))
drawn.model, drawn.inputs     # in float64 and eval mode; the first input is the example, the others differ in size
"""

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from quern.compact import Plan, compact, plan

F64 = torch.float64
Inputs = tuple[Any, ...]  # tensors, and numbers


class Wired(nn.Module):
    """Layers (or parameters) by name, and a forward that is written as a function of them."""

    def __init__(self, wiring: Callable[..., Any], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.wiring = wiring
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x)


class Numbered(Wired):
    """The same with a number for an input."""

    def forward(self, x: Tensor, k: float) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.wiring(self, x, k)


@dataclass
class Drawn:
    model: nn.Module
    inputs: list[Inputs]


# ------------------------------------------------------------------------------------------------ layers of images


class Images:
    """Draws the parts of networks for ``space`` dimensions. Widths count quaternions; with ``keep`` sizes stay."""

    def __init__(self, rng: random.Random, space: int) -> None:
        self.rng, self.space = rng, space

    def of(self, name: str, where: Any = nn) -> Any:
        return getattr(where, f"{name}{self.space}d")

    def width(self) -> int:
        return self.rng.choice((1, 2, 3, 4, 4, 6))

    def conv(self, inner: int, out: int, keep: bool, parts: str = "rijk") -> nn.Module:
        rng = self.rng
        common = [n for n in range(1, inner + 1) if inner % n == 0 and out % n == 0]
        options: dict[str, Any] = {"groups": rng.choice((1, 1, rng.choice(common))), "bias": rng.random() < 0.7}
        options["padding_mode"] = rng.choice(("zeros",) * 4 + ("reflect", "replicate", "circular"))
        kernel, dilation = rng.choice(((1, 1), (3, 1), (3, 1), (3, 2)))
        if rng.random() < 0.3:
            kernel, options["padding"] = rng.choice((2, 3)), "same"
        else:
            options["padding"] = dilation * (kernel // 2)
        if not keep and rng.random() < 0.5:
            options["padding"] = rng.choice((0, 1, 2, "valid"))
            options["stride"] = rng.choice((1, 1, 2))
            kernel = rng.choice((1, 2, 3))
        if rng.random() < 0.1 and options["padding"] != "same" and not keep and self.space > 1:
            kernel = (kernel, *[1] * (self.space - 1))
        return self.of("QConv", qnn)(
            len(parts) * inner, 4 * out, kernel, dilation=dilation, input_parts=parts, **options
        )

    def transposed(self, inner: int, out: int, keep: bool) -> nn.Module:
        rng = self.rng
        common = [n for n in range(1, inner + 1) if inner % n == 0 and out % n == 0]
        more: dict[str, Any] = {"groups": rng.choice((1, rng.choice(common))), "bias": rng.random() < 0.7}
        layer = self.of("QConvTranspose", qnn)
        if keep:
            kernel, dilation = rng.choice(((1, 1), (3, 1), (3, 2)))
            return layer(4 * inner, 4 * out, kernel, padding=dilation * (kernel // 2), dilation=dilation, **more)
        stride = rng.choice((1, 2))
        extra = rng.choice((0, stride - 1))
        return layer(
            *(4 * inner, 4 * out, rng.choice((2, 3))),
            stride=stride,
            padding=rng.choice((0, 1)),
            output_padding=extra,
            **more,
        )

    def norm(self, width: int) -> nn.Module:
        rng = self.rng
        kinds: list[Callable[[], nn.Module]] = [
            nn.Identity,
            lambda: self.of("QBatchNorm", qnn)(4 * width),
            lambda: self.of("QBatchNorm", qnn)(4 * width),
            lambda: self.of("QBatchNorm", qnn)(4 * width, bias=False),
            lambda: self.of("QBatchNorm", qnn)(4 * width, fixed_scale=True),
            lambda: self.of("BatchNorm")(4 * width),
        ]
        if self.space == 2:
            kinds.append(lambda: qnn.QWhiteningBatchNorm2d(4 * width))
        return rng.choice(kinds)()

    def bend(self, width: int) -> nn.Module:
        kinds: list[Callable[[], nn.Module]] = [
            nn.ReLU,
            lambda: nn.ReLU(inplace=True),
            nn.Tanh,
            nn.Sigmoid,
            nn.LeakyReLU,
            nn.GELU,
            nn.Softplus,
            nn.PReLU,
            lambda: nn.PReLU(4 * width),
            lambda: qnn.QModReLU(4 * width),
            nn.Identity,
            lambda: Wired(lambda m, x: torch.relu(x)),
            lambda: Wired(lambda m, x: TF.silu(x).relu()),
            lambda: nn.Sequential(nn.Dropout(), nn.Hardsigmoid()),
        ]
        return self.rng.choice(kinds)()

    def pool(self, keep: bool) -> nn.Module:
        rng = self.rng
        if keep:
            kinds: list[Callable[[], nn.Module]] = [
                lambda: self.of("AvgPool")(3, 1, padding=1, count_include_pad=rng.random() < 0.5),
                lambda: self.of("MaxPool")(3, 1, padding=1),
                lambda: self.of("QMaxPool", qnn)(3, 1, padding=1),
            ]
        else:
            average = (TF.avg_pool1d, TF.avg_pool2d, TF.avg_pool3d)[self.space - 1]
            kinds = [
                lambda: self.of("AvgPool")(2, rng.choice((1, 2)), padding=rng.choice((0, 1))),
                lambda: self.of("MaxPool")(2, rng.choice((1, 2)), padding=rng.choice((0, 1)), ceil_mode=True),
                lambda: self.of("QMaxPool", qnn)(2, 1),
                lambda: self.of("AdaptiveAvgPool")(rng.choice((3, 5))),
                lambda: self.of("AdaptiveMaxPool")(4),
                lambda: nn.Upsample(scale_factor=2),
                lambda: Wired(lambda m, x: average(x, 3, 1, 1)),
            ]
        return rng.choice(kinds)()

    def stage(self, inner: int, out: int, keep: bool) -> nn.Module:
        rng = self.rng
        conv = self.conv if rng.random() < 0.8 else self.transposed
        layers = [self.norm(out), self.bend(out)]
        rng.shuffle(layers)
        if rng.random() < 0.3:
            layers.insert(rng.randrange(3), self.pool(keep))
        if rng.random() < 0.1:
            layers.append(qnn.QDropout2d() if self.space == 2 else qnn.QDropout())
        return nn.Sequential(conv(inner, out, keep), *layers)

    # ------------------------------------------------------------------------------------------------- blocks

    def block(self, inner: int, out: int, keep: bool, depth: int = 0) -> nn.Module:
        """Something from ``inner`` to ``out`` channels, often made of other blocks."""
        rng = self.rng
        kinds = ["stage"] * 3
        if depth < 2 and rng.random() < 0.7:
            kinds += ["residual", "projected", "gate", "squeeze", "cat", "norms", "plain", "real", "chain", "functions"]
            kinds += ["twice", "identity"] if inner == out else []
        return getattr(self, f"_{rng.choice(kinds)}", self._stage)(inner, out, keep, depth)

    def _stage(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        return self.stage(inner, out, keep)

    def _chain(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        between = self.width()
        return nn.Sequential(self.block(inner, between, keep, depth + 1), self.block(between, out, keep, depth + 1))

    def _identity(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        body = nn.Sequential(self.block(inner, out, True, depth + 1), self.block(out, out, True, depth + 1))
        return self.rng.choice(
            [
                Wired(lambda m, x: m.body(x) + x, body=body),
                Wired(lambda m, x: m.bend(x.add(m.body(x))), body=body, bend=self.bend(out)),
                Wired(
                    lambda m, x: m.norm(torch.sub(x, m.body(m.bend(x)))), body=body, bend=nn.ReLU(), norm=self.norm(out)
                ),
            ]
        )

    def _residual(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        first = self.stage(inner, out, keep)
        return nn.Sequential(first, self._identity(out, out, keep, depth))

    def _projected(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        body, short = self.block(inner, out, True, depth + 1), self.conv(inner, out, True)
        return Wired(lambda m, x: m.bend(m.body(x) + m.short(x)), body=body, short=short, bend=self.bend(out))

    def _gate(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        one, other = self.block(inner, out, True, depth + 1), self.stage(inner, out, True)
        bend = self.rng.choice([nn.Sigmoid(), nn.Tanh(), nn.Identity()])
        return Wired(lambda m, x: m.one(x) * m.bend(m.other(x)), one=one, other=other, bend=bend)

    def _squeeze(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        axes, small = tuple(range(2, 2 + self.space)), self.width()
        layers = {"body": self.block(inner, out, keep, depth + 1), "bend": self.rng.choice([nn.Sigmoid(), nn.ReLU()])}
        if self.rng.random() < 0.5:
            layers["squeeze"] = nn.Sequential(
                qnn.QLinear(4 * out, 4 * small), nn.ReLU(), qnn.QLinear(4 * small, 4 * out)
            )

            def wiring(m: Any, x: Tensor) -> Tensor:
                y = m.body(x)
                scale = m.bend(m.squeeze(y.mean(axes)))
                for _ in axes:
                    scale = scale.unsqueeze(-1)
                return y * scale

            return Wired(wiring, **layers)
        point = self.of("QConv", qnn)
        layers["squeeze"] = nn.Sequential(
            self.of("AdaptiveAvgPool")(1), point(4 * out, 4 * small, 1), nn.ReLU(), point(4 * small, 4 * out, 1)
        )
        return Wired(lambda m, x: (y := m.body(x)) * m.bend(m.squeeze(y)), **layers)

    def _cat(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        a, b = self.width(), self.width()
        one, other = self.block(inner, a, True, depth + 1), self.stage(inner, b, True)
        if self.rng.random() < 0.5:
            last = self.stage(a + b, out, keep)
            return Wired(lambda m, x: m.last(qnn.cat([m.one(x), m.other(x)])), one=one, other=other, last=last)
        last = self.stage(a + b + inner, out, keep)
        return Wired(lambda m, x: m.last(qnn.cat((m.one(x), x, m.other(x)), dim=1)), one=one, other=other, last=last)

    def _twice(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        again, bend = self.conv(inner, out, True), self.bend(out)
        return self.rng.choice(
            [
                Wired(lambda m, x: m.again(m.bend(m.again(x))), again=again, bend=bend),
                Wired(lambda m, x: m.again(x) + m.again(m.bend(x)), again=again, bend=bend),
            ]
        )

    def _norms(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        """One normalisation for two branches."""
        layers = {"one": self.conv(inner, out, True), "other": self.conv(inner, out, True)}
        layers |= {"norm": self.norm(out), "bend": self.bend(out)}
        return Wired(lambda m, x: m.bend(m.norm(m.one(x))) + m.norm(m.other(x)), **layers)

    def _plain(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        """Arithmetic with numbers and with parameters of the network's own."""
        shape = self.rng.choice([(1,), (1, *[1] * self.space), (4 * out, *[1] * self.space)])
        layers = {"body": self.block(inner, out, keep, depth + 1), "own": nn.Parameter(torch.empty(shape))}
        return self.rng.choice(
            [
                Wired(lambda m, x: m.body(x) + m.own, **layers),
                Wired(lambda m, x: 1 - m.body(x) * m.own, **layers),
                Wired(lambda m, x: 2 * m.body(x) / 3 - 1, body=layers["body"]),
                Wired(lambda m, x: -m.body(x), body=layers["body"]),
            ]
        )

    def _functions(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        """In place, and by functions."""
        body, other = self.block(inner, out, True, depth + 1), self.conv(inner, out, True)

        def changed(m: Any, x: Tensor) -> Tensor:
            y = m.body(x).clone()
            z = torch.relu_(y) if self.space == 1 else TF.relu(y, inplace=True)
            return m.other(x) + y + z

        def grown(m: Any, x: Tensor) -> Tensor:
            y = m.other(x)
            y += m.body(x)
            return y * 0.5

        return Wired(self.rng.choice([changed, grown]), body=body, other=other)

    def _real(self, inner: int, out: int, keep: bool, depth: int) -> nn.Module:
        """Real layers over quaternion channels."""
        groups = self.rng.choice((1, 2))
        mode = self.rng.choice(("zeros", "circular"))
        layer = self.of("Conv")(4 * inner, 4 * out, 3, padding=1, groups=groups, padding_mode=mode)
        if self.rng.random() < 0.3:
            layer = self.of("ConvTranspose")(4 * inner, 4 * out, 3, padding=1, groups=groups)
        return nn.Sequential(layer, self.of("BatchNorm")(4 * out), nn.ReLU(), self.conv(out, out, keep))

    # -------------------------------------------------------------------------------------------------- heads

    def head(self, inner: int, features: int | None) -> nn.Module:
        """An output for any size of image or, if ``features`` says how many quaternions it leaves, for that one."""
        rng = self.rng
        axes = tuple(range(2, 2 + self.space))
        width = self.width()
        pooled: list[Callable[[], nn.Module]] = [
            lambda: Wired(lambda m, x: x.mean(axes)),
            lambda: Wired(lambda m, x: torch.amax(x, axes)),
            lambda: Wired(lambda m, x: x.sum(axes)),
            lambda: nn.Sequential(self.of("AdaptiveAvgPool")(1), nn.Flatten()),
            lambda: nn.Sequential(self.of("AdaptiveMaxPool")(1), Wired(lambda m, x: x.view(x.size(0), -1))),
            lambda: Wired(lambda m, x: TF.adaptive_avg_pool2d(x, 1).flatten(1) if self.space == 2 else x.mean(axes)),
        ]
        flat: list[Callable[[], nn.Module]] = [
            nn.Flatten,
            lambda: Wired(lambda m, x: x.contiguous().view(x.size(0), -1)),
            lambda: Wired(lambda m, x: torch.flatten(x, 1)),
            lambda: Wired(lambda m, x: x.reshape(x.shape[0], -1)),
        ]
        if features is None:
            if rng.random() < 0.2:  # fully convolutional
                return nn.Sequential(self.conv(inner, width, True), qnn.Modulus(), self.of("Conv")(width, 2, 1))
            if rng.random() < 0.1:
                return self.conv(inner, width, True)
            to_vector, features = rng.choice(pooled)(), inner
        else:
            to_vector = rng.choice(flat)()
        kind = rng.randrange(6)
        ends: list[nn.Module]
        if kind == 0:
            ends = [qnn.QLinear(4 * features, 4 * width), qnn.Modulus()]
        elif kind == 1:
            ends = [nn.Dropout(), nn.Linear(4 * features, 3)]
        elif kind == 2:
            ends = [qnn.QLinear(4 * features, 4 * width), qnn.QBatchNorm1d(4 * width), qnn.Modulus()]
            ends += [nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)]
        elif kind == 3:
            ends = [qnn.Modulus(), nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, 2, bias=rng.random() < 0.5)]
        elif kind == 4:
            ends = [qnn.QBatchNorm1d(4 * features), nn.Linear(4 * features, 8), nn.Sigmoid(), qnn.QLinear(8, 8)]
        else:
            ends = [qnn.QLinear(4 * features, 4 * width, bias=rng.random() < 0.5)]
        return nn.Sequential(to_vector, *ends)


def image_network(rng: random.Random) -> Drawn:
    """A convolutional network of one to three blocks, with one or two heads."""
    images = Images(rng, rng.choice((1, 2, 2, 2, 2, 2, 3)))
    parts = rng.choice(("rijk", "rijk", "ijk", "r"))
    first = images.width()
    layers: list[nn.Module] = [images.conv(1, first, False, parts), images.bend(first)]
    before = first
    for _ in range(rng.randrange(1, 4)):
        after = images.width()
        layers.append(images.block(before, after, rng.random() < 0.5))
        before = after
    trunk = random_values(nn.Sequential(*layers))
    size = {1: 9, 2: 6, 3: 4}[images.space] + rng.randrange(3)
    sizes = [tuple(size + rng.randrange(2) for _ in range(images.space)) for _ in range(1)]
    sizes += [tuple(n - 1 for n in sizes[0]), tuple(n + 1 + rng.randrange(3) for n in sizes[0])]
    inputs = [torch.randn(2, len(parts), *s, dtype=F64) for s in sizes]
    found = trunk(inputs[0]).shape
    features = None
    if rng.random() < 0.25:
        features, inputs = math.prod(found[1:]) // 4, inputs[:1]
    heads = [images.head(before, features) for _ in range(rng.choice((1, 1, 2)))]
    if len(heads) == 1:
        model: nn.Module = nn.Sequential(trunk, *heads)
    elif rng.random() < 0.5:
        model = Wired(lambda m, x: (m.one(y := m.trunk(x)), m.other(y)), trunk=trunk, one=heads[0], other=heads[1])
    else:
        model = Wired(
            lambda m, x: {"one": m.one(y := m.trunk(x)), "y": [y, m.other(y)]},
            trunk=trunk,
            one=heads[0],
            other=heads[1],
        )
    return Drawn(random_zeros(random_values(model), rng), [(x,) for x in inputs])


# -------------------------------------------------------------------------------------------------- sequences


def sequence_network(rng: random.Random) -> Drawn:
    """Recurrent layers, attention, embeddings and what goes with them, on sequences ``(batch, length, features)``."""
    width = rng.choice((2, 3, 4))
    layers: list[nn.Module] = []
    words = rng.random() < 0.3
    if words:
        layers.append(qnn.QEmbedding(7, 4 * width, padding_idx=rng.choice((None, 0))))
    else:
        layers.append(qnn.QLinear(8, 4 * width))
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(("linear", "rnn", "rnn", "attention", "norm", "conv", "residual", "states"))
        after = rng.choice((2, 3, 4))
        if kind == "linear":
            layers.append(
                nn.Sequential(
                    qnn.QLinear(4 * width, 4 * after), rng.choice([nn.ReLU(), nn.Sigmoid()]), qnn.QDropout(dim=-1)
                )
            )
        elif kind in ("rnn", "states"):
            both, levels = rng.random() < 0.4, rng.choice((1, 1, 2, 3))
            make = rng.choice((qnn.QRNN, qnn.QLSTM, qnn.QGRU))
            rnn = make(4 * width, 4 * after, levels, bias=rng.random() < 0.7, batch_first=True, bidirectional=both)
            if kind == "rnn":
                layers.append(Wired(lambda m, x: m.rnn(x)[0], rnn=rnn))
                after *= 2 if both else 1
            else:

                def of_state(m: Any, x: Tensor, lstm: bool = make is qnn.QLSTM) -> Tensor:
                    state = m.rnn(x)[1]
                    return (state[0] + state[1] if lstm else state).transpose(0, 1)

                layers.append(Wired(of_state, rnn=rnn))
        elif kind == "attention":
            after = width
            heads = rng.choice([n for n in range(1, width + 1) if width % n == 0])
            more: dict[str, Any] = {"add_bias_kv": rng.random() < 0.3, "add_zero_attn": rng.random() < 0.3}
            attention = qnn.QMultiheadAttention(4 * width, heads, batch_first=True, **more)
            weights = rng.random() < 0.3
            layers.append(
                rng.choice(
                    [
                        Wired(lambda m, x, w=weights: m.attention(x, x, x, need_weights=w)[0], attention=attention),
                        Wired(
                            lambda m, x, w=weights: x + m.attention(m.q(x), k := m.k(x), k, need_weights=w)[0],
                            attention=attention,
                            q=qnn.QLinear(4 * width, 4 * width),
                            k=qnn.QLinear(4 * width, 4 * width),
                        ),
                    ]
                )
            )
        elif kind == "norm":
            after = width
            layers.append(
                rng.choice(
                    [
                        qnn.QLayerNorm(4 * width),
                        Wired(lambda m, x: m.norm(x.transpose(1, 2)).transpose(1, 2), norm=qnn.QBatchNorm1d(4 * width)),
                        qnn.QModReLU(4 * width, dim=-1),
                    ]
                )
            )
        elif kind == "conv":
            conv = qnn.QConv1d(4 * width, 4 * after, 3, padding=1)
            layers.append(Wired(lambda m, x: m.conv(x.permute(0, 2, 1)).permute(0, 2, 1), conv=conv))
        else:
            after = width
            body = nn.Sequential(qnn.QLinear(4 * width, 8), nn.GELU(), qnn.QLinear(8, 4 * width))
            layers.append(Wired(lambda m, x: x + m.body(x), body=body))
        width = after
    ends: list[Callable[[], nn.Module]] = [
        lambda: Wired(lambda m, x: m.fc(x[:, -1]), fc=qnn.QLinear(4 * width, 8)),
        lambda: Wired(lambda m, x: m.fc(x.mean(1)), fc=nn.Linear(4 * width, 3)),
        lambda: nn.Sequential(qnn.Modulus(-1), nn.Linear(width, 2)),
        lambda: nn.Sequential(qnn.QLinear(4 * width, 8), qnn.Modulus(-1)),
    ]
    model = random_values(nn.Sequential(*layers, rng.choice(ends)()))
    lengths = (5, 2, 9)
    if words:
        return Drawn(random_zeros(model, rng), [(torch.randint(7, (2, n)),) for n in lengths])
    return Drawn(random_zeros(model, rng), [(torch.randn(2, n, 8, dtype=F64),) for n in lengths])


# ------------------------------------------------------------------------------------- sizes and numbers in use

Asked = Callable[[Tensor, Tensor, Any], Any]  # of the input, of a value in the network, and of the number


def _asked(rng: random.Random, depth: int = 0) -> Asked:
    """A number that a network computes from sizes, from its input ``k`` and from constants."""
    if depth == 2 or rng.random() < 0.4:
        constant = rng.uniform(-2, 2)
        return rng.choice(
            [
                lambda x, y, k: x.size(0),
                lambda x, y, k: x.shape[2],
                lambda x, y, k: y.size(-1),
                lambda x, y, k: y.shape[1],
                lambda x, y, k: y.numel() / 50,
                lambda x, y, k: math.prod(y.shape[2:]),
                lambda x, y, k: x.shape.numel() / 50,
                lambda x, y, k: y.dim() + x.ndim,
                lambda x, y, k: x.size(2) // 2 + 1,
                lambda x, y, k: k,
                lambda x, y, k: k,
                lambda x, y, k: constant,
            ]
        )
    a, b = _asked(rng, depth + 1), _asked(rng, depth + 1)
    return rng.choice(
        [
            lambda x, y, k: a(x, y, k) + b(x, y, k),
            lambda x, y, k: a(x, y, k) - b(x, y, k),
            lambda x, y, k: a(x, y, k) * b(x, y, k),
            lambda x, y, k: a(x, y, k) / (b(x, y, k) * b(x, y, k) + 1),
            lambda x, y, k: math.atan(a(x, y, k)),
        ]
    )


def _numbered_step(rng: random.Random) -> Callable[[Tensor, Tensor, Any], Tensor]:
    """Something done to ``y``, an image of the network, with a size or a number."""
    n = _asked(rng)
    return rng.choice(
        [
            lambda x, y, k: y * n(x, y, k),
            lambda x, y, k: n(x, y, k) - y,
            lambda x, y, k: y / (n(x, y, k) * n(x, y, k) + 1),
            lambda x, y, k: torch.mul(input=y, other=n(x, y, k)),
            lambda x, y, k: y.clone().add_(n(x, y, k)),
            lambda x, y, k: torch.add(y, torch.sigmoid(y), alpha=n(x, y, k)),
            lambda x, y, k: torch.sub(y, y.tanh(), alpha=n(x, y, k)),
            lambda x, y, k: TF.leaky_relu(y, n(x, y, k)),
            lambda x, y, k: TF.elu(y, alpha=n(x, y, k)),
            lambda x, y, k: TF.softplus(y, n(x, y, k) * n(x, y, k) + 1),
            lambda x, y, k: y * torch.full((1,), n(x, y, k), dtype=F64),
            lambda x, y, k: y + torch.arange(y.size(3)),
            lambda x, y, k: y * (torch.ones((x.size(2), 1), dtype=F64) * n(x, y, k)).mean(),
            lambda x, y, k: TF.interpolate(y, size=(y.size(2) + 1, y.shape[3])),
            lambda x, y, k: TF.adaptive_avg_pool2d(y, (x.size(2) // 2 + 1, 3)),
            lambda x, y, k: y[:, :, : x.size(2) // 2 + 1],
            lambda x, y, k: y.reshape(y.size(0), y.size(1), -1).reshape(y.shape),
            lambda x, y, k: torch.relu(y),
        ]
    )


def numbered_network(rng: random.Random) -> Drawn:
    """Sizes and numbers take part in the arithmetic of a network ``(x, k)``. Later inputs differ in the size of the
    batch, of the images, and in ``k``."""
    first, second, after = (_numbered_step(rng) for _ in range(3))
    images = Images(rng, 2)
    layers = {"a": images.conv(1, 4, True), "b": images.conv(4, 3, True), "fc": qnn.QLinear(12, 8)}
    scale = _asked(rng)
    ends: list[Callable[[Any, Tensor, Tensor, Any], Any]] = [
        lambda m, x, y, k: m.fc(y.mean((2, 3)) * scale(x, y, k)),
        lambda m, x, y, k: m.fc(y.amax((2, 3)).view(y.size(0), y.size(1))) * scale(x, y, k),
        lambda m, x, y, k: after(x, y, k),
    ]
    end = rng.choice(ends)
    model = Numbered(lambda m, x, k: end(m, x, m.b(second(x, first(x, m.a(x), k), k)), k), **layers)
    shapes_and_numbers = [((2, 4, 5, 6), 0.7), ((3, 4, 7, 4), -1.3), ((1, 4, 6, 9), 2.5), ((2, 4, 5, 6), 1.9)]
    inputs = [(torch.randn(*shape, dtype=F64), k) for shape, k in shapes_and_numbers]
    return Drawn(random_zeros(random_values(model), rng), inputs)


def draw(rng: random.Random) -> Drawn:
    """A network that takes at least its example."""
    while True:
        torch.manual_seed(rng.randrange(1 << 31))
        try:
            drawn = (image_network if rng.random() < 0.75 else sequence_network)(rng)
        except RuntimeError:  # images became too small on the way
            continue
        if outputs(drawn.model, drawn.inputs[0]) is not None:
            return drawn


# ------------------------------------------------------------------------------------------------ values and zeros


@torch.no_grad()
def random_values(model: nn.Module) -> nn.Module:
    """Every number random and none at a special value: biases, scales, shifts and statistics too."""
    for p in model.parameters():
        rows = p.numel() // max(p.shape[:2].numel(), 1) if p.dim() > 2 else 1
        p.copy_(torch.randn_like(p) / math.sqrt(max(rows, 1)))
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(torch.randn_like(b) / 2)
        elif name.endswith("running_var"):
            b.copy_(torch.rand_like(b) + 0.5)
        elif name.endswith("running_cov"):
            root = torch.randn(b.shape[2], 4, 4, dtype=b.dtype) / 4 + torch.eye(4, dtype=b.dtype)
            b.copy_((root @ root.mT + torch.eye(4, dtype=b.dtype) / 4).permute(1, 2, 0))
    return model.double().eval()


def _mask(shape: Sequence[int], keep: float) -> Tensor:
    return (torch.rand(*shape) < keep).double()


NORMS = (qnn.QBatchNorm1d, qnn.QBatchNorm2d, qnn.QBatchNorm3d, qnn.QWhiteningBatchNorm2d, qnn.QLayerNorm)
NORMS = (*NORMS, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def random_zeros(model: nn.Module, rng: random.Random) -> nn.Module:
    """Single numbers, quaternions, rows, columns, scales and biases become zero, in each layer in some other way."""
    for layer in model.modules():
        if isinstance(layer, NORMS):
            if layer.weight is not None:
                off = _mask(layer.weight.shape[-1:], rng.choice((0.5, 0.8, 0.8, 1.0)))
                layer.weight.mul_(off)
                if layer.bias is not None and rng.random() < 0.5:
                    layer.bias.mul_(off)
            if layer.bias is not None and rng.random() < 0.3:
                layer.bias.mul_(_mask(layer.bias.shape[-1:], 0.5))
            continue
        quaternion = type(layer).__module__.startswith("quern.nn")
        for name, p in layer.named_parameters(recurse=False):
            if "bias" in name:
                p.mul_(_mask(p.shape[-1:], rng.choice((0.0, 0.5, 1.0))))
            elif "weight" in name and p.dim() > 1:
                _zero_weight(p if quaternion else p.unsqueeze(0), getattr(layer, "gates", 1), rng)
    return model


def _zero_weight(w: Tensor, gates: int, rng: random.Random) -> None:
    """``w`` is (components, out, in, *kernel); of a recurrent layer, ``out`` are gates."""
    w = w.unflatten(1, (gates, -1))
    ones = [1] * (w.dim() - 4)
    if rng.random() < 0.01:
        w.zero_()
    if rng.random() < 0.3:
        w.mul_(_mask(w.shape, rng.choice((0.3, 0.7))))
    if rng.random() < 0.4:
        w.mul_(_mask((1, 1, *w.shape[2:4], *ones), rng.choice((0.4, 0.7, 0.9))))
    if rng.random() < 0.6:
        w.mul_(_mask((w.shape[2], 1, *ones), rng.choice((0.6, 0.8))))
    if rng.random() < 0.5:
        w.mul_(_mask((w.shape[3], *ones), rng.choice((0.6, 0.8))))


# ----------------------------------------------------------------------------------------------------- comparing


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [t for part in parts if part is not None for t in tensors_of(part)]


def cloned(inputs: Inputs) -> Inputs:
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)


@torch.no_grad()
def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor] | None:
    """What the network gives, or None if images of this size are too small for it."""
    try:
        return tensors_of(model(*cloned(inputs)))
    except (RuntimeError, ValueError):
        return None


def difference(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference of outputs, relative to the largest number in each of ``wanted``."""
    worst = 0.0
    for a, b in zip(wanted, found, strict=True):
        assert a.shape == b.shape
        scale = a.abs().max().item() or 1.0
        worst = max(worst, (a.double() - b.double()).abs().max().item() / scale)
    return worst


@dataclass(frozen=True)
class Measured:
    """The largest differences from the network in float64: of the smaller one, at so many sizes, and, on the example,
    of the smaller one and of the network itself in float32."""

    float64: float
    sizes: int
    float32: float
    masked_float32: float


def measure(drawn: Drawn, found: Plan, small: nn.Module, single: bool = True) -> Measured:
    """Without ``single``, what is said of float32 is 0."""
    worst, sizes, singles = 0.0, 0, []
    for inputs in drawn.inputs:
        wanted = outputs(drawn.model, inputs)
        if wanted is None:
            continue
        sizes += 1
        worst = max(worst, difference(wanted, tensors_of(small(*cloned(inputs)))))
        if single and not singles:  # rounding is much the same at every size
            narrow = copy.deepcopy(drawn.model).float()
            inputs = cast(inputs, torch.float32)
            for one in (compact(narrow, found), narrow):
                got = outputs(one, inputs)
                assert got is not None
                singles.append(difference(wanted, got))
    return Measured(worst, sizes, *(singles or (0.0, 0.0)))


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)


@dataclass(frozen=True)
class Halves:
    """Of a network whose numbers have 16 bits: the largest differences on the example from the same network computed in
    float64. ``compacted`` is the smaller network computed in float64; the others are both networks as they are, or 0
    where torch does not compute in 16 bits."""

    compacted: float
    compacted_as_it_is: float
    as_it_is: float


def measure_halves(drawn: Drawn, dtype: torch.dtype) -> Halves:
    """Plan, compact and compare a network in ``dtype``."""
    model, inputs = copy.deepcopy(drawn.model).to(dtype), cast(drawn.inputs[0], dtype)
    small = compact(model, plan(model, inputs))
    wide = cast(inputs, F64)
    runs = [(copy.deepcopy(one).double(), wide) for one in (model, small)] + [(small, inputs), (model, inputs)]
    wanted, *found = [outputs(network, given) for network, given in runs]
    assert wanted is not None
    return Halves(*(0.0 if one is None else difference(wanted, one) for one in found))


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: t.shape for name, t in model.state_dict().items()}


# --------------------------------------------------------------------------------------------- networks by hand


def kill(layer: Any, rows: tuple[int, ...] = (), columns: tuple[int, ...] = (), bias: bool = True) -> None:
    """Weights of neurons (``rows``), with their biases or without, or of inputs (``columns``) to zero."""
    layer.weight.data[:, list(rows)] = 0
    layer.weight.data[:, :, list(columns)] = 0
    if bias and layer.bias is not None:
        layer.bias.data[:, list(rows)] = 0


def smaller(model: nn.Module, *inputs: Tensor, **options: Any) -> tuple[Any, Plan]:
    """The compacted network and its plan, after it gave the same outputs for all inputs; the first is the example."""
    found = plan(model, inputs[0], **options)
    small = compact(model, found)
    model = copy.deepcopy(model).eval()
    for x in inputs:
        wanted = outputs(model, (x,))
        assert wanted is not None
        assert difference(wanted, tensors_of(copy.deepcopy(small).eval()(x.clone()))) <= 1e-10
    return small, found


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def widths(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Quaternions in and out of every linear layer and convolution."""
    kinds = (qnn.QLinear, qnn.QConv1d, qnn.QConv2d, qnn.QConvTranspose2d)
    return {
        name: (m.weight.shape[2] * getattr(m, "groups", 1), m.weight.shape[1])
        for name, m in model.named_modules()
        if isinstance(m, kinds)
    }


def two(a: nn.Module, b: nn.Module, between: Callable[..., Any] = lambda m, x: x, **more: Any) -> Any:
    return random_values(Wired(lambda m, x: m.b(between(m, m.a(x))), a=a, b=b, **more))
