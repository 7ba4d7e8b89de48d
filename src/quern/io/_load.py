"""Reading the file of a network, which may be a stranger's."""

import os
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quern.graph import check_module
from quern.io._header import read_description
from quern.io._structure import compare, network_of, state_of
from quern.io._wrong import sentences, warn_of_numbers
from quern.io.tensorfile import WHOLE, check_whole, read_head, read_tensors
from quern.records.schema import Wrong, opened, short

_WHAT = "the file of a network"


def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """The network that :func:`save` wrote to ``path``, in eval mode, each tensor equal bit for bit.

    ``model`` is a freshly built network to take in place of quern's own; a file of a network of your own needs it. It
    is not changed: the result is a copy, to which the steps of the file were done (those that ``model`` has not had).
    NaN or infinity in it is said by a :class:`quern.errors.NotFiniteWarning`.
    """
    if model is not None:
        check_module(model)
    path = Path(path)
    with sentences(path, "read"), opened(path, _WHAT) as (file, size):
        network, spoilt = read_network(file, size, model)
    warn_of_numbers(spoilt, len(network.state_dict()), path)
    return network


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file says of itself: ``builder`` (None for a network of the user's own), ``arguments``, ``steps``,
    ``metrics``, ``images`` and ``parameters`` (how many numbers), with its ``bytes``. Reads the header only, so a
    damaged tensor goes unseen."""
    path = Path(path)
    with sentences(path, "read"), opened(path, _WHAT) as (file, size):
        return {**read_head(file, size, read_description).own, "bytes": size}


def read_network(file: BufferedIOBase, size: int, model: nn.Module | None = None) -> tuple[nn.Module, list[str]]:
    """The network, and the names of tensors with NaN or infinity. Nothing of the size of the tensors is allocated
    before header and network are known to agree."""
    head = read_head(file, size, read_description)
    try:
        network = network_of(head.own, model)
        compare(head.tensors, network, model)
    except Wrong:
        check_whole(head, file)  # if that is wrong, then it is all that is to be said
        raise
    state = state_of(network)
    meta = any(t.is_meta for t in state.values())
    try:
        tensors, spoilt = read_tensors(head, file, state if meta else None)
        _put(network, tensors, meta)
    except RuntimeError as reason:  # how torch says that memory does not suffice
        raise Wrong(f"cannot be put into the network: {short(reason)}") from reason
    return network.eval(), spoilt


def _put(network: nn.Module, tensors: dict[str, Tensor], meta: bool) -> None:
    if meta:
        made: dict[int, Tensor] = {}  # one for each tensor, so that a shared one stays shared
        state = state_of(network)
        for name, old in state.items():
            if id(old) not in made:
                new = tensors[name]
                made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
        network.load_state_dict({name: made[id(old)] for name, old in state.items()}, assign=True)
    else:
        network.load_state_dict(tensors)
    for name, value in state_of(network).items():
        if not _same(value.detach().cpu(), tensors[name]):  # as in a file that gives one shared tensor two values
            raise Wrong(f"does not fit the network: {short(name)} cannot take its values")
    if any(t.is_meta for t in (*network.parameters(), *network.buffers())):
        raise Wrong("does not hold all tensors of the network: build it on the CPU and give it to load")


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit: NaN equals itself there, and 0 does not equal -0."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()):
        return True
    return torch.equal(*(t.view(WHOLE[t.element_size()]) for t in (one, other)))
