"""Convolutions between normalisations: the formulas step by step in float64, wherever the kernels can be had."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import _native
from quern import nn as qnn
from quern.functional import native, normed
from quern.functional.products import Geometry, block_convolution, block_weight
from quern.nn._normed import first_run
from tests.functional.native_kernels import (
    ERROR,
    assert_in_bounds,
    assert_near,
    assert_no_warnings,
    each_compiler_and_build,
)

pytestmark = pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")

EPS = 1e-5
NO_SIGN = 1e-4  # numbers closer to 0 may be on the other side of it in float32, where a ReLU has another gradient
Layers = list[tuple[Any, int, tuple[int, int], tuple[int, int]]]  # kind, channels of the result, stride, padding


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    h = x.unflatten(1, (4, -1))
    centred = h - h.mean((0, 3, 4), keepdim=True)
    var = centred.square().mean((0, 3, 4), keepdim=True).sum(1, keepdim=True)
    y = centred / (var + EPS).sqrt() * weight.view(-1, 1, 1) + bias.view(4, -1, 1, 1)
    return y.flatten(1, 2)


def convolved(kind: str, x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any) -> Tensor:
    if kind == "split":
        return F.conv2d(x, weight.flatten(0, 1), bias.flatten(), stride, padding, groups=x.shape[1])
    geometry = Geometry(stride, padding, (1, 1), weight.shape[1] if kind == "quaternion" else 1)
    return block_convolution(x, block_weight(weight, groups=geometry.groups), bias, geometry)


class Drawn:
    """A chain with its numbers, in float64."""

    def __init__(
        self, images: int, space: tuple[int, int], channels: int, layers: Layers, first: bool, end: str
    ) -> None:
        self.layers, self.first, self.end = layers, first, end

        def norm(channels: int) -> list[Tensor]:
            return [torch.randn(channels // 4), torch.randn(4, channels // 4)]

        self.tensors = norm(channels) if first else []
        size, before = space, channels
        for kind, out, stride, padding in layers:
            out = out if kind == "pointwise" else before
            shape = (4, out // 4, before // 4, 1, 1) if kind == "pointwise" else (4, out // 4, 1, 3, 3)
            self.tensors += [torch.randn(shape), torch.randn(4, out // 4), *norm(out)]
            convolution = normed.Convolution(kind, torch.empty(0), None, stride, padding)
            size, before = convolution.target(*size), out
        self.size, self.images = size, images
        self.x = last(torch.randn(images, channels, *space))
        result = (images, before, *size)
        self.added, self.grad = (torch.randn(result) if "add" in end else None), torch.randn(result)

    def step_by_step(self, x: Tensor, added: Tensor | None, *tensors: Tensor) -> tuple[Tensor, float]:
        """The result, and how near a ReLU's input comes to 0."""
        rest, near, n = list(tensors), 1.0, len(self.layers)
        for k in range(-1 if self.first else 0, n):
            if k >= 0:
                kind, _, stride, padding = self.layers[k]
                x, rest = convolved(kind, x, rest[0], rest[1], stride, padding), rest[2:]
            x, rest = normalised(x, rest[0], rest[1]), rest[2:]
            x = x if added is None or k + 1 < n else x + added
            if k + 1 < n or "relu" in self.end:
                near = min(near, float(x.detach().abs().min()))
                x = F.relu(x)
        return x, near

    def together(self, x: Tensor, added: Tensor | None, *tensors: Tensor) -> tuple[Tensor, normed.Statistics]:
        rest, first, stages = list(tensors), None, []
        if self.first:
            first, rest = normed.Normalisation(rest[0], rest[1], EPS, True), rest[2:]
        for kind, _, stride, padding in self.layers:
            convolution = normed.Convolution(kind, rest[0], rest[1], stride, padding)
            assert normed.can_convolve(convolution)
            stages.append((convolution, normed.Normalisation(rest[2], rest[3], EPS, True)))
            rest = rest[4:]
        return normed.normed_convolutions(x, first, stages, added, "relu" in self.end)

    def passed(self, form: Any, dtype: torch.dtype) -> tuple[list[Tensor], Any, list[Tensor]]:
        """The result with the gradients of all inputs but biases, what else there is to say, those of biases."""
        inputs = [t if t is None else t.to(dtype).requires_grad_() for t in (self.x, self.added, *self.tensors)]
        y, more = form(*inputs)
        there = [t for t in inputs if t is not None]
        gradients = torch.autograd.grad(y, there, self.grad.to(dtype))
        start = len(there) - len(self.tensors) + (2 if self.first else 0) + 1
        biases = [gradients[n] for n in range(start, len(gradients), 4)]
        return [y.detach(), *(g for g in gradients if not any(g is b for b in biases))], more, biases


