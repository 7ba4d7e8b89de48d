"""Adam's step and the proximal maps in one pass: those of torch's operations in float64, up to float32's rounding."""

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import _native
from quern import nn as qnn
from quern.compact import compact
from quern.functional import native
from quern.functional.native import proximal
from quern.optim import ProximalAdam, ProximalSGD, freeze_zeros
from quern.penalties import L1, L2, RQ, RQL, GammaL1, Penalty
from tests.runtime.compilers import COMPILERS, compiled

pytestmark = [
    pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE"),
    pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning"),  # λ are drawn that take all but the last path
]
ERROR = 2e-5  # of the largest number

PENALTIES: dict[str, Callable[[float], Penalty]] = {
    "l1": L1,
    "l2": L2,
    "rq": RQ,
    "rql": RQL,
    "gamma": GammaL1,
    "gamma-beta": lambda weight: GammaL1(weight, with_beta=True),
    "all": lambda weight: RQL(weight) + L2(weight) + GammaL1(weight, with_beta=True),
}


def network(channels_last: bool) -> nn.Module:
    net = nn.Sequential(qnn.QConv2d(8, 12, 3), qnn.QBatchNorm2d(12), nn.Flatten(), qnn.QLinear(12, 8), nn.Linear(8, 3))
    return net.to(memory_format=torch.channels_last) if channels_last else net  # pyright: ignore


def trained(
    optimizer: Callable[[nn.Module], ProximalAdam | ProximalSGD],
    dtype: torch.dtype,
    *,
    seed: int,
    channels_last: bool = False,
    size: float = 1.0,
    steps: int = 3,
) -> dict[str, Tensor]:
    """The parameters, and the moments of Adam, after some steps with drawn gradients, whose layout is the usual one."""
    torch.manual_seed(seed)
    net = network(channels_last).to(dtype)
    made = optimizer(net)
    for step in range(steps):
        for n, p in enumerate(net.parameters()):
            generator = torch.Generator().manual_seed(1000 * seed + 100 * step + n)
            p.grad = size * torch.randn(p.shape, generator=generator).to(dtype)
            if step == 1 and n == 3:
                p.grad = None  # β without its γ
        made.step()
    moments = {
        f"{name}.{key}": value
        for name, p in net.named_parameters()
        for key, value in made.state.get(p, {}).items()
        if key != "step"
    }
    return {**{name: p.detach() for name, p in net.named_parameters()}, **moments}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, one in found.items():
        bound = ERROR * max(float(wanted[name].abs().max()), 1e-30)
        assert float((one.double() - wanted[name]).abs().max()) <= bound, name
        differ = (one == 0) != (wanted[name] == 0)  # only by rounding at the threshold
        assert float(torch.where(differ, one.double().abs() + wanted[name].abs(), 0).max()) <= bound, name


@given(
    kind=st.sampled_from(list(PENALTIES)),
    strength=st.sampled_from([0.0, 0.1, 10.0, 1000.0]),
    decay=st.sampled_from([0.0, 0.3]),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 0.0), (0.5, 0.3)]),
    channels_last=st.booleans(),
    size=st.sampled_from([1e-6, 1.0, 1e6]),
    seed=st.integers(0, 2**20),
)
def test_steps_of_adam(
    kind: str,
    strength: float,
    decay: float,
    betas: tuple[float, float],
    channels_last: bool,
    size: float,
    seed: int,
) -> None:
    """Over penalties, λ, weight decay, layouts and sizes of gradients, with biases and real layers beside them."""

    def made(net: nn.Module) -> ProximalAdam:
        made = ProximalAdam(net, PENALTIES[kind](size * strength), 1e-2, betas, size * 1e-8, decay)
        made.weigh({"0.weight": 3.0})
        return made

    found, wanted = (
        trained(made, dtype, seed=seed, channels_last=channels_last, size=size)
        for dtype in (torch.float32, torch.float64)
    )
    assert_near(found, wanted)


@given(st.sampled_from(["l1", "l2", "gamma"]), st.integers(0, 2**20))
def test_components_with_moments_of_their_own(kind: str, seed: int) -> None:
    def made(net: nn.Module) -> ProximalAdam:
        return ProximalAdam(net, PENALTIES[kind](20.0), 1e-2, share=False)

    found, wanted = (trained(made, dtype, seed=seed) for dtype in (torch.float32, torch.float64))
    assert_near(found, wanted)


