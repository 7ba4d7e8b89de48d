"""``quern train``."""

import json
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from quern.cli._console import Fetching, err_console, out_console, say
from quern.cli._folder import how_to_go_on, is_compressed
from quern.errors import TrainingError, instead_of
from quern.records import Course, Result, TrainConfig, check_writable, schema

if TYPE_CHECKING:
    from torch import nn

    from quern.data import ImageSet
    from quern.penalties import Penalty

PENALTIES = ("l1", "l2", "rq", "rql", "gamma", "gamma-beta")
DATASET_HELP = "mnist, cifar10, digits, an .npz file, or a folder with a folder of images per class."
NORM_HELP = "Batch normalisation: none, after_conv or after_activation."
# As in quern.models, which is not loaded for a page of help.
MODELS = ("mnist_qcnn", "cifar_qcnn", "digits_qcnn", "qresnet20")
REAL_MODELS = ("mnist_cnn", "cifar_cnn", "digits_cnn", "resnet20")

EXAMPLES = """
Examples:

  quern train --penalty rql --lambda 20 --heal 10 --out runs/digits

  quern train --dataset mnist --penalty rql --lambda 16 --epochs 12 --heal 18 --batch 100 --out runs/mnist-rql

  quern train --dataset cifar10 --norm after_conv --penalty gamma --lambda 0.5 --heal 5 --flip --out runs/cifar-gamma

  quern train --dataset mnist --optimizer adam --penalty rq --lambda 20 --out runs/paper    (the paper's way)

  quern train --resume --out runs/mnist-rql

  torchrun --standalone --nproc-per-node 2 -m quern train --dataset cifar10 --out runs/cifar
"""

_run = partial(typer.Option, rich_help_panel="The run")
_target = partial(typer.Option, rich_help_panel="Penalty and phases")
_step = partial(typer.Option, rich_help_panel="Steps")
_network = partial(typer.Option, rich_help_panel="Network and data")
_machine = partial(typer.Option, rich_help_panel="Machine")

Out = Annotated[Path | None, _run(help="Folder of the run, a new one unless --resume.")]
Resume = Annotated[bool, _run("--resume", help="Go on with the run in --out, with its own settings.")]
Quiet = Annotated[bool, _run("--quiet", help="Say nothing but errors.")]
Json = Annotated[bool, _run("--json", help="The result as JSON on standard output, all else on standard error.")]
TensorBoard = Annotated[bool, _run("--tensorboard", help="Event files in the run's folder.")]
Names = Annotated[list[str] | None, _target(help=f"{', '.join(PENALTIES)}; repeat it for a sum.")]
Weights = Annotated[list[float] | None, _target("--lambda", help="Weight of each --penalty, in order.")]
PlainSums = Annotated[bool, _target("--plain-sums", help="Penalties without the factor 1/Q or 1/|Γ|.")]
HealLr = Annotated[float | None, _target(help="Learning rate while healing.", show_default="--lr")]
Schedule = Literal["cosine", "constant"]
Optimizer = Literal["proximal-adam", "proximal-sgd", "adam"]
Norm = Literal["none", "after_conv", "after_activation"]
DataDir = Annotated[Path | None, _network(help="A folder with the original files of the data set.")]
Dropout = Annotated[float | None, _network(help="Dropout of the network.", show_default="the network's")]
ImageSize = Annotated[int | None, _network(help="Resize the images of a folder to this height and width.")]
Gray = Annotated[
    bool | None,
    _network(
        "--gray/--color",
        help="Read the images of a folder with one channel, or with three.",
        show_default="gray if no pixel has a colour",
    ),
]
Precision = Literal["float32", "bfloat16"]


