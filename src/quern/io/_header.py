"""What the header of a network's file says of it: as it is written, and as it is read by someone who trusts none of
it."""

import inspect
from typing import Any

from quern import models
from quern.io.tensorfile import CHANNELS, damaged, json_of, spread
from quern.models import Recipe
from quern.records import ImageFormat
from quern.records.schema import Wrong, check, plain, short

FORMAT = 1


# What a file may ask for. A network is built without memory for its numbers, but still takes time.
_STEPS = 32
_WIDTHS = 32  # of one network
_SIZE = 1 << 16  # a width, a number of classes, channels or pixels


def description_of(
    recipe: Recipe, parameters: int, metrics: dict[str, Any], images: dict[str, Any] | None
) -> dict[str, Any]:
    """quern's part of the header, to be written."""
    return {
        "format": FORMAT,
        "builder": recipe.builder,
        "arguments": recipe.arguments,
        "steps": _plain("steps", list(recipe.steps)),
        "metrics": {key: _plain(f"metrics[{key!r}]", value) for key, value in _plain_keys(metrics).items()},
        "images": _plain("images", images),
        "parameters": parameters,
    }


def _plain(name: str, value: Any) -> Any:
    try:
        return plain(value, 2)
    except (ValueError, RecursionError) as reason:
        raise Wrong(f"cannot hold {short(name)}, which must be plain JSON: {short(reason)}") from reason


def _plain_keys(metrics: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(_plain("the names of the metrics", dict.fromkeys(metrics)), metrics.values(), strict=True))


def read_description(text: str | None) -> dict[str, Any]:
    """quern's part of the header, with nothing in it that was not checked."""
    description: Any = None if text is None else json_of(text)
    version = description.get("format") if isinstance(description, dict) else None
    if isinstance(description, dict) and {"settings", "epoch"} <= description.keys():
        raise Wrong("is a checkpoint of a training: give the model.safetensors that the finished run has beside it")
    if type(version) is not int or version < 1:
        remedy = "read it by safetensors.torch.load_file, and put its tensors into a network by load_state_dict"
        raise Wrong(f"is a file of tensors, but not one that quern.io.save wrote: {remedy}")
    if version > FORMAT:
        raise Wrong(f"was made by a newer quern (format {version}): update quern to read it")
    kinds = {"builder": str | None, "arguments": dict, "steps": list, "metrics": dict, "images": dict | None}
    for key, kind in (kinds | {"parameters": int}).items():
        if key not in description or not isinstance(description[key], kind):
            raise damaged(f"its header has no {key} of the right kind")
    if len(description["steps"]) > _STEPS or not all(isinstance(step, dict) for step in description["steps"]):
        raise damaged(f"its steps are not at most {_STEPS} tables")
    if spread(description["steps"]) > CHANNELS:
        raise damaged(f"its steps name more than {CHANNELS:,} channels")
    if description["builder"] is not None:
        description["arguments"] = checked_arguments(description["builder"], description["arguments"])
    if description["images"] is not None:
        _check_images(description["images"])
    return {key: description[key] for key in ("format", *kinds, "parameters")}


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _SIZE


def checked_arguments(builder: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, if the builder knows all, each is of the kind of its default, and none is too large."""
    if builder not in models.BUILDERS:
        raise Wrong(f"holds a network {short(builder)}, which this quern cannot build: update quern to read it")
    known = inspect.signature(models.BUILDERS[builder]).parameters
    for name, value in arguments.items():
        default = known[name].default if name in known else None
        if isinstance(default, str):
            fine = isinstance(value, str)
        elif isinstance(default, float):
            fine = type(value) in (int, float) and 0 <= value <= 1
        elif isinstance(default, int):
            fine = _is_size(value)
        else:
            fine = default is not None and isinstance(value, list) and 0 < len(value) <= _WIDTHS
            fine = fine and all(map(_is_size, value))
        if not fine:
            raise damaged(f"{builder} takes no {short(name)} of {short(value)}")
    return {name: float(v) if isinstance(known[name].default, float) else v for name, v in arguments.items()}


def _check_images(images: dict[str, Any]) -> None:
    """What is there of an :class:`ImageFormat` must be usable; what else there is, is the user's."""
    try:
        known = check(images, ImageFormat)
    except ValueError as reason:
        raise Wrong(f"has images whose {reason}") from reason
    shape = known.get("shape")
    if shape is not None and len(shape) != 3:
        raise Wrong(f"has images whose shape is {short(shape)}, but should be [channels, height, width]")
    for key in ("mean", "std"):
        if shape is not None and (numbers := known.get(key)) is not None and len(numbers) != shape[0]:
            raise Wrong(f"has images of {shape[0]} channels, but {len(numbers)} numbers as their {key}")
