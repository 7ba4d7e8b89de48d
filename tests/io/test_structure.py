"""How a network is built again: builders, steps, and whether the result is the same."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quern import compact, io, models
from quern.compact import folding
from quern.errors import FileError
from quern.models import Recipe, recipe_of, set_recipe
from tests.builders import images_for, sized, takes
from tests.io.hostile import edited, header_of, narrowed
from tests.io.network_files import (
    content_of,
    kill_,
    one_sentence,
    read,
    refused,
    same,
    scramble,
)


def test_a_file_takes_the_given_network() -> None:
    model = models.digits_cnn(widths=(2, 3))
    mine = models.digits_cnn("none", 0.7, (2, 3))
    loaded = read(content_of(model), mine)
    same(model, loaded)
    assert recipe_of(loaded) == recipe_of(mine)
    for wrong, sentence in {
        models.digits_cnn(widths=(2, 4)): r"does not fit the given network: 2\.bias is \(3,\), but should be \(4,\)",
        models.digits_cnn(widths=(2, 3)).double(): r"0\.bias is torch.float32, but should be torch.float64",
        models.digits_cnn("after_conv", widths=(2, 3)): r"does not fit the given network: it has no tensor 1\.weight",
        nn.Flatten(): r"does not fit the given network, which has no tensor",
        nn.LazyLinear(3): r"cannot hold weight before the network has seen its first input",
    }.items():
        before = copy.deepcopy(wrong)
        assert re.search(sentence, refused(content_of(model), wrong))
        if not isinstance(wrong, nn.LazyLinear):
            same(before, wrong)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "norm"),
    [
        *((builder, "after_conv") for builder in models.BUILDERS),
        *((builder, norm) for builder in ("digits_qcnn", "digits_cnn") for norm in ("none", "after_activation")),
    ],
)
def test_steps_are_done_again(builder: str, norm: str) -> None:
    arguments = {"norm": norm} if takes(builder, "norm") else {}
    built = kill_(scramble(models.BUILDERS[builder](**arguments, **sized(builder, 8), classes=3)))
    x = images_for(builder, 2)
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
    sentence = refused(content_of(done), nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5)))
    assert "holds steps that do not fit its network" in sentence


@pytest.mark.parametrize("step", [{"spindle": {}}, {"compact": {}, "fold": []}, {}, {"fold": 3}, {"compact": []}])
def test_unknown_steps(step: dict[str, Any]) -> None:
    with pytest.raises(FileError, match="unknown here: it was made by a newer quern, so update quern"):
        io.replay(models.digits_cnn(), [step])
    content = edited(content_of(models.digits_cnn(widths=(1, 1))), own={"steps": [step]})
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
        assert "holds steps that do not fit its network" in refused(edited(content, own={"steps": [step]})), step


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
    ("build", "sentence"),
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
def test_networks_that_cannot_be_saved(tmp_path: Path, build: Callable[[], nn.Module], sentence: str) -> None:
    with pytest.raises(FileError, match=sentence) as caught:
        io.save(build(), tmp_path / "net")
    one_sentence(caught.value, tmp_path / "net")
    assert not list(tmp_path.iterdir())
