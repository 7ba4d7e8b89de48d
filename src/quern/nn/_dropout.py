from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F


def check_probability(p: float) -> float:
    """``p`` if it is a probability, or a sentence that says so."""
    if not 0 <= p <= 1:
        raise ValueError(f"the dropout probability is {p}, but it must lie between 0 and 1.")
    return p


class QDropout(nn.Module):
    """Zero whole quaternions with probability ``p`` in training. ``dim`` is the axis of the quaternions: 1, or -1 for
    sequences ``(batch, length, 4*C)``."""

    def __init__(self, p: float = 0.5, inplace: bool = False, *, dim: int = 1) -> None:
        super().__init__()
        self.p, self.inplace, self.dim = check_probability(p), inplace, dim

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return F.dropout(input, self.p, self.training, self.inplace, dim=self.dim)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}, dim={self.dim}"


class QDropout2d(nn.Module):
    """Zero whole quaternion channels of ``(batch, 4*C, height, width)`` with probability ``p`` in training."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p, self.inplace = check_probability(p), inplace

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if input.dim() != 4:
            raise ValueError(f"QDropout2d takes (batch, 4*C, height, width), but got {tuple(input.shape)}.")
        return F.dropout(input, self.p, self.training, self.inplace, channelwise=True)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
