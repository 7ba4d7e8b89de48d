from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F


def _probability(p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"the dropout probability is {p}, but it must lie between 0 and 1.")
    return p


class QDropout(nn.Module):
    """Zero whole quaternions with probability ``p`` in training. ``dim`` is the axis of the quaternions: 1, or -1 for
    sequences ``(batch, length, 4*C)``."""

    def __init__(self, p: float = 0.5, dim: int = 1) -> None:
        super().__init__()
        self.p, self.dim = _probability(p), dim

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return F.dropout(input, self.p, self.training, self.dim)

    def extra_repr(self) -> str:
        return f"p={self.p}, dim={self.dim}"


class QDropout2d(nn.Module):
    """Zero whole quaternion channels of ``(batch, 4*C, height, width)`` with probability ``p`` in training."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = _probability(p)

    def forward(self, input: Float[Tensor, "batch channels h w"]) -> Float[Tensor, "batch channels h w"]:
        return F.dropout(input, self.p, self.training, 1, channelwise=True)

    def extra_repr(self) -> str:
        return f"p={self.p}"
