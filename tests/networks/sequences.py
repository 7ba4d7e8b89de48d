"""Random networks of recurrent layers, attention and embeddings."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from tests.networks.parts import F64, Drawn, Inputs, Wired, random_values, random_zeros


def sequence_network(rng: random.Random) -> Drawn:
    """Recurrent layers, attention, embeddings and what goes with them, on sequences ``(batch, length, features)``; of
    quaternions or, in some networks, of real numbers."""
    if rng.random() < 0.3:
        return _real_network(rng)
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
                layers.append(Wired(_of_output, rnn=rnn))
                after *= 2 if both else 1
            else:
                layers.append(Wired(_of_state, rnn=rnn))
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
    return Drawn(random_zeros(model, rng), _sequences(words))


def _sequences(words: bool) -> list[Inputs]:
    lengths = (5, 2, 9)
    return [(torch.randint(7, (2, n)) if words else torch.randn(2, n, 8, dtype=F64),) for n in lengths]


def _real_network(rng: random.Random) -> Drawn:
    """Layers of torch; what a quaternion layer hands them is in units of four."""
    width, words = rng.choice((3, 4, 5)), rng.random() < 0.4
    first: list[Callable[[], nn.Module]] = [lambda: nn.Linear(8, width), lambda: qnn.QLinear(8, 4 * width)]
    layers = [nn.Embedding(7, width) if words else rng.choice(first)()]
    width *= 4 if isinstance(layers[0], qnn.QLinear) else 1
    for _ in range(rng.randrange(1, 4)):
        after, both, levels = rng.choice((2, 3, 4, 5)), rng.random() < 0.4, rng.choice((1, 1, 2, 3))
        kind = rng.choice(("linear", "rnn", "rnn", "norm", "states"))
        if kind == "linear":
            layers.append(nn.Sequential(nn.Linear(width, after), rng.choice([nn.ReLU(), nn.Sigmoid()])))
        elif kind == "norm":
            norm, after = nn.BatchNorm1d(width), width
            layers.append(Wired(lambda m, x: m.norm(x.transpose(1, 2)).transpose(1, 2), norm=norm))
        else:
            make = rng.choice((nn.RNN, nn.LSTM, nn.GRU))
            rnn = make(width, after, levels, bias=rng.random() < 0.7, batch_first=True, bidirectional=both)
            layers.append(Wired(_of_output if kind == "rnn" else _of_state, rnn=rnn))
            after *= 2 if both and kind == "rnn" else 1
        width = after
    layers.append(Wired(lambda m, x: m.fc(x[:, -1]), fc=nn.Linear(width, 3)))
    return Drawn(random_zeros(random_values(nn.Sequential(*layers)), rng), _sequences(words))


def _of_output(m: Any, x: Tensor) -> Tensor:
    return m.rnn(x)[0]


def _of_state(m: Any, x: Tensor) -> Tensor:
    state = m.rnn(x)[1]
    return (state[0] + state[1] if isinstance(m.rnn, (nn.LSTM, qnn.QLSTM)) else state).transpose(0, 1)
