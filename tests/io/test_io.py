"""Files of networks: what is saved comes back bit for bit, or nothing is saved."""

import copy
import errno
import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import io, models
from quern.errors import FileError, NotFiniteWarning
from quern.models import Recipe, recipe_of, set_recipe
from tests.builders import COUNTS, shape_of, takes
from tests.io.hostile import TINY, edited
from tests.io.network_files import (
    IMAGES,
    Block,
    Tied,
    content_of,
    one_sentence,
    read,
    refused,
    same,
    scramble,
)


@pytest.mark.slow
@pytest.mark.parametrize("builder", models.BUILDERS)
@settings(max_examples=4)
@given(data=st.data())
def test_networks_of_quern_come_back(tmp_path: Path, builder: str, data: st.DataObject) -> None:
    count = COUNTS.get(builder.split("_")[0])
    width = st.integers(1, 3).map(lambda n: 4 * n)
    drawn = {
        "widths": st.lists(width, min_size=count or 1, max_size=count or 3),
        "width": width,
        "depth": st.integers(1, 3),
        "classes": st.integers(1, 5),
        "channels": st.sampled_from([1, 3]),
        "norm": st.sampled_from(["none", "after_conv", "after_activation"]),
        "dropout": st.sampled_from([0.0, 0.3, 1.0]),
    }
    arguments = {option: data.draw(values) for option, values in drawn.items() if takes(builder, option)}
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
    x = torch.rand(2, arguments.get("channels", shape_of(builder)[0]), *shape_of(builder)[1:])
    with torch.no_grad():
        assert torch.equal(model(x), loaded(x))
    io.save(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("builder", models.BUILDERS)
def test_the_networks_of_the_paper_come_back(tmp_path: Path, builder: str) -> None:
    model = models.BUILDERS[builder]()
    io.save(model, str(tmp_path / "net"))
    same(model, io.load(str(tmp_path / "net")))
    header = io.describe(str(tmp_path / "net"))
    assert header["builder"] == builder
    assert header["parameters"] == sum(p.numel() for p in model.parameters())
    assert header["bytes"] == (tmp_path / "net").stat().st_size


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
    header = io.describe(tmp_path / "net")
    assert header.pop("bytes") == (tmp_path / "net").stat().st_size
    assert header == {
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


@pytest.mark.parametrize(
    ("metrics", "sentence"),
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
def test_metrics_that_are_not_json(tmp_path: Path, metrics: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FileError, match=sentence) as caught:
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


def spoilt(value: float) -> nn.Module:
    network = models.digits_qcnn(norm="after_conv").eval()
    with torch.no_grad():
        network.state_dict()["1.running_var"][0] = value
        network.state_dict()["1.running_mean"][0, 0] = value
    return network


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_said(tmp_path: Path, value: float) -> None:
    path = tmp_path / "net"
    sentence = rf"^{path} holds NaN or infinity in 2 of \d+ tensors, the first is \S+: .*, so train it again\.$"
    with pytest.warns(NotFiniteWarning, match=sentence) as caught:
        io.save(spoilt(value), path)
    assert len(caught) == 1
    with pytest.warns(NotFiniteWarning, match=sentence) as caught:
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
