"""What a network is trained for and judged by: a loss, and a metric of the whole validation set."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quern.errors import TrainingError
from quern.graph import Example
from quern.graph.values import evaluating
from quern.records import ACCURACY, Metric
from quern.train._inputs import as_arguments, changed, count_of, joined, tensors_in
from quern.train.team import Team

Loss = Callable[[Any, Any], Tensor]
MetricFunction = Callable[[Any, Any], Any]
TEMPERATURE = 4.0


@dataclass(frozen=True)
class Task:
    """``loss`` of (outputs, targets) of a batch is a scalar to minimise. ``value`` of the outputs and targets of a
    whole set, its batches joined, is the number that ``metric`` names. ``unlike`` says how far outputs are from
    those of a teacher.
    """

    loss: Loss
    value: MetricFunction
    metric: Metric
    unlike: Loss

    @property
    def classifies(self) -> bool:
        return self.metric == ACCURACY

    @property
    def trains_classes(self) -> bool:
        """Whether the loss is quern's own, of scores (batch, classes) and class numbers."""
        return self.loss is cross_entropy

    def smoothed(self, label_smoothing: float) -> Loss:
        """The loss to train with."""
        if not label_smoothing:
            return self.loss
        if not self.trains_classes:
            raise TrainingError("label_smoothing is of the loss that quern has itself: let your own loss do it.")
        return lambda scores, labels: cross_entropy(scores, labels, label_smoothing)

    def written(self) -> dict[str, Any] | None:
        """The names of its functions, for files; None for classification as it is."""
        if self.classifies and self.trains_classes:
            return None
        return {
            "loss": _name(self.loss),
            "metric": self.metric.name,
            "lower_is_better": self.metric.lower_is_better,
        }


def task_of(loss: Loss | None = None, metric: MetricFunction | None = None, lower_is_better: bool = False) -> Task:
    """The task that arguments of a user describe: classification, with its loss or its metric changed. With a loss
    alone, that is the metric too."""
    for what, function in (("loss", loss), ("metric", metric)):
        if function is not None and not callable(function):
            raise TrainingError(
                f"{what} must be a function of (outputs, targets), but is of type {type(function).__name__}."
            )
    if metric is None and loss is None:
        if lower_is_better:
            raise TrainingError("lower_is_better is said of a metric: give one, metric=.")
        return Task(cross_entropy, accuracy, ACCURACY, unlike_scores)
    unlike = unlike_scores if loss is None else unlike_outputs
    if metric is None:
        assert loss is not None
        return Task(loss, loss, Metric("loss", lower_is_better=True), unlike)
    return Task(loss or cross_entropy, metric, Metric(_name(metric), bool(lower_is_better)), unlike)


def _name(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)  # of functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


# ------------------------------------------------------------------------------------------------------- classification


def cross_entropy(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    check_labels(labels, scores)
    return F.cross_entropy(scores, labels, label_smoothing=label_smoothing)


def accuracy(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(1) == labels).sum()) / len(labels)


def check_labels(labels: Tensor, scores: Tensor) -> None:
    """One sentence if some class number has no score."""
    classes = scores.shape[1]
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        raise TrainingError(
            f"a label is {int(labels[wrong][0])}, but the network gives {classes} scores, for classes 0 to "
            f"{classes - 1}: count classes from 0, or give the network a score for each."
        )


# ------------------------------------------------------------------------------------------------------- distillation


def unlike_scores(scores: Tensor, taught: Tensor) -> Tensor:
    r"""How far answers are from the teacher's: :math:`T^2 \mathrm{KL}(\mathrm{softmax}(t/T) \| \mathrm{softmax}(s/T))`
    for scores ``(batch, classes)``; the factor keeps its gradients as large as those of the labels."""
    s, t = (F.log_softmax(x / TEMPERATURE, 1) for x in (scores, taught))
    return TEMPERATURE**2 * F.kl_div(s, t, reduction="batchmean", log_target=True)


