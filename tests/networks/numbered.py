"""Random networks that compute with sizes and with numbers that they are given."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor

from quern import nn as qnn
from tests.networks.images import Images
from tests.networks.parts import F64, Drawn, Numbered, random_values, random_zeros

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
