"""Counts of what a plan would leave, and of the bytes of a file, against plans and files."""

import copy
import json
import random
from io import BytesIO
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from torch import nn

from quern import io, models
from quern import nn as qnn
from quern.compact import census, compact, plan
from quern.graph import batch_norms, quaternion_weights
from quern.io.tensorfile import TYPES, file_size, head_of, kinds_of, write_tensors
from tests.networks import draw, random_values, random_zeros

SEEDS = st.integers(0, 1 << 30)


def with_zeros(model: nn.Module, rng: random.Random, share: float) -> None:
    """Some γ, with their β or without, and some weights of each layer become zero."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    with torch.no_grad():
        for norm in batch_norms(model).values():
            assert norm.weight is not None
            assert norm.bias is not None
            gone = torch.rand(norm.weight.shape, generator=generator) < share
            norm.weight[gone] = 0
            if rng.random() < 0.5:
                norm.bias[..., gone] = 0
        for weight in quaternion_weights(model).values():
            if rng.random() < 0.3:
                weight[:, torch.rand(weight.shape[1], generator=generator) < share] = 0


BUILDERS = {
    "digits": (lambda: models.digits_qcnn(norm="after_conv"), (1, 8, 8)),
    "after activation": (lambda: models.digits_qcnn(norm="after_activation"), (1, 8, 8)),
    "residual": (lambda: models.qresnet20(widths=(16, 16, 24)), (3, 8, 8)),
    "real": (lambda: models.digits_cnn(norm="after_conv"), (1, 8, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
@given(seed=SEEDS)
@settings(max_examples=8)
def test_a_count_is_what_a_plan_says_whatever_became_zero_since(name: str, seed: int, tmp_path_factory: Any) -> None:
    build, shape = BUILDERS[name]
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net, x = random_values(build()), torch.randn(2, *shape, dtype=torch.float64)
    counting = census(net, x[:1])
    assert counting is not None
    stored, state = io.Stored(net), copy.deepcopy(net.state_dict())
    for share in (0.1, 0.4, 0.0):
        net.load_state_dict(state)  # what was zero comes back
        with_zeros(net, rng, share)
        net.train(rng.random() < 0.5)
        before = copy.deepcopy(net.state_dict())
        counted, found = counting.count(), plan(net, x)
        assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
        assert (counted is None) == found.dead
        if counted is None:
            continue
        small = compact(net, found)
        assert (counted.neurons, counted.parameters) == (found.neurons[1], found.parameters[1])
        assert counting.plan().structure() == found.structure()
        own = {name: dict(layer.named_parameters(recurse=False)) for name, layer in small.named_modules()}
        for layer, count in counted.weights.items():
            assert count == sum(p.numel() for key, p in own[layer].items() if key in ("weight", "constant"))
        path = tmp_path_factory.mktemp("file") / "net.safetensors"
        io.save(small, path)
        assert path.stat().st_size == stored.bytes(found) == stored.bytes(counting.plan()) == io.Stored(small).bytes()


@pytest.mark.slow
def test_random_networks_are_counted_as_they_are_planned_or_not_at_all() -> None:
    tally = {"counted": 0, "not": 0, "dead": 0}

    @settings(max_examples=80)
    @given(SEEDS)
    def law(seed: int) -> None:
        rng = random.Random(seed)
        one = draw(rng)
        counting = census(one.model, one.inputs[0])
        if counting is None:
            tally["not"] += 1
            return
        for _ in range(2):
            counted, found = counting.count(), plan(one.model, one.inputs[0])
            tally["dead" if counted is None else "counted"] += 1
            assert (counted is None) == found.dead
            if counted is not None:
                assert (counted.neurons, counted.parameters) == (found.neurons[1], found.parameters[1])
                assert counting.plan().structure() == found.structure()
            random_zeros(one.model, rng)

    law()
    assert tally["counted"] >= 8, tally


@given(
    st.lists(
        st.tuples(st.text(max_size=6), st.sampled_from(list(TYPES)), st.lists(st.integers(0, 11), max_size=4)),
        unique_by=lambda entry: entry[0],
        max_size=8,
    ),
    st.text(max_size=20),
)
@settings(max_examples=60)
def test_the_size_of_a_file_is_known_from_names_types_and_shapes(entries: list[Any], said: str) -> None:
    """Names of any kind; offsets take as many digits as the order of the tensors gives them."""
    tensors = {name: torch.zeros(shape, dtype=TYPES[kind]) for name, kind, shape in entries if name != "__metadata__"}
    text = json.dumps(said)
    kinds, file = kinds_of(tensors), BytesIO()
    write_tensors(file, head_of(kinds, text), tensors)
    assert len(file.getvalue()) == file_size(kinds, text)
    read = load(file.getvalue())  # safetensors itself
    assert {name: (t.dtype, t.shape) for name, t in read.items()} == kinds


def test_what_cannot_be_counted_is_not() -> None:
    recurrent = nn.Sequential(qnn.QEmbedding(7, 16), qnn.QLinear(16, 8))
    assert census(recurrent, torch.zeros(2, 3, dtype=torch.long)) is None
    assert census(qnn.QLinear(8, 8), torch.zeros(1, 4)) is None  # it does not take the example


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_constants_before_padding_that_repeats_the_image_are_counted(mode: str) -> None:
    """More padding than a kernel is wide."""
    layers = [qnn.QConv2d(4, 12, 1), qnn.QConv2d(12, 8, 3, padding=4, padding_mode=mode), qnn.QConv2d(8, 4, 1)]
    model, x = nn.Sequential(*layers), torch.randn(2, 4, 9, 9)
    count = census(model, x)
    assert count is not None
    random_values(model).float()
    layers[0].weight.data[:, 1] = 0
    found, counted = plan(model, x), count.count()
    assert counted is not None
    assert (counted.neurons, counted.parameters) == (found.neurons[1], found.parameters[1])
