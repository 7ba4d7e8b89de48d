"""How sure a share is that was counted on some examples, and how sure the difference of two on the same examples."""

import math

__all__ = ["tango", "wilson"]

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
