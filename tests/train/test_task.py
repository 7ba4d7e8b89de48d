"""Losses and metrics of a user's own, and batches of any structure."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quern.errors import TrainingError
from quern.train import Loaders, Settings, evaluate, fit, task_of
from tests.tasks import Turn, mae, regression, sequences

ONCE = Settings(epochs=1, batch=32, lr=1e-2)


def correlation(outputs: Tensor, targets: Tensor) -> float:
    """No mean over inputs, so not a mean over batches either."""
    return float(torch.corrcoef(torch.stack([outputs.flatten(), targets.flatten()]))[0, 1])


def test_a_metric_is_of_the_whole_set_and_a_loss_the_mean_over_its_inputs() -> None:
    network, _, val = regression()
    assert [len(targets) for _, targets in val] == [32, 32, 6]
    vectors, angles = (torch.cat([inputs[name] for inputs, _ in val]) for name in ("vector", "angle"))
    wanted = torch.cat([targets for _, targets in val])
    with torch.no_grad():
        outputs = network.eval()(vectors, angles)
    batches = [((inputs["vector"], inputs["angle"]), targets) for inputs, targets in val]
    loss, value = evaluate(network, batches, task=task_of(F.mse_loss, correlation))
    assert value == pytest.approx(correlation(outputs, wanted), abs=1e-6)
    assert loss == pytest.approx(float(F.mse_loss(outputs, wanted)), rel=1e-5)
    with torch.no_grad():
        parts = [correlation(network(*inputs), targets) for inputs, targets in batches]
    assert abs(value - sum(parts) / 3) > 1e-4  # what a mean over batches would have been


def test_the_best_epoch_is_that_of_the_lowest_metric_if_lower_is_better() -> None:
    network, train, val = regression()
    settings = Settings(epochs=4, batch=32, lr=0.5, schedule="constant")
    result = fit(network, Loaders(train, val), settings, loss=F.mse_loss, metric=mae, lower_is_better=True)
    values = [line.val_metric for line in result.history if line.val_metric is not None]
    assert (result.val_metric, result.best_epoch) == (
        min(values),
        1 + len(values) - 1 - values[::-1].index(min(values)),
    )
    assert (result.val_accuracy, result.metric.name, {line.metric for line in result.history}) == (None, "mae", {"mae"})
    batches = [((inputs["vector"], inputs["angle"]), targets) for inputs, targets in val]
    again = evaluate(network, batches, task=task_of(F.mse_loss, mae, lower_is_better=True))[1]
    assert again == pytest.approx(result.val_metric)


def test_a_loss_alone_is_the_metric() -> None:
    network, train, val = regression()
    result = fit(network, Loaders(train, val), ONCE, loss=F.mse_loss)
    assert (result.metric.name, result.metric.lower_is_better) == ("loss", True)
    assert result.val_metric == pytest.approx(result.history[0].val_loss, rel=1e-5)


def test_inputs_by_position_and_by_name_are_the_same() -> None:
    trained = []
    for change in (lambda inputs: inputs, lambda inputs: [inputs["vector"], inputs["angle"]]):
        network, train, val = regression()
        loaders = Loaders(*([(change(x), y) for x, y in batches] for batches in (train, val)))
        fit(network, loaders, ONCE, loss=F.mse_loss)
        trained.append(network.state_dict())
    torch.testing.assert_close(*trained, rtol=0, atol=0)


def test_outputs_of_several_parts_are_joined_part_by_part() -> None:
    class Both(Turn):
        def forward(self, vector: Tensor, angle: Tensor) -> Any:
            y = super().forward(vector, angle)
            return {"all": y, "first": (y[:, 0], y.mean())}

    seen = []

    def metric(outputs: Any, targets: Tensor) -> Tensor:
        seen.append((outputs["all"].shape, outputs["first"][0].shape, outputs["first"][1].shape, targets.shape))
        return (outputs["all"] - targets).square().mean()

    _, train, val = regression()
    loss = lambda outputs, targets: F.mse_loss(outputs["all"], targets)  # noqa: E731
    fit(Both(), Loaders(train, val), ONCE, loss=loss, metric=metric, lower_is_better=True)
    assert set(seen) == {((70, 3), (70,), (3,), (70, 3))}


def test_a_teacher_of_any_task_teaches_its_outputs() -> None:
    torch.manual_seed(1)
    teacher = Turn()
    network, train, val = regression()
    settings = Settings(epochs=0, heal=6, batch=32, lr=1e-2, distill=1.0)
    taught = [((x["vector"], x["angle"]), teacher.eval()(x["vector"], x["angle"]).detach()) for x, _ in val]
    before = evaluate(network, taught, task=task_of(F.mse_loss))[1]
    fit(network, Loaders(train, val), settings, loss=F.mse_loss, teacher=teacher)
    assert evaluate(network, taught, task=task_of(F.mse_loss))[1] < before / 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"loss": lambda o, t: (o - t).abs()},
            r"gives a tensor torch.float32 of shape \(32, 3\), but",
        ),
        ({"loss": lambda o, t: 1.0}, "the loss <lambda> gives 1.0, but must give a scalar tensor"),
        ({"loss": lambda o, t: F.mse_loss(o, t) * math.nan}, "the loss <lambda> is nan before any training"),
        ({"loss": lambda o, t: F.mse_loss(o.detach(), t)}, "the loss <lambda> has no gradient"),
        ({"loss": lambda o, t: o["scores"]}, "the loss <lambda> fails: "),
        ({"loss": F.mse_loss, "metric": lambda o, t: o - t}, r"the metric <lambda> gives a tensor of shape \(70, 3\)"),
        (
            {"loss": F.mse_loss, "metric": lambda o, t: "good"},
            "<lambda> gives a str, but must give a number",
        ),
        ({"loss": F.mse_loss, "metric": lambda o, t: math.nan}, "the metric <lambda> is nan, but must be finite"),
        (
            {"loss": F.mse_loss, "metric": lambda o, t: 1 / 0},
            "<lambda> fails on the whole set: ZeroDivision",
        ),
        ({"lower_is_better": True}, "lower_is_better is said of a metric"),
        ({}, "needs one class number: for anything but classification say loss= and metric="),
    ],
)
def test_a_bad_loss_or_metric_is_one_sentence_before_any_training(options: Any, sentence: str) -> None:
    network, train, val = regression()
    before = {name: t.clone() for name, t in network.state_dict().items()}
    with pytest.raises(TrainingError, match=rf"(?s)^[^\n]*{sentence}[^\n]*\.$"):
        fit(network, Loaders(train, val), ONCE, **options)
    torch.testing.assert_close(dict(network.state_dict()), before, rtol=0, atol=0)
    assert network.training


@pytest.mark.unchecked
def test_a_loss_is_a_function() -> None:
    with pytest.raises(TrainingError, match=r"^loss must be a function of \(outputs, targets\), but is of type int\.$"):
        task_of(3)  # pyright: ignore[reportArgumentType]


def test_label_smoothing_is_of_our_own_loss() -> None:
    network, train, val = regression()
    settings = Settings(epochs=1, batch=32, label_smoothing=0.1)
    with pytest.raises(TrainingError, match="label_smoothing is of the loss that quern has itself"):
        fit(network, Loaders(train, val), settings, loss=F.mse_loss)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, y: {"x": x, "y": y}, "pairs .inputs, targets., but gave a dict: make pairs by its collate_fn"),
        (lambda x, y: (x["vector"], x["angle"], y), "gave 3 parts: several inputs are one tuple"),
        (lambda x, y: ({"vector": x["vector"]}, y), "gave no input 'angle'"),
        (
            lambda x, y: ({**x, "speed": x["angle"]}, y),
            "gave an input 'speed', but .* takes vector, angle",
        ),
        (lambda x, y: ("text", y), "inputs of type str without a batch of tensors"),
        (lambda x, y: ((x["vector"], x["angle"][:1]), y), "the first axis of all inputs must be the same batch"),
        (lambda x, y: ((x["vector"],), y), r"the network does not take inputs of shape \(2, 3\)"),
    ],
)
def test_batches_of_another_structure_are_one_sentence(change: Any, sentence: str) -> None:
    network, train, val = regression()
    loaders = Loaders(*([change(x, y) for x, y in batches] for batches in (train, val)))
    with pytest.raises(TrainingError, match=rf"^[^\n]*{sentence}[^\n]*\.$"):
        fit(network, loaders, ONCE, loss=F.mse_loss)


def test_batches_of_different_lengths_have_no_metric_of_the_whole() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x

    pairs = [(torch.randn(4, n), torch.randn(4, n)) for n in (3, 5)]
    with pytest.raises(TrainingError, match=r"of shapes \(4, 3\), \(4, 5\), cannot be joined: pad all batches"):
        fit(Same(), Loaders(pairs, pairs), ONCE, loss=F.mse_loss)


def test_a_metric_of_our_own_loss_is_still_of_classes() -> None:
    def errors(outputs: Tensor, targets: Tensor) -> int:
        return int((outputs.argmax(1) != targets).sum())

    network, train, val = sequences()
    result = fit(network, Loaders(train, val), ONCE, metric=errors, lower_is_better=True)
    assert result.val_metric is not None
    assert 0 <= result.val_metric <= 80
    with pytest.raises(TrainingError, match="needs one class number"):
        fit(network, Loaders(train, [(x, y.float()) for x, y in val]), ONCE, metric=errors)