@given(st.sampled_from(list(PENALTIES)), st.sampled_from([0.1, 10.0, 1000.0]), st.booleans(), st.integers(0, 2**20))
def test_maps_without_a_metric(kind: str, strength: float, channels_last: bool, seed: int) -> None:
    def made(net: nn.Module) -> ProximalSGD:
        return ProximalSGD(net, PENALTIES[kind](strength), 1e-2, momentum=0.5)

    found, wanted = (
        trained(made, dtype, seed=seed, channels_last=channels_last) for dtype in (torch.float32, torch.float64)
    )
    assert_near(found, wanted)


def large(optimizer_steps: int = 2) -> list[Tensor]:
    """Parameters of several chunks after some steps, about half of whose quaternions are zero then."""
    torch.manual_seed(0)
    layer = qnn.QLinear(4 * 210, 4 * 190)
    optimizer = ProximalAdam(layer, RQL(2.0, normalize=False), 1e-2)
    for _ in range(optimizer_steps):
        for p in layer.parameters():
            p.grad = torch.randn(p.shape)
        optimizer.step()
    return [p.detach() for p in layer.parameters()]


@pytest.mark.parametrize("build", _native.builds(native.PACKAGE))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_build_and_any_number_of_threads(build: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits from any number of threads; nearly the same from torch's operations."""
    builds = _native.builds(native.PACKAGE)
    monkeypatch.setattr(_native, "builds", lambda _: builds[: builds.index(build) + 1])
    alone = large()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = large()
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    monkeypatch.setenv("QUERN_NATIVE", "0")
    assert 0.1 < float((alone[0] == 0).float().mean()) < 0.9
    assert_near(dict(enumerate(alone)), {n: t.double() for n, t in enumerate(large())})  # pyright: ignore


def test_the_kernel_is_asked_and_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = proximal.Pieces.run
    monkeypatch.setattr(proximal.Pieces, "run", lambda pieces: (asked.append(len(pieces.items)), run(pieces)))
    large(1)
    assert asked[0] == 2  # moved: weight and bias
    assert asked[-1] == 1  # shrunk: the weight
    monkeypatch.setenv("QUERN_NATIVE", "0")
    asked.clear()
    large(1)
    assert not any(asked)


# What may happen to parameters and moments between two steps. All that the kernel was told of them may be wrong then.
def _moved_in_memory(net: nn.Module, _: ProximalAdam) -> None:
    for p in net.parameters():
        p.data = p.data.clone()


def _in_another_layout(net: nn.Module, _: ProximalAdam) -> None:
    net.to(memory_format=torch.channels_last)  # pyright: ignore


def _transposed_in_place(net: nn.Module, _: ProximalAdam) -> None:
    weight = net[3].weight  # pyright: ignore[reportIndexIssue]
    weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)


def _moments_loaded(net: nn.Module, made: ProximalAdam) -> None:
    made.load_state_dict(copy.deepcopy(made.state_dict()))


def _one_moment_replaced(net: nn.Module, made: ProximalAdam) -> None:
    state = made.state[next(iter(net.parameters()))]
    state["exp_avg"] = 2 * state["exp_avg"]


def _moments_changed_in_place(net: nn.Module, made: ProximalAdam) -> None:
    for state in made.state.values():
        state["exp_avg_sq"].mul_(3)


def _weights_changed_in_place(net: nn.Module, _: ProximalAdam) -> None:
    for p in net.parameters():
        p.data.mul_(2)


def _other_settings(net: nn.Module, made: ProximalAdam) -> None:
    made.param_groups[0].update(lr=3e-2, betas=(0.3, 0.5), eps=1e-3, weight_decay=0.2)
    made.scale_penalty(0.3)


def _weighed(net: nn.Module, made: ProximalAdam) -> None:
    made.weigh({"3.weight": 4.0})


def _first_steps_forgotten(net: nn.Module, made: ProximalAdam) -> None:
    made.state.clear()


EVENTS = [
    _moved_in_memory,
    _in_another_layout,
    _transposed_in_place,
    _moments_loaded,
    _one_moment_replaced,
    _moments_changed_in_place,
    _weights_changed_in_place,
    _other_settings,
    _weighed,
    _first_steps_forgotten,
]


