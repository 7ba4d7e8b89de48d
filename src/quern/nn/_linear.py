import torch
from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F
from quern.algebra import UNITS
from quern.functional.shapes import check_parts, quaternions
from quern.functional.weight_cache import WeightCache
from quern.nn import init


class QLinear(nn.Module):
    r"""Quaternion linear layer :math:`y = W \otimes x + b` on the last axis, any leading axes.

    ``in_features`` and ``out_features`` count real numbers. The parameters are ``weight (4, out/4, in/4)`` and
    ``bias (4, out/4)``. With ``input_parts="r"`` or ``"ijk"`` the input has only those components (``in_features``
    counts them) and the zeros of the others are never multiplied.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        input_parts: str = UNITS,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.input_parts = check_parts(input_parts)
        inner = quaternions(in_features, "in_features", input_parts)
        out = quaternions(out_features, "out_features")
        self.weight = nn.Parameter(torch.empty(4, out, inner, device=device, dtype=dtype))
        shift = nn.Parameter(torch.empty(4, out, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", shift)
        self._cache = WeightCache()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.he_(self.weight, len(self.input_parts))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def train(self, mode: bool = True) -> "QLinear":
        self._cache.clear()
        return super().train(mode)

    def forward(self, input: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        cache = None if self.training else self._cache
        return F.linear(input, self.weight, self.bias, input_parts=self.input_parts, cache=cache)

    def extra_repr(self) -> str:
        parts = "" if self.input_parts == UNITS else f", input_parts={self.input_parts!r}"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}{parts}"
