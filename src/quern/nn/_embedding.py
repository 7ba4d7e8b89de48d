import torch
import torch.nn.functional as TF
from jaxtyping import Float, Int
from torch import Tensor, nn

from quern.functional.shapes import quaternions


class QEmbedding(nn.Module):
    """A table of quaternion vectors: indices ``(...)`` to ``(..., embedding_dim)``, component-major.

    ``embedding_dim`` counts real numbers; the table is ``weight (4, num_embeddings, embedding_dim/4)``. The other
    arguments are those of torch; sparse gradients are not offered.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        n = quaternions(embedding_dim, "embedding_dim")
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"padding_idx is {padding_idx}, but the table has rows 0 to {num_embeddings - 1}.")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.weight = nn.Parameter(torch.empty(4, num_embeddings, n, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight[:, self.padding_idx].zero_()

    def forward(self, input: Int[Tensor, "..."]) -> Float[Tensor, "... n"]:
        if self.max_norm is not None:
            self._shorten_rows(input, self.max_norm)
        parts = [
            TF.embedding(input, part, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)
            for part in self.weight.unbind(0)
        ]
        return torch.cat(parts, -1)

    @torch.no_grad()
    def _shorten_rows(self, input: Tensor, max_norm: float) -> None:
        rows = input.unique()
        picked = self.weight[:, rows]
        length = torch.linalg.vector_norm(picked, self.norm_type, dim=(0, 2), keepdim=True)
        self.weight[:, rows] = picked * torch.where(length > max_norm, max_norm / length, 1)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        norm = "" if self.max_norm is None else f", max_norm={self.max_norm}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{norm}"
