"""Files of networks: what is saved comes back bit for bit, and whatever else a file may be, one sentence says so."""

import copy
import errno
import gzip
import hashlib
import json
import math
import os
import pickle
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import quern.export
from quern import compact, io, models
from quern import nn as qnn
from quern._files import foreign_kind
from quern.compact import folding
from quern.errors import FileError, NotFiniteWarning
from quern.io._header import checked_arguments
from quern.io._load import read_network
from quern.io._save import head_of_network
from quern.io._structure import state_of
from quern.io._wrong import sentences
from quern.io.tensorfile import write_tensors
from quern.models import Recipe, recipe_of, set_recipe
from tests.commands import refused as refused_by_command

ROOT = Path(__file__).parents[2]
INPUTS = {"mnist": (2, 1, 28, 28), "cifar": (2, 3, 32, 32), "digits": (2, 1, 8, 8)}
WIDTHS = {"mnist": 2, "digits": 2, "cifar": 5}
IMAGES = {"shape": [1, 8, 8], "mean": [0.3], "std": [0.4], "classes": ["no", "yes", "é"]}


class Block(nn.Module):
    """A network of the user's own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = qnn.QConv2d(1, width, 3, padding=1, input_parts="r")
        self.body = nn.Sequential(qnn.QConv2d(width, width, 3, padding=1), qnn.QBatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, 3)
        self.register_buffer("seen", torch.tensor([1, 2, 3]))

    def forward(self, input: Tensor) -> Tensor:
        x = self.stem(input)
        return self.head((x + self.body(x)).mean((2, 3)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.again = self.first

    def forward(self, input: Tensor) -> Tensor:
        return self.last(self.first(input))


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


def same(one: nn.Module, other: nn.Module, strides: bool = True) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert list(a) == list(b)
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape), name
        assert torch.equal(bits(a[name]), bits(b[name])), name
        assert not strides or a[name].stride() == b[name].stride(), name
    assert [p.requires_grad for p in one.parameters()] == [p.requires_grad for p in other.parameters()]


def scramble(model: nn.Module) -> nn.Module:
    """Other values than those a network is built with."""
    with torch.no_grad():
        for value in model.state_dict().values():
            value.copy_(torch.rand(value.shape) + 0.5 if value.is_floating_point() else torch.tensor(7))
    return model


def content_of(model: nn.Module, **more: Any) -> bytes:
    state, file = state_of(model), BytesIO()
    write_tensors(file, head_of_network(model, state, more.get("metrics", {}), more.get("images")), state)
    return file.getvalue()


def read(content: bytes, model: nn.Module | None = None) -> nn.Module:
    with sentences(Path("net"), "read"):
        return read_network(BytesIO(content), len(content), model)[0]


def refused(content: bytes, model: nn.Module | None = None) -> str:
    with pytest.raises(FileError) as caught:
        read(content, model)
    return one_sentence(caught.value, "net")


def one_sentence(error: FileError, path: object) -> str:
    said = str(error)
    assert said.startswith(f"{path} "), said
    assert said.endswith("."), said
    assert "\n" not in said
    assert len(said) < 600
    return said


# ---- what is saved comes back


@pytest.mark.parametrize("builder", models.BUILDERS)
@settings(max_examples=4)
@given(data=st.data())
def test_networks_of_quern_come_back(tmp_path: Path, builder: str, data: st.DataObject) -> None:
    family = builder.split("_")[0]
    count = WIDTHS.get(family)
    width = st.integers(1, 3).map(lambda n: 4 * n)
    sizes = st.lists(width, min_size=count or 1, max_size=count or 3)
    arguments: dict[str, Any] = {"widths": data.draw(sizes), "classes": data.draw(st.integers(1, 5))}
    if count is None:
        arguments["channels"] = data.draw(st.sampled_from([1, 3]))
    else:
        arguments["norm"] = data.draw(st.sampled_from(["none", "after_conv", "after_activation"]))
        arguments["dropout"] = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    model = scramble(models.BUILDERS[builder](**arguments)).eval()
    path = tmp_path / "net"
    state = torch.get_rng_state()
    io.save(model, path)
    loaded = io.load(path)
    assert torch.equal(torch.get_rng_state(), state)  # a training's random numbers do not depend on its files
    same(model, loaded)
    assert not any(m.training for m in loaded.modules())
    assert recipe_of(loaded) == recipe_of(model)
    assert str(loaded) == str(model)
    x = torch.rand(INPUTS.get(family, (2, arguments.get("channels", 3), 16, 16)))
    with torch.no_grad():
        assert torch.equal(model(x), loaded(x))
    io.save(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("builder", models.BUILDERS)
def test_the_networks_of_the_paper_come_back(tmp_path: Path, builder: str) -> None:
    model = models.BUILDERS[builder]()
    io.save(model, str(tmp_path / "net"))
    same(model, io.load(str(tmp_path / "net")))
    said = io.describe(str(tmp_path / "net"))
    assert said["builder"] == builder
    assert said["parameters"] == sum(p.numel() for p in model.parameters())
    assert said["bytes"] == (tmp_path / "net").stat().st_size


def test_every_argument_of_every_builder_can_be_written_down() -> None:
    for name, builder in models.BUILDERS.items():
        arguments = recipe_of(builder()).arguments
        assert checked_arguments(name, arguments) == arguments


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_types_and_all_their_bits(dtype: torch.dtype) -> None:
    model = models.digits_qcnn("after_conv", widths=(4, 8)).to(dtype)
    for value in model.state_dict().values():  # also NaN of all kinds, -0, subnormals
        raw = torch.randint(0, 256, (value.numel() * value.element_size(),), dtype=torch.uint8)
        value.copy_(raw.view(value.dtype).reshape(value.shape))
    loaded = read(content_of(model))
    same(model, loaded)
    same(model, read(content_of(model), models.digits_qcnn("after_conv", widths=(4, 8)).to(dtype)))
    assert loaded.get_buffer("1.num_batches_tracked").dtype == torch.int64


def test_integer_and_boolean_buffers() -> None:
    model = nn.Module()
    kinds = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
    for n, dtype in enumerate((*kinds, torch.float8_e4m3fn, torch.float8_e5m2)):
        model.register_buffer(f"b{n}", torch.tensor([0, 1, 1]).to(dtype))
    model.register_buffer("empty", torch.empty(0, 3))
    model.register_buffer("alone", torch.tensor(1.5))
    model.register_buffer("unsaved", torch.tensor(9.0), persistent=False)
    fresh = copy.deepcopy(model)
    for value in fresh.state_dict().values():
        value.zero_()
    loaded = read(content_of(model), fresh)
    same(model, loaded)
    assert loaded.unsaved == 9


def test_a_network_without_tensors() -> None:
    assert isinstance(read(content_of(nn.Flatten()), nn.Flatten()), nn.Flatten)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_networks_of_the_user(tmp_path: Path, layout: torch.memory_format) -> None:
    model = scramble(Block()).eval()
    model.get_parameter("stem.weight").requires_grad_(False)
    io.save(model, tmp_path / "net")
    fresh = Block().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    fresh.stem.weight.requires_grad_(False)
    before = copy.deepcopy(fresh)
    loaded = io.load(tmp_path / "net", fresh)
    same(model, loaded, strides=False)
    same(before, fresh)
    assert isinstance(loaded, Block)
    assert fresh.training
    assert not loaded.training
    assert loaded.stem.weight.stride() == fresh.stem.weight.stride()
    x = torch.rand(2, 1, 5, 5)
    assert torch.allclose(model(x), loaded(x), atol=1e-5)
    with pytest.raises(FileError, match=r"holds a network of your own: build it afresh and give it to load"):
        io.load(tmp_path / "net")
    assert io.describe(tmp_path / "net")["builder"] is None


def test_a_given_network_on_the_meta_device() -> None:
    model = scramble(Tied())
    with torch.device("meta"):
        fresh = Tied()
    loaded = read(content_of(model), fresh)
    same(model, loaded)
    assert isinstance(loaded, Tied)
    assert loaded.first.weight is loaded.last.weight
    assert fresh.first.weight.is_meta
    with torch.device("meta"):
        fresh.register_buffer("unsaved", torch.ones(3), persistent=False)
    assert "does not hold all tensors" in refused(content_of(model), fresh)


def test_shared_tensors_stay_shared() -> None:
    model = scramble(Tied())
    loaded = read(content_of(model), Tied())
    same(model, loaded)
    assert isinstance(loaded, Tied)
    assert loaded.first.weight is loaded.last.weight
    assert loaded.again is loaded.first
    loose = Tied()
    loose.last.weight = nn.Parameter(torch.zeros(4, 4))
    assert "weight cannot take its values" in refused(content_of(loose), Tied())


def test_views_and_transposes_are_written_as_they_look() -> None:
    model, fresh = nn.Module(), nn.Module()
    base = torch.arange(12.0)
    for name, value in {"t": base.view(3, 4).T, "part": base[3:7], "wide": base[:1].expand(5)}.items():
        model.register_buffer(name, value)
        fresh.register_buffer(name, torch.zeros(value.shape))
    same(model, read(content_of(model), fresh), strides=False)


def test_metrics_and_images(tmp_path: Path) -> None:
    metrics = {"accuracy": 0.5, "history": [{"loss": 1}, {"loss": None}], "é": True, "tuple": (1, np.float32(2))}
    model = models.digits_cnn(widths=(1, 2))
    io.save(model, tmp_path / "net", metrics=metrics, images=IMAGES)
    said = io.describe(tmp_path / "net")
    assert said.pop("bytes") == (tmp_path / "net").stat().st_size
    assert said == {
        "format": 1,
        "builder": "digits_cnn",
        "arguments": {"norm": "none", "dropout": 0.1, "widths": [1, 2], "classes": 10},
        "steps": [],
        "metrics": {**metrics, "tuple": [1, 2]},
        "images": IMAGES,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    with safetensors.safe_open(tmp_path / "net", "pt") as file:  # anyone's tools can read it
        assert json.loads(file.metadata()["quern"])["metrics"]["accuracy"] == 0.5
    same(model, io.load(tmp_path / "net"))


def test_numbers_of_numpy_in_arguments() -> None:
    model = models.digits_cnn(dropout=0.0, widths=(3, 2))
    set_recipe(model, Recipe("digits_cnn", {"dropout": 0, "widths": (np.int64(3), np.int32(2))}))
    loaded = read(content_of(model))
    same(model, loaded)
    assert recipe_of(loaded).arguments == {"norm": "none", "dropout": 0, "widths": [3, 2], "classes": 10}


def test_a_file_takes_the_given_network() -> None:
    model = models.digits_cnn(widths=(2, 3))
    mine = models.digits_cnn("none", 0.7, (2, 3))
    loaded = read(content_of(model), mine)
    same(model, loaded)
    assert recipe_of(loaded) == recipe_of(mine)
    for wrong, said in {
        models.digits_cnn(widths=(2, 4)): r"does not fit the given network: 2\.bias is \(3,\), but should be \(4,\)",
        models.digits_cnn(widths=(2, 3)).double(): r"0\.bias is torch.float32, but should be torch.float64",
        models.digits_cnn("after_conv", widths=(2, 3)): r"does not fit the given network: it has no tensor 1\.weight",
        nn.Flatten(): r"does not fit the given network, which has no tensor",
        nn.LazyLinear(3): r"cannot hold weight before the network has seen its first input",
    }.items():
        before = copy.deepcopy(wrong)
        assert re.search(said, refused(content_of(model), wrong))
        if not isinstance(wrong, nn.LazyLinear):
            same(before, wrong)


# ---- networks that were changed since they were built


def _other_activation(net: nn.Sequential) -> None:
    net[1] = nn.LeakyReLU()


def _other_stride(net: nn.Sequential) -> None:
    net[0].stride = (2, 2)  # pyright: ignore


def _wider(net: nn.Sequential) -> None:
    net[-1] = nn.Linear(16 * 3, 4)


def _one_more(net: nn.Sequential) -> None:
    net.append(nn.Softmax(-1))


def _one_less(net: nn.Sequential) -> None:
    del net[-1]


def _own_forward(net: nn.Sequential) -> None:
    net[0].forward = lambda input: input


def _shared(net: nn.Sequential) -> None:
    net[-1].bias = net[2].bias


def _unsaved(net: nn.Sequential) -> None:
    net[0].register_buffer("mask", torch.ones(3), persistent=False)


def _wrong_arguments(net: nn.Sequential) -> None:
    set_recipe(net, Recipe("digits_cnn", {"widths": [2, 70_000]}))


def _unknown_builder(net: nn.Sequential) -> None:
    set_recipe(net, Recipe("no_such_net"))


def _integers(net: nn.Sequential) -> None:
    net[0].weight = nn.Parameter(torch.ones(2, 1, 3, 3, dtype=torch.int32), False)


@pytest.mark.parametrize(
    "change",
    [
        *(_other_activation, _other_stride, _wider, _one_more, _one_less, _own_forward, _shared, _unsaved),
        *(_wrong_arguments, _unknown_builder, _integers),
    ],
)
def test_a_network_changed_by_hand_is_not_saved_under_its_builder(change: Callable[[nn.Sequential], None]) -> None:
    model, fresh = (models.digits_cnn(widths=(2, 3), classes=3) for _ in range(2))
    change(model)
    content = content_of(model)
    assert json.loads(header_of(content)["__metadata__"]["quern"])["builder"] is None
    assert "a network of your own" in refused(content)
    change(fresh)
    loaded = read(content, fresh)
    same(model, loaded)


def test_what_does_not_change_the_structure() -> None:
    model = models.digits_cnn("after_conv", widths=(2, 3)).half()
    model.note = "mine"  # pyright: ignore
    for p in model.parameters():
        p.requires_grad_(False)
    model = copy.deepcopy(model.eval().to(memory_format=torch.contiguous_format))  # pyright: ignore
    loaded = read(content_of(model))
    assert loaded.get_parameter("0.weight").dtype == torch.float16
    assert torch.equal(loaded.get_parameter("0.weight"), model.get_parameter("0.weight"))


# ---- steps


def kill_(model: nn.Module) -> nn.Module:
    """Every second neuron of the convolutions and normalisations becomes zero, or a constant."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, qnn.QConv2d):
                layer.weight[:, ::2] = 0
            elif isinstance(layer, nn.Conv2d | qnn.QBatchNorm2d | nn.BatchNorm2d) and layer.weight is not None:
                layer.weight[::2] = 0
    return model


