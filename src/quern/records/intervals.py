"""How sure a share is that was counted on some examples, the difference of two on the same examples, and the
difference of two means over seeds."""

import math
import statistics
from collections.abc import Sequence

__all__ = ["tango", "welch", "wilson"]

Z = 1.959963984540054  # of a normal distribution, 95 % lie within so many standard deviations


def wilson(share: float, count: int) -> tuple[float, float]:
    r"""The 95 % interval of Wilson for a share of ``count`` independent examples:

    .. math:: \frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    Unlike :math:`p \pm z\sqrt{p(1-p)/n}` it is right for few examples, and for shares near 0 and 1.
    """
    if count < 1 or not 0 <= share <= 1:
        raise ValueError(f"a share of {share} in {count} examples has no interval: it takes a share of at least one.")
    spread = Z * math.sqrt(share * (1 - share) / count + (Z / (2 * count)) ** 2)
    middle, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def tango(gained: int, lost: int, count: int) -> tuple[float, float]:
    r"""The 95 % interval of Tango (1998) for the difference of two shares that were counted on the same ``count``
    independent examples: ``lost`` of them count for the first share only, ``gained`` for the second only. With
    :math:`g, l, n` for the three, it holds every :math:`\delta` that the score test does not reject,

    .. math:: (g - l - n\delta)^2 \le z^2 n\,(2q + \delta(1 - \delta)), \quad
       q = \frac{\sqrt{B^2 + 8nl\,\delta(1 - \delta)} - B}{4n}, \quad B = (2n - g + l)\,\delta - g - l

    where :math:`q` is the most likely share of lost examples if :math:`\delta` is the difference. It is to a difference
    what :func:`wilson` is to a share; unlike :math:`\pm z` standard errors it is right for few differing examples, and
    it has a width if there are none.
    """
    if count < 1 or min(gained, lost) < 0 or gained + lost > count:
        raise ValueError(f"{gained} and {lost} of {count} examples have no interval: it takes parts of at least one.")
    bounds = []
    for outside in (-1.0, 1.0):
        inside = (gained - lost) / count
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if _rejected(middle, gained, lost, count) else (middle, outside)
        bounds.append(inside)
    return bounds[0], bounds[1]


def _rejected(delta: float, gained: int, lost: int, count: int) -> bool:
    b = (2 * count - gained + lost) * delta - gained - lost
    q = (math.sqrt(max(0.0, b * b + 8 * count * lost * delta * (1 - delta))) - b) / (4 * count)
    return (gained - lost - count * delta) ** 2 > Z * Z * count * (2 * q + delta * (1 - delta))


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    r"""The 95 % interval of Welch for the difference of two means, of ``one`` and ``other``, whose spreads may differ:

    .. math:: \bar a - \bar b \pm t_{0.975,\nu}\,\sqrt{v_a + v_b}, \quad v = s^2/n, \quad
       \nu = \frac{(v_a + v_b)^2}{v_a^2/(n_a - 1) + v_b^2/(n_b - 1)}
    """
    if min(len(one), len(other)) < 2:
        raise ValueError(f"means of {len(one)} and {len(other)} numbers have no interval: it takes at least two each.")
    from scipy.special import stdtrit

    middle = statistics.fmean(one) - statistics.fmean(other)
    a, b = (statistics.variance(sample) / len(sample) for sample in (one, other))
    if a + b == 0:
        return middle, middle
    freedom = (a + b) ** 2 / (a**2 / (len(one) - 1) + b**2 / (len(other) - 1))
    reach = float(stdtrit(freedom, 0.975)) * math.sqrt(a + b)
    return middle - reach, middle + reach
