"""A network as one file: its tensors, and how to build it, in the safetensors format.

The header holds JSON in place of code: the name of a builder in ``quern.models`` with its arguments, the steps done to
the network since (compaction, folding), and what the user wants to know of it later. A file is read by building the
network anew, doing the same steps to it and putting the tensors in, so reading a stranger's file runs nothing of his.

Every file carries a SHA-256 over all its bytes (:mod:`quern.io.tensorfile` says how). A file that was changed anywhere
since it was saved, by a single bit or by many, raises :class:`quern.errors.FileError`; so does one that was made to
deceive, before any memory is taken for what it claims to hold.
"""

import json
import os
import warnings
from dataclasses import replace
from functools import partial
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quern._files import check_target, replacing
from quern.compact import Plan, last_plan
from quern.errors import NotFiniteWarning
from quern.graph import check_module
from quern.graph.spec import narrowed_shapes
from quern.io._header import FORMAT, about_of
from quern.io._structure import compare, network_of, replay, source_of, state_of
from quern.io._wrong import sentences
from quern.io.tensorfile import (
    HEADER_BYTES,
    WHOLE,
    check_whole,
    file_size,
    head_of,
    kinds_of,
    read_head,
    read_tensors,
    write_tensors,
)
from quern.models import Recipe, recipe_of
from quern.records.schema import Wrong, opened, plain, short

__all__ = ["Stored", "describe", "load", "replay", "save"]

_WHAT = "the file of a network"


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    metrics: dict[str, Any] | None = None,
    images: dict[str, Any] | None = None,
) -> None:
    """Write all parameters and buffers of ``model`` to ``path``, with how it was built.

    A network from ``quern.models``, compacted or folded or not, can be read without building one. A network of your
    own, or one that was changed by hand since it was built, needs a freshly built one to be read into. ``metrics`` are
    any plain JSON. ``images`` say what the network takes and gives: ``shape`` [channels, height, width], ``mean`` and
    ``std`` per channel, ``top`` the value of white, ``classes`` their names, ``name`` that of the set; other entries
    are kept too.
    """
    check_module(model)
    path = Path(path)
    with sentences(path, "written"):
        check_target(path)
        state = state_of(model)
        head = _head(model, state, metrics or {}, images)
        with replacing(path) as temporary, temporary.open("wb") as file:
            spoilt = write_tensors(file, head, state)
    _warn_of_numbers(spoilt, len(state), path)


class Stored:
    """How many bytes :func:`save` would write of a network, or of what a plan would leave of it, without doing either.

    What does not change with the plan is looked at once. ``before`` is the same for the network that this one was
    before it was compacted: whether it can be built anew is known from there.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        metrics: dict[str, Any] | None = None,
        images: dict[str, Any] | None = None,
        before: "Stored | None" = None,
    ) -> None:
        self._layers = dict(model.named_modules())
        self._tensors = kinds_of(state_of(model))
        if before is None:
            self._source = source_of(model)
        else:
            self._source = replace(before._source, steps=recipe_of(model).steps)
        self._steps, self._before = last_plan(self._source)
        self._parameters = sum(p.numel() for p in model.parameters())
        self._about = partial(_about, metrics=metrics or {}, images=images)

    def bytes(self, found: Plan | None = None) -> int:
        if found is None:
            return file_size(self._tensors, json.dumps(self._about(self._source, self._parameters)))
        tensors, own = dict(self._tensors), set(self._tensors)
        for name, layer_plan in found.layers.items():
            layer = self._layers[name]
            like = next(layer.parameters()).dtype
            for key, shape in narrowed_shapes(layer, layer_plan).items():
                full = f"{name}.{key}".removeprefix(".")
                tensors[full] = (tensors[full][0] if full in own else like, shape)
        joined = found.structure() if self._before is None else self._before.then(found.structure())
        steps = (*self._steps, {"compact": joined.to_dict()})
        return file_size(tensors, json.dumps(self._about(replace(self._source, steps=steps), found.parameters[1])))


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
        network, spoilt = _load(file, size, model)
    _warn_of_numbers(spoilt, len(network.state_dict()), path)
    return network


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file says of itself: ``builder`` (None for a network of the user's own), ``arguments``, ``steps``,
    ``metrics``, ``images`` and ``parameters`` (how many numbers), with its ``bytes``. Reads the header only, so a
    damaged tensor goes unseen."""
    path = Path(path)
    with sentences(path, "read"), opened(path, _WHAT) as (file, size):
        return {**read_head(file, size, about_of).about, "bytes": size}


def _warn_of_numbers(spoilt: list[str], count: int, path: Path) -> None:
    """Say if a network holds NaN or infinity: it is a network all the same, but of no use."""
    if spoilt:
        warnings.warn(
            f"{path} holds NaN or infinity in {len(spoilt)} of {count} tensors, the first is {short(spoilt[0])}: "
            "what the network computes is of no use, so train it again.",
            NotFiniteWarning,
            stacklevel=3,
        )


def _load(file: BufferedIOBase, size: int, model: nn.Module | None = None) -> tuple[nn.Module, list[str]]:
    """The network, and the names of tensors with NaN or infinity. Nothing of the size of the tensors is allocated
    before header and network are known to agree."""
    head = read_head(file, size, about_of)
    try:
        network = network_of(head.about, model)
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


def _head(model: nn.Module, state: dict[str, Tensor], metrics: dict[str, Any], images: dict[str, Any] | None) -> bytes:
    """The header of the file, which was read back."""
    for name, value in state.items():
        if value.is_meta:
            raise Wrong(f"cannot hold {short(name)}, which is on the meta device and has no values")
    about = _about(source_of(model), sum(p.numel() for p in model.parameters()), metrics, images)
    try:
        head = head_of(kinds_of(state), json.dumps(about))
    except ValueError as reason:  # a name that is no text
        raise Wrong(f"cannot hold this network: {short(reason)}") from reason
    if len(head) > HEADER_BYTES:
        raise Wrong(f"cannot hold this network: names, steps and metrics take more than {HEADER_BYTES >> 20} MB")
    read_head(BytesIO(head), len(head) + sum(t.numel() * t.element_size() for t in state.values()), about_of)
    return head


def _about(source: Recipe, parameters: int, metrics: dict[str, Any], images: dict[str, Any] | None) -> dict[str, Any]:
    """quern's part of the header."""
    return {
        "format": FORMAT,
        "builder": source.builder,
        "arguments": source.arguments,
        "steps": _checked("steps", list(source.steps)),
        "metrics": {key: _checked(f"metrics[{key!r}]", value) for key, value in _checked_keys(metrics).items()},
        "images": _checked("images", images),
        "parameters": parameters,
    }


def _checked(name: str, value: Any) -> Any:
    try:
        return plain(value, 2)
    except (ValueError, RecursionError) as reason:
        raise Wrong(f"cannot hold {short(name)}, which must be plain JSON: {short(reason)}") from reason


def _checked_keys(metrics: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(_checked("the names of the metrics", dict.fromkeys(metrics)), metrics.values(), strict=True))