@pytest.mark.parametrize(
    ("builder", "norm"),
    [
        *((builder, "after_conv") for builder in models.BUILDERS),
        *((builder, norm) for builder in ("digits_qcnn", "digits_cnn") for norm in ("none", "after_activation")),
    ],
)
def test_steps_are_done_again(builder: str, norm: str) -> None:
    family = builder.split("_")[0]
    arguments = {"norm": norm} if family in INPUTS else {}
    built = kill_(scramble(models.BUILDERS[builder](**arguments, classes=3, widths=(8,) * WIDTHS.get(family, 2))))
    x = torch.rand(INPUTS.get(family, (2, 3, 16, 16)))
    small = compact.compact(built.eval(), x)
    done = folding.fold(small)
    kinds = [key for step in recipe_of(done).steps for key in step]
    assert kinds == ["compact"] if norm == "none" and arguments else ["compact", "fold"]
    assert io.replay(built, []) is built
    for network in (small, done):
        content = content_of(network)
        loaded = read(content)
        same(network, loaded)
        assert recipe_of(loaded) == recipe_of(network)
        assert str(loaded) == str(network)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), network(x))
        assert content_of(loaded) == content_of(network)
        for given_network in (built, small, done)[: 3 if network is done else 2]:
            again = read(content, given_network)
            same(network, again)
            assert recipe_of(again) == recipe_of(network)


