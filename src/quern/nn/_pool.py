from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F

Size = int | Sequence[int]


class SplitMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d``: of each window the maximum of each component. In training it is faster than torch's for
    channels_last images on CPUs; values and gradients are the same."""

    def forward(self, input: Float[Tensor, "..."]) -> Tensor | tuple[Tensor, Tensor]:
        if self.return_indices:
            return super().forward(input)
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation)
        return F.split_max_pool2d(input, *sizes, self.ceil_mode)


class QMaxPool(nn.Module):
    """Abstract: ``space`` is the number of spatial axes."""

    space: int

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Float[Tensor, "..."]) -> Tensor | tuple[Tensor, Tensor]:
        if input.dim() not in (self.space + 1, self.space + 2):
            raise ValueError(
                f"{type(self).__name__} takes (batch, 4*C, *space) with {self.space + 2} axes, or one less without a "
                f"batch, but the input's shape is {tuple(input.shape)}."
            )
        batched = input.dim() == self.space + 2
        y, indices = F.max_pool(
            input if batched else input.unsqueeze(0),
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
        )
        if not batched:
            y, indices = y.squeeze(0), indices.squeeze(0)
        return (y, indices) if self.return_indices else y

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class QMaxPool1d(QMaxPool):
    """Of each window the quaternion of largest modulus, whole. (``nn.MaxPool1d`` takes each component's maximum.)"""

    space = 1


class QMaxPool2d(QMaxPool):
    """Of each window the quaternion of largest modulus, whole; see :class:`QMaxPool1d`."""

    space = 2


class QMaxPool3d(QMaxPool):
    """Of each window the quaternion of largest modulus, whole; see :class:`QMaxPool1d`."""

    space = 3