def unlike_outputs(outputs: Any, taught: Any) -> Tensor:
    """The mean squared difference between outputs and a teacher's, over all numbers in them."""
    pairs = list(zip(own := tensors_in(outputs), theirs := tensors_in(taught), strict=False))
    if len(own) != len(theirs) or not own or any(a.shape != b.shape for a, b in pairs):
        raise TrainingError("the teacher's outputs are not of the shapes of the network's, so it has nothing to teach.")
    return torch.stack([(a - b).square().sum() for a, b in pairs]).sum() / sum(a.numel() for a in own)


# --------------------------------------------------------------------------------------------------------- evaluation


def run(model: nn.Module, inputs: Example) -> Any:
    """The outputs, at least in float32."""
    outputs = model(*as_arguments(inputs))
    return changed(outputs, lambda t: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t)


def loss_of(loss: Loss, outputs: Any, targets: Any) -> Tensor:
    """The loss of a batch; one sentence if it is no scalar."""
    try:
        value = loss(outputs, targets)
    except TrainingError:
        raise
    except Exception as reason:  # whatever a user's own function does
        raise TrainingError(f"the loss {_name(loss)} fails: {_first_line(reason)}.") from reason
    if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
        given = f"a tensor {value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TrainingError(
            f"the loss {_name(loss)} gives {given}, but must give a scalar tensor: take the mean over the batch."
        )
    return value


def check_loss(task: Task, model: nn.Module, inputs: Example, targets: Any) -> None:
    """One sentence if the loss of a batch is no scalar, not finite, or has no gradient for ``model``, in eval mode."""
    with torch.enable_grad(), evaluating(model):
        value = loss_of(task.loss, run(model, inputs), targets)
    name = _name(task.loss)
    if not math.isfinite(float(value.detach())):
        raise TrainingError(
            f"the loss {name} is {float(value.detach()):g} before any training: look at the first batch."
        )
    if not value.requires_grad and any(p.requires_grad for p in model.parameters()):
        raise TrainingError(
            f"the loss {name} has no gradient: compute it from the outputs by torch, without detach, numpy or argmax."
        )


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[tuple[Example, Any]], crew: Team | None = None, task: Task | None = None
) -> tuple[float, float]:
    """The loss and the metric of ``model`` in eval mode, by default cross-entropy and accuracy; the model is left in
    the mode it was in.

    The loss is the mean over the batches, weighed by how many inputs they have. The metric is computed once, of the
    outputs and targets of all batches joined, on the CPU. With a ``crew``, the batches were dealt out among it.
    """
    task, crew = task or task_of(), crew or Team()
    loss, count, parts = 0.0, 0.0, []
    with evaluating(model):
        for inputs, wanted in batches:
            given = run(model, inputs)
            size = count_of(inputs)
            loss += size * float(loss_of(task.loss, given, wanted))
            count += size
            parts.append((changed(given, Tensor.cpu), changed(wanted, Tensor.cpu)))
    loss, count = crew.sum(loss, count)
    parts = crew.collected(parts)
    if not parts:
        return 0.0, 0.0
    outputs, targets = zip(*parts, strict=True)
    return loss / count, crew.led(lambda: _number(task, joined(outputs, "outputs"), joined(targets, "targets")))


def _number(task: Task, outputs: Any, targets: Any) -> float:
    name = task.metric.title
    try:
        value = task.value(outputs, targets)
    except Exception as reason:  # whatever a user's own function does
        raise TrainingError(f"the metric {name} fails on the whole set: {_first_line(reason)}.") from reason
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TrainingError(f"the metric {name} gives {_short(value)}, but must give a number.")
    if not math.isfinite(value):
        raise TrainingError(f"the metric {name} is {float(value):g}, but must be finite to compare networks by.")
    return float(value)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _first_line(reason: BaseException) -> str:
    lines = str(reason).strip().splitlines()
    return f"{type(reason).__name__}{': ' + lines[0].rstrip('.') if lines else ''}"
