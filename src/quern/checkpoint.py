"""The state of a training as one safetensors file: tensors, and everything else as JSON in its header.

One file is written under a temporary name and then renamed, so what is on disk is always one whole state. Nothing in it
is code.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save_file
from torch import Tensor, nn

from quern.errors import TrainingError
from quern.files import replacing

__all__ = ["load", "optimizer_tensors", "restore_optimizer", "save"]


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write ``tensors`` and ``state`` (anything JSON knows) to ``path``; OSError if that fails, and then no trace."""
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(plain, temporary, {"quern": json.dumps(state)})
        except SafetensorError as reason:  # how a full disk arrives
            raise OSError(str(reason)) from reason


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The reverse of :func:`save`."""
    try:
        content = path.read_bytes()
        # Not by safe_open, which takes no path that is not UTF-8.
        head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return load_bytes(content), json.loads(head["__metadata__"]["quern"])
    except FileNotFoundError:
        raise TrainingError(f"{path} is not there, so there is nothing to go on from.") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as reason:
        raise TrainingError(f"{path} is not a checkpoint of quern, or is damaged: {reason}.") from reason


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by ``number of the parameter.name``."""
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The reverse of :func:`optimizer_tensors`; settings such as the learning rate are left as they are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        parameter: nn.Parameter = parameters[int(number)]
        for like in (parameter, parameter[0] if parameter.dim() else parameter):
            if value.shape == like.shape:  # files know no memory layouts; a step is slow where they differ
                value = torch.empty_like(like, memory_format=torch.preserve_format).copy_(value)
                break
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
