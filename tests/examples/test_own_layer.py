"""The example of a layer of one's own does what it says."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quern import functional, graph
from quern.compact import census, compact, plan
from quern.compact.folding import fold
from quern.errors import ExportError, NoRuleError
from quern.export import to_real
from quern.graph import spec_of
from quern.graph.spec import narrowed_shapes
from quern.nn import QBatchNorm1d, QLinear
from quern.penalties import RQ


@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "own_layer.py"
    spec = importlib.util.spec_from_file_location("own_layer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_penalised_measured_compacted_folded_and_exported(example: Any, capsys: pytest.CaptureFixture) -> None:
    found = example.main(60)
    assert found["zero_quaternions"] > 0.1
    assert found["dead_neurons"] == found["removed_neurons"] >= 4
    assert found["parameters_left"] < 0.9 * found["parameters"]
    assert found["small"] < 1e-4
    assert found["real"] < 1e-4
    printed = capsys.readouterr().out
    assert "0.weight (4x16x4)" in printed
    assert "0 QGainLinear" in printed
    assert "QBatchNorm" not in printed.rpartition("GraphModule")[2]


@torch.no_grad()
def test_every_part_of_its_spec_is_right(example: Any) -> None:
    """Constants are taken in through the gain, zeros of the gain count at once, and shapes are those that come out."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        example.QGainLinear(8, 24), example.Squash(), example.QGainLinear(24, 16), nn.Linear(16, 2)
    )
    for p in model.parameters():
        p.copy_(torch.randn_like(p))
    model, x = model.double().eval(), torch.randn(5, 8, dtype=torch.float64)
    count = census(model, x)
    assert count is not None
    for zeros in ((), (1,), (1, 4)):
        model[0].gain[list(zeros)] = 0  # these neurons put out their bias
        found = plan(model, x)
        assert found.neurons == (10, 10 - len(zeros))
        counted = count.count()
        assert counted is not None
        assert (counted.neurons, counted.parameters) == (found.neurons[1], found.parameters[1])
        small = compact(model, found)
        torch.testing.assert_close(small(x), model(x))
        for name, planned in found.layers.items():
            shapes = narrowed_shapes(model.get_submodule(name), planned)
            assert shapes == {n: tuple(t.shape) for n, t in small.get_submodule(name).named_parameters()}
        torch.testing.assert_close(to_real(small)(x), model(x))


@torch.no_grad()
def test_normalisations_fold_into_it_on_both_sides(example: Any) -> None:
    model: Any = nn.Sequential(QBatchNorm1d(8), example.QGainLinear(8, 16), QBatchNorm1d(16)).double().eval()
    for p in (*model.parameters(), model[0].running_mean, model[2].running_mean):
        p.copy_(torch.randn_like(p))
    x = torch.randn(5, 8, dtype=torch.float64)
    folded: Any = fold(model)
    assert [type(layer).__name__ for layer in folded] == ["Identity", "QGainLinear", "Identity"]
    torch.testing.assert_close(folded(x), model(x))


def test_a_layer_that_nobody_registered_is_named() -> None:
    """A subclass may compute anything: it is looked into, and its base class's Spec is not taken for its own."""

    class Twice(QLinear):
        def forward(self, input: Any) -> Any:
            return 2 * functional.linear(input, self.weight, self.bias)

    model = nn.Sequential(QLinear(8, 8), Twice(8, 4))
    with pytest.raises(NoRuleError, match="linear"):
        plan(model, torch.randn(2, 8))
    with pytest.raises(ExportError, match="quern's function linear, which has no real form"):
        to_real(model)
    assert [t.names for t in RQ(1.0).targets(model)] == [("0.weight",), ("1.weight",)]  # but its weights are weights
    assert spec_of(model[1]) is spec_of(model[0])


@pytest.mark.unchecked
def test_what_is_registered_is_a_class_with_a_spec() -> None:
    with pytest.raises(TypeError, match="takes a class of layers and a Spec"):
        graph.register(nn.ReLU(), spec_of(nn.ReLU()))  # pyright: ignore
