"""Which parameters of a network are quaternions, as the layers of ``quern.nn`` define them."""

from collections.abc import Iterator

from torch import nn

from quern.nn._attention import QMultiheadAttention
from quern.nn._conv import QConvolution
from quern.nn._embedding import QEmbedding
from quern.nn._linear import QLinear
from quern.nn._norm import QBatchNorm, QLayerNorm, QWhiteningBatchNorm2d
from quern.nn._recurrent import QRecurrent


def _names(layer: nn.Module) -> tuple[list[str], list[str]]:
    """The layer's own quaternion weights ``(4, out, in, ...)`` and its other quaternion parameters ``(4, ...)``."""
    if isinstance(layer, (QLinear, QConvolution, QEmbedding)):
        return ["weight"], ["bias"]
    if isinstance(layer, QRecurrent):
        own = [name for name, _ in layer.named_parameters(recurse=False)]
        return [n for n in own if n.startswith("weight")], [n for n in own if n.startswith("bias")]
    if isinstance(layer, (QBatchNorm, QWhiteningBatchNorm2d, QLayerNorm)):
        return [], ["bias"]
    if isinstance(layer, QMultiheadAttention):
        return [], ["bias_k", "bias_v"]
    return [], []


def _own(model: nn.Module, which: int) -> Iterator[tuple[str, nn.Parameter]]:
    seen: set[int] = set()
    for prefix, layer in model.named_modules():
        names = _names(layer)[which]
        for name, parameter in layer.named_parameters(prefix, recurse=False):
            if name.rpartition(".")[2] in names and id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter


def quaternion_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights ``(4, out, in, ...)`` of the quaternion layers in ``model`` by name; a shared one stands once.

    Biases, and everything in real-valued layers, are not among them.
    """
    return dict(_own(model, 0))


def quaternion_shifts(model: nn.Module) -> dict[str, nn.Parameter]:
    """The other quaternion parameters ``(4, ...)`` of ``model`` by name: biases of layers, shifts of normalisations."""
    return dict(_own(model, 1))


def batch_norms(model: nn.Module) -> dict[str, QBatchNorm]:
    """The quaternion batch normalisations of ``model`` that have a scale γ, by name; a shared γ stands once."""
    found: dict[int, tuple[str, QBatchNorm]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, QBatchNorm) and layer.weight is not None:
            found.setdefault(id(layer.weight), (name, layer))
    return dict(found.values())
