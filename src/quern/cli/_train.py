"""``quern train``."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from quern.cli import _options, _run
from quern.cli._console import err_console, out_console, say
from quern.cli._folder import how_to_go_on, is_compressed
from quern.cli._options import MODELS, NORM_HELP, REAL_MODELS, of_network, of_phases, of_run, of_steps
from quern.errors import TrainingError
from quern.records import TrainConfig, TrainRequest, check_writable, schema

EXAMPLES = """
Examples:

  quern train --penalty rql --lambda 20 --heal 10 --out runs/digits

  quern train --dataset mnist --penalty rql --lambda 16 --epochs 12 --heal 18 --batch 100 --out runs/mnist-rql

  quern train --dataset cifar10 --norm after_conv --penalty gamma --lambda 0.5 --heal 5 --flip --out runs/cifar-gamma

  quern train --dataset mnist --optimizer adam --penalty rq --lambda 20 --out runs/paper    (the paper's way)

  quern train --dataset cifar10 --penalty rq --lambda 50 --by-cost 0.5 --heal 5 --out runs/cifar-fast

  quern train --resume --out runs/mnist-rql

  torchrun --standalone --nproc-per-node 2 -m quern train --dataset cifar10 --out runs/cifar
"""


def train(
    context: typer.Context,
    dataset: _options.Dataset = "digits",
    data_dir: _options.DataDirOfRun = None,
    image_size: _options.ImageSize = None,
    gray: _options.Gray = None,
    model: Annotated[
        str | None,
        of_network(
            help=f"{', '.join(MODELS)}; real-valued: {', '.join(REAL_MODELS)}.",
            show_default="by data set; qresnet20 for yours",
        ),
    ] = None,
    norm: Annotated[_options.NormName | None, of_network(metavar="<norm>", help=NORM_HELP, show_default="none")] = None,
    dropout: _options.Dropout = None,
    width: _options.Width = None,
    depth: _options.Depth = None,
    out: Annotated[Path | None, of_run(help="Folder of the run, a new one unless --resume.")] = None,
    resume: Annotated[bool, of_run("--resume", help="Go on with the run in --out, with its own settings.")] = False,
    penalty: _options.PenaltyNames = None,
    lambda_: Annotated[list[float] | None, of_phases("--lambda", help="Weight of each --penalty, in order.")] = None,
    plain_sums: Annotated[bool, of_phases("--plain-sums", help="Penalties without the factor 1/Q or 1/|Γ|.")] = False,
    by_cost: _options.ByCost = 0.0,
    warmup: Annotated[int, of_phases(help="Epochs at the start, without the penalty.")] = 0,
    epochs: Annotated[int, of_phases(help="Epochs, with the penalty if there is one.")] = 20,
    ramp: Annotated[float, of_phases(help="Share of --epochs over which λ rises from 0.")] = 0.5,
    heal: Annotated[int, of_phases(help="Epochs at the end, without the penalty and with all zeros frozen.")] = 0,
    heal_lr: _options.HealLr = None,
    heal_dropout: Annotated[bool, of_phases(help="Dropout while healing.")] = True,
    compact_every: Annotated[
        int,
        of_phases(help="Remove what died after every so many epochs with the penalty, and before healing; 0: never."),
    ] = 0,
    optimizer: Annotated[
        Literal["proximal-adam", "proximal-sgd", "adam"],
        of_steps(help="adam takes the penalty's gradient: no exact zeros."),
    ] = "proximal-adam",
    lr: Annotated[float, of_steps(help="Learning rate.")] = 2e-3,
    schedule: _options.Schedule = "cosine",
    weight_decay: Annotated[float, of_steps(help="Decoupled weight decay (coupled for proximal-sgd).")] = 0.0,
    batch: Annotated[
        int | None, of_steps(help="Images per step.", show_default="400 or all images; 64 for digits")
    ] = None,
    label_smoothing: _options.LabelSmoothing = 0.0,
    ema: _options.Ema = 0.0,
    crop: _options.Crop = 0,
    flip: _options.Flip = False,
    seed: _options.Seed = 0,
    device: _options.Device = "cpu",
    precision: _options.Precision = "float32",
    tol: Annotated[float, of_steps(help="Count magnitudes up to this as zero in what is reported.")] = 0.0,
    threads: _options.Threads = None,
    tensorboard: Annotated[bool, of_run("--tensorboard", help="Event files in the run's folder.")] = False,
    quiet: _options.QuietRun = False,
    json_: _options.JsonOfRun = False,
) -> None:
    """Train a network, to exact zeros if there is a penalty."""
    if resume:
        path = _run.config_to_resume(context, out)
        if is_compressed(path.parent):
            raise TrainingError(f"{out} is a run of quern compress: go on with {how_to_go_on(path.parent)}.")
        config = schema.read(path, TrainConfig, "the settings of a run", "restore it, or begin again")
        sums = config["sums"]
    else:
        terms = _run.penalty_terms(penalty, lambda_, plain_sums, by_cost)
        settings = {**_run.settings_among(context.params), "penalty": terms}
        config, sums = TrainRequest(**_run.request_of_run(context.params), settings=settings), None
    _train(config, sums, out, tensorboard, quiet, json_)


def _train(
    config: TrainRequest, sums: dict[str, str] | None, out: Path | None, tensorboard: bool, quiet: bool, json_: bool
) -> None:
    """With ``sums``, those of the data it was begun with, a run goes on."""
    import torch

    from quern import train
    from quern._size import size_of
    from quern.bench.machine import facts

    _run.set_threads(config["threads"])
    resume = sums is not None
    leads = os.environ.get("RANK", "0") == "0"
    asked, path = config["settings"], out / "config.json" if resume and out else None
    train.Settings.from_dict(asked if asked.get("batch") else {**asked, "batch": 1}, path)  # before any download
    if leads and not resume and out is not None and ((out / "last.safetensors").exists() or is_compressed(out)):
        raise TrainingError(f"{out} already holds a run: go on with --resume, or choose another folder.")
    images = _run.load_images(config, sums, out, quiet or not leads)
    if asked.get("batch") is None:
        asked["batch"] = min(64 if images.name == "digits" else 400, len(images.train))
    settings = train.Settings.from_dict(asked, path)
    torch.manual_seed(settings.seed)
    network = _run.build_network(config, images)
    if settings.penalty is not None:
        try:
            settings.penalty.check(network)
        except ValueError as reason:
            hint = " (in a built-in network by --norm after_conv)" if "normalisation" in str(reason) else ""
            raise TrainingError(f"{str(reason).rstrip('.')}{hint}.") from reason
    written = {**config, "threads": torch.get_num_threads(), "sums": images.sums, "environment": facts()}
    if not resume and leads and out is not None:
        check_writable(out, "--out")
    watchers = _run.make_watchers(out, quiet, tensorboard) if leads else []
    if leads and not quiet:
        count = size_of(network).parameters
        start = f"{_run.model_name(config, images)}: {count:,} parameters; "
        start += f"{images.name}: {len(images.train):,} images to train, {len(images.val):,} to validate; "
        say(f"{start}{settings.phases}", err_console)
    result = train.fit(network, images, settings, out, resume, watchers, about=written)
    if leads and not quiet:
        _run.print_result(result, settings, err_console if json_ else out_console)
        if out is not None:
            say(f"in {out}; again: quern show {shlex.quote(str(out))}", err_console)
    if leads and json_:
        typer.echo(json.dumps({k: v for k, v in result.to_dict().items() if k != "history"}))
