import torch
from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F
from quern.functional.shapes import axis, quaternions


class Modulus(nn.Module):
    r"""Real scores :math:`|q|` from quaternions: size 4*C along ``dim`` becomes C. Gradient 0 at 0."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return F.modulus(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class QModReLU(nn.Module):
    r"""The activation :math:`\mathrm{ReLU}(|q| + b)\, q/|q|` with a learned real ``bias (n,)`` per quaternion channel.

    ``num_features`` counts real channels, n = num_features/4; ``dim`` is their axis. It commutes with a rotation of q.
    """

    def __init__(
        self,
        num_features: int,
        dim: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features, self.dim = num_features, dim
        n = quaternions(num_features, "num_features")
        self.bias = nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if input.shape[axis(input, self.dim)] != self.num_features:
            raise ValueError(
                f"QModReLU takes size {self.num_features} along dim {self.dim}, but got {tuple(input.shape)}."
            )
        return F.mod_relu(input, self.bias, self.dim)

    def extra_repr(self) -> str:
        return f"{self.num_features}, dim={self.dim}"
