"""``quern compress``."""

import inspect
import json
import os
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quern import zoo
from quern.cli import _named, _options, _run
from quern.cli._console import err_console, out_console, say
from quern.cli._folder import is_compressed
from quern.cli._network import load_network, open_network
from quern.cli._options import MODELS, NORM_HELP, REAL_MODELS, of_network, of_phases, of_run, of_steps
from quern.cli._recipes import NAMED, recipe_of
from quern.errors import TrainingError
from quern.records import Budget, CompressConfig, CompressRequest, schema

if TYPE_CHECKING:
    from quern.data import ImageSet

# What the command ends with, besides 0 and, for an error, 1.
AT_CHANCE, MISSED = 3, 4

EXAMPLES = """
What is not asked for depends on the images. With colours: a small_qcnn of width 56 and depth 3, shifted and mirrored
images; gray: width 20 and depth 2, shifted images; digits: the network and the steps of the examples. A network of
another kind has 12, 6 and 24 epochs at a rate of 0.002 in batches of 100, cosine, and images as they are.

It ends with code 3 if the small network cannot be told from chance, with 4 if a limit of the budget was missed.

Examples:

  quern compress --max-params 1500 --out runs/digits

  quern compress --dataset mnist --max-drop 0.5 --out runs/mnist

  quern compress --dataset cifar10 --max-params 15000 --min-speedup 5 --out runs/cifar

  quern compress --dataset mnist --max-flash 16k --max-ram 32k --out runs/device

  quern compress --dataset photos/ --image-size 32 --max-bytes 64k --out runs/photos

  quern compress --dataset cifar10 --start runs/cifar/dense/model.safetensors --max-params 8000 --out runs/cifar-8k

  quern compress --dataset cifar10 --penalty gamma-beta --lambda 20 --out runs/by-lambda    (no budget)

  quern compress --model mine.nets:unet --dataset mine.data:loaders --loss mine.task:loss --metric mine.task:overlap \\
    --max-params 20000 --out runs/unet    (your own, in a file mine/nets.py here or installed)

  quern compress --resume --out runs/cifar

  torchrun --standalone --nproc-per-node 2 -m quern compress --dataset cifar10 --max-params 15000 --out runs/cifar
"""

of_budget = partial(typer.Option, rich_help_panel="Budget (default: --max-drop 1)")

NETWORK = ("norm", "dropout", "width", "depth")  # options of quern's own networks

_BY_COST = 0.5  # under --min-speedup