def test_steps_of_the_users_own_network() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU())

    x = torch.rand(2, 1, 9, 9)
    done = folding.fold(compact.compact(kill_(scramble(build())).eval(), x))
    assert len(recipe_of(done).steps) == 2
    same(done, read(content_of(done), build()))
    done[2] = nn.Tanh()  # pyright: ignore
    same(done, read(content_of(done), build()))
    said = refused(content_of(done), nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5)))
    assert "holds steps that do not fit its network" in said


@pytest.mark.parametrize("step", [{"spindle": {}}, {"compact": {}, "fold": []}, {}, {"fold": 3}, {"compact": []}])
def test_unknown_steps(step: dict[str, Any]) -> None:
    with pytest.raises(FileError, match="unknown here: it was made by a newer quern, so update quern"):
        io.replay(models.digits_cnn(), [step])
    content = edited(content_of(models.digits_cnn(widths=(1, 1))), about={"steps": [step]})
    assert "made by a newer quern" in refused(content)


def test_steps_that_do_not_fit() -> None:
    kept = {"of": 1, "keep": "0"}
    content = content_of(models.digits_cnn("after_conv", widths=(1, 1)))
    for step in (
        *({"compact": {}}, {"compact": {"layers": 3}}, {"compact": {"layers": {"0": {}}}}, {"compact": {"layer": 1}}),
        *({"fold": ["x"]}, {"fold": [[]]}, {"fold": [3]}, {"fold": ["0"]}, {"fold": [""]}, {"fold": ["../1"]}),
        {"compact": {"layers": {"9": {"kind": "Conv2d", "outputs": kept}}}},
        *(narrowed({"kind": "QConv2d"}), narrowed({"outputs": kept | {"of": 2}}), narrowed({"run": "rm"})),
        *(narrowed({"outputs": kept | {"keep": "0-9"}}), narrowed({"outputs": kept | {"keep": "9-0"}})),
        {"compact": {"layers": {"__class__": {"kind": "type"}}}},
    ):
        assert "holds steps that do not fit its network" in refused(edited(content, about={"steps": [step]})), step


