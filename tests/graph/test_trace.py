"""What cannot be traced is said with the file, the line, the cause and what to do; and so is what is no network."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from beartype import beartype
from torch import Tensor, nn

import quern
from quern import io
from quern import nn as qnn
from quern.compact import compact, plan
from quern.compact.folding import fold
from quern.errors import CompactionError, InputError, TraceError
from quern.export import to_onnx, to_real
from quern.graph import trace
from quern.optim import freeze_zeros
from quern.penalties import RQL
from quern.sparsity import measure
from quern.train import Loaders, Settings, fit
from tests.networks import Wired


def value(m: Any, x: Tensor) -> Tensor:
    return m.a(x) if x.sum() > 0 else x


def data_dependent_loop(m: Any, x: Tensor) -> Tensor:
    while x.norm() > 1:
        x = m.a(x)
    return x


def shape(m: Any, x: Tensor) -> Tensor:
    return m.a(x) if x.shape[0] * 2 > 1 else x


def dimensions(m: Any, x: Tensor) -> Tensor:
    assert x.dim() == 2
    return m.a(x)


def loop(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(row) for row in x]


def unpacked(m: Any, x: Tensor) -> Tensor:
    return torch.add(*x)


def counted(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x) for _ in range(x.shape[0])]


def number(m: Any, x: Tensor) -> Tensor:
    return m.a(x) * float(x.sum())


def length(m: Any, x: Tensor) -> Tensor:
    return m.a(x) / len(x)


def fresh(m: Any, x: Tensor) -> Tensor:
    return m.a(x) + torch.zeros(x.shape[0], 8)


def sliced(m: Any, x: Tensor) -> Tensor:
    return m.several[:1](m.a(x))


def of_numpy(m: Any, x: Tensor) -> Any:
    return np.tanh(m.a(x))


def compiled(m: Any, x: Tensor) -> Tensor:
    return m.quick(m.a(x))


def misspelt(m: Any, x: Tensor) -> Tensor:
    return m.aa(x)


def network(wiring: Callable[..., Any]) -> nn.Module:
    return Wired(wiring, a=qnn.QLinear(8, 8), several=nn.Sequential(nn.ReLU(), nn.Tanh()))


WRAP = r"a function at the top of its file, marked with torch\.fx\.wrap and called by its name"


@pytest.mark.parametrize(
    ("wiring", "said"),
    [
        (value, r"branches or loops on a tensor's value; choose by torch\.where, .*"),
        (data_dependent_loop, "branches or loops on a tensor's value; .* or loop for a number that __init__ knows"),
        (shape, "branches on a shape; decide by what __init__ knows, or leave the check out"),
        (dimensions, "branches on a shape; .*"),
        (loop, r"loops over a tensor, or unpacks .*; index it instead, .*"),
        (unpacked, r"loops over a tensor, or unpacks .*; index it instead, .*"),
        (counted, f"needs a size .* as a number of Python; take it from __init__, or put it into {WRAP}"),
        (number, f"needs .* a tensor's value as a number of Python; take it from __init__, or put it into {WRAP}"),
        (length, r"takes the len of a tensor; write x\.shape\[0\]"),
        (fresh, r"makes a tensor by a size of the input; make it of one that is there, x\.new_zeros.*"),
        (sliced, r"calls a module that the network does not hold; keep it as self\.name in __init__ .*"),
        (of_numpy, rf"does not take torch\.fx's stand-in for a tensor \(.*\); put it into {WRAP}"),
        (misspelt, r"fails \('Wired' object has no attribute 'aa'\); see first that the network runs on an input"),
    ],
)
def test_where_tracing_fails_and_what_to_do_is_said(wiring: Any, said: str) -> None:
    place = re.escape(f"{__file__}:{wiring.__code__.co_firstlineno + 1}")
    model = network(wiring).train()
    for action in (lambda: plan(model, torch.randn(2, 8)), lambda: trace(model), lambda: fold(model)):
        with pytest.raises(TraceError, match=rf"^the network cannot be traced by torch\.fx: {place} {said}\.$"):
            action()
    assert model.training


@torch.fx.wrap
def smooth(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


def test_the_advice_to_wrap_a_function_works() -> None:
    model = Wired(lambda m, x: m.b(smooth(m.a(x))), a=qnn.QLinear(8, 8), b=qnn.QLinear(8, 4))
    x = torch.randn(2, 8)
    torch.testing.assert_close(compact(model, x, keep_unknown=True)(x), model(x))


def helper(x: Tensor) -> Any:
    return math.sin(x.sum())  # pyright: ignore[reportArgumentType], which is the point


class Held(nn.Module):
    def __init__(self, act: Callable[..., Any]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Any:
        return self.act(x)


def test_a_function_that_is_an_attribute_is_followed_to_its_own_line() -> None:
    def branching(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    line = branching.__code__.co_firstlineno + 1
    with pytest.raises(TraceError, match=re.escape(f"{__file__}:{line} branches or loops on a tensor's value")):
        trace(Held(branching))
    trace(Held(helper))  # of functions of math torch.fx knows what to do
    with pytest.raises(TraceError, match=re.escape(f"{__file__}:{Held.forward.__code__.co_firstlineno + 1} does not")):
        trace(Held(np.tanh))


def test_run_time_type_checks_are_named() -> None:
    class Checked(nn.Module):
        @beartype
        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(TraceError, match=r"checks types at run time, .*; mark forward with no_type_check"):
        trace(Checked())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_what_torch_made_of_a_network_is_named() -> None:
    plain = nn.Sequential(qnn.QLinear(8, 8), nn.ReLU())
    part: Any = torch.compile(nn.Sequential(qnn.QLinear(8, 8)), backend="eager")
    inside = nn.Sequential(plain, part)
    for model, said in (
        (
            torch.compile(plain, backend="eager"),
            r"the network went through torch\.compile, .*: give the original, network\._orig_mod",
        ),
        (inside, r"its layer 1 went through torch\.compile, .*: compile the network after this"),
        (torch.jit.trace(nn.ReLU(), torch.ones(1)), "the network is a TorchScript program, .*: give the original"),
        (nn.DataParallel(plain), r"DataParallel hides the network .*: give what it wraps, its \.module"),
    ):
        assert isinstance(model, nn.Module)
        for action in (lambda m: plan(m, torch.randn(2, 8)), to_real, fold):
            with pytest.raises(TraceError, match=rf"^{said}\.$"):
                action(model)
    with pytest.raises(TraceError, match=r"test_trace\.py:\d+ calls what went through torch\.compile; .*"):
        trace(Held(torch.compile(helper, backend="eager")))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "use",
    [
        lambda model: compact(model, torch.ones(1, 8)),
        to_real,
        fold,
        measure,
        freeze_zeros,
        RQL(1.0),
        lambda model: io.save(model, "never"),
        lambda model: quern.compress(model, []),
        lambda model: fit(model, Loaders([], []), Settings()),
    ],
)
def test_what_is_no_network_is_said_by_all(use: Callable[[Any], Any]) -> None:
    for given, said in (
        (nn.Linear(2, 2).state_dict(), "OrderedDict: put its tensors into one by load_state_dict"),
        ("net.safetensors", r"str: quern\.io\.load reads one from a file, quern\.models has functions that build one"),
        (nn.Linear, r"the class Linear: build one, Linear\(\.\.\.\)"),
        (3, "int"),
    ):
        with pytest.raises(InputError, match=rf"^the network must be an nn\.Module, but is {said}\.$"):
            use(given)


@pytest.mark.unchecked
@pytest.mark.parametrize("use", [plan, measure, to_real, lambda model, x: to_onnx(model, "never", x)])
def test_what_is_no_example_is_said_by_all(use: Callable[..., Any]) -> None:
    model = nn.Sequential(qnn.QLinear(8, 8))
    for given, said in (
        ((2, 8), r"must be an input, not its shape: torch\.randn\(2, 8\)"),
        (torch.ones(2, 8).shape, r"must be an input, not its shape: torch\.randn\(2, 8\)"),
        ([torch.ones(2, 8)], "must be an input of the network, a tensor or a tuple of several, but is of type list"),
        (np.ones((2, 8)), "must be an input of the network, a tensor or a tuple of several, but is of type ndarray"),
    ):
        with pytest.raises(InputError, match=rf"^the example {said}\.$"):
            use(model, given)
    with pytest.raises(CompactionError, match=r"^the third argument is an optimizer, but 0\.001 was given: .*\.$"):
        compact(model, torch.ones(2, 8), 1e-3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        CompactionError, match=r"^the third argument .* a tensor was given: several inputs are one tuple"
    ):
        compact(model, torch.ones(2, 8), torch.ones(2, 8))  # pyright: ignore[reportArgumentType]