@given(
    events=st.lists(st.sampled_from([*EVENTS, None]), min_size=3, max_size=6),
    without=st.lists(st.sets(st.integers(0, 7), max_size=3), min_size=6, max_size=6),
    kind=st.sampled_from(["rql", "gamma-beta", "all"]),
    seed=st.integers(0, 2**20),
)
def test_nothing_is_remembered_that_is_no_longer_so(
    events: list[Callable[[nn.Module, ProximalAdam], None] | None],
    without: list[set[int]],
    kind: str,
    seed: int,
) -> None:
    """Steps between which parameters and moments are replaced, moved and changed, some of them without gradients."""

    def result(dtype: torch.dtype) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        net = network(False).to(dtype)
        made = ProximalAdam(net, PENALTIES[kind](20.0), 1e-2)
        for step, event in enumerate([None, *events]):
            if event is not None:
                event(net, made)
            generator = torch.Generator().manual_seed(seed + step)
            for n, p in enumerate(net.parameters()):
                gradient = torch.randn(p.shape, generator=generator)
                p.grad = None if step and n in without[step - 1] else gradient.to(dtype)
            made.step()
        return {name: p.detach() for name, p in net.named_parameters()}

    assert_near(result(torch.float32), result(torch.float64))


def test_a_smaller_network_is_moved_after_compaction() -> None:
    """Steps, compaction with the optimizer's state, more steps: as in float64."""
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        net: Any = nn.Sequential(qnn.QConv2d(4, 16, 3), nn.ReLU(), nn.Flatten(), qnn.QLinear(16 * 4, 8)).to(dtype)
        with torch.no_grad():
            net[0].weight[:, 1:3] = 0
            net[0].bias[:, 1:3] = 0
        optimizer, frozen = ProximalAdam(net, RQL(1.0), 1e-2), freeze_zeros(net)
        for step in range(4):
            if step == 2:
                frozen.remove()
                net = compact(net, torch.zeros(1, 4, 4, 4, dtype=dtype), optimizer)
                assert net[0].weight.shape[1] == 2
            for n, p in enumerate(net.parameters()):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * step + n)).to(dtype)
            if step < 2:  # nothing brings the dead ones back
                net[0].weight.grad[:, 1:3] = 0
                net[0].bias.grad[:, 1:3] = 0
            optimizer.step()
        results.append({name: p.detach() for name, p in net.named_parameters()})
    assert_near(*results)


def test_memory_with_gaps_is_left_to_torch() -> None:
    wide = torch.randn(4, 6, 10)
    found, wanted = qnn.QLinear(20, 24, bias=False), qnn.QLinear(20, 24, bias=False)
    found.weight.data, wanted.weight.data = wide[..., ::2], wide[..., ::2].clone()
    assert not proximal.in_rows(found.weight, 4, found.weight[0])
    for layer in (found, wanted):
        optimizer = ProximalAdam(layer, RQL(1.0), 1e-2)
        torch.manual_seed(0)
        layer.weight.grad = torch.randn(4, 6, 5)
        optimizer.step()
    torch.testing.assert_close(found.weight, wanted.weight)


def test_what_is_not_a_number_stays_so() -> None:
    layer = qnn.QLinear(8, 8)
    layer.weight.data[:, 0, 0] = torch.nan
    RQL(100.0).prox(layer)
    assert layer.weight[:, 0, 0].isnan().all()
    assert not layer.weight[:, 1:].isnan().any()


@pytest.mark.skipif(not COMPILERS, reason="NO C COMPILER: the source of the kernels was not looked at")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("flags", [(), ("-mavx2", "-mfma")])
def test_compilers_have_nothing_to_say(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    source = Path(native.__file__).parent / "proximal.c"
    warnings = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-O3", "-fPIC", "-c")
    assert not compiled(compiler, tmp_path / "proximal.o", *warnings, *flags, sources=(source,))


@pytest.mark.skipif(not COMPILERS, reason="NO C COMPILER: the sanitizers did not look at the kernels")
@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    """A program that runs both passes under the sanitizers, in memory of just the size that they take."""
    program = tmp_path / "sizes"
    flags = ("-std=c99", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-mavx2", "-mfma")
    sources = (Path(__file__).parent / "proximal_sizes.c",)
    compiled(COMPILERS[0], program, *flags, f"-I{Path(native.__file__).parent}", "-lm", sources=sources)
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "24 parameters\n"
