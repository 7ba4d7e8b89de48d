"""The networks that come with quern do what their cards say."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from quern import data, sparsity, zoo
from quern.errors import DataError, QuernError, ZooError
from quern.records.schema import to_plain
from tests.commands import here, refused

ROOT = Path(__file__).parents[2]


def images_of(name: str) -> data.ImageSet:
    try:
        return data.load(zoo.card(name).dataset)
    except DataError as error:
        pytest.skip(f"{name} cannot be evaluated: {error}")


@pytest.mark.parametrize("name", zoo.names())
def test_a_network_is_as_good_as_its_card_says(name: str) -> None:
    """On all test images. In int8 the C runtime gives the same bits on every machine, so the number is the same."""
    card, images = zoo.card(name), images_of(name)
    assert card.sums == images.sums
    labels = images.test.labels.numpy()
    assert card.test_images == len(labels)
    packed = zoo.packed(name)(images.test.pixels.numpy())
    assert float((packed.argmax(1) == labels).mean()) == card.packed_accuracy
    assert card.packed_accuracy > card.test_accuracy - 0.005
    network = zoo.load(name)
    with torch.no_grad():
        scores = network(images.normalize(images.test.pixels[:500])).numpy()
    agreed = np.mean(scores.argmax(1) == packed[:500].argmax(1))
    assert agreed >= 1 - 0.2 * (1 - card.test_accuracy) - 0.01  # rounding decides where a network is unsure


@pytest.mark.parametrize("name", zoo.names())
def test_a_network_is_as_large_as_its_card_says(name: str) -> None:
    card, network = zoo.card(name), zoo.load(name)
    files = {suffix: zoo.path_of(name, suffix).stat().st_size for suffix in (".safetensors", ".qrn")}
    assert files == {".safetensors": card.bytes, ".qrn": card.packed_bytes}
    assert card.packed_bytes < 100_000
    shape = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32)}[card.dataset]
    size = sparsity.measure(network, torch.zeros(1, *shape)).size
    assert (size.neurons, size.parameters, size.macs) == (card.neurons, card.parameters, card.macs)
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert not network.training
    low, high = card.interval
    assert low < card.packed_accuracy < high


def test_small_ones_come_first() -> None:
    cards = [zoo.card(name) for name in zoo.names()]
    assert [card.name for card in cards] == list(zoo.names())
    sets = ("digits", "mnist", "cifar10")
    assert cards == sorted(cards, key=lambda card: (sets.index(card.dataset), card.parameters))
    assert {sum(card.dataset == name for card in cards) for name in {card.dataset for card in cards}} == {3}


def test_cards_are_read_as_they_were_written() -> None:
    for name in zoo.names():
        assert to_plain(zoo.card(name)) == json.loads(zoo.path_of(name, ".json").read_text())


def test_the_page_has_the_cards() -> None:
    table = importlib.import_module("benchmarks.zoo").table
    assert table() in (ROOT / "docs" / "zoo.md").read_text()


def test_a_name_that_is_not_there() -> None:
    for call in (zoo.card, zoo.load, zoo.packed):
        with pytest.raises(ZooError, match="there is no network digits-1j in the zoo: did you mean digits-1k"):
            call("digits-1j")
    assert refused("zoo", "show", "digits-1j").startswith("quern: there is no network digits-1j in the zoo")
    assert "there is no network nothing in the zoo" in refused("compact", "zoo:nothing", "--out", "small.safetensors")


def test_a_broken_card_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.json").write_text('{"name": "mine"')
    monkeypatch.setattr(zoo, "_FOLDER", tmp_path)
    with pytest.raises(QuernError, match=r"a card of the zoo.*install quern again"):
        zoo.card("mine")


def test_on_the_command_line() -> None:
    listed = here("zoo", "list")[0]
    for name in zoo.names():
        assert name in listed
        assert f"{zoo.card(name).packed_bytes:,}" in listed
    name = zoo.names()[0]
    shown = here("zoo", "show", name)[0]
    assert zoo.card(name).command in shown
    assert f"--start zoo:{name}" in shown


@pytest.mark.slow
def test_a_network_of_the_zoo_is_a_start(tmp_path: Path) -> None:
    """A name stands for a file wherever a network is given."""
    name = zoo.names()[0]
    here("export", f"zoo:{name}", tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").exists()
    options = ("--grind", "1", "--heal", "1", "--lambda", "1", "--penalty", "gamma-beta")
    here("compress", "--start", f"zoo:{name}", *options, "--out", tmp_path / "run", "--quiet")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["start"] == f"zoo:{name}"
    assert isinstance(zoo.load(name), nn.Module)