def train(
    context: typer.Context,
    dataset: Annotated[str, _network(help=DATASET_HELP)] = "digits",
    data_dir: DataDir = None,
    image_size: ImageSize = None,
    gray: Gray = None,
    model: Annotated[
        str | None,
        _network(
            help=f"{', '.join(MODELS)}; real-valued: {', '.join(REAL_MODELS)}.",
            show_default="by data set; qresnet20 for yours",
        ),
    ] = None,
    norm: Annotated[Norm | None, _network(metavar="<norm>", help=NORM_HELP, show_default="none")] = None,
    dropout: Dropout = None,
    out: Out = None,
    resume: Resume = False,
    penalty: Names = None,
    lambda_: Weights = None,
    plain_sums: PlainSums = False,
    warmup: Annotated[int, _target(help="Epochs at the start, without the penalty.")] = 0,
    epochs: Annotated[int, _target(help="Epochs, with the penalty if there is one.")] = 20,
    ramp: Annotated[float, _target(help="Share of --epochs over which λ rises from 0.")] = 0.5,
    heal: Annotated[int, _target(help="Epochs at the end, without the penalty and with all zeros frozen.")] = 0,
    heal_lr: HealLr = None,
    heal_dropout: Annotated[bool, _target(help="Dropout while healing.")] = True,
    compact_every: Annotated[
        int, _target(help="Remove what died after every so many epochs with the penalty, and before healing; 0: never.")
    ] = 0,
    optimizer: Annotated[Optimizer, _step(help="adam takes the penalty's gradient: no exact zeros.")] = "proximal-adam",
    lr: Annotated[float, _step(help="Learning rate.")] = 2e-3,
    schedule: Annotated[Schedule, _step(help="Learning rate: down to zero in the last phase, or not.")] = "cosine",
    weight_decay: Annotated[float, _step(help="Decoupled weight decay (coupled for proximal-sgd).")] = 0.0,
    batch: Annotated[
        int | None, _step(help="Images per step.", show_default="400 or all images; 64 for digits")
    ] = None,
    label_smoothing: Annotated[float, _step(help="Label smoothing.")] = 0.0,
    crop: Annotated[int, _step(help="Shift images at random by up to this many pixels.")] = 0,
    flip: Annotated[bool, _step("--flip", help="Mirror half of the images.")] = False,
    seed: Annotated[int, _step(help="The same command with the same seed gives the same weights.")] = 0,
    device: Annotated[str, _machine(help="cpu, cuda, ...")] = "cpu",
    precision: Annotated[Precision, _machine(help="bfloat16 runs under autocast.")] = "float32",
    tol: Annotated[float, _step(help="Count magnitudes up to this as zero in what is reported.")] = 0.0,
    threads: Annotated[int | None, _machine(help="CPU threads.", show_default="all cores")] = None,
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Train a network, to exact zeros if there is a penalty."""
    if resume:
        path = resumed(out, {name for name in context.params if explicit(context, name)})
        if is_compressed(path.parent):
            raise TrainingError(f"{out} is a run of quern compress: go on with {how_to_go_on(path.parent)}.")
        config = dict(schema.read(path, TrainConfig, "the settings of a run", "restore it, or begin again"))
    else:
        config = {
            "command": shlex.join(["quern", *sys.argv[1:]]),
            "dataset": dataset_name(dataset),
            "data_dir": str(data_dir.resolve()) if data_dir else None,
            "image_size": image_size,
            "gray": gray,
            "model": model,
            "options": {k: v for k, v in (("norm", norm), ("dropout", dropout)) if v is not None},
            "threads": threads,
            "settings": {
                **{k: v for k, v in context.params.items() if k in _SETTINGS},
                "batch": batch,
                "penalty": penalty_terms(penalty, lambda_, plain_sums),
            },
        }
    _train(config, out, resume, tensorboard, quiet, json_)


_SETTINGS = (
    *(
        "epochs",
        "warmup",
        "heal",
        "ramp",
        "lr",
        "heal_lr",
        "heal_dropout",
        "compact_every",
        "schedule",
        "optimizer",
        "weight_decay",
    ),
    *("label_smoothing", "crop", "flip", "seed", "device", "precision", "tol"),
)
_ALLOWED_ON_RESUME = {"out", "resume", "tensorboard", "quiet", "json_"}


def explicit(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def resumed(out: Path | None, given: set[str]) -> Path:
    """The file with the settings that a run was begun with; ``given`` are the options of the command that goes on with
    it."""
    if out is None:
        raise TrainingError("--resume needs the folder of the run: say --out FOLDER.")
    if extra := sorted(given - _ALLOWED_ON_RESUME):
        options = ", ".join(f"--{name.strip('_').replace('_', '-')}" for name in extra)
        raise TrainingError(f"a run goes on with its own settings: leave out {options}.")
    return out / "config.json"


def penalty_terms(
    names: list[str] | None, weights: list[float] | None, plain_sums: bool
) -> list[dict[str, Any]] | None:
    """The sum of the penalties that were asked for, as plain values."""
    names, weights = names or [], weights or []
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
        try:
            if name.startswith("gamma"):
                one = penalties.GammaL1(weight, with_beta=name == "gamma-beta", normalize=not plain_sums)
            else:
                one = getattr(penalties, name.upper())(weight, normalize=not plain_sums)
        except ValueError as reason:
            raise TrainingError(str(reason)) from reason
        total = one if total is None else total + one
    assert total is not None
    return total.to_list()


def _train(config: dict[str, Any], out: Path | None, resume: bool, tensorboard: bool, quiet: bool, json_: bool) -> None:
    import torch

    from quern import train
    from quern.bench.machine import facts

    set_threads(config["threads"])
    leads = os.environ.get("RANK", "0") == "0"
    asked, path = config["settings"], out / "config.json" if resume and out else None
    train.Settings.from_dict(asked if asked.get("batch") else {**asked, "batch": 1}, path)  # before any download
    if leads and not resume and out is not None and ((out / "last.safetensors").exists() or is_compressed(out)):
        raise TrainingError(f"{out} already holds a run: go on with --resume, or choose another folder.")
    images = images_of(config, out, resume, quiet or not leads)
    if asked.get("batch") is None:
        asked["batch"] = min(64 if images.name == "digits" else 400, len(images.train))
    settings = train.Settings.from_dict(asked, path)
    torch.manual_seed(settings.seed)
    network = build(config, images)
    if settings.penalty is not None:
        try:
            settings.penalty.targets(network)
        except ValueError as reason:
            hint = " (in a built-in network by --norm after_conv)" if "normalisation" in str(reason) else ""
            raise TrainingError(f"{str(reason).rstrip('.')}{hint}.") from reason
    if not resume:
        config = {**config, "threads": torch.get_num_threads(), "sums": images.sums, "environment": facts()}
        if leads and out is not None:
            check_writable(out, "--out")
    told = watchers(out, tensorboard, quiet, leads)
    if leads and not quiet:
        count = sum(p.numel() for p in network.parameters())
        said = f"{model_name(config, images)}: {count:,} parameters; "
        said += f"{images.name}: {len(images.train):,} images to train, {len(images.val):,} to validate; "
        say(f"{said}{settings.phases}", err_console)
    result = train.fit(network, images, settings, out, resume, told, about=config)
    if leads and not quiet:
        print_result(result, settings, err_console if json_ else out_console)
        if out is not None:
            say(f"in {out}; again: quern show {shlex.quote(str(out))}", err_console)
    if leads and json_:
        typer.echo(json.dumps({k: v for k, v in result.to_dict().items() if k != "history"}))


def set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        if threads < 1:
            raise TrainingError(f"--threads is {threads}, but there must be at least one.")
        torch.set_num_threads(threads)


def dataset_name(dataset: str) -> str:
    """A path as it is known from any folder; the names of data sets as they are."""
    return str(Path(dataset).resolve()) if Path(dataset).exists() and dataset not in _DEFAULT_MODELS else dataset


def images_of(config: dict[str, Any], out: Path | None, resume: bool, quiet: bool) -> "ImageSet":
    """The data set of a run, which must be what it was when the run goes on."""
    from quern import data

    with Fetching(quiet) as progress:
        folder = Path(config["data_dir"]) if config["data_dir"] else None
        images = data.load(config["dataset"], folder, config["image_size"], progress, config.get("gray"))
    if resume and config["sums"] != images.sums:
        raise TrainingError(f"{config['dataset']} is not the data that {out} was trained on: its SHA-256 sums differ.")
    return images


def watchers(out: Path | None, tensorboard: bool, quiet: bool, leads: bool) -> list[Any]:
    from quern.train import progress

    if not leads:
        return []
    found: list[Any] = []
    if not quiet:
        found.append(progress.Bar(err_console) if err_console.is_terminal else progress.Lines(err_console))
    if tensorboard:
        if out is None:
            raise TrainingError("--tensorboard writes into the run's folder: say --out FOLDER.")
        try:
            found.append(progress.Events(out / "events"))
        except ImportError:
            raise TrainingError("--tensorboard needs the tensorboard package: pip install tensorboard.") from None
    return found


_DEFAULT_MODELS = {"mnist": "mnist_qcnn", "cifar10": "cifar_qcnn", "digits": "digits_qcnn"}


def model_name(config: dict[str, Any], images: "ImageSet") -> str:
    return config["model"] or _DEFAULT_MODELS.get(images.name, "qresnet20")


def build(config: dict[str, Any], images: "ImageSet") -> "nn.Module":
    from quern import models

    name = model_name(config, images)
    if name not in models.BUILDERS:
        raise TrainingError(f"there is no network {name}: {instead_of(name, models.BUILDERS)}")
    options = {**config["options"], "classes": len(images.classes)}
    if name in ("qresnet20", "resnet20"):
        options["channels"] = images.shape[0]
    try:
        network = models.BUILDERS[name](**options)
    except (TypeError, ValueError) as reason:
        raise TrainingError(str(reason)) from reason
    check_images(network, images, name)
    return network.train()


def check_images(network: "nn.Module", images: "ImageSet", name: str) -> None:
    """One sentence if the network does not take such images, or has fewer scores than there are classes."""
    import torch

    size = " x ".join(map(str, images.shape))
    try:
        with torch.no_grad():
            scores = network.eval()(images.normalize(images.train.pixels[:1]))
    except (RuntimeError, ValueError) as reason:
        said = str(reason).rstrip(".")
        raise TrainingError(f"{name} does not take images of {size}: choose another --model ({said}).") from reason
    if scores.dim() != 2 or scores.shape[1] < len(images.classes):
        raise TrainingError(f"{name} gives scores of shape {tuple(scores.shape)}, for {len(images.classes)} classes.")


def _zeros(settings: Course) -> str:
    return f"up to {settings.tol:g}" if settings.tol else "exact zeros"


def print_result(result: Result, settings: Course, console: Console) -> None:
    found = result.sparsity
    tested = "no test accuracy" if result.test_accuracy is None else f"test accuracy {result.test_accuracy:.2%}"
    say(
        f"{tested} (validation {result.val_accuracy:.2%}, epoch {result.best_epoch} of "
        f"{settings.total})\n{_zeros(settings)}: {found.component_sparsity:.1%} of components, "
        f"{found.quaternion_sparsity:.1%} of quaternions, {found.neuron_sparsity:.1%} of neurons",
        console,
    )
    console.print(found, highlight=False)
