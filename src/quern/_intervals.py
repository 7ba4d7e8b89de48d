"""How sure a share is that was counted on some examples."""

import math

__all__ = ["wilson"]

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