def compress(
    context: typer.Context,
    out: Annotated[Path, of_run(help="Folder for networks, ONNX files and the record; a new one unless --resume.")],
    dataset: _options.Dataset = "digits",
    data_dir: _options.DataDirOfRun = None,
    image_size: _options.ImageSize = None,
    gray: _options.Gray = None,
    model: Annotated[
        str | None,
        of_network(
            help=f"{', '.join(MODELS)}; real-valued: {', '.join(REAL_MODELS)}; or package.module:function for yours.",
            show_default="small_qcnn; digits_qcnn for digits",
        ),
    ] = None,
    norm: Annotated[
        _options.NormName | None,
        of_network(metavar="<norm>", help=NORM_HELP, show_default="after_conv, where the network takes it"),
    ] = None,
    dropout: _options.Dropout = None,
    width: _options.WidthOfRecipe = None,
    depth: _options.DepthOfRecipe = None,
    start: Annotated[
        Path | None, of_network(help="A network that is trained already: a run's folder, a file of quern, or zoo:NAME.")
    ] = None,
    loss: Annotated[
        str | None,
        of_network(help="package.module:function of (outputs, targets), a scalar.", show_default="cross-entropy"),
    ] = None,
    metric: Annotated[
        str | None,
        of_network(
            help="package.module:function of (outputs, targets) of the whole set, a number.", show_default="accuracy"
        ),
    ] = None,
    lower_is_better: Annotated[bool, of_network("--lower-is-better", help="Of the metric.")] = False,
    resume: Annotated[bool, of_run("--resume", help="Go on with what is in --out, with its own settings.")] = False,
    max_neurons: Annotated[int | None, of_budget(help="Neurons the small network may have.")] = None,
    max_params: Annotated[int | None, of_budget(help="Parameters the small network may have.")] = None,
    max_bytes: Annotated[str | None, of_budget(help="Bytes its file may have: 65536, 64k, 1M.")] = None,
    max_flash: Annotated[str | None, of_budget(help="Bytes of its packed file, small/model.qrn: 16k.")] = None,
    max_ram: Annotated[
        str | None, of_budget(help="Bytes of memory, stack included, on a microcontroller: 64k.")
    ] = None,
    min_speedup: Annotated[
        float | None, of_budget(help="How many times faster it is to be: C runtime, one image, one thread.")
    ] = None,
    max_drop: Annotated[float | None, of_budget(help="Points of accuracy it may lose.")] = None,
    penalty: _options.PenaltyNames = None,
    lambda_: Annotated[
        list[float] | None, of_phases("--lambda", help="Weight of each --penalty, in order; without a budget.")
    ] = None,
    by_cost: _options.ByCostOfBudget = None,
    epochs: Annotated[
        int | None, of_phases(help="Epochs of the dense network.", show_default="24; gray 12; digits 20")
    ] = None,
    grind: Annotated[int | None, of_phases(help="Epochs with the penalty.", show_default="6; digits 20")] = None,
    heal: Annotated[int | None, of_phases(help="Epochs without it after.", show_default="24; digits 60")] = None,
    heal_lr: _options.HealLr = None,
    distill: Annotated[
        float,
        of_phases(
            help="Share of the loss that asks for the dense network's answers, while healing, or for the teacher's.",
            show_default="0; 0.5 with --teacher",
        ),
    ] = 0.0,
    teacher: Annotated[
        str | None,
        of_phases(
            help="A trained network that teaches both: a run's folder, a file, zoo:NAME, or package.module:function."
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        of_phases("--from-scratch", help="Also train the small network's structure from fresh weights, and compare."),
    ] = False,
    lr: Annotated[float | None, of_steps(help="Learning rate.", show_default="0.01; digits 0.005")] = None,
    batch: Annotated[int | None, of_steps(help="Images per step.", show_default="128; digits 64")] = None,
    weight_decay: Annotated[float, of_steps(help="Decoupled weight decay.")] = 0.0,
    schedule: _options.ScheduleOfRecipe = None,
    label_smoothing: _options.LabelSmoothing = 0.0,
    ema: _options.EmaOfRecipe = None,
    crop: _options.CropOfRecipe = None,
    flip: _options.FlipOfRecipe = None,
    seed: _options.Seed = 0,
    device: _options.Device = "cpu",
    precision: _options.Precision = "float32",
    threads: _options.Threads = None,
    quiet: _options.QuietRun = False,
    json_: _options.JsonOfRun = False,
) -> None:
    """Train a network, make it small within a budget, export it, and compare it with the dense one."""
    if resume:
        path = _run.config_to_resume(context, out)
        config = schema.read(path, CompressConfig, "a run of quern compress", "restore it, or begin again")
        sums = config["sums"]
    else:
        _check_named(context.params)
        limits = {field.name: context.params[field.name] for field in fields(Budget)}
        stages = {**_run.settings_among(context.params), "grind": grind}
        given: Any = {name: value for name, value in stages.items() if value is not None}
        config = CompressRequest(
            **_run.request_of_run(context.params),
            start=_absolute(None if start is None else str(start)),
            loss=loss,
            metric=metric,
            lower_is_better=lower_is_better,
            from_scratch=from_scratch,
            teacher=_absolute(teacher),
            penalty=_penalty(penalty, lambda_, by_cost, limits),
            budget={**limits, **{name: _bytes(name, limits[name]) for name in ("max_bytes", "max_flash", "max_ram")}},
            stages=given,
        )
        sums = None
        if start is not None:
            for name in ("epochs", "model", *NETWORK):
                if context.params[name] is not None:
                    raise TrainingError(f"--start has a trained network: leave out --{name}.")
            config["stages"]["epochs"] = 0
    _compress(config, sums, out, quiet, json_)


def _absolute(network: str | None) -> str | None:
    """A path as it holds from any folder; other names of networks as they are."""
    if network is None or network.startswith(zoo.PREFIX) or _named.is_named(network):
        return network
    return str(Path(network).resolve())


def _check_named(options: dict[str, Any]) -> None:
    """Options that say nothing of data or a network of the user's own are not left unused."""
    unused = {"dataset": ("data_dir", "image_size", "gray", "batch"), "model": NETWORK}
    for named, names in unused.items():
        for name in names if _named.is_named(options[named]) else ():
            if options[name] is not None:
                option = f"--{name.replace('_', '-')}"
                raise TrainingError(f"--{named} {options[named]} has its own: leave out {option}.")


def _penalty(
    names: list[str] | None, weights: list[float] | None, by_cost: float | None, limits: dict[str, Any]
) -> list[dict[str, Any]] | None:
    """The penalty as plain values, None for the default. To be fast, zeros must be where the time is."""
    budget = any(limit is not None for limit in limits.values())
    if weights and budget:
        raise TrainingError("a budget chooses λ: leave out --lambda, or the budget.")
    if by_cost is None:
        of_weights = any(name in _options.OF_WEIGHTS for name in names or [])
        by_cost = _BY_COST if of_weights and limits["min_speedup"] is not None else 0.0
    if not names and not weights and not by_cost:
        return None
    if names and not weights:
        if not budget:
            raise TrainingError("a penalty needs its --lambda, or a budget that chooses it, such as --max-drop 0.5.")
        weights = [1.0] * len(names)
    return _run.penalty_terms(names, weights, plain_sums=False, by_cost=by_cost)


def _bytes(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmM]?)[bB]?", text.strip())
    if not size:
        option = f"--{name.replace('_', '-')}"
        raise TrainingError(f"{option} is {text}, but must be a number such as 65536, 64k or 1M.")
    return round(float(size[1]) * {"": 1, "k": 1024, "m": 1024**2}[size[2].lower()])


