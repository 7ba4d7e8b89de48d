from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as TF
from jaxtyping import Float
from torch import Tensor, nn

from quern import functional as F
from quern.algebra import UNITS
from quern.functional.shapes import check_padding, check_parts, quaternions, same_padding, tuple_of
from quern.functional.weight_cache import WeightCache
from quern.nn import init

Size = int | Sequence[int]
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class QConvolution(nn.Module):
    """What all six convolutions share: sizes, parameters, layout, printing. Abstract: ``forward`` is theirs."""

    space: int  # number of spatial axes
    transposed: bool
    bias: nn.Parameter | None
    constant: nn.Parameter | None

    def _set_sizes(
        self, kernel_size: Size, stride: Size, padding: Size | str, output_padding: Size, dilation: Size, mode: str
    ) -> None:
        if mode not in PADDING_MODES or (self.transposed and mode != "zeros"):
            known = ", ".join(PADDING_MODES[:1] if self.transposed else PADDING_MODES)
            raise ValueError(f"padding_mode is {mode!r}, but this layer knows {known}.")
        self.kernel_size = self._per_axis(kernel_size, "kernel_size", 1)
        self.stride = self._per_axis(stride, "stride", 1)
        self.dilation = self._per_axis(dilation, "dilation", 1)
        self.output_padding = self._per_axis(output_padding, "output_padding", 0)
        if self.transposed and isinstance(padding, str):
            raise ValueError("the padding of a transposed convolution must be numbers, not a word.")
        check_padding(padding, self.stride)
        self.padding = padding if isinstance(padding, str) else self._per_axis(padding, "padding", 0)
        self.padding_mode = mode

    def _set_channels(
        self, in_channels: int, out_channels: int, groups: int, parts: str, bias: bool, **like: Any
    ) -> None:
        """Channels and parameters, which are ``like`` what is said of device and dtype."""
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.input_parts = check_parts(parts)
        if in_channels in (1, 3) and parts == UNITS and not self.transposed:
            raise ValueError(
                f"in_channels is {in_channels}, but quaternions have 4 components: say input_parts="
                f"{'ijk' if in_channels == 3 else 'r'!r} for {'RGB' if in_channels == 3 else 'gray'} images."
            )
        inner = quaternions(in_channels, "in_channels", parts)
        out = quaternions(out_channels, "out_channels")
        if groups < 1 or inner % groups or out % groups:
            raise ValueError(
                f"groups={groups} must divide the quaternion channels: {inner} in and {out} out "
                f"(in_channels={in_channels}, out_channels={out_channels})."
            )
        self.weight = nn.Parameter(torch.empty(4, out, inner // groups, *self.kernel_size, **like))
        self.register_parameter("bias", nn.Parameter(torch.empty(4, out, **like)) if bias else None)
        # The weight (4, out, 1, *kernel) of one more input channel, which carries 1 everywhere. quern.compact puts
        # there what constant input channels did: next to zero padding a bias would be wrong.
        self.register_parameter("constant", None)
        self._cache = WeightCache()
        self.reset_parameters()

    def _per_axis(self, value: Size, name: str, least: int) -> tuple[int, ...]:
        try:
            sizes = tuple_of(value, self.space)
        except ValueError as error:
            raise ValueError(f"{name} is {error}") from None
        if min(sizes) < least:
            raise ValueError(f"{name} is {value}, but it must be at least {least}.")
        return sizes

    def reset_parameters(self) -> None:
        init.he_(self.weight, len(self.input_parts))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _ones_like(self, input: Tensor) -> Tensor:
        """The channel that carries 1: one for all images of a batch."""
        return input.new_ones(1, *input.shape[-self.space :])

    def train(self, mode: bool = True) -> "QConvolution":
        self._cache.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Module.to(memory_format=...) goes by the number of axes. Without the component axis the weight looks as a real
        # one does, so channels_last means here what it means in torch.
        # as_strided, because view() and flatten() forget the layout where an axis has size 1.
        def on_real_shape(t: Tensor) -> Tensor:
            if t.dim() != self.space + 3 or t.stride(0) != t.shape[1] * t.stride(1):
                return fn(t)
            real = fn(t.as_strided((4 * t.shape[1], *t.shape[2:]), t.stride()[1:]))
            return real.as_strided(t.shape, (t.shape[1] * real.stride(0), *real.stride()))

        return super()._apply(on_real_shape, recurse)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.space:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.space:
            text += f", dilation={self.dilation}"
        if self.output_padding != (0,) * self.space:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.constant is not None:
            text += ", constant=True"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        if self.input_parts != UNITS:
            text += f", input_parts={self.input_parts!r}"
        return text


class _QConv(QConvolution):
    """A convolution. ``in_channels`` and ``out_channels`` count real channels; ``groups`` divides quaternion ones."""

    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        input_parts: str = UNITS,
    ) -> None:
        super().__init__()
        self._set_sizes(kernel_size, stride, padding, 0, dilation, padding_mode)
        self._set_channels(in_channels, out_channels, groups, input_parts, bias, device=device, dtype=dtype)

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        input, padding = self._padded(input)
        y = F.conv(
            input,
            self.weight,
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            input_parts=self.input_parts,
            cache=None if self.training else self._cache,
        )
        if self.constant is None:
            return y
        ones = self._ones_like(input)
        return y + F.conv(ones, self.constant, None, self.stride, padding, self.dilation, input_parts="r")

    def _padded(self, input: Tensor) -> tuple[Tensor, tuple[int, ...] | str | int]:
        """The input, padded if it is not by zeros, and what the convolution itself has to pad."""
        if self.padding_mode == "zeros":
            return input, self.padding
        return TF.pad(input, self._both_sides(), mode=self.padding_mode), 0

    def _both_sides(self) -> list[int]:
        """``torch.nn.functional.pad``'s list: last axis first, near side before far side."""
        if self.padding == "same":
            sides = same_padding(self.kernel_size, self.dilation)
        elif isinstance(self.padding, tuple):
            sides = [(p, p) for p in self.padding]
        else:
            sides = [(0, 0)] * self.space
        return [side for pair in reversed(sides) for side in pair]


class _QConvTranspose(QConvolution):
    """A transposed convolution; the weight is ``(4, out/4, in/4/groups, *kernel)`` as in every layer."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._set_sizes(kernel_size, stride, padding, output_padding, dilation, padding_mode)
        self._set_channels(in_channels, out_channels, groups, UNITS, bias, device=device, dtype=dtype)

    def forward(self, input: Float[Tensor, "..."], output_size: Sequence[int] | None = None) -> Float[Tensor, "..."]:
        extra = self.output_padding if output_size is None else self._extra_for(input, output_size)
        y = F.conv_transpose(
            input,
            self.weight,
            self.bias,
            self.stride,
            self._padding,
            extra,
            self.groups,
            self.dilation,
            cache=None if self.training else self._cache,
        )
        if self.constant is None:
            return y
        ones = self._ones_like(input)
        geometry = (self.stride, self._padding, extra, 1, self.dilation)
        return y + F.conv_transpose(ones, self.constant, None, *geometry, input_parts="r")

    @property
    def _padding(self) -> tuple[int, ...]:
        assert isinstance(self.padding, tuple)  # words are for convolutions that are not transposed
        return self.padding

    def _extra_for(self, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output_padding that gives ``output_size`` (the spatial axes, or all axes of the output)."""
        if len(output_size) not in (self.space, x.dim()):
            raise ValueError(f"output_size is {tuple(output_size)}, but it must name {self.space} sizes.")
        extra = []
        sizes = (x.shape, self.kernel_size, self.stride, self._padding, self.dilation, tuple(output_size))
        for n, k, s, p, d, wanted in zip(*(size[-self.space :] for size in sizes), strict=True):
            least = (n - 1) * s - 2 * p + d * (k - 1) + 1
            if not least <= wanted < least + s:
                raise ValueError(
                    f"output_size {wanted} is out of reach: this layer can make {least} to {least + s - 1}."
                )
            extra.append(wanted - least)
        return tuple(extra)


class QConv1d(_QConv):
    r"""Quaternion convolution :math:`y_o = \sum_c w_{oc} \star x_c + b_o` over ``(batch, in_channels, length)``.

    Arguments as in ``torch.nn.Conv1d``; channels are real channels, component-major. ``input_parts`` names the
    components the input has ("r": gray, "ijk": RGB), which are all it multiplies. Parameters: ``weight
    (4, out/4, in/4/groups, kernel)``, ``bias (4, out/4)``.
    """

    space = 1


class QConv2d(_QConv):
    r"""Quaternion convolution over ``(batch, in_channels, height, width)``; see :class:`QConv1d`."""

    space = 2


class QConv3d(_QConv):
    r"""Quaternion convolution over ``(batch, in_channels, depth, height, width)``; see :class:`QConv1d`."""

    space = 3


class SplitConv2d(_QConv):
    r"""Depthwise convolution of each component by itself over ``(batch, channels, height, width)``:

    .. math:: y_{nc} = w_{nc} \star x_{nc} + b_{nc}, \qquad c \in \{r, i, j, k\}

    with one filter for each of the 4 components :math:`c` of each quaternion channel :math:`n`. It has the weights of a
    depthwise :class:`QConv2d` and a fourth of its multiplications; what is left out, products between components, is
    the work of the pointwise convolution that follows. Parameters: ``weight (4, channels/4, 1, height, width)``, ``bias
    (4, channels/4)``.
    """

    space = 2

    def __init__(
        self,
        channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        groups = max(1, channels // 4)
        super().__init__(
            channels, channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )

    def reset_parameters(self) -> None:
        init.he_(self.weight, 1)  # an output component looks at one component
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        input, padding = self._padded(input)
        return F.split_conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation)


class QConvTranspose1d(_QConvTranspose):
    """Quaternion transposed convolution over ``(batch, in_channels, length)``; arguments as in torch's.

    The parameters have the axes of :class:`QConv1d`, ``weight (4, out/4, in/4/groups, kernel)``.
    """

    space = 1


class QConvTranspose2d(_QConvTranspose):
    """Quaternion transposed convolution over images; see :class:`QConvTranspose1d`."""

    space = 2


class QConvTranspose3d(_QConvTranspose):
    """Quaternion transposed convolution over volumes; see :class:`QConvTranspose1d`."""

    space = 3
