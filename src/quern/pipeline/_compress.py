"""``compress``: its arguments, and what is refused before any training."""

import copy
import inspect
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import fields
from numbers import Real
from pathlib import Path
from typing import Any

from torch import nn

from quern import runtime
from quern.bench.machine import facts
from quern.data import ImageSet
from quern.errors import Lost, Stopped, TrainingError, instead_of
from quern.graph import batch_norms, check_module
from quern.penalties import GammaL1, NeuronNorm, Penalty
from quern.pipeline._budgets import check_budget
from quern.pipeline._scratch import check_can_begin_anew
from quern.pipeline._stages import Compressed, Job, Tell, packs_of, run_stages
from quern.records import Budget
from quern.train import (
    Loaders,
    Loss,
    MetricFunction,
    Settings,
    Source,
    Task,
    Watcher,
    check_compacts,
    check_fits,
    check_teaches,
    find_device,
    held_out,
    source,
    task_of,
)
from quern.train.team import team


def compress(
    model: nn.Module,
    train: Iterable[Any] | ImageSet,
    val: Iterable[Any] | None = None,
    test: Iterable[Any] | None = None,
    *,
    loss: Loss | None = None,
    metric: MetricFunction | None = None,
    lower_is_better: bool = False,
    penalty: Penalty | None = None,
    max_neurons: int | None = None,
    max_params: int | None = None,
    max_bytes: int | None = None,
    max_flash: int | None = None,
    max_ram: int | None = None,
    min_speedup: float | None = None,
    max_drop: float | None = None,
    epochs: int = 12,
    grind: int = 6,
    heal: int = 24,
    heal_lr: float | None = None,
    distill: float = 0.0,
    teacher: nn.Module | None = None,
    from_scratch: bool = False,
    out: Path | str | None = None,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    tell: Tell = lambda _: None,
    about: dict[str, Any] | None = None,
    **options: Any,
) -> Compressed:
    """Train a copy of ``model``, make it small, and compare the two.

    ``train``, ``val`` and ``test`` give pairs (inputs, targets), as a ``DataLoader`` does (:class:`quern.train.Loaders`
    says of what structure); without ``test`` they are compared on ``val``, and the table says so. Or ``train`` is a
    :class:`quern.data.ImageSet`, which has all three.

    ``loss`` of (outputs, targets) is a scalar tensor, by default the cross-entropy of classes; ``metric`` of the
    outputs and targets of a whole set is a number, by default the accuracy. Higher is better unless
    ``lower_is_better``. :func:`quern.train.fit` says more of them.

    ``epochs`` train the dense network (0: it is trained already), ``grind`` drive neurons to zero under ``penalty``,
    ``heal`` train what is left, with the share ``distill`` of the loss asking for the dense network's answers, or for
    those of a ``teacher``: any trained network with the same inputs and outputs, which then also teaches the dense one
    (half of the loss, if ``distill`` does not say otherwise).
    ``max_neurons``, ``max_params``, ``max_bytes``, ``max_flash``, ``max_ram``, ``min_speedup`` and ``max_drop`` are
    the budget (:class:`Budget`), for which λ is steered; the weights of the penalty then only say how its terms mix.
    The penalty is that of batch normalisations' scales if there are any, else that of whole neurons
    (:class:`quern.penalties.NeuronNorm`). ``max_drop`` is in points of accuracy, or in the unit of ``metric``.
    Without a budget its own λ counts, ramped up over the first half of the grinding. With neither, the budget is one
    point of accuracy.
    ``options`` are further fields of :class:`quern.train.Settings`, for all stages; the batch is 100 if it is not said.

    ``from_scratch`` also trains the structure of the small network from fresh weights, for as many epochs in all, and
    says in the table what that comes to.

    With ``out`` everything is kept in that folder, and ``resume`` goes on where it stopped. ``about`` is added to
    what is written down. Under torchrun the processes train together, as in :func:`quern.train.fit`; the leading one
    decides, writes and measures, and all return the same.
    """
    check_module(model)
    limits: dict[str, Any] = {
        "max_neurons": max_neurons,
        "max_params": max_params,
        "max_bytes": max_bytes,
        "max_flash": max_flash,
    }
    limits |= {"max_ram": max_ram, "min_speedup": min_speedup, "max_drop": max_drop}
    for name, limit in limits.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real)):
            raise TrainingError(f"{name} is {limit!r}, but must be a number.")
    budget = Budget(**limits)
    if budget.of_packed:
        runtime.check_built()
    task = task_of(loss, metric, lower_is_better)
    budget.check_drop(task.metric)
    if penalty is None and not budget:
        if not task.metric.percent:
            raise TrainingError(
                f"there is no budget: say how much {task.metric.title} may be lost, max_drop=, or another limit, such "
                "as max_params=."
            )
        budget = Budget(max_drop=1.0)
    _check_names(options)
    data = _one_data_set(train, val, test)
    common = {"batch": 100, **options}
    if teacher is not None:
        check_module(teacher)
        distill, teacher = distill or TAUGHT, copy.deepcopy(teacher)
    taught = 0.0 if teacher is None else distill
    dense_settings = Settings(epochs=epochs, **common, distill=taught) if epochs else None
    small_settings = Settings(
        **common,
        epochs=grind,
        heal=heal,
        heal_lr=heal_lr,
        heal_dropout=False,
        compact_every=1,
        distill=distill if heal else 0.0,
        penalty=penalty or (GammaL1(1.0, with_beta=True) if batch_norms(model) else NeuronNorm(1.0)),
    )
    scratch_settings = Settings(epochs=epochs + grind + heal, **common) if from_scratch else None
    if from_scratch:
        check_can_begin_anew(model)
    folder = None if out is None else Path(out)
    judged = {"loss": loss, "metric": metric, "lower_is_better": lower_is_better}
    device = find_device(small_settings.device)
    with team(device) as crew, tempfile.TemporaryDirectory(prefix="quern-compress-") as elsewhere:
        try:
            with crew.complete(lambda: "quern compress."):
                batches = source(data, small_settings, crew, crew.device(device), model, task)
                _check_job(model, small_settings, budget, data, batches, task)
                if teacher is not None:
                    check_teaches(teacher.to(batches.device).eval(), model, batches)
                alone: Any = (watchers, tell) if crew.leads else ((), lambda _: None)
                job = Job(data, batches, task, judged, folder or Path(elsewhere), resume, *alone, teacher=teacher)
                origin = {"environment": facts(), **(about or {})}
                return run_stages(job, model, dense_settings, small_settings, scratch_settings, budget, origin)
        except (Stopped, Lost) as reason:
            advice = "nothing is kept without a folder: say out="
            if folder is not None:
                launch = crew.launch("compress", folder)
                advice = f"go on with: {launch}" if about else "go on with resume=True"
            if isinstance(reason, Lost):
                raise Lost(f"another of the {crew.size} processes was lost; {advice}.") from reason
            raise Stopped(f"stopped by signal {reason.signal}; {advice}.", reason.signal) from None


