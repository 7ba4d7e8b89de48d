"""Layers of a Sequential that :mod:`quern.functional.normed` does together: convolutions between normalisations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from quern.algebra import UNITS
from quern.functional import normed
from quern.functional.norms import samples
from quern.nn._conv import QConv2d, SplitConv2d
from quern.nn._norm import QBatchNorm, QBatchNorm2d

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HOOKS_OF_ALL = tuple(f"_global{kind}" for kind in HOOKS)


def is_watched(layer: nn.Module) -> bool:
    """Whether somebody wants to see what goes in or out of this layer."""
    return any(getattr(layer, hooks) for hooks in HOOKS) or any(getattr(hooks_of_all, hooks) for hooks in HOOKS_OF_ALL)


def takes_in_more(layer: nn.Module) -> bool:
    """Whether this is a batch normalisation of ours that can do what comes behind it in the same pass."""
    own = isinstance(layer, QBatchNorm) and type(layer).forward is QBatchNorm.forward and "forward" not in vars(layer)
    return own and layer.training and not is_watched(layer)


def is_relu(layer: nn.Module) -> bool:
    return type(layer) is nn.ReLU and not is_watched(layer)


class Run(NamedTuple):
    """Layers that are done together: the normalisations, what functions take of them and of the convolutions, and how
    many layers that are."""

    norms: list[QBatchNorm2d]
    first: normed.Normalisation | None
    stages: list[tuple[normed.Convolution, normed.Normalisation]]
    length: int
    samples: list[int]  # values of a neuron, of each normalisation
    shape: tuple[int, ...]  # of the result

    @property
    def ends_in_relu(self) -> bool:
        return self.stages[-1][1].relu

    def can_add(self, added: Tensor | None) -> bool:
        """Whether the kernels can add this to the result."""
        return added is None or (tuple(added.shape) == self.shape and normed.is_plain(added))

    def __call__(self, x: Tensor, added: Tensor | None, relu: bool) -> Tensor:
        """The result, plus what is ``added``, through a ReLU if so asked."""
        y, statistics = normed.normed_convolutions(x, self.first, self.stages, added, relu)
        for norm, (mean, var), values in zip(self.norms, statistics, self.samples, strict=True):
            norm.follow(mean, var, values)
        return y


def _normalisation(layers: Sequence[nn.Module]) -> normed.Normalisation | None:
    """The normalisation that the layers begin with, and the ReLU behind it, if the kernels take them."""
    if not layers or type(norm := layers[0]) is not QBatchNorm2d or not takes_in_more(norm) or norm.joins_processes():
        return None
    relu = len(layers) > 1 and is_relu(layers[1])
    normalisation = normed.Normalisation(norm.weight, norm.bias, norm.eps, relu)
    return normalisation if normed.can_normalise(normalisation) else None


def _convolution(layer: nn.Module) -> normed.Convolution | None:
    """The convolution that a layer is, if there is a kernel for it."""
    if type(layer) not in (QConv2d, SplitConv2d) or "forward" in vars(layer) or is_watched(layer):
        return None
    assert isinstance(layer, (QConv2d, SplitConv2d))
    if layer.dilation != (1, 1) or layer.input_parts != UNITS or layer.constant is not None:
        return None
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        return None
    kind: normed.Kind
    if isinstance(layer, SplitConv2d):
        kind = "split"
    elif layer.weight.shape[2] == 1 and layer.groups == layer.weight.shape[1] > 1:
        kind = "quaternion"
    elif layer.groups == 1 and 4 * layer.weight.numel() <= normed.LARGEST_WEIGHT:
        kind = "pointwise"
    else:
        return None
    convolution = normed.Convolution(kind, layer.weight, layer.bias, layer.stride, layer.padding)
    return convolution if normed.can_convolve(convolution) else None


def first_run(layers: Sequence[Any], x: Tensor) -> Run | None:
    """What the layers begin with that can be done together, if there is any."""
    if not normed.can_take(x):
        return None
    images, channels, *size = x.shape
    first = _normalisation(layers)
    if first is not None and (layers[0].num_features != channels or samples(x) == 1):
        return None
    norms: list[Any] = [] if first is None else [layers[0]]
    length = 0 if first is None else 1 + first.relu
    run = Run(norms, first, [], length, [samples(x)] if norms else [], tuple(x.shape))
    while run.length < len(layers):
        layer, convolution = layers[run.length], _convolution(layers[run.length])
        norm = _normalisation(layers[run.length + 1 :])
        if convolution is None or norm is None or layer.in_channels != channels:
            break
        size, channels = convolution.target(*size), layer.out_channels
        values = images * size[0] * size[1]
        if min(size) < 1 or values == 1 or layers[run.length + 1].num_features != channels:
            break
        run.norms.append(layers[run.length + 1])
        run.samples.append(values)
        run.stages.append((convolution, norm))
        run = run._replace(length=run.length + 2 + norm.relu, shape=(images, channels, *size))
    return run if run.stages else None
