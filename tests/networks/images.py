"""Random convolutional networks."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from tests.networks.parts import F64, Drawn, Wired, random_values, random_zeros


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

    def split(self, inner: int, out: int, keep: bool) -> nn.Module:
        rng = self.rng
        assert inner == out
        options: dict[str, Any] = {"bias": rng.random() < 0.7, "padding": "same", "kernel_size": rng.choice((1, 2, 3))}
        if not keep and rng.random() < 0.5:
            options |= {"padding": rng.choice((0, 1, "valid")), "stride": rng.choice((1, 2)), "kernel_size": (1, 3)}
        return qnn.SplitConv2d(4 * inner, padding_mode=rng.choice(("zeros", "zeros", "circular")), **options)

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
        if inner == out and self.space == 2 and rng.random() < 0.3:
            conv = self.split
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