def _with_recipe(config: CompressRequest, images: "ImageSet | None", network: str | None) -> CompressRequest:
    """All that was not asked for is as the recipe for ``images`` and the ``network`` has it."""
    from quern import models

    recipe = recipe_of(images, network)
    stages: Any = {**recipe.stages(), **config["stages"]}
    if images is not None:
        stages["batch"] = min(stages["batch"], len(images.train))
    if config["start"] is not None:
        return {**config, "stages": stages}
    name = config["model"] or recipe.model
    build, options = models.BUILDERS.get(name or ""), recipe.options
    if build is not None and "norm" in inspect.signature(build).parameters:  # penalties of neurons need one
        options = {**options, "norm": "after_conv"}
    given: Any = {**options, **config["options"]}
    return {**config, "model": name, "options": given, "stages": stages}


def _compress(config: CompressRequest, sums: dict[str, str] | None, out: Path, quiet: bool, json_: bool) -> None:
    """With ``sums``, those of the data it was begun with, a run goes on."""
    import torch

    from quern._size import size_of
    from quern.bench.machine import facts
    from quern.data import ImageSet
    from quern.penalties import Penalty
    from quern.pipeline import compress
    from quern.report import write_run_report
    from quern.train import Settings

    _run.set_threads(config["threads"])
    resume, leads = sums is not None, os.environ.get("RANK", "0") == "0"
    quiet, json_ = quiet or not leads, json_ and leads
    path = out / "config.json" if resume else None
    budget = schema.checked(path, config["budget"], Budget, "a budget")  # before any download, as are the settings
    asked = {**NAMED.stages(), **config["stages"]}
    Settings.from_dict({**asked, "epochs": asked["epochs"] + asked["grind"], "penalty": config["penalty"]}, path)
    if leads and not resume and (out / "config.json").exists():
        raise TrainingError(f"{out} already holds a run: go on with --resume, or choose another folder.")
    judged: dict[str, Any] = {
        name: _named.function(text, f"--{name}") for name in ("loss", "metric") if (text := config.get(name))
    }
    judged["lower_is_better"] = config.get("lower_is_better", False)
    own = _named.is_named(config["dataset"]) and not Path(config["dataset"]).exists()
    data = _named.data(config["dataset"]) if own else _run.load_images(config, sums, out, quiet)
    images = data if isinstance(data, ImageSet) else None
    if images is None and config["model"] is None and config["start"] is None:
        raise TrainingError("loaders of your own need a network of your own: say --model package.module:function.")
    torch.manual_seed(config["stages"].get("seed", 0))
    trained, header = None, dict[str, Any]()
    if config["start"] is not None:
        if is_compressed(Path(config["start"])):
            raise TrainingError(f"{config['start']} is a run of quern compress: start from its folder dense or small.")
        trained, header = open_network(Path(config["start"]))
        if images is not None and not judged.get("loss"):
            _run.check_takes(trained, images, config["start"])
    if not resume:
        config = _with_recipe(config, images, config["model"] or header.get("builder"))
    if trained is not None:
        network = trained
    elif config["model"] is not None and _named.is_named(config["model"]):
        network = _named.network(config["model"])
    elif images is not None:
        network = _run.build_network(config, images)
    else:
        raise TrainingError(f"--model {config['model']} is for images of quern.data: name a function that gives yours.")
    teacher = None
    if (name := config.get("teacher")) is not None:
        of_file = not _named.is_named(name)
        teacher = load_network(Path(name)) if of_file else _named.network(name, "--teacher")
    written: dict[str, Any] = dict(config)
    if not resume:
        written |= {
            "threads": torch.get_num_threads(),
            "sums": {} if images is None else images.sums,
            "environment": facts(),
        }
    if not quiet:
        count = size_of(network).parameters
        if images is not None:
            say(f"{images.name}: {len(images.train):,} images to train, {len(images.val):,} to validate", err_console)
        say(f"{config['start'] or config['model']}: {count:,} parameters", err_console)
    loaders: Any = (data,) if isinstance(data, ImageSet) else (data.train, data.val, data.test)
    comparison = compress(
        network,
        *loaders,
        **judged,
        penalty=None if config["penalty"] is None else Penalty.from_list(config["penalty"]),
        **budget.to_dict(),
        **config["stages"],
        from_scratch=config.get("from_scratch", False),
        teacher=teacher,
        out=out,
        resume=resume,
        watchers=_run.make_watchers(out, quiet),
        tell=(lambda _: None) if quiet else (lambda text: say(text, err_console)),
        about=written,
    )
    if not leads:
        return  # without a code: torchrun would end the leading one before it has written its report
    report = write_run_report(out)
    if not quiet:
        console = err_console if json_ else out_console
        console.print(comparison, highlight=False, soft_wrap=True)
        say(f"in {out}: small/model.safetensors, small/model.onnx, small/model.qrn, record.json", err_console)
        say(f"the report: {report}", err_console)
    if json_:
        typer.echo(json.dumps(comparison.to_dict()))
    missed = "; ".join(str(verdict) for verdict in comparison.verdicts() if not verdict.met)
    if quiet and (comparison.useless or missed):  # else the table has said it
        say(f"quern: {comparison.useless or f'the budget was missed: {missed}.'}", err_console)
    if comparison.useless or missed:
        raise typer.Exit(AT_CHANCE if comparison.useless else MISSED)