@st.composite
def chains(draw: st.DrawFn) -> Drawn:
    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    layers, size = [], (3 + draw(st.integers(0, 9)), 3 + draw(st.integers(0, 9)))
    height, width = size
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(normed.KINDS))
        depthwise = kind != "pointwise"
        stride, padding = (pair(1, 3), pair(0, 2)) if depthwise else ((1, 1), (0, 0))
        convolution = normed.Convolution(kind, torch.empty(0), None, stride, padding)
        height, width = convolution.target(height, width)
        assume(height > 0 and width > 0)
        layers.append((kind, 4 * draw(st.integers(1, 20)), stride, padding))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    channels, end = 4 * draw(st.integers(1, 20)), draw(st.sampled_from(["", "relu", "add", "add relu"]))
    return Drawn(draw(st.integers(2, 6)), size, channels, layers, draw(st.booleans()), end)


@given(chains(), st.sampled_from([1.0, 1e3, 1e8]))
def test_it_is_the_formulas(chain: Drawn, magnitude: float) -> None:
    """Few values of a neuron are nearly constant by chance, and what is divided by their spread has lost digits. So has
    a gradient that a normalisation further on takes away but for little: no form in float32 can have them."""
    chain.x *= magnitude
    wanted, near, _ = chain.passed(chain.step_by_step, torch.float64)
    assume(near > NO_SIGN and chain.images * chain.size[0] * chain.size[1] > 20)
    found, statistics, biases = chain.passed(chain.together, torch.float32)
    plain = chain.passed(chain.step_by_step, torch.float32)[0]
    for one, other, exact in zip(found, plain, wanted, strict=True):
        assert one.shape == exact.shape
        lost = float((other.double() - exact).abs().max())
        assert float((one.double() - exact).abs().max()) <= ERROR * float(exact.abs().max()) + 4 * lost
    assert not any(b.any() for b in biases)  # what they add, the normalisation takes away
    assert len(statistics) == len(chain.layers) + chain.first


def one(images: int = 5, space: tuple[int, int] = (13, 10), channels: int = 44, end: str = "add relu") -> Drawn:
    torch.manual_seed(1)
    layers: Layers = [
        ("split", 0, (1, 1), (1, 1)),
        ("pointwise", 36, (1, 1), (0, 0)),
        ("quaternion", 0, (2, 2), (1, 1)),
        ("pointwise", 8, (1, 1), (0, 0)),
    ]
    return Drawn(images, space, channels, layers, True, end)


