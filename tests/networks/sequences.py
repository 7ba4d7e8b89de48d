"""Random networks of recurrent layers, attention and embeddings."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from tests.networks.parts import F64, Drawn, Wired, random_values, random_zeros


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