# ---- saving


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"loss": math.nan}, r"cannot hold metrics\['loss'\], which must be plain JSON: nan \(float\)"),
        ({"loss": [math.inf]}, r"metrics\['loss'\].*inf"),
        ({"t": torch.ones(2)}, r"metrics\['t'\].*Tensor"),
        ({"t": {"u": {1: 2}}}, r"metrics\['t'\].*a key in it is not a text"),
        ({"n": 1 << 64}, r"metrics\['n'\].*18446744073709551616 \(int\) is not JSON"),
        ({"s": "\ud800"}, r"metrics\['s'\]"),
        ({"o": object()}, r"metrics\['o'\].*object"),
        ({"set": {1}}, r"metrics\['set'\].*set"),
        ({"bytes": b"x"}, r"metrics\['bytes'\].*bytes"),
    ],
)
def test_metrics_that_are_not_json(tmp_path: Path, metrics: dict[str, Any], said: str) -> None:
    with pytest.raises(FileError, match=said) as caught:
        io.save(models.digits_cnn(), tmp_path / "net", metrics=metrics)
    one_sentence(caught.value, tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_metrics_that_never_end(tmp_path: Path) -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(FileError, match="nested more than 32 deep"):
        io.save(models.digits_cnn(), tmp_path / "net", metrics={"deep": deep})
    seen = set()
    for depth in range(25, 40):  # what can be written can be read
        nested: Any = 1
        for _ in range(depth):
            nested = [nested]
        try:
            io.save(models.digits_cnn(), tmp_path / "net", metrics={"nested": nested})
        except FileError as error:
            one_sentence(error, tmp_path / "net")
            seen.add("cannot hold" in str(error))
        else:
            seen.add(False)
            assert io.describe(tmp_path / "net")["metrics"] == {"nested": nested}
    assert seen == {True, False}
    with pytest.raises(FileError, match="names, steps and metrics take more than 8 MB"):
        io.save(models.digits_cnn(), tmp_path / "net", metrics={"long": "x" * (9 << 20)})


@pytest.mark.parametrize(
    "images",
    [
        *({"shape": [3, 32]}, {"shape": [3, 32, 1 << 17]}, {"shape": 3}, {"shape": [1.0, 1, 1]}),
        *({"mean": "0.5"}, {"mean": [None]}, {"shape": [3, 8, 8], "mean": [0.1]}, {"std": [0.0]}, {"std": [-1]}),
        *({"classes": "ab"}, {"classes": [1, 2]}),
    ],
)
def test_images_that_cannot_be(tmp_path: Path, images: dict[str, Any]) -> None:
    with pytest.raises(FileError, match="has images ") as caught:
        io.save(models.digits_cnn(), tmp_path / "net", images=images)
    one_sentence(caught.value, tmp_path / "net")
    assert not list(tmp_path.iterdir())


def _extra_state() -> nn.Module:
    class Odd(nn.Module):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    return Odd()


def _buffer(value: Tensor, name: str = "b") -> nn.Module:
    model = nn.Module()
    model.register_buffer(name, value)
    return model


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (_extra_state, "cannot hold _extra_state, which is not a tensor"),
        (lambda: nn.LazyLinear(3), "cannot hold weight before the network has seen its first input"),
        (lambda: nn.Linear(2, 2, device="meta"), "cannot hold weight, which is on the meta device"),
        (lambda: _buffer(torch.ones(2, dtype=torch.complex128)), "cannot hold b, a tensor of torch.complex128"),
        (lambda: _buffer(torch.eye(2).to_sparse()), "cannot hold b, a tensor of torch.float32 and torch.sparse_coo"),
        (lambda: _buffer(torch.ones(2), "__metadata__"), "cannot hold"),
        (lambda: _buffer(torch.ones(2), "\ud800"), "cannot hold"),
    ],
)
def test_networks_that_cannot_be_saved(tmp_path: Path, build: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(FileError, match=said) as caught:
        io.save(build(), tmp_path / "net")
    one_sentence(caught.value, tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "net"
    small, large = models.digits_cnn(widths=(1, 1)), models.cifar_cnn()
    io.save(small, path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        with pytest.raises(FileError, match="could not be written: File too large") as caught:
            io.save(large, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    one_sentence(caught.value, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["net"]
    same(small, io.load(path))


def test_a_write_that_stops_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net"
    io.save(models.digits_cnn(widths=(1, 1)), path)
    before = path.read_bytes()

    def half(file: Any, head: bytes, tensors: dict[str, Tensor]) -> list[str]:
        file.write(head)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("quern.io._save.write_tensors", half)
    with pytest.raises(FileError, match="could not be written: No space left on device"):
        io.save(models.digits_cnn(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    model = models.digits_cnn(widths=(1, 1))
    os.mkfifo(tmp_path / "pipe")
    for path, said in {
        tmp_path: "could not be written: it is a folder",
        tmp_path / "pipe": "could not be written: it is not a regular file",
        Path("/dev/null"): "could not be written: it is not a regular file",
        tmp_path / "no" / "net": "could not be written: there is no folder",
        tmp_path / ("n" * 300): "could not be written: File name too long",
    }.items():
        with pytest.raises(FileError, match=said) as caught:
            io.save(model, path)
        one_sentence(caught.value, path)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


# ---- files that are not what they should be


def header_of(content: bytes) -> dict[str, Any]:
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def with_header(content: bytes, header: Any) -> bytes:
    """The same tensors under another header (a value, or its text), with a right checksum if it has a place for one."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    data = content[8 + int.from_bytes(content[:8], "little") :]
    return sealed(len(text).to_bytes(8, "little") + text + data)


def sealed(content: bytes) -> bytes:
    """``content`` with a right checksum: what someone who means harm would do."""
    if (found := re.search(rb'"sha256":"([0-9a-f]{64})"', content)) is None:
        return content
    start, stop = found.span(1)
    digest = hashlib.sha256(content[:start] + b"0" * 64 + content[stop:]).hexdigest()
    return content[:start] + digest.encode() + content[stop:]


def edited(content: bytes, about: Any = None, tensors: dict[str, Any] | None = None, drop: str = "") -> bytes:
    """A file whose maker changed quern's JSON or the table of tensors (None: removed), and sealed it again."""
    header = header_of(content)
    text = header["__metadata__"]["quern"]
    if about is not None:
        header["__metadata__"]["quern"] = about if isinstance(about, str) else json.dumps(json.loads(text) | about)
    if drop:
        header["__metadata__"]["quern"] = json.dumps({k: v for k, v in json.loads(text).items() if k != drop})
    for name, entry in (tensors or {}).items():
        header[name] = header.get(name, {}) | entry if isinstance(entry, dict) else entry
        if entry is None:
            del header[name]
    return with_header(content, header)


TINY = content_of(models.digits_cnn(widths=(1, 1), classes=1), metrics={"acc": 0.5}, images=IMAGES)
ENTRY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def arguments(**changed: Any) -> bytes:
    return edited(TINY, {"arguments": {"norm": "none", "widths": [1, 1], "classes": 1} | changed})


def narrowed(layer: dict[str, Any]) -> dict[str, Any]:
    return {"compact": {"layers": {"0": {"kind": "Conv2d"} | layer}}}


def metadata(**changed: Any) -> bytes:
    header = header_of(TINY)
    return with_header(TINY, header | {"__metadata__": header["__metadata__"] | changed})


def replaced(old: bytes, new: bytes) -> bytes:
    assert TINY.count(old) == 1
    text = TINY[8 : 8 + int.from_bytes(TINY[:8], "little")]
    return with_header(TINY, text.replace(old, new))


def test_the_tools_of_this_test() -> None:
    assert sealed(TINY) == TINY
    assert edited(TINY) != TINY  # no padding
    same(read(TINY), read(edited(TINY)))
    same(read(TINY), read(arguments()))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "7 bytes": (TINY[:7], "it ends within its first 8 bytes"),
    "no header": (TINY[:8], "claims a header of .* bytes in a file of 8"),
    "half a header": (TINY[:100], "claims a header"),
    "one byte less": (TINY[:-1], "header is wrong about the tensor 7.weight"),
    "one byte more": (TINY + b"\0", "its tensors take 148 bytes, but it holds 149"),
    "one bit": (TINY[:-1] + bytes([TINY[-1] ^ 1]), "its checksum is wrong, so it was changed after it was saved"),
    "header of 2**63": ((1 << 63).to_bytes(8, "little") + TINY[8:], "claims a header of 9,223,372,036,854,775,808"),
    "header of 2**64 - 1": (b"\xff" * 8 + TINY[8:], "claims a header of 18,446,744,073,709,551,615"),
    "zeros": (b"\0" * 1000, "header is not JSON"),
    "text": (b"hello, this is no file of quern", "is a text file, but should be"),
    "a pickle": (b"\x80\x04\x95" + b"\0" * 100, "is a pickle file, but should be"),
    "a zip": (b"PK\x03\x04" + b"\0" * 100, "is a zip archive, but should be"),
    "not UTF-8": (with_header(TINY, b'{"\xff": 1}'), "not JSON"),
    "UTF-16": (with_header(TINY, '{"a": 1}'.encode("utf-16")), "not JSON"),
    "a list": (with_header(TINY, []), "header is not a table"),
    "a number": (with_header(TINY, 3), "header is not a table"),
    "space first": (with_header(TINY, b" " + TINY[8 : 8 + int.from_bytes(TINY[:8], "little")]), "not a table"),
    "something after": (with_header(TINY, b"{}{}"), "not JSON"),
    "no metadata": (with_header(TINY, {}), "is a file of tensors, but not one that quern.io.save wrote"),
    "metadata a list": (with_header(TINY, {"__metadata__": []}), "not one that quern.io.save wrote"),
    "metadata a text": (with_header(TINY, {"__metadata__": "quern"}), "not one that quern.io.save wrote"),
    "quern's part a table": (metadata(quern={}), "not one that quern.io.save wrote"),
    "quern's part a list": (metadata(quern="[1]"), "not one that quern.io.save wrote"),
    "quern's part null": (metadata(quern="null"), "not one that quern.io.save wrote"),
    "quern's part cut": (metadata(quern='{"format": 1'), "not JSON"),
    "a number in the metadata": (metadata(more=3), "its metadata are not texts"),
    "no checksum": (metadata(sha256=""), "it has no checksum"),
    "checksum a number": (metadata(sha256=3), "it has no checksum"),
    "checksum in capitals": (
        re.sub(rb'"sha256":"[0-9a-f]{64}"', lambda m: b'"sha256":"' + m[0][10:].upper(), TINY),
        "it has no checksum",
    ),
    "checksum escaped": (TINY.replace(b'"sha256":', b'"sha25\\u0036":'), "claims|not JSON|wrong|checksum"),
    "checksum elsewhere": (replaced(b'"sha256":"', b'"sha256": "'), "its checksum is not where it should be"),
    "checksum of another": (sealed(TINY)[:-4] + b"abcd", "its checksum is wrong"),
    "deep header": (with_header(TINY, b"[" * 100_000), "nested too deeply"),
    "deep tables": (with_header(TINY, b'{"a":' * 50_000 + b"1" + b"}" * 50_000), "nested too deeply"),
    "deep enough": (with_header(TINY, b'{"a":' * 40 + b"1" + b"}" * 40), "nested more than 32 deep"),
    "deep metrics": (metadata(quern='{"format": 1, "metrics":' + "[" * 99_999), "nested too deeply"),
    "NaN": (edited(TINY, '{"format": 1, "metrics": {"a": NaN}}'), "NaN is no number of JSON"),
    "-Infinity": (edited(TINY, '{"format": 1, "metrics": {"a": -Infinity}}'), "-Infinity is no number of JSON"),
    "1e999": (edited(TINY, '{"format": 1, "metrics": {"a": 1e999}}'), "inf .float. is not JSON"),
    "5000 digits": (edited(TINY, '{"format": ' + "1" * 5000 + "}"), "not JSON"),
    "half a surrogate": (edited(TINY, '{"format": 1, "metrics": {"a": "\\ud800"}}'), "not JSON"),
    "key twice": (edited(TINY, '{"format": 1, "format": 1}'), "a key stands twice"),
    "tensor twice": (replaced(b'"0.bias":', b'"0.bias":1,"0.bias":'), "a key stands twice"),
    "format 2": (edited(TINY, {"format": 2}), r"was made by a newer quern \(format 2\): update quern"),
    "format 2, and all else new": (edited(TINY, '{"format": 2}'), r"was made by a newer quern \(format 2\)"),
    "format 2, and no checksum": (with_header(TINY, {"__metadata__": {"quern": '{"format": 2}'}}), "newer quern"),
    "format 0": (edited(TINY, {"format": 0}), "not one that quern.io.save wrote"),
    "format 1.0": (edited(TINY, {"format": 1.0}), "not one that quern.io.save wrote"),
    "format true": (edited(TINY, {"format": True}), "not one that quern.io.save wrote"),
    **{
        f"no {key}": (edited(TINY, drop=key), f"its header has no {key} of the right kind")
        for key in ("builder", "arguments", "steps", "metrics", "images", "parameters")
    },
    "arguments a list": (edited(TINY, {"arguments": []}), "no arguments of the right kind"),
    "steps a table": (edited(TINY, {"steps": {}}), "no steps of the right kind"),
    "a step a list": (edited(TINY, {"steps": [[]]}), "its steps are not at most 32 tables"),
    "1000 steps": (edited(TINY, {"steps": [{}] * 1000}), "its steps are not at most 32 tables"),
    "an unknown step": (edited(TINY, {"steps": [{"run": "rm"}]}), "made by a newer quern|holds steps that do not fit"),
    "two billion channels": (
        edited(TINY, {"steps": [narrowed({"outputs": {"of": 2**31 - 1, "keep": "0-2000000000"}})]}),
        "its steps name more than 1,048,576 channels",
    ),
    "a thousand times all channels": (
        edited(
            TINY,
            {
                "steps": [
                    narrowed({"outputs": {"of": 65536, "keep": "0"}, "still": {str(n): "0-65535" for n in range(1000)}})
                ]
            },
        ),
        "its steps name more than 1,048,576 channels",
    ),
    "images a list": (edited(TINY, {"images": []}), "no images of the right kind"),
    "huge images": (edited(TINY, {"images": {"shape": [3, 1 << 40, 1 << 40]}}), "has images of shape"),
    "top of images a text": (edited(TINY, {"images": {"top": "255"}}), "has images with the top 255, but it should be"),
    "top of images 0": (edited(TINY, {"images": {"top": 0}}), "has images with the top 0"),
    "top of images a share": (edited(TINY, {"images": {"top": 0.5}}), "has images with the top 0.5"),
    "name of images a list": (edited(TINY, {"images": {"name": ["x"]}}), "has images with the name"),
    "builder 3": (edited(TINY, {"builder": 3}), "no builder of the right kind"),
    "builder __import__": (edited(TINY, {"builder": "__import__"}), "which this quern cannot build: update quern"),
    "builder os.system": (edited(TINY, {"builder": "os.system"}), "holds a network os.system, which this quern cannot"),
    "builder with an escape": (edited(TINY, {"builder": "\x1b[2J\n"}), r"holds a network \\x1b\[2J, which"),
    "builder of a megabyte": (edited(TINY, {"builder": "x" * 1_000_000}), r"holds a network x+\.\.\., which"),
    "no builder": (edited(TINY, {"builder": None}), "holds a network of your own"),
    "another builder": (edited(TINY, {"builder": "mnist_cnn"}), "does not fit the network: "),
    "unknown argument": (arguments(code="1"), "digits_cnn takes no code of 1"),
    "negative width": (arguments(widths=[1, -1]), r"takes no widths of \[1, -1\]"),
    "huge width": (arguments(widths=[1, 10**18]), "takes no widths of"),
    "large widths": (arguments(widths=[65536, 65536]), "does not fit the network: 0.bias is"),
    "10,000 widths": (arguments(widths=[1] * 10_000), "takes no widths of"),
    "no widths": (arguments(widths=[]), "takes no widths of"),
    "three widths": (arguments(widths=[1, 1, 1]), "digits_cnn cannot be built"),
    "widths a number": (arguments(widths=1), "takes no widths of 1"),
    "widths a text": (arguments(widths="11"), "takes no widths of 11"),
    "widths of numbers with a point": (arguments(widths=[1.0, 1.0]), "takes no widths of"),
    "widths of truth": (arguments(widths=[True, True]), "takes no widths of"),
    "no classes": (arguments(classes=0), "takes no classes of 0"),
    "huge classes": (arguments(classes=2**62), "takes no classes of"),
    "classes null": (arguments(classes=None), "takes no classes of None"),
    "classes a table": (arguments(classes={"__class__": "int"}), "takes no classes of"),
    "dropout -1": (arguments(dropout=-1), "takes no dropout of -1"),
    "dropout 2": (arguments(dropout=2), "takes no dropout of 2"),
    "dropout true": (arguments(dropout=True), "takes no dropout of True"),
    "unknown norm": (arguments(norm="batch"), "digits_cnn cannot be built"),
    "norm 3": (arguments(norm=3), "takes no norm of 3"),
    "a missing tensor": (
        edited(TINY, tensors={"7.bias": None, "7.weight": {"shape": [17], "data_offsets": [80, 148]}}),
        "does not fit the network: it has no tensor 7.bias",
    ),
    "an extra tensor": (edited(TINY, tensors={"extra": ENTRY}), "does not fit the network, which has no tensor extra"),
    "a path": (edited(TINY, tensors={"../../etc/passwd": ENTRY}), r"which has no tensor \.\./\.\./etc/passwd"),
    "a name of Python's": (edited(TINY, tensors={"0.__class__": ENTRY}), r"which has no tensor 0\.__class__"),
    "an empty name": (edited(TINY, tensors={"": ENTRY}), "which has no tensor"),
    "another shape": (edited(TINY, tensors={"7.weight": {"shape": [16, 1]}}), r"7\.weight is \(16, 1\), but should be"),
    "a huge shape": (edited(TINY, tensors={"7.weight": {"shape": [2**40, 2**40]}}), "wrong about the tensor 7.weight"),
    "a huge empty shape": (edited(TINY, tensors={"e": ENTRY | {"shape": [0, 2**62, 2**62]}}), "which has no tensor e"),
    "a negative shape": (edited(TINY, tensors={"7.weight": {"shape": [-1, -16]}}), "wrong about the tensor 7.weight"),
    "a shape of 1000 axes": (
        edited(TINY, tensors={"7.weight": {"shape": [1] * 1000 + [16]}}),
        "wrong about the tensor",
    ),
    "a shape with a point": (edited(TINY, tensors={"7.weight": {"shape": [1, 16.0]}}), "wrong about the tensor"),
    "a shape of truth": (edited(TINY, tensors={"7.weight": {"shape": [True, 16]}}), "wrong about the tensor"),
    "offsets past the end": (edited(TINY, tensors={"7.weight": {"data_offsets": [2**40, 2**40 + 64]}}), "wrong about"),
    "offsets before the start": (
        edited(TINY, tensors={"7.weight": {"data_offsets": [-64, 0]}}),
        "wrong about the tensor",
    ),
    "offsets backwards": (edited(TINY, tensors={"7.weight": {"data_offsets": [148, 84]}}), "wrong about the tensor"),
    "offsets true": (edited(TINY, tensors={"7.bias": {"data_offsets": [True, 5]}}), "wrong about the tensor"),
    "three offsets": (edited(TINY, tensors={"7.weight": {"data_offsets": [84, 148, 1]}}), "wrong about the tensor"),
    "overlap": (edited(TINY, tensors={"2.weight": {"data_offsets": [40, 76]}}), "its tensors overlap, or leave gaps"),
    "the same place": (
        edited(TINY, tensors={"2.weight": {"data_offsets": [4, 40]}}),
        "its tensors overlap, or leave gaps",
    ),
    "a gap": (edited(TINY, tensors={"0.bias": None}), "its tensors overlap, or leave gaps"),
    "integers": (
        edited(TINY, tensors={"7.weight": {"dtype": "I32"}}),
        "7.weight is torch.int32, but should be torch.float",
    ),
    "half the bytes": (edited(TINY, tensors={"7.weight": {"dtype": "F16"}}), "wrong about the tensor 7.weight"),
    "type F128": (edited(TINY, tensors={"7.weight": {"dtype": "F128"}}), "wrong about the tensor 7.weight"),
    "type null": (edited(TINY, tensors={"7.weight": {"dtype": None}}), "wrong about the tensor 7.weight"),
    "more about a tensor": (edited(TINY, tensors={"7.weight": {"run": "rm"}}), "wrong about the tensor 7.weight"),
    "a tensor a list": (edited(TINY, tensors={"7.weight": [1]}), "wrong about the tensor 7.weight"),
    "a name of a megabyte": (edited(TINY, tensors={"x" * 1_000_000: 3}), r"wrong about the tensor x+\.\.\."),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_that_are_not_what_they_should_be(tmp_path: Path, kind: str) -> None:
    content, said = HOSTILE[kind]
    path = tmp_path / "net"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(FileError, match=said) as caught:
        io.load(path)
    assert time.process_time() - started < 20
    one_sentence(caught.value, path)


def test_paths_that_are_not_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        tmp_path: "is a folder, but should be the file of a network",
        tmp_path / "no": "is not there",
        tmp_path / "no" / "net": "is not there",
        tmp_path / "pipe": "is not a regular file",
        Path("/dev/null"): "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
        tmp_path / "loop": "could not be read: Too many levels of symbolic links",
        tmp_path / ("n" * 300): "could not be read: File name too long",
    }
    for use in (io.load, io.describe):
        for path, said in cases.items():
            with pytest.raises(FileError, match=said) as caught:
                use(path)
            one_sentence(caught.value, path)
    path = tmp_path / "net"
    path.write_bytes(TINY)

    def refuse(*args: Any, **more: Any) -> None:  # a test that runs as root may read anything
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("quern.records.schema.open_regular", refuse)
    for use in (io.load, io.describe):
        with pytest.raises(FileError, match="could not be read: Permission denied") as caught:
            use(path)
        one_sentence(caught.value, path)


def test_a_checkpoint_of_a_training_is_not_a_network(tmp_path: Path) -> None:
    from quern.train import checkpoint

    checkpoint.save(tmp_path / "last", {"a": torch.ones(2)}, {"epoch": 3, "settings": {}})
    with pytest.raises(FileError, match=r"last is a checkpoint of a training: give the model\.safetensors"):
        io.load(tmp_path / "last")


def _onnx(path: Path) -> None:
    quern.export.to_onnx(nn.Sequential(nn.Linear(2, 2)), path, torch.ones(1, 2))


def _exported(path: Path) -> None:
    quern.export.to_pt2(nn.Sequential(nn.Linear(2, 2)), path, torch.ones(1, 2))


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("note.txt", "none")


FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "net.onnx": (_onnx, "an ONNX file"),
    "net.pt2": (_exported, "a file of torch.export"),
    "net.pt": (lambda path: torch.save(nn.Linear(2, 2).state_dict(), path), "a file of torch.save"),
    "old.pth": (
        lambda path: torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False),
        "a file of torch.save",
    ),
    "net.pkl": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "a pickle file"),
    "net.zip": (_zipped, "a zip archive"),
    "net.npz": (lambda path: np.savez(path, images=np.ones(2)), "an .npz file of numpy"),
    "net.npy": (lambda path: np.save(path, np.ones(2)), "an .npy file of numpy"),
    "net.gz": (lambda path: path.write_bytes(gzip.compress(b"none")), "a gzip archive"),
    "net.py": (lambda path: path.write_text("class Net:\n    pass\n"), "Python code"),
    "note": (lambda path: path.write_text("hi"), "a text file"),
    "words.txt": (lambda path: path.write_text("größer als 8 Bytes\n" * 99, encoding="utf-8"), "a text file"),
    "net.json": (lambda path: path.write_text('{"a": 1}' * 9), "a text file"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_kind_is_named(name: str, tmp_path: Path) -> None:
    write, kind = FOREIGN[name]
    path = tmp_path / name
    write(path)
    for use in (io.load, io.describe):
        with pytest.raises(FileError, match=re.escape(f" is {kind}, but should be a network as a .safetensors file")):
            use(path)
    said = refused_by_command("compact", path, "--out", tmp_path / "small.safetensors")
    assert said == f"quern: {path} is {kind}: give a network as a .safetensors file of quern, or a run's folder.\n"
    assert not (tmp_path / "small.safetensors").exists()


@given(st.integers(2, 1 << 39), st.binary(max_size=40))
def test_what_begins_as_our_files_do_is_of_no_other_kind(length: int, rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net"
        path.write_bytes(length.to_bytes(8, "little") + b"{" + rest)
        assert foreign_kind(path) is None


def test_the_folder_of_a_run_leads_to_its_network(tmp_path: Path) -> None:
    io.save(models.digits_cnn(), tmp_path / "model.safetensors")
    with pytest.raises(
        FileError, match=re.escape(f"is a folder, but should be the file of a network: give {tmp_path}/m")
    ):
        io.load(tmp_path)


def test_describe_reads_the_header_only(tmp_path: Path) -> None:
    path = tmp_path / "net"
    path.write_bytes(TINY[:-1] + bytes([TINY[-1] ^ 1]))
    assert io.describe(path)["builder"] == "digits_cnn"
    with pytest.raises(FileError, match="checksum"):
        io.load(path)
    huge = edited(TINY, tensors={"7.weight": {"shape": [2**36, 16], "data_offsets": [84, 84 + 2**42]}})
    path.write_bytes(huge)
    os.truncate(path, len(huge) - 64 + 2**42)  # 4 TB that are not there
    assert io.describe(path)["bytes"] == path.stat().st_size


def test_every_bit_of_a_file_counts() -> None:
    """With the fuzzing below: a file that differs from what was saved in any single bit is refused."""
    small = content_of(nn.Linear(1, 1))
    fresh = nn.Linear(1, 1)
    same(read(small, fresh), read(small, fresh))
    for at in range(len(small)):
        wrong = bytearray(small)
        wrong[at] ^= 1 << (at % 8)
        with pytest.raises(FileError):
            read(bytes(wrong), fresh)


# ---- fuzzing


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_random_bytes(content: bytes) -> None:
    refused(content)
    refused(len(content).to_bytes(8, "little") + content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
ABOUT = st.fixed_dictionaries(
    {"format": st.sampled_from([1, 1, 1, 2, "1"])},
    optional={
        "builder": st.sampled_from([None, *models.BUILDERS]) | JSON,
        "arguments": st.fixed_dictionaries(
            {},
            optional={
                "widths": st.lists(st.integers(1, 70_000), max_size=6) | JSON,
                "classes": st.integers() | JSON,
                "norm": JSON,
                "dropout": st.floats() | JSON,
            },
        )
        | JSON,
        "steps": st.lists(st.dictionaries(st.sampled_from(["compact", "fold", "x"]), JSON, max_size=2), max_size=3),
        "metrics": st.dictionaries(st.text(max_size=5), JSON, max_size=2),
        "images": st.none() | st.dictionaries(st.sampled_from([*IMAGES, "x"]), JSON, max_size=4),
        "parameters": st.integers() | JSON,
    },
)
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "I64", "BOOL", "F4", ""]),
        "shape": st.lists(st.integers(-1, 5) | st.integers(), max_size=4),
        "data_offsets": st.lists(st.integers(0, 64) | st.integers(), min_size=1, max_size=3),
    }
)


@settings(max_examples=100)
@given(
    about=ABOUT | JSON,
    tensors=st.dictionaries(st.sampled_from(["0.weight", "0.bias", "../x"]), TENSOR | JSON, max_size=3),
    more=st.dictionaries(st.text(max_size=5), JSON, max_size=2),
    size=st.integers(0, 80),
)
def test_random_headers(about: Any, tensors: dict[str, Any], more: dict[str, Any], size: int) -> None:
    """No such file holds all tensors of a network of quern, so each must be refused."""
    mark = {"quern": json.dumps(about), "sha256": "0" * 64, **more}
    refused(with_header(bytes(8 + size), {"__metadata__": mark, **tensors}))


class Fuzz:
    """Mutated files from one seed. Run in a process of its own, whose memory is bounded, without run-time checks."""

    VALUES = (
        *(None, True, False, -1, 0, 1, 2, 3, 5, 64, 65_536, 65_537, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64, 10**30),
        *(-(2**63), 0.5, -0.0, 1e308, math.nan, math.inf, "", "x" * 2000, "../../etc/passwd", "__class__", "\0", "é"),
        *("F64", "F32", "F16", "BF16", "I64", "I8", "BOOL", "0", "0-1", "0-3", "1,3", "0-2000000000", "Conv2d"),
        *("none", "after_conv", "digits_qcnn", "qresnet20", "resnet20"),
        *([], {}, [[]], [0, 0], [1, 1], [4, 4], [65_536, 65_536], [1] * 40, {"compact": {}}, [{"fold": []}]),
        *(
            [{"compact": {"layers": {}}}],
            {"of": 2**31 - 1, "keep": "0-2000000000"},
            {"widths": [65_536] * 32},
            {"a": {"a": {"a": {}}}},
        ),
    )

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.random = random.Random(seed)
        self.nets: list[tuple[bytes, nn.Module | None]] = [
            (content_of(models.digits_cnn(widths=(1, 1), classes=1), metrics={"a": [1, None]}, images=IMAGES), None),
            (content_of(models.digits_qcnn("after_conv", widths=(4, 4), classes=1)), None),
            (content_of(models.digits_cnn("after_activation", 0.5, (1, 2), 2).half()), None),
            (
                content_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))),
                nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
            ),
            (content_of(Tied()), Tied()),
            (content_of(self.smaller()), None),
        ]

    def smaller(self) -> nn.Module:
        built = kill_(scramble(models.digits_qcnn("after_conv", widths=(8, 8), classes=1)))
        return folding.fold(compact.compact(built.eval(), torch.rand(1, 1, 8, 8)))

    # Edits of bytes

    def flip(self, content: bytearray) -> None:
        for _ in range(self.random.choice([1, 1, 1, 2, 8])):
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)

    def overwrite(self, content: bytearray) -> None:
        at, length = self.random.randrange(len(content)), self.random.choice([1, 1, 2, 4, 8, 64])
        content[at : at + length] = self.random.choice(
            [self.random.randbytes(length), b"\0" * length, b"\xff" * length]
        )

    def truncate(self, content: bytearray) -> None:
        del content[self.random.randrange(len(content)) :]

    def remove(self, content: bytearray) -> None:
        at = self.random.randrange(len(content))
        del content[at : at + self.random.choice([1, 2, 8, 100])]

    def insert(self, content: bytearray) -> None:
        at = self.random.randrange(len(content) + 1)
        content[at:at] = self.random.choice([b"\0", b"0", b"9", b"[", b'"', b" ", self.random.randbytes(9)])

    def splice(self, content: bytearray) -> None:
        other = self.random.choice(self.nets)[0]
        if self.random.random() < 0.5:
            at = self.random.randrange(len(content))
            content[at:] = other[self.random.randrange(len(other)) :]
        else:
            at = self.random.randrange(min(len(content), len(other)))
            content[at : at + 40] = other[at : at + 40]

    def length(self, content: bytearray) -> None:
        n = int.from_bytes(content[:8], "little")
        said = self.random.choice([0, n - 1, n + 1, n - 8, n + 8, 2 * n, 1 << 40, 1 << 63, (1 << 64) - 1])
        content[:8] = (said % (1 << 64)).to_bytes(8, "little")

    # Edits of the header

    def nodes(self, value: Any) -> list[tuple[Any, Any]]:
        """Every place in a JSON value: its container and its key there."""
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
        return [place for key in keys for place in [(value, key), *self.nodes(value[key])]]

    def edit(self, tree: Any) -> None:
        container, key = self.random.choice(self.nodes(tree))
        value = container[key]
        match self.random.randrange(7):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[self.random.choice(["x", "0.weight", "../x", str(key) + "x", ""])] = container.pop(key)
            case 2 if type(value) is int:
                container[key] = value + self.random.choice([-4, -1, 1, 4, value, 2**20])
            case 3:
                other, place = self.random.choice(self.nodes(tree))
                container[key] = copy.deepcopy(other[place])
            case 4:
                nested = self.random.choice(self.VALUES)
                for _ in range(self.random.choice([1, 10, 40, 200])):
                    nested = [nested] if self.random.random() < 0.5 else {"a": nested}
                container[key] = nested
            case 5 if isinstance(value, list):
                value.insert(self.random.randrange(len(value) + 1), self.random.choice(self.VALUES))
            case _:
                container[key] = copy.deepcopy(self.random.choice(self.VALUES))

    def header(self, content: bytes) -> bytes:
        header = header_of(content)
        about = json.loads(header["__metadata__"]["quern"])
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            if self.random.random() < 0.6 and self.nodes(about):
                self.edit(about)
                if isinstance(header.get("__metadata__"), dict):
                    header["__metadata__"]["quern"] = json.dumps(about)
            elif self.nodes(header):
                self.edit(header)
        text = json.dumps(header, separators=(",", ":"))
        if self.random.random() < 0.05:  # a key twice
            text = re.sub(r'"shape":', '"shape":[1],"shape":', text, count=1)
        text = text.encode()
        return len(text).to_bytes(8, "little") + text + content[8 + int.from_bytes(content[:8], "little") :]

    # The two laws

    def changed(self, count: int) -> int:
        """A file that was changed by accident is refused."""
        for _ in range(count):
            content, model = self.random.choice(self.nets)
            if self.random.random() < 0.25:
                wrong = self.header(content)
            else:
                wrong = bytearray(content)
                kinds = (self.flip, self.overwrite, self.truncate, self.remove, self.insert, self.splice, self.length)
                for kind in self.random.choices(kinds, k=self.random.choice([1, 1, 1, 2])):
                    if wrong:
                        kind(wrong)
                wrong = bytes(wrong)
            if wrong != content and all(wrong != whole for whole, _ in self.nets):
                assert self.load(wrong, model) is None, wrong
        return count

    def forged(self, count: int) -> tuple[int, int]:
        """A file that was changed and sealed again is refused, or is one that holds what it says."""
        good = 0
        for _ in range(count):
            content, model = self.random.choice(self.nets)
            wrong = content
            if self.random.random() < 0.85:
                wrong = self.header(content)
            if wrong is content or self.random.random() < 0.2:
                scratch = bytearray(wrong)
                self.random.choice((self.flip, self.overwrite, self.insert, self.remove, self.splice))(scratch)
                wrong = bytes(scratch)
            wrong = sealed(wrong)
            if (loaded := self.load(wrong, model)) is not None:
                good += 1
                said = safetensors.torch.load(wrong)
                state = loaded.state_dict()
                assert state.keys() == said.keys()
                assert all(torch.equal(bits(state[name]), bits(said[name])) for name in said)
                assert not loaded.training
        return count, good

    def load(self, content: bytes, model: nn.Module | None) -> nn.Module | None:
        started = time.process_time()
        before = None if model is None else copy.deepcopy(model)
        try:
            return read(content, model)
        except FileError as error:
            said = one_sentence(error, "net")
            assert "memory" not in said, content
            assert "alloc" not in said, content
            return None
        finally:
            assert time.process_time() - started < 5, content
            if model is not None and before is not None:
                same(model, before)