@pytest.mark.parametrize("build", _native.builds(native.PACKAGE))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_build_and_any_number_of_threads(build: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same bits from as many threads, and from any other number: pieces are summed in one order."""
    monkeypatch.setattr(normed, "NUMBERS_OF_A_THREAD", 1)
    builds = _native.builds(native.PACKAGE)
    monkeypatch.setattr(_native, "builds", lambda _: builds[: builds.index(build) + 1])
    chain = one(19)
    while chain.passed(chain.step_by_step, torch.float64)[1] < 1e-6:
        chain.x = last(torch.randn_like(chain.x))

    def with_threads(count: int) -> list[Tensor]:
        monkeypatch.setattr(torch, "get_num_threads", lambda: count)
        return chain.passed(chain.together, torch.float32)[0]

    found = with_threads(threads)
    for one_of, again, alone in zip(found, with_threads(threads), with_threads(1), strict=True):
        assert torch.equal(one_of, again)
        assert torch.equal(one_of, alone)
    assert_near(found, chain.passed(chain.step_by_step, torch.float64)[0])


def test_one_quaternion() -> None:
    """Its expanded weight has as many rows as columns, and is no row after row by itself."""
    torch.manual_seed(0)
    chain = Drawn(2, (3, 4), 4, [("pointwise", 4, (1, 1), (0, 0))], False, "")
    assert_near(chain.passed(chain.together, torch.float32)[0], chain.passed(chain.step_by_step, torch.float64)[0])


def test_images_that_are_taken_in_strips() -> None:
    """Larger than what is worked on at a time, with rows that two strips need."""
    torch.manual_seed(0)
    chain = Drawn(2, (150, 90), 64, [("split", 0, (1, 1), (1, 1)), ("quaternion", 0, (2, 1), (1, 2))], False, "")
    chain.layers = chain.layers[:1]  # a ReLU between them is somewhere near 0, with so many numbers
    chain.tensors, chain.grad = chain.tensors[:4], torch.randn(2, 64, 150, 90)
    assert_near(chain.passed(chain.together, torch.float32)[0], chain.passed(chain.step_by_step, torch.float64)[0])
    chain = Drawn(2, (150, 90), 64, [("quaternion", 0, (2, 1), (1, 2))], False, "add")
    assert_near(chain.passed(chain.together, torch.float32)[0], chain.passed(chain.step_by_step, torch.float64)[0])


def test_derivatives_of_derivatives() -> None:
    chain = one(2, (5, 4), 8)

    def twice(form: Any, dtype: torch.dtype) -> list[Tensor]:
        given = (chain.x, chain.added, *chain.tensors)
        inputs = [t.to(dtype).requires_grad_() for t in given if t is not None]
        first = torch.autograd.grad(form(*inputs)[0], inputs, chain.grad.to(dtype), create_graph=True)
        return list(torch.autograd.grad(torch.stack([t.square().sum() for t in first]).sum(), inputs[:3]))

    for found, wanted in zip(
        twice(chain.together, torch.float32), twice(chain.step_by_step, torch.float64), strict=True
    ):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


# ------------------------------------------------------------------------------------------------------------- layers


def network(**options: Any) -> Any:
    torch.manual_seed(0)
    layers = [
        *(qnn.QBatchNorm2d(8), nn.ReLU()),
        *(qnn.SplitConv2d(8, 3, padding=1), qnn.QBatchNorm2d(8, **options), nn.ReLU(inplace=True)),
        *(qnn.QConv2d(8, 12, 1, bias=False), qnn.QBatchNorm2d(12)),
        *(qnn.QConv2d(12, 12, 3, 2, 1, groups=3), qnn.QBatchNorm2d(12), nn.ReLU()),
    ]
    return qnn.Sequential(*layers).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def run_of(layers: Any, x: Tensor) -> int:
    run = first_run(list(layers), x)
    return 0 if run is None else run.length


def test_layers_are_done_together_as_one_by_one() -> None:
    x = last(torch.randn(4, 8, 7, 9))
    for options in ({}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}, {"fixed_scale": True}):
        together, by_layer = network(**options), network(**options)
        assert run_of(together, x) == len(together)
        for _ in range(3):
            y, wanted = together(x), nn.Sequential(*by_layer)(x)
            assert "NormedConvolutions" in type(y.grad_fn).__name__
            torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
        for key, value in by_layer.state_dict().items():
            torch.testing.assert_close(together.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def test_a_run_ends_where_it_has_to() -> None:
    x = last(torch.randn(4, 8, 7, 9))
    layers = list(network())

    def with_changed(place: int, layer: nn.Module) -> int:
        return run_of([*layers[:place], layer, *layers[place + 1 :]], x)

    assert run_of(layers, x) == 10
    assert run_of(layers[:2], x) == 0  # no convolution
    assert run_of(layers[1:], x) == 0  # a ReLU first
    assert run_of(layers[2:], x) == 8
    assert run_of(layers[:6], x) == 5  # no normalisation behind the last convolution
    assert with_changed(6, nn.BatchNorm2d(12)) == 5
    assert with_changed(6, copy.deepcopy(layers[6]).eval()) == 5
    assert with_changed(3, qnn.QBatchNorm2d(12)) == 0  # which says itself what is wrong
    assert with_changed(5, qnn.QConv2d(8, 12, 3)) == 5
    assert with_changed(5, qnn.QConv2d(8, 12, 1, padding=1)) == 5
    assert with_changed(7, qnn.QConv2d(12, 12, 3, 1, 3, groups=3)) == 7
    assert with_changed(7, qnn.QConv2d(12, 12, 3, dilation=2, groups=3)) == 7
    assert with_changed(7, qnn.QConv2d(12, 12, 3, padding="same", groups=3)) == 7
    assert with_changed(7, qnn.SplitConv2d(12, 3, padding_mode="circular", padding=1)) == 7
    assert run_of(layers, x[:1, :, :1, :1]) == 0  # one value of each neuron
    constant = qnn.QConv2d(8, 12, 1)
    constant.constant = nn.Parameter(torch.ones(4, 3, 1, 1, 1))
    assert with_changed(5, constant) == 5
    watched = copy.deepcopy(layers[5])
    watched.register_forward_hook(lambda *_: None)
    assert with_changed(5, watched) == 5
    wide = [qnn.QConv2d(512, 512, 1), qnn.QBatchNorm2d(512)]
    assert run_of(wide, last(torch.randn(2, 512, 2, 2))) == 0


def test_what_it_cannot_do_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = list(network()), last(torch.randn(4, 8, 7, 9))
    assert run_of(layers, x.contiguous()) == 0
    assert run_of(layers, x.double()) == 0
    assert run_of(layers, x[:0]) == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert run_of(layers, x) == 0
    assert run_of(list(network().double()), x) == 0
    monkeypatch.setenv("QUERN_NATIVE", "0")
    assert run_of(layers, x) == 0


def test_an_addition_that_the_kernels_do_not_take() -> None:
    layers, x, added = network()[:7], last(torch.randn(4, 8, 7, 9)), torch.randn(1, 12, 1, 1)
    wanted = copy.deepcopy(layers)(x) + added
    torch.testing.assert_close(layers.forward_and_add(x, added), wanted, rtol=1e-4, atol=1e-4)


@each_compiler_and_build
def test_compilers_have_nothing_to_say(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_no_warnings("normed", compiler, flags, tmp_path)


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    assert_in_bounds("normed", tmp_path, "320 convolutions\n")
