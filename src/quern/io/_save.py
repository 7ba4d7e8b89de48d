"""Writing the file of a network."""

import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quern._files import check_target, replacing
from quern._size import size_of
from quern.graph import check_module
from quern.io._header import description_of, read_description
from quern.io._structure import state_of, verified_recipe
from quern.io._wrong import sentences, warn_of_numbers
from quern.io.tensorfile import HEADER_BYTES, head_of, kinds_of, read_head, write_tensors
from quern.records.schema import Wrong, short


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
        head = head_of_network(model, state, metrics or {}, images)
        with replacing(path) as temporary, temporary.open("wb") as file:
            spoilt = write_tensors(file, head, state)
    warn_of_numbers(spoilt, len(state), path)


def head_of_network(
    model: nn.Module, state: dict[str, Tensor], metrics: dict[str, Any], images: dict[str, Any] | None
) -> bytes:
    """The header of the file, which was read back."""
    for name, value in state.items():
        if value.is_meta:
            raise Wrong(f"cannot hold {short(name)}, which is on the meta device and has no values")
    description = description_of(verified_recipe(model), size_of(model).parameters, metrics, images)
    try:
        head = head_of(kinds_of(state), json.dumps(description))
    except ValueError as reason:  # a name that is no text
        raise Wrong(f"cannot hold this network: {short(reason)}") from reason
    if len(head) > HEADER_BYTES:
        raise Wrong(f"cannot hold this network: names, steps and metrics take more than {HEADER_BYTES >> 20} MB")
    read_head(BytesIO(head), len(head) + sum(t.numel() * t.element_size() for t in state.values()), read_description)
    return head