TAUGHT = 0.5  # the share of the loss that a teacher has

_SET_HERE = ("compact_every", "heal_dropout")  # fields of Settings that are no options of compress


def _check_names(options: dict[str, Any]) -> None:
    """One sentence if an option is none of compress, nor a field of Settings."""
    own = [name for name, p in inspect.signature(compress).parameters.items() if p.kind == p.KEYWORD_ONLY]
    names = dict.fromkeys([*own, *(f.name for f in fields(Settings) if f.name not in _SET_HERE)])
    for name in options:
        if name in _SET_HERE:
            raise TrainingError(f"compress sets {name} itself: leave it out.")
        if name not in names:
            otherwise = "besides its own it takes the fields of quern.train.Settings."
            raise TrainingError(f"compress has no option {name}: {instead_of(name, names, otherwise)}")


def _one_data_set(train: Any, val: Any, test: Any) -> ImageSet | Loaders:
    if isinstance(train, ImageSet):
        if val is not None or test is not None:
            raise TrainingError("an ImageSet has its own images to validate and to test with: leave out val and test.")
        return train
    if isinstance(train, str):
        raise TrainingError(f"the data must be loaders or an ImageSet: load it by quern.data.load({train!r}).")
    if val is None:
        raise TrainingError("there is nothing to validate with: give a loader as val.")
    return Loaders(train, val, test)


def _check_job(
    model: nn.Module, settings: Settings, budget: Budget, data: ImageSet | Loaders, batches: Source, task: Task
) -> None:
    """What can be known to fail later is said now."""
    crew = batches.crew
    crew.led(lambda: _check_penalty(model, settings))
    if not any(crew.gathered(next(iter(held_out(batches)), None) is not None)):
        raise TrainingError("the loader to test with has no batches.")
    check_fits(model, data, batches, task)

    def check_small() -> None:
        assert settings.penalty is not None
        check_compacts(model, batches.example)
        try:
            settings.penalty.weighed(model, batches.example).check(model)
        except ValueError as reason:
            raise TrainingError(f"{str(reason).rstrip('.')}.") from reason
        packs = packs_of(data, batches.example)
        check_budget(budget, model, settings.penalty, batches.example, batches.image_format(), packs)

    crew.led(check_small)


def _check_penalty(model: nn.Module, settings: Settings) -> None:
    assert settings.penalty is not None
    try:
        settings.penalty.check(model)
    except ValueError as reason:
        sentence = str(reason).rstrip(".")
        if not batch_norms(model):
            sentence += ' (norm="after_conv" in quern.models), or take a penalty of neurons, penalty=NeuronNorm(1.0)'
        raise TrainingError(f"{sentence}.") from reason
