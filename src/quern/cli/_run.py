"""What ``quern train`` and ``quern compress`` set up alike: images, network, penalty, watchers."""

import inspect
import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from quern.cli._console import Fetching, err_console, say
from quern.cli._options import OF_WEIGHTS, PENALTIES
from quern.errors import TrainingError, instead_of
from quern.records import Course, Request, Result

if TYPE_CHECKING:
    from torch import nn

    from quern.data import ImageSet
    from quern.penalties import Penalty

_ALLOWED_ON_RESUME = {"out", "resume", "tensorboard", "quiet", "json_"}
_DEFAULT_MODELS = {"mnist": "mnist_qcnn", "cifar10": "cifar_qcnn", "digits": "digits_qcnn"}


def config_to_resume(context: typer.Context, out: Path | None) -> Path:
    """The file with the settings that a run was begun with, which are all that count when it goes on."""
    if out is None:
        raise TrainingError("--resume needs the folder of the run: say --out FOLDER.")
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}
    if extra := sorted(given - _ALLOWED_ON_RESUME):
        options = ", ".join(f"--{name.strip('_').replace('_', '-')}" for name in extra)
        raise TrainingError(f"a run goes on with its own settings: leave out {options}.")
    return out / "config.json"


def request_of_run(options: Mapping[str, Any]) -> Request:
    """The options of both commands that say on what, with which network and how it is run, as config.json has them."""
    from quern.data import NAMES

    dataset, data_dir = options["dataset"], options["data_dir"]
    path = Path(dataset).exists() and dataset not in NAMES
    network: Any = {name: options[name] for name in ("norm", "dropout", "width", "depth") if options[name] is not None}
    return {
        "command": shlex.join(["quern", *sys.argv[1:]]),
        "dataset": str(Path(dataset).resolve()) if path else dataset,  # as it is known from any folder
        "data_dir": str(Path(data_dir).resolve()) if data_dir else None,
        "image_size": options["image_size"],
        "gray": options["gray"],
        "model": options["model"],
        "options": network,
        "threads": options["threads"],
    }


def settings_among(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are fields of :class:`quern.train.Settings`, but for the penalty, which several options say."""
    from quern.train import Settings

    names = {field.name for field in fields(Settings)} - {"penalty"}
    return {name: value for name, value in options.items() if name in names}


def penalty_terms(
    names: list[str] | None, weights: list[float] | None, plain_sums: bool, by_cost: float
) -> list[dict[str, Any]] | None:
    """The sum of the penalties that were asked for, as plain values; those of weights are weighed ``by_cost``."""
    names, weights = names or [], weights or []
    if by_cost and not any(name in OF_WEIGHTS for name in names):
        raise TrainingError(f"--by-cost is for a penalty of weights: --penalty {' or '.join(OF_WEIGHTS)}.")
    if len(names) != len(weights):
        raise TrainingError(
            f"there are {len(names)} --penalty and {len(weights)} --lambda, but each penalty needs its weight: "
            "--penalty rql --lambda 12."
        )
    if not names:
        return None
    from quern import penalties

    total: Penalty | None = None
    for name, weight in zip(names, weights, strict=True):
        if name not in PENALTIES:
            raise TrainingError(f"there is no penalty {name}: {instead_of(name, PENALTIES)}")
        kind, options = PENALTIES[name]
        costs = {"by_cost": by_cost} if name in OF_WEIGHTS else {}
        try:
            term = getattr(penalties, kind)(weight, normalize=not plain_sums, **options, **costs)
        except ValueError as reason:
            raise TrainingError(str(reason)) from reason
        total = term if total is None else total + term
    assert total is not None
    return total.to_list()


def set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        if threads < 1:
            raise TrainingError(f"--threads is {threads}, but there must be at least one.")
        torch.set_num_threads(threads)


def load_images(config: Request, sums: dict[str, str] | None, out: Path | None, quiet: bool) -> "ImageSet":
    """The data set of a run, which must be what it was, by its ``sums``, when the run goes on."""
    from quern import data

    with Fetching(quiet) as progress:
        folder = Path(config["data_dir"]) if config["data_dir"] else None
        images = data.load(config["dataset"], folder, config["image_size"], progress, config.get("gray"))
    if sums is not None and sums != images.sums:
        raise TrainingError(f"{config['dataset']} is not the data that {out} was trained on: its SHA-256 sums differ.")
    return images


def model_name(config: Request, images: "ImageSet") -> str:
    return config["model"] or _DEFAULT_MODELS.get(images.name, "qresnet20")


def build_network(config: Request, images: "ImageSet") -> "nn.Module":
    from quern import models

    name = model_name(config, images)
    if name not in models.BUILDERS:
        raise TrainingError(f"there is no network {name}: {instead_of(name, models.BUILDERS)}")
    build = models.BUILDERS[name]
    options = {**config["options"], "classes": len(images.classes)}
    if "channels" in inspect.signature(build).parameters:
        options["channels"] = images.shape[0]
    try:
        network = build(**options)
    except (TypeError, ValueError) as reason:
        raise TrainingError(str(reason)) from reason
    check_takes(network, images, name)
    return network.train()


def check_takes(network: "nn.Module", images: "ImageSet", name: str) -> None:
    """One sentence if the network does not take such images, or has fewer scores than there are classes."""
    import torch

    size = " x ".join(map(str, images.shape))
    try:
        with torch.no_grad():
            scores = network.eval()(images.normalize(images.train.pixels[:1]))
    except (RuntimeError, ValueError) as reason:
        why = str(reason).rstrip(".")
        raise TrainingError(f"{name} does not take images of {size}: choose another --model ({why}).") from reason
    if scores.dim() != 2 or scores.shape[1] < len(images.classes):
        raise TrainingError(f"{name} gives scores of shape {tuple(scores.shape)}, for {len(images.classes)} classes.")


def make_watchers(out: Path | None, quiet: bool, tensorboard: bool = False) -> list[Any]:
    """What shows the progress of a training."""
    from quern.train import progress

    watchers: list[Any] = []
    if not quiet:
        watchers.append(progress.Bar(err_console) if err_console.is_terminal else progress.Lines(err_console))
    if tensorboard:
        if out is None:
            raise TrainingError("--tensorboard writes into the run's folder: say --out FOLDER.")
        try:
            watchers.append(progress.Events(out / "events"))
        except ImportError:
            raise TrainingError("--tensorboard needs the tensorboard package: pip install tensorboard.") from None
    return watchers


def print_result(result: Result, settings: Course, console: Console) -> None:
    sparsity = result.sparsity
    metric, name = result.metric, result.metric.title
    val, test = (value and metric.text(value).replace(" %", "%") for value in (result.val, result.test))
    tested = f"no test {name}" if result.test is None else f"test {name} {test}"
    zeros = f"up to {settings.tol:g}" if settings.tol else "exact zeros"
    say(
        f"{tested} (validation {val}, epoch {result.best_epoch} of "
        f"{settings.total})\n{zeros}: {sparsity.component_sparsity:.1%} of components, "
        f"{sparsity.quaternion_sparsity:.1%} of quaternions, {sparsity.neuron_sparsity:.1%} of neurons",
        console,
    )
    console.print(sparsity, highlight=False)
