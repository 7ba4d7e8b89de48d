"""The paper's networks, one for 8x8 digits, and others for images of any size: plain functions that return
``nn.Module``.

Each takes raw images (the first layer knows their components), ends in real class scores, and has a real-valued twin of
about the same number of parameters. Networks come in the channels_last layout, the faster one on CPUs; values are the
same in any layout. Max-pooling takes the maximum of each component, as the authors' code does;
``quern.nn.QMaxPool2d`` pools whole quaternions.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import instead_of

Norm = Literal["none", "after_conv", "after_activation"]
P = ParamSpec("P")
_NORMS = ("none", "after_conv", "after_activation")


@dataclass(frozen=True)
class Recipe:
    """How to get a network of the same structure. Files hold it in place of code: a file is read by building the
    network anew, doing the same steps to it, and putting the tensors in.

    ``builder`` is a name in ``BUILDERS`` with its ``arguments``, or None for a network of the user's own. ``steps``
    were done to it since, in order: plain JSON, ``{"compact": a plan}`` or ``{"fold": names}``.
    """

    builder: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    steps: tuple[dict[str, Any], ...] = ()

    def then(self, step: dict[str, Any]) -> "Recipe":
        return replace(self, steps=(*self.steps, step))


def recipe_of(model: nn.Module) -> Recipe:
    """How ``model`` was made, as far as it was written down."""
    recipe = getattr(model, "_recipe", None)
    return recipe if isinstance(recipe, Recipe) else Recipe()


def set_recipe(model: nn.Module, value: Recipe) -> None:
    model._recipe = value  # pyright: ignore[reportArgumentType]


def _stage(conv: nn.Module, norm: Norm, normalize: nn.Module, pooling: list[nn.Module]) -> list[nn.Module]:
    """A convolution with what follows it. Max-pooling and ReLU commute, so the ReLU acts on the smaller tensor unless
    a normalisation stands between them."""
    if norm not in _NORMS:
        raise ValueError(f"norm is {norm!r}, but it must be one of {', '.join(_NORMS)}.")
    if norm == "none":
        return [conv, *pooling, nn.ReLU(inplace=True)]
    if norm == "after_conv":
        return [conv, normalize, *pooling, nn.ReLU(inplace=True)]
    return [conv, nn.ReLU(inplace=True), normalize, *pooling]


def _check_widths(widths: Sequence[int], count: int) -> None:
    if not isinstance(widths, Sequence) or len(widths) != count:
        raise ValueError(f"widths is {widths!r}, but must be {count} numbers, one for each convolution.")


def _stages(
    input: str | int, widths: Sequence[int], kernel: int, pools: Sequence[bool], drops: Sequence[float], norm: Norm
) -> list[nn.Module]:
    """Of quaternions if ``input`` names the components of the images, real ones if it is the number of channels."""
    _check_widths(widths, len(pools))
    layers: list[nn.Module] = []
    before = len(input) if isinstance(input, str) else input
    for n, (width, pool, drop) in enumerate(zip(widths, pools, drops, strict=True)):
        if isinstance(input, str):
            conv = qnn.QConv2d(before, width, kernel, padding=1, input_parts=input if n == 0 else "rijk")
            layers += _stage(conv, norm, qnn.QBatchNorm2d(width), [qnn.SplitMaxPool2d(2)] if pool else [])
        else:
            conv = nn.Conv2d(before, width, kernel, padding=1)
            layers += _stage(conv, norm, nn.BatchNorm2d(width), [nn.MaxPool2d(2)] if pool else [])
        if drop:
            layers.append(qnn.QDropout2d(drop) if isinstance(input, str) else nn.Dropout2d(drop))
        before = width
    return layers


def _finish(*layers: nn.Module) -> nn.Sequential:
    return qnn.Sequential(*layers).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _quaternion_head(features: int, classes: int) -> list[nn.Module]:
    return [nn.Flatten(), qnn.QLinear(features, 4 * classes), qnn.Modulus()]


def _builder(build: Callable[P, nn.Sequential]) -> Callable[P, nn.Sequential]:
    """Writes down how the network was built, so that a file of it can be read without one."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> nn.Sequential:
        if unknown := next((name for name in kwargs if name not in signature.parameters), None):
            raise TypeError(f"{build.__name__} has no option {unknown}: {instead_of(unknown, signature.parameters)}")
        network = build(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        plain = {
            name: list(v) if isinstance(v, Sequence) and not isinstance(v, str) else v
            for name, v in bound.arguments.items()
        }
        set_recipe(network, Recipe(build.__name__, plain))
        return network

    return recorded


@_builder
def mnist_qcnn(
    norm: Norm = "none", dropout: float = 0.25, widths: Sequence[int] = (16, 32), classes: int = 10
) -> nn.Sequential:
    """The paper's MNIST network: images ``(batch, 1, 28, 28)`` to ``classes`` moduli; 11,688 parameters."""
    stages = _stages("r", widths, 5, (True, True), (0.0, 0.0), norm)
    return _finish(*stages, qnn.QDropout(dropout), *_quaternion_head(25 * widths[-1], classes))


@_builder
def mnist_cnn(
    norm: Norm = "none", dropout: float = 0.25, widths: Sequence[int] = (11, 22), classes: int = 10
) -> nn.Sequential:
    """The real-valued twin of :func:`mnist_qcnn`; 11,868 parameters."""
    stages = _stages(1, widths, 5, (True, True), (0.0, 0.0), norm)
    return _finish(*stages, nn.Dropout(dropout), nn.Flatten(), nn.Linear(25 * widths[-1], classes))


@_builder
def cifar_qcnn(
    norm: Norm = "none", dropout: float = 0.25, widths: Sequence[int] = (32, 64, 128, 256, 512), classes: int = 10
) -> nn.Sequential:
    """The paper's CIFAR-10 network: images ``(batch, 3, 32, 32)`` to ``classes`` moduli; 474,920 parameters."""
    stages = _stages("ijk", widths, 3, _CIFAR_POOLS, _cifar_drops(dropout), norm)
    return _finish(*stages, *_quaternion_head(16 * widths[-1], classes))


@_builder
def cifar_cnn(
    norm: Norm = "none", dropout: float = 0.25, widths: Sequence[int] = (17, 33, 67, 135, 267), classes: int = 10
) -> nn.Sequential:
    """The real-valued twin of :func:`cifar_qcnn`; its parameters are within 1 % of the same number."""
    stages = _stages(3, widths, 3, _CIFAR_POOLS, _cifar_drops(dropout), norm)
    return _finish(*stages, nn.Flatten(), nn.Linear(16 * widths[-1], classes))


_CIFAR_POOLS = (True, True, False, True, False)


def _cifar_drops(dropout: float) -> tuple[float, ...]:
    return (0.0, dropout, 0.0, dropout, 0.0)


@_builder
def digits_qcnn(
    norm: Norm = "none", dropout: float = 0.1, widths: Sequence[int] = (16, 32), classes: int = 10
) -> nn.Sequential:
    """A small network for scikit-learn's digits: images ``(batch, 1, 8, 8)`` to ``classes`` moduli."""
    stages = _stages("r", widths, 3, (False, True), (0.0, 0.0), norm)
    return _finish(*stages, qnn.QDropout(dropout), *_quaternion_head(16 * widths[-1], classes))


@_builder
def digits_cnn(
    norm: Norm = "none", dropout: float = 0.1, widths: Sequence[int] = (12, 24), classes: int = 10
) -> nn.Sequential:
    """The real-valued twin of :func:`digits_qcnn`."""
    stages = _stages(1, widths, 3, (False, True), (0.0, 0.0), norm)
    return _finish(*stages, nn.Dropout(dropout), nn.Flatten(), nn.Linear(16 * widths[-1], classes))


class Residual(nn.Module):
    """``relu(body(x) + shortcut(x))``."""

    def __init__(self, body: qnn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    @no_type_check  # torch.fx traces it with stand-ins for tensors, which run-time type checks would refuse
    def forward(self, input: Float[Tensor, "batch channels h w"]) -> Float[Tensor, "batch wider h2 w2"]:
        return self.body.forward_and_add(input, self.shortcut(input), relu=True)


Conv = type[qnn.QConv2d] | type[nn.Conv2d]


def _normed(conv: nn.Module, width: int) -> list[nn.Module]:
    """A convolution without bias, and the normalisation of its kind."""
    return [conv, qnn.QBatchNorm2d(width) if isinstance(conv, qnn.QConv2d) else nn.BatchNorm2d(width)]


def _stem(conv: Conv, channels: int, width: int) -> list[nn.Module]:
    """The first convolution; one of quaternions takes RGB or gray images."""
    if conv is nn.Conv2d:
        return [*_normed(nn.Conv2d(channels, width, 3, padding=1, bias=False), width), nn.ReLU()]
    parts = {1: "r", 3: "ijk"}.get(channels)
    if parts is None:
        raise ValueError(f"channels is {channels}, but it must be 3 (RGB) or 1 (gray).")
    first = qnn.QConv2d(channels, width, 3, padding=1, bias=False, input_parts=parts)
    return [*_normed(first, width), nn.ReLU()]


def _block(conv: Conv, before: int, width: int, stride: int = 1) -> Residual:
    first, second = conv(before, width, 3, stride, 1, bias=False), conv(width, width, 3, 1, 1, bias=False)
    body = qnn.Sequential(*_normed(first, width), nn.ReLU(), *_normed(second, width))
    if stride == 1 and before == width:
        return Residual(body, nn.Identity())
    return Residual(body, nn.Sequential(*_normed(conv(before, width, 1, stride, bias=False), width)))


def _resnet20(conv: Conv, channels: int, widths: Sequence[int]) -> list[nn.Module]:
    layers, before = _stem(conv, channels, widths[0]), widths[0]
    for stage, width in enumerate(widths):
        for block in range(3):
            layers.append(_block(conv, before, width, 2 if stage > 0 and block == 0 else 1))
            before = width
    return [*layers, nn.AdaptiveAvgPool2d(1)]


def _separable(conv: Conv, before: int, width: int, stride: int) -> list[nn.Module]:
    """A depthwise 3x3 and a pointwise convolution."""
    pointwise = conv(before, width, 1, bias=False)
    if conv is qnn.QConv2d:
        depthwise, norm = qnn.SplitConv2d(before, 3, stride, 1, bias=False), qnn.QBatchNorm2d(before)
    else:
        depthwise, norm = nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before)
    return [depthwise, norm, nn.ReLU(), *_normed(pointwise, width), nn.ReLU()]


def _small(conv: Conv, channels: int, width: int, depth: int) -> list[nn.Module]:
    multiple = 4 if conv is qnn.QConv2d else 1
    if depth < 1 or width < multiple or width % multiple:
        whole = f"a positive multiple of {multiple}" if multiple > 1 else "positive"
        raise ValueError(f"width is {width} and depth {depth}, but width must be {whole}, depth at least 1.")
    layers, before = _stem(conv, channels, width), width
    for stage in range(STAGES):
        for block in range(depth):
            layers += _separable(conv, before, (stage + 1) * width, 2 if stage > 0 and block == 0 else 1)
            before = (stage + 1) * width
    return [*layers, nn.AdaptiveAvgPool2d(1)]


@_builder
def qresnet20(widths: Sequence[int] = (16, 32, 64), classes: int = 10, channels: int = 3) -> nn.Sequential:
    """A residual network of 20 layers for images ``(batch, channels, height, width)`` of any size, RGB or gray, with
    quaternion batch normalisation and global average pooling, to ``classes`` moduli."""
    return _finish(*_resnet20(qnn.QConv2d, channels, widths), *_quaternion_head(widths[-1], classes))


@_builder
def resnet20(widths: Sequence[int] = (8, 16, 32), classes: int = 10, channels: int = 3) -> nn.Sequential:
    """The real-valued twin of :func:`qresnet20`."""
    return _finish(*_resnet20(nn.Conv2d, channels, widths), nn.Flatten(), nn.Linear(widths[-1], classes))


STAGES = 3  # of the networks for small devices


@_builder
def small_qcnn(width: int = 28, depth: int = 3, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """A network for small devices: images ``(batch, channels, height, width)``, RGB or gray, of any size, to
    ``classes`` moduli; 13,641 parameters.

    A convolution to ``width`` channels, then three stages of ``depth`` blocks at the whole, half and quarter size of
    the image, with one, two and three times as many channels. A block is a depthwise 3x3 convolution of each component
    by itself and a pointwise one of quaternions; quaternion batch normalisation and ReLU behind every convolution;
    global average pooling. Nothing is added around a block, so that every neuron can be removed by itself.
    """
    return _finish(*_small(qnn.QConv2d, channels, width, depth), *_quaternion_head(STAGES * width, classes))


@_builder
def small_cnn(width: int = 16, depth: int = 3, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """The real-valued twin of :func:`small_qcnn`."""
    layers = _small(nn.Conv2d, channels, width, depth)
    return _finish(*layers, nn.Flatten(), nn.Linear(STAGES * width, classes))


BUILDERS: dict[str, Callable[..., nn.Sequential]] = {
    builder.__name__: builder
    for builder in (
        *(mnist_qcnn, cifar_qcnn, digits_qcnn, qresnet20, small_qcnn),
        *(mnist_cnn, cifar_cnn, digits_cnn, resnet20, small_cnn),
    )
}
