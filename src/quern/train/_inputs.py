"""What a loader gives, as arguments of a network and targets of a loss.

A batch is a pair (inputs, targets). Inputs are a tensor, a tuple or list of positional arguments, or a table of
arguments by name. In all of them the first axis of every tensor is the batch. Targets are whatever the loss takes.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern.errors import TrainingError
from quern.graph import Example

_PAIRS = "a loader must give pairs (inputs, targets)"


def changed(whole: Any, change: Callable[[Tensor], Any]) -> Any:
    """A tensor, or tuples, lists and tables of such, with every tensor in it changed."""
    if isinstance(whole, Tensor):
        return change(whole)
    if isinstance(whole, dict):
        return {key: changed(part, change) for key, part in whole.items()}
    if isinstance(whole, tuple) and hasattr(whole, "_fields"):
        return type(whole)(*(changed(part, change) for part in whole))
    if isinstance(whole, (tuple, list)):
        return type(whole)(changed(part, change) for part in whole)
    return whole


def tensors_in(whole: Any) -> list[Tensor]:
    """All tensors in it, from the first to the last."""
    tensors: list[Tensor] = []
    changed(whole, tensors.append)
    return tensors


def as_arguments(inputs: Example) -> tuple[Any, ...]:
    """Inputs of a network, in the order of its ``forward``."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def first(inputs: Example, count: int) -> Example:
    """Inputs for the first ``count`` of a batch."""
    return changed(inputs, lambda t: t[:count] if t.dim() else t)


def part(batch: Any, mine: slice, count: int) -> Any:
    """Some of the ``count`` inputs of a batch, with their targets."""

    def cut(t: Tensor) -> Tensor:
        if t.dim() and len(t) != count:
            raise TrainingError(
                f"a loader gave {count} inputs with a tensor of shape {tuple(t.shape)}, which several processes cannot "
                "share: the first axis of each tensor must be the batch, or train with one process."
            )
        return t[mine] if t.dim() else t

    return changed(batch, cut)


def digest(batch: Any) -> str:
    """A sum of all numbers in a batch."""
    whole = hashlib.sha256()
    for t in tensors_in(batch):
        whole.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def joined(parts: Sequence[Any], what: str) -> Any:
    """Outputs or targets of several batches as those of one: tensors joined along the batch, in tuples, lists and
    tables each part with its like."""
    one = parts[0]
    if isinstance(one, Tensor):
        try:
            return torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts])
        except (RuntimeError, TypeError) as reason:
            shapes = ", ".join(dict.fromkeys(str(tuple(part.shape)) for part in parts))
            raise TrainingError(
                f"the metric is of the whole set, but {what} of its batches, of shapes {shapes}, cannot be joined: pad "
                "all batches to one size."
            ) from reason
    if isinstance(one, dict) and all(isinstance(part, dict) and part.keys() == one.keys() for part in parts):
        return {key: joined([part[key] for part in parts], what) for key in one}
    if isinstance(one, (tuple, list)) and all(isinstance(p, type(one)) and len(p) == len(one) for p in parts):
        members = [joined(members, what) for members in zip(*parts, strict=True)]
        return type(one)(*members) if hasattr(one, "_fields") else type(one)(members)
    raise TrainingError(
        f"the metric is of the whole set, but {what} of its batches cannot be joined: they must be tensors, or tuples, "
        f"lists or tables of tensors that are alike in every batch, and there is a {type(one).__name__}."
    )


def inputs_and_targets(batch: Any, model: nn.Module, device: torch.device) -> tuple[Example, Any]:
    """What a loader gave, on ``device``: the inputs in the order of ``model.forward``, a tensor or a tuple of
    several, and the targets."""
    if not isinstance(batch, (tuple, list)):
        raise TrainingError(f"{_PAIRS}, but gave a {type(batch).__name__}: make pairs by its collate_fn.")
    if len(batch) != 2:
        several = "several inputs are one tuple, ((x, mask), y), which its collate_fn can make"
        raise TrainingError(f"{_PAIRS}, but gave {len(batch)} parts: {several}.")
    inputs, targets = batch
    if isinstance(inputs, dict):
        inputs = _in_order(inputs, model)
    elif isinstance(inputs, (tuple, list)):
        inputs = tuple(inputs)
    if isinstance(inputs, tuple) and len(inputs) == 1:
        (inputs,) = inputs
    sizes = {len(t) for t in tensors_in(inputs) if t.dim()}
    if not sizes or not isinstance(inputs, (Tensor, tuple)):
        raise TrainingError(
            f"a loader gave inputs of type {type(batch[0]).__name__} without a batch of tensors: give a tensor, a "
            "tuple of tensors, or a table of tensors by name."
        )
    if len(sizes) > 1:
        given = ", ".join(str(tuple(t.shape)) for t in tensors_in(inputs))
        raise TrainingError(f"the first axis of all inputs must be the same batch, but their shapes are {given}.")
    return changed(inputs, lambda t: t.to(device)), changed(targets, lambda t: t.to(device))


def count_of(inputs: Example) -> int:
    """How many inputs a batch has."""
    return next(len(t) for t in tensors_in(inputs) if t.dim())


def _in_order(inputs: dict[Any, Any], model: nn.Module) -> tuple[Any, ...]:
    """Arguments by name, in the order of ``forward``; those left out in between have their defaults."""
    return tuple(_values(inputs, model))


def _values(inputs: dict[Any, Any], model: nn.Module) -> Iterator[Any]:
    parameters = inspect.signature(model.forward).parameters
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional]
    for name in inputs:
        if name not in names:
            takes = ", ".join(names) or "nothing"
            raise TrainingError(
                f"a loader gave an input {name!r}, but the network's forward takes {takes} by position."
            )
    missing = [p.name for p in positional if p.default is p.empty and p.name not in inputs]
    if missing:
        raise TrainingError(f"a loader gave no input {missing[0]!r}, which forward needs.")
    last = max(names.index(name) for name in inputs) if inputs else -1
    for parameter in positional[: last + 1]:
        yield inputs.get(parameter.name, parameter.default)
