"""The tracer: a network as a graph of operations, and one sentence where it cannot become one."""

import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from quern import functional as F
from quern import nn as qnn
from quern.errors import InputError, TraceError
from quern.graph.operations import asks_size
from quern.graph.spec import own_spec

Example = Tensor | tuple[Any, ...]  # an input of a network, or several


class Tracer(fx.Tracer):
    """Into the user's own modules, not into layers, nor into the functions of quern."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=tuple(getattr(F, name) for name in F.__all__))
        self._autowrap_search += [F, qnn]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if own_spec(m) is None and m.__module__.startswith("quern.nn") and list(m.children()):
            return False  # put together from layers that are known
        registered = own_spec(m) is not None or m.__module__.startswith("quern.nn")
        return registered or super().is_leaf_module(m, module_qualified_name)

    def to_bool(self, obj: fx.Proxy) -> NoReturn:
        if _is_size(obj.node):
            raise _Untraceable("branches on a shape; decide by what __init__ knows, or leave the check out")
        raise _Untraceable(
            "branches or loops on a tensor's value; choose by torch.where, or loop for a number that __init__ knows"
        )

    def iter(self, obj: fx.Proxy) -> NoReturn:  # noqa: ARG002, torch's own says no more
        raise _Untraceable(
            "loops over a tensor, or unpacks it into arguments; index it instead, x[:, n] for n in range(self.steps) "
            "with a number that __init__ knows"
        )


def trace(
    model: nn.Module,
    concrete: dict[str, Any] | None = None,
    tracer: Callable[[], Tracer] = Tracer,
    training: bool = False,
) -> fx.Graph:
    """The operations of ``model`` in eval mode, or while ``training``, with layers and quern's functions whole.
    ``concrete`` are inputs that are given here, and not followed."""
    check_traceable(model)
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        return tracer().trace(model, concrete)
    except Exception as reason:  # whatever a user's forward does with a stand-in for a tensor
        raise TraceError(f"the network cannot be traced by torch.fx: {_place(reason)} {_cause(reason)}.") from reason
    finally:
        for module, mode in modes:
            module.training = mode


def inputs_of(network: nn.Module, example: Example) -> tuple[Any, ...]:
    """The inputs that ``example`` is, a tensor or a tuple of several, on the device of ``network``."""
    if not isinstance(example, (Tensor, tuple)):
        raise InputError(
            f"the example must be an input of the network, a tensor or a tuple of several, but is of type "
            f"{type(example).__name__}."
        )
    if isinstance(example, tuple) and example and all(type(size) is int for size in example):
        sizes = ", ".join(map(str, example))
        raise InputError(f"the example must be an input, not its shape: torch.randn({sizes}).")
    inputs = example if isinstance(example, tuple) else (example,)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    return mapped(inputs, lambda t: t.detach().to(device))


def mapped(inputs: tuple[Any, ...], change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """``inputs`` with every tensor in them changed; cloned before they are used, because a network may change them."""
    return tuple(map_aggregate(inputs, lambda a: change(a) if isinstance(a, Tensor) else a))


def traced(
    model: nn.Module, count: int | None = None, tracer: Callable[[], Tracer] = Tracer, training: bool = False
) -> tuple[nn.Module, fx.Graph, list[str]]:
    """``model``, or a Sequential around it if it is a single layer; its operations for calls with its first ``count``
    inputs, by default those that it must be given; and notes."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least, most = sum(p.default is p.empty for p in positional), len(positional)
    count = least if count is None else count
    if count < least or (count > most and not any(p.kind == p.VAR_POSITIONAL for p in parameters)):
        takes = f"{least}" if least == most else f"{least} to {most}"
        several = "" if count > 1 else ": give several as one tuple, (x, y)"
        raise InputError(f"the example has {count} inputs, but the network takes {takes}{several}.")
    if tracer().is_leaf_module(model, ""):
        check_traceable(model)
        graph = fx.Graph()
        args = tuple(graph.placeholder(f"input_{n}") for n in range(count))
        graph.output(graph.call_module("0", args))
        return nn.Sequential(model), graph, []
    # An optional input that is not given is None, or whatever its default is, not something to trace; but a number may
    # be another one in the next call.
    rest = {p.name: p.default for p in parameters[count:] if p.default is not p.empty}
    numbers = [name for name, default in rest.items() if type(default) in (int, float)]
    if not numbers:
        return model, trace(model, rest or None, tracer, training), []
    try:
        fixed = {name: rest[name] for name in rest if name not in numbers}
        return model, trace(model, fixed or None, tracer, training), []
    except TraceError:  # the number decides what the network does
        notes = [f"{name} is taken to be {rest[name]} in every call, because it cannot be followed" for name in numbers]
        return model, trace(model, rest, tracer, training), notes


