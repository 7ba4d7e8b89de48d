"""The operations of torch and of quern that are no layers, and what each does to the channels of a value: one table.

Functions stand in it as they are, methods of tensors by their names.
"""

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as TF

from quern import functional as F
from quern.errors import ExportError
from quern.graph import packing, plain

Kind = Literal[
    "unknown",  # nobody knows
    "apart",  # each output channel depends on the same input channel alone
    "join",  # two values, channel by channel
    "cat",
    "pool",  # over the axes behind the channels, or some positions more of them
    "reduce",  # over whole axes
    "flatten",
    "view",
    "move",  # axes in another order, or axes of size 1
    "index",
    "modulus",
    "whole",  # takes and gives whole values: all channels that it takes stay
    "size",  # gives a number, not a tensor
]


@dataclass(frozen=True)
class Operation:
    """``space`` has the numbers of axes behind the channels that a pooling takes. ``keeps_constants`` if a constant is
    one afterwards at every place; ``weighs_padding`` if zeros at the border enter an average. ``adds`` and
    ``multiplies`` say how two values are joined. ``proportional`` if of a size it makes a size in proportion. ``drops``
    if it hands on what it gets when not training. ``writes`` if it changes its input. ``real`` computes the same as a
    function of quern by torch alone. ``pack`` makes it one of the C runtime, given its result on an example."""

    kind: Kind = "unknown"
    space: tuple[int, ...] = ()
    keeps_constants: bool = False
    weighs_padding: bool = False
    adds: bool = False
    multiplies: bool = False
    proportional: bool = False
    drops: bool = False
    writes: bool = False
    real: Callable[..., Any] | None = None
    pack: Callable[..., Any] | None = None


_ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "leaky_relu", "relu6", "hardtanh", "softplus")
_SIZES = {"shape", "ndim", "dtype", "device"}  # attributes
_UNKNOWN = Operation()
_TABLE: dict[Any, Operation] = {}


def _add(targets: Iterable[Any], kind: Kind, **more: Any) -> None:
    _TABLE.update(dict.fromkeys(targets, Operation(kind, **more)))


def _dropped(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any) -> Any:  # noqa: ARG001
    if training and p:
        raise ExportError(
            "the network drops quaternions at random, training or not, so it is no function of its input."
        )
    return x


_add((getattr(TF, name) for name in _ACTIVATIONS), "apart", keeps_constants=True)
_add((torch.relu, torch.tanh, torch.sigmoid, "relu", "tanh", "sigmoid", "contiguous"), "apart", keeps_constants=True)
_add((operator.neg, torch.neg, "clone", "detach", "float", "double", "half", "to", "neg"), "apart")
_add((torch.relu_, torch.tanh_, torch.sigmoid_, "relu_", "tanh_", "sigmoid_"), "apart", writes=True)
_add((F.dropout,), "apart", drops=True, real=_dropped)
_add((TF.dropout, TF.dropout1d, TF.dropout2d, TF.dropout3d), "apart", drops=True)
_add((operator.add, torch.add, "add"), "join", adds=True)
_add((operator.iadd, "add_"), "join", adds=True, writes=True)
_add((operator.sub, torch.sub, "sub", operator.truediv, torch.div, "div"), "join")
_add((torch.mul, "mul"), "join", multiplies=True)
_add((operator.mul,), "join", multiplies=True, proportional=True)
_add((operator.imul, "mul_"), "join", multiplies=True, writes=True)
_add((operator.isub, operator.itruediv, operator.setitem), "unknown", writes=True)
_add((F.cat,), "cat", real=plain.cat)
_add((torch.cat,), "cat")
for _n in (1, 2, 3):
    _add((getattr(TF, f"avg_pool{_n}d"),), "pool", space=(_n,), weighs_padding=True, pack=packing.average(_n))
    for _name, _pack in (
        ("max_pool", packing.maximum(_n)),
        ("adaptive_avg_pool", packing.adaptive("MEAN", _n)),
        ("adaptive_max_pool", packing.adaptive("MAX", _n)),
    ):
        _add((getattr(TF, f"{_name}{_n}d"),), "pool", space=(_n,), keeps_constants=True, pack=_pack)
_add((TF.interpolate,), "pool", space=(1, 2, 3))  # a constant is one at every size
_add((torch.mean, torch.sum, torch.amax, torch.amin, "mean", "sum", "amax", "amin"), "reduce")
_add((torch.flatten, "flatten"), "flatten", keeps_constants=True)
_add(("view", "reshape", torch.reshape), "view")
_add((torch.permute, torch.transpose, torch.movedim, torch.swapaxes), "move")
_add(("permute", "transpose", "movedim", "swapaxes", "t"), "move")
_add(("unsqueeze", "squeeze", torch.unsqueeze, torch.squeeze), "move")
_add((operator.getitem,), "index")
for _function in (F.chunk, F.split_channels, F.slice_channels, F.reshape):
    _add((_function,), "whole", real=_function)
for _function in (F.channel_shuffle, F.pixel_shuffle, F.pixel_unshuffle):
    _add((_function,), "whole", real=_function)
_add((TF.pixel_shuffle, TF.pixel_unshuffle, TF.channel_shuffle, torch.stack, torch.roll), "whole")
_add((torch.zeros_like, torch.ones_like), "whole")
_add((torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm", TF.scaled_dot_product_attention), "whole")
_add((torch.chunk, torch.split, "chunk", "split", torch.unbind, "unbind", "unflatten", torch.unflatten), "whole")
_add((TF.local_response_norm, "expand_as"), "whole")
_add((torch.softmax, TF.softmax, "softmax", torch.log_softmax, TF.log_softmax, "log_softmax"), "whole")
_add((F.modulus,), "modulus", real=plain.modulus)
_add((F.encode_gray,), "unknown", real=plain.encode_gray)
_add((F.encode_rgb,), "unknown", real=plain.encode_rgb)
_add((F.layer_norm,), "unknown", real=plain.layer_norm)
_add((F.mod_relu,), "unknown", real=plain.mod_relu)
_add((len, "size", "dim"), "size")
_add(("numel",), "size", proportional=True)
_add((math.prod,), "unknown", proportional=True)


def operation(target: Callable[..., Any] | str) -> Operation:
    """What is known of a function, or of a method by its name."""
    return _TABLE.get(target, _UNKNOWN)


def asks_size(target: Any, attribute: Any) -> bool:
    """Whether an operation asks a tensor for nothing but its sizes; ``attribute`` is its second argument."""
    return attribute in _SIZES if target is getattr else operation(target).kind == "size"
