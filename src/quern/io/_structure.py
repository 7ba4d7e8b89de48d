"""What a network is but for its values: how to build it again, and whether that gives the same."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from quern import compact, models
from quern.compact import folding
from quern.errors import FileError, QuernError
from quern.io._header import checked_arguments
from quern.io.tensorfile import TYPES, damaged
from quern.models import Recipe, recipe_of
from quern.records.schema import Wrong, plain, short


def replay(model: nn.Module, steps: Sequence[dict[str, Any]]) -> nn.Module:
    """The network that comes of doing ``steps`` (see :class:`quern.models.Recipe`) to ``model``, in order: a new one,
    or ``model`` itself if there are none. QuernError if a step is unknown or does not fit."""
    result = model
    for step in steps:
        match step:
            case {"compact": dict(plan)} if len(step) == 1:
                result = compact.compact(result, compact.Plan.from_dict(plan))
            case {"fold": list(names)} if len(step) == 1:
                result = folding.fold(result, names)
            case _:
                known = short(", ".join(step))
                raise FileError(f"the step {known} is unknown here: it was made by a newer quern, so update quern.")
    return result


def network_of(description: dict[str, Any], model: nn.Module | None) -> nn.Module:
    """The network without its tensors: on the meta device, where tensors take no memory, or a copy of ``model``."""
    if model is not None:
        network = copy.deepcopy(model)
    elif description["builder"] is None:
        raise Wrong(
            "holds a network of your own: build it afresh and give it to load, as in load(path, model); "
            "commands cannot do that, so compact or export it in Python"
        )
    else:
        network = _built(description["builder"], description["arguments"])
    steps, done = description["steps"], list(recipe_of(network).steps)
    try:
        network = replay(network, steps[len(done) :] if steps[: len(done)] == done else steps)
    except MemoryError:
        raise
    except Exception as reason:  # whatever it is: the plan is a stranger's
        raise Wrong(f"holds steps that do not fit its network: {short(str(reason).rstrip('.'))}") from reason
    if model is None and steps:  # a step may have lost the layout where an axis has size 1
        network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return network


def _built(builder: str, arguments: dict[str, Any]) -> nn.Module:
    try:
        with torch.device("meta"):
            return models.BUILDERS[builder](**arguments)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise damaged(f"{builder} cannot be built: {short(str(reason).rstrip('.'))}") from reason


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers by name, if all of them are tensors that a file can hold."""
    state = model.state_dict(keep_vars=True)
    for name, value in state.items():
        if name == "__metadata__":  # the one name that the format keeps for itself
            raise Wrong("cannot hold a tensor of the name __metadata__: choose another")
        if not isinstance(value, Tensor):
            raise Wrong(f"cannot hold {short(name)}, which is not a tensor")
        if is_lazy(value):
            raise Wrong(f"cannot hold {short(name)} before the network has seen its first input")
        if value.dtype not in TYPES.values() or value.layout != torch.strided or value.is_quantized:
            raise Wrong(f"cannot hold {short(name)}, a tensor of {value.dtype} and {value.layout}")
    return state


def compare(
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]], network: nn.Module, model: nn.Module | None
) -> None:
    """A sentence unless ``network`` has just these tensors. quern's own networks may come in any floating type."""
    state = state_of(network)
    whose = "the network" if model is None else "the given network"
    for name in (*state, *tensors):
        if name not in tensors:
            raise Wrong(f"does not fit {whose}: it has no tensor {short(name)}")
        if name not in state:
            raise Wrong(f"does not fit {whose}, which has no tensor {short(name)}")
    for name, (dtype, shape) in tensors.items():
        wanted_dtype = state[name].dtype
        if tuple(state[name].shape) != shape:
            wanted = short(tuple(state[name].shape))
            raise Wrong(f"does not fit {whose}: {short(name)} is {short(shape)}, but should be {wanted}")
        both_floating = dtype.is_floating_point and wanted_dtype.is_floating_point
        if dtype != wanted_dtype and not (model is None and both_floating):
            raise Wrong(f"does not fit {whose}: {short(name)} is {dtype}, but should be {wanted_dtype}")


def verified_recipe(model: nn.Module) -> Recipe:
    """How ``model`` was made, if a network of its structure comes of doing so again; else without a builder."""
    recipe = recipe_of(model)
    unknown = Recipe(steps=recipe.steps)
    if recipe.builder is None:
        return unknown
    try:
        arguments, steps = checked_arguments(recipe.builder, plain(recipe.arguments)), plain(recipe.steps)
        again = replay(_built(recipe.builder, arguments), steps)
    except (Wrong, QuernError, ValueError):
        return unknown
    return Recipe(recipe.builder, arguments, recipe.steps) if _same_structure(model, again) else unknown


def _same_structure(model: nn.Module, again: nn.Module) -> bool:
    """Whether ``model`` is what ``again`` is but for values, floating type, device and mode."""

    def names(network: nn.Module) -> tuple[list[str], list[str], list[str]]:
        state = network.state_dict(keep_vars=True)
        # named_parameters names a shared one once, so it also tells what is shared.
        return [n for n, _ in network.named_parameters()], [n for n, _ in network.named_buffers()], list(state)

    if names(model) != names(again):
        return False
    before, after = model.state_dict(keep_vars=True), again.state_dict(keep_vars=True)
    for name, value in after.items():
        floating = value.is_floating_point() and before[name].is_floating_point()
        if before[name].shape != value.shape or not (floating or before[name].dtype == value.dtype):
            return False
    pairs = [list(network.named_modules(remove_duplicate=False)) for network in (model, again)]
    return len(pairs[0]) == len(pairs[1]) and all(
        name == other and _same_layer(layer, like) for (name, layer), (other, like) in zip(*pairs, strict=True)
    )


def _same_layer(layer: nn.Module, like: nn.Module) -> bool:
    """Whether two layers are of one class and agree in their settings (stride, eps, ...), which files do not hold."""

    def settings(module: nn.Module) -> dict[str, Any]:
        kept = {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "training"}
        return {key: value for key, value in kept.items() if isinstance(value, bool | int | float | str | tuple | None)}

    if type(layer) is not type(like) or "forward" in vars(layer):
        return False
    return settings(like).items() <= settings(layer).items()