def check_module(model: nn.Module) -> None:
    """One sentence if what was given as a network is none."""
    if isinstance(model, nn.Module):
        return
    kind, remedy = type(model).__name__, ""
    if isinstance(model, dict):
        remedy = ": put its tensors into one by load_state_dict"
    elif isinstance(model, (str, Path)):
        remedy = ": quern.io.load reads one from a file, quern.models has functions that build one"
    elif isinstance(model, type):
        kind, remedy = f"the class {model.__name__}", f": build one, {model.__name__}(...)"
    raise InputError(f"the network must be an nn.Module, but is {kind}{remedy}.")


def check_traceable(model: nn.Module) -> None:
    """One sentence if ``model`` is no network, or not as it was written, but what torch made of one."""
    check_module(model)
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")  # where it was not loaded, nothing was compiled
    for name, module in model.named_modules():
        what = f"its layer {name}" if name else "the network"
        if eval_frame is not None and isinstance(module, eval_frame.OptimizedModule):
            original = "give the original, network._orig_mod" if not name else "compile the network after this"
            raise TraceError(f"{what} went through torch.compile, which hides what it does: {original}.")
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(f"{what} is a TorchScript program, which hides what it does: give the original.")
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise TraceError(
                f"{type(module).__name__} hides the network from torch.fx: give what it wraps, its .module."
            )


class _Untraceable(Exception):
    """What forward does that cannot be followed, and what to write instead."""


def _is_size(node: fx.Node) -> bool:
    """Whether a value is computed from nothing but sizes."""
    if node.op == "call_method" or node.target is getattr:
        return asks_size(node.target, node.args[1] if len(node.args) > 1 else None)
    return bool(node.all_input_nodes) and all(map(_is_size, node.all_input_nodes))


def _place(reason: BaseException) -> str:
    """The file and line where the user's own code failed; where none is the user's, that of a library."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(reason.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THEIRS
    ]
    own = [place for place in frames if not {"site-packages", "dist-packages"} & set(Path(place[0]).parts)]
    return "{}:{}".format(*(own or frames)[-1]) if frames else "its forward"


_NOT_THEIRS = {"quern", "torch", "beartype", "jaxtyping", *sys.stdlib_module_names} - {"__main__"}
_WRAP = "put it into a function at the top of its file, marked with torch.fx.wrap and called by its name"
# What an error of torch or Python says of a stand-in for a tensor, and what that means to the user.
_CAUSES = {
    r"dynamo-optimized": "calls what went through torch.compile; call the original, and compile the network after this",
    r"'len' is not supported": "takes the len of a tensor; write x.shape[0]",
    r"cannot be interpreted as an integer|(int|float)\(\) argument|indices must be integers|__format__": (
        f"needs a size or a tensor's value as a number of Python; take it from __init__, or {_WRAP}"
    ),
    r"^(zeros|ones|empty|full|rand|randn|arange|eye)\(\)": (
        "makes a tensor by a size of the input; make it of one that is there, x.new_zeros(x.shape[0], 8)"
    ),
    r"not installed as a submodule": (
        "calls a module that the network does not hold; keep it as self.name in __init__ (a slice of a Sequential is "
        "a new one)"
    ),
}


def _cause(reason: BaseException) -> str:
    """What is wrong there, and what to do."""
    sentence = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
    if isinstance(reason, _Untraceable):
        return sentence
    for pattern, cause in _CAUSES.items():
        if re.search(pattern, sentence):
            return cause
    if type(reason).__module__.partition(".")[0] in ("beartype", "jaxtyping"):
        return "checks types at run time, also of torch.fx's stand-in for a tensor; mark forward with no_type_check"
    if isinstance(reason, (AttributeError, NameError)) and "Proxy" not in sentence:
        return f"fails ({sentence}); see first that the network runs on an input"
    return f"does not take torch.fx's stand-in for a tensor ({sentence}); {_WRAP}"
