"""``fit``: its arguments, and what is refused before any training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quern.data import ImageSet
from quern.errors import TrainingError
from quern.graph import check_module
from quern.records import Result
from quern.train._batches import Loaders, check_data, check_fits, check_teaches, source
from quern.train._files import Files
from quern.train._loop import Loop
from quern.train._protocols import Steer, Watcher
from quern.train._settings import Settings
from quern.train._task import Loss, MetricFunction, task_of
from quern.train._training import Training
from quern.train.team import team


def find_device(name: str) -> torch.device:
    """The device of that name; one sentence if it is not here."""
    try:
        device = torch.device(name)
        if device.type != "cuda" or not torch.cuda.is_available():
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as reason:
        wrong = str(reason).splitlines()[0].rstrip(".")
        raise TrainingError(f"there is no device {name} here: {wrong}.") from reason
    return device


def fit(
    model: nn.Module,
    data: ImageSet | Loaders,
    settings: Settings,
    out: Path | str | None = None,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    *,
    loss: Loss | None = None,
    metric: MetricFunction | None = None,
    lower_is_better: bool = False,
    about: dict[str, Any] | None = None,
    teacher: nn.Module | None = None,
    steer: Steer | None = None,
) -> Result:
    """Train ``model`` on ``data`` and leave it with the weights of the best epoch, in eval mode.

    ``loss`` of (outputs, targets) is a scalar tensor, by default the cross-entropy of scores ``(batch, classes)`` and
    class numbers. ``metric`` of (outputs, targets) is a number, by default the accuracy, or with a ``loss`` alone that;
    higher is better unless ``lower_is_better``. It is called once for the whole validation set, with the outputs and
    targets of all batches joined along the batch, on the CPU; the validation loss is the mean over batches, weighed by
    their sizes.

    The best epoch is the one of the best validation metric in the last phase; if that phase is grinding, where zeros
    grow in number from epoch to epoch, it is the last one. The test images are looked at once, at the end, or with
    ``settings.curves`` after every epoch; no weight, and no choice, depends on them.

    With ``out`` the folder gets ``config.json``, if ``about`` says what ``quern train`` was asked for, and every epoch
    ``last.safetensors`` (all that is needed to go on), ``best.safetensors`` (the best weights so far) and
    ``history.jsonl``; at the end ``result.json`` and the network as ``model.safetensors``, for :func:`quern.io.load`.
    ``resume`` goes on from there, or begins if no epoch was finished.
    Under torchrun the processes share each batch, by DistributedDataParallel, and so batch statistics are those of the
    whole batch (:func:`quern.nn.convert_sync_batchnorm`, undone at the end); λ is steered by what the leading process
    says.

    ``teacher`` gives the answers for ``settings.distill``; ``steer`` chooses λ in place of ``settings.ramp``.
    """
    check_module(model)
    check_data(data)
    if not isinstance(settings, Settings):
        raise TrainingError(f"settings must be a quern.train.Settings, but is of type {type(settings).__name__}.")
    task = task_of(loss, metric, lower_is_better)
    task.smoothed(settings.label_smoothing)
    device = find_device(settings.device)
    with team(device) as crew, crew.complete(lambda: "the beginning: start it again."):
        device = crew.device(device)
        with torch.random.fork_rng(devices=[] if device.index is None else [device.index], device_type=device.type):
            if steer is not None and (settings.optimizer == "adam" or settings.penalty is None):
                raise TrainingError("λ is steered with a penalty and a proximal optimizer.")
            if (teacher is None) == bool(settings.distill):
                raise TrainingError("distill needs a teacher, and a teacher a share to distill.")
            teacher = None if teacher is None else teacher.to(device).eval()
            batches = source(data, settings, crew, device, model, task)
            check_fits(model.to(device), data, batches, task)
            if teacher is not None:
                check_teaches(teacher, model, batches)
            files = Files(None if out is None else Path(out), crew.leads, about)
            training = Training(model, batches.example, batches.steps, settings, files, crew, task, steer is not None)
            return Loop(training, batches, watchers if crew.leads else (), teacher, steer).run(resume)