def fuzz(seed: int, changed: int, forged: int) -> None:
    """Prints how many files were read, and how many of those forged were good ones."""
    torch.set_num_threads(1)
    run = Fuzz(seed)
    run.changed(20)  # what is loaded on first use is not memory that a file took
    run.forged(200)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (128 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print(run.changed(changed), *run.forged(forged))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to bound the memory")
def test_mutated_files() -> None:
    """12,500 files, in 128 MB more than quern itself takes."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from tests.test_io import fuzz; fuzz(0, 10_000, 2_500)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    changed, forged, good = map(int, process.stdout.split())
    assert changed + forged == 12_500
    assert 0 < good < forged / 2


# ---- numbers that are not finite


def spoilt(value: float) -> nn.Module:
    network = models.digits_qcnn(norm="after_conv").eval()
    with torch.no_grad():
        network.state_dict()["1.running_var"][0] = value
        network.state_dict()["1.running_mean"][0, 0] = value
    return network


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_said(tmp_path: Path, value: float) -> None:
    path = tmp_path / "net"
    said = rf"^{path} holds NaN or infinity in 2 of \d+ tensors, the first is \S+: .*, so train it again\.$"
    with pytest.warns(NotFiniteWarning, match=said) as caught:
        io.save(spoilt(value), path)
    assert len(caught) == 1
    with pytest.warns(NotFiniteWarning, match=said) as caught:
        network = io.load(path)
    assert len(caught) == 1
    assert not all(t.isfinite().all() for t in network.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_finite_numbers_of_every_type_are_not_warned_of(tmp_path: Path, dtype: torch.dtype) -> None:
    network = nn.Linear(2, 2).to(dtype)  # a warning is an error in these tests
    io.save(network, tmp_path / "net")
    io.load(tmp_path / "net", nn.Linear(2, 2).to(dtype))
    with torch.no_grad():
        network.weight[0, 0] = torch.tensor(math.nan).to(dtype)
    with pytest.warns(NotFiniteWarning, match="in 1 of 2 tensors, the first is weight:"):
        io.save(network, tmp_path / "net")
