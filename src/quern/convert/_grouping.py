"""Which real channels become one quaternion, so that the nearest quaternion weights lose little.

A weight that is projected on 4x4 blocks keeps the squared norm of a sum: each of a quaternion's four channels, in its
place a of the four, adds a vector :math:`v_a(c)`. So what is kept is, but for a constant, twice the sum of
:math:`v_a(c)\\cdot v_b(c')` over the pairs within each quaternion, and channels are moved between places as long as
that grows.
"""

from collections.abc import Sequence
from itertools import combinations, permutations

import torch
from torch import Tensor

from quern.functional.products import nearest_weight

PAIRS = tuple(combinations(range(4), 2))
ENOUGH = 1e-5  # gains below this share of all that there is are rounding
SWEEPS = 500


def outgoing(weight: Tensor, parts: int) -> list[Tensor]:
    """What each row of ``weight (rows, parts * n, ...)``, its columns in the order of quaternions, adds in each of four
    places: ``(rows, ...)`` four times."""
    weight = weight.unflatten(1, (parts, -1))
    vectors = []
    for a in range(4):
        real = weight.new_zeros(4, *weight.shape)
        real[a] = weight
        vectors.append(parts**0.5 * nearest_weight(real, "rijk" if parts == 4 else "ijk" if parts == 3 else "r"))
    return [v.transpose(0, 1).flatten(1) for v in vectors]


def incoming(weight: Tensor) -> list[Tensor]:
    """The same of each column of ``weight (4 * n, columns, spread, ...)``, its rows in the order of quaternions."""
    columns, spread = weight.shape[1:3]
    weight = weight.flatten(1, 2).unflatten(0, (4, -1))
    vectors = []
    for b in range(4):
        real = weight.new_zeros(4, weight.shape[1], 4, *weight.shape[2:])
        real[:, :, b] = weight
        vectors.append(2 * nearest_weight(real).unflatten(2, (columns, spread)))
    return [v.movedim(2, 0).flatten(1) for v in vectors]


def gains(sides: Sequence[Sequence[Tensor]]) -> Tensor:
    """``(4, 4, channels, channels)``: what channel c in place a keeps more beside channel d in place b, over layers
    that each have four vectors a channel."""
    channels = len(sides[0][0])
    total = torch.zeros(4, 4, channels, channels)
    for vectors in sides:
        for a, b in PAIRS:
            total[a, b] += 2 * vectors[a].float() @ vectors[b].float().T
    for a, b in PAIRS:
        total[b, a] = total[a, b].T
    return total


def kept(gain: Tensor, places: Tensor) -> float:
    """The part of what is kept that depends on ``places (4, n)``, which channel is in which place."""
    return sum(float(gain[a, b][places[a], places[b]].double().sum()) for a, b in PAIRS)


def grouped(gain: Tensor, places: Tensor, scale: float) -> Tensor:
    """The better of two searches, one from ``places`` as they are and one from quaternions chosen one by one;
    ``places`` if neither keeps more. ``scale`` is all that could be kept."""
    best, least = places, kept(gain, places) + ENOUGH * scale
    for start in (places, greedy(gain)):
        after = improved(gain, start, scale)
        if (value := kept(gain, after)) > least:
            best, least = after, value
    return best


def greedy(gain: Tensor) -> Tensor:
    """Quaternions one by one: the two channels that keep the most, then the best third, then the best fourth."""
    channels = gain.shape[2]
    pairs = torch.stack([gain[a, b] for a, b in PAIRS]).flatten()
    free = torch.ones(channels, dtype=torch.bool)
    made: list[list[int]] = []
    for entry in pairs.topk(min(len(pairs), 64 * channels)).indices.tolist():
        pair, c, d = entry // channels**2, entry // channels % channels, entry % channels
        if c == d or not (free[c] and free[d]):
            continue
        four = dict(zip(PAIRS[pair], (c, d), strict=True))
        free[[c, d]] = False
        for _ in range(2):
            rest = [a for a in range(4) if a not in four]
            more = torch.stack([sum((gain[a, b][:, e] for b, e in four.items()), torch.zeros(())) for a in rest])
            place, channel = divmod(int(more.masked_fill(~free, -torch.inf).argmax()), channels)
            four[rest[place]] = channel
            free[channel] = False
        made.append([four[a] for a in range(4)])
    left = free.nonzero().flatten().view(-1, 4).tolist()
    return torch.tensor([*made, *left]).T.contiguous()


def improved(gain: Tensor, places: Tensor, scale: float) -> Tensor:
    """``places (4, n)`` after all swaps of two channels, and new orders of four, that keep more; ``scale`` is all that
    could be kept."""
    places, least = places.clone(), ENOUGH * scale / max(1, places.shape[1])
    n = places.shape[1]
    quaternion = torch.arange(4 * n) % n
    together = quaternion == quaternion[:, None]
    for _ in range(SWEEPS):
        turned = _turned(gain, places, least)
        # What each channel would keep in each place, next to those that are in the other three places there.
        beside = torch.stack([sum(gain[a, b][:, places[b]] for b in range(4) if b != a) for a in range(4)], 1)  # pyright: ignore[reportArgumentType, reportCallIssue]
        now = beside.flatten(1)[places.flatten()]
        own = now.diagonal()
        change = (now + now.T - own - own[:, None]).masked_fill(together, -1.0)
        best, partner = change.max(1)
        touched = torch.zeros(n, dtype=torch.bool)
        flat = places.flatten()
        for place in best.argsort(descending=True).tolist():
            if best[place] <= least:
                break
            other = int(partner[place])
            ends = quaternion[place], quaternion[other]
            if not (touched[ends[0]] or touched[ends[1]]):  # swaps of other quaternions do not see each other
                touched[ends[0]] = touched[ends[1]] = True
                flat[place], flat[other] = flat[other].clone(), flat[place].clone()
        places = flat.view(4, n)
        if not turned and not touched.any():
            break
    return places


def _turned(gain: Tensor, places: Tensor, least: float) -> bool:
    """Put the four channels of each quaternion into the best order, in place; whether any changed."""
    orders = torch.tensor(list(permutations(range(4))))
    moved = places[orders]  # (24, 4, n)
    values = sum(gain[a, b][moved[:, a], moved[:, b]] for a, b in PAIRS)
    assert isinstance(values, Tensor)
    best, which = values.max(0)
    better = best > values[0] + least
    places[:, better] = moved[which[better], :, better.nonzero().flatten()].T
    return bool(better.any())
