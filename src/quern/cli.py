"""The ``quern`` command. Thin, and with its imports inside of functions: ``quern --help`` must not wait for torch."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from quern.errors import QuernError, TrainingError

if TYPE_CHECKING:
    from torch import nn

    from quern.data import ImageSet
    from quern.penalties import Penalty
    from quern.train import Result, Settings

app = typer.Typer(
    help="Build quaternion neural networks and make them small.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: what there is, fetching, checking.", no_args_is_help=True)
app.add_typer(data_app, name="data")

out_console = Console()
err_console = Console(stderr=True)

PENALTIES = ("l1", "l2", "rq", "rql", "gamma", "gamma-beta")
DATASET_HELP = "mnist, cifar10, digits, an .npz file, or a folder with a folder of images per class."
DataDir = Annotated[Path | None, typer.Option(help="A folder with the original files of the data set.")]


def main() -> None:
    """Run the command; errors that a user can mend are one sentence and exit code 1."""
    # Large tensors on large pages: fewer page faults, which are dear on virtual machines. Read when torch loads.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        app()
    except QuernError as reason:
        stopped = type(reason).__name__ == "Stopped"
        err_console.print(f"[bold]quern:[/] {escape(str(reason))}", soft_wrap=True, highlight=False)
        sys.exit(130 if stopped else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads; let exit be quiet
        sys.exit(1)


def _version(show: bool) -> None:
    if show:
        import quern

        typer.echo(f"quern {quern.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


TRAIN_EXAMPLES = """
Examples:

  quern train --penalty rql --lambda 20 --heal 10 --out runs/digits

  quern train --dataset mnist --penalty rql --lambda 12 --epochs 14 --heal 14 --out runs/mnist-rql

  quern train --dataset cifar10 --norm after_conv --penalty gamma --lambda 0.5 --heal 5 --flip --out runs/cifar-gamma

  quern train --dataset mnist --optimizer adam --penalty rq --lambda 20 --out runs/paper    (the paper's way)

  quern train --resume --out runs/mnist-rql

  torchrun --standalone --nproc-per-node 2 -m quern train --dataset cifar10 --out runs/cifar
"""


@app.command(epilog=TRAIN_EXAMPLES)
def train(
    context: typer.Context,
    dataset: Annotated[str, typer.Option(help=DATASET_HELP)] = "digits",
    out: Annotated[Path | None, typer.Option(help="Folder of the run, a new one unless --resume.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, with its own settings.")
    ] = False,
    penalty: Annotated[list[str] | None, typer.Option(help=f"{', '.join(PENALTIES)}; repeat it for a sum.")] = None,
    lambda_: Annotated[list[float] | None, typer.Option("--lambda", help="Weight of each --penalty, in order.")] = None,
    plain_sums: Annotated[
        bool, typer.Option("--plain-sums", help="Penalties without the factor 1/Q or 1/|Γ|.")
    ] = False,
    epochs: Annotated[int, typer.Option(help="Epochs, with the penalty if there is one.")] = 20,
    warmup: Annotated[int, typer.Option(help="Epochs before these, without the penalty.")] = 0,
    heal: Annotated[int, typer.Option(help="Epochs after these, without the penalty and with all zeros frozen.")] = 0,
    ramp: Annotated[float, typer.Option(help="Share of the epochs over which λ rises from 0.")] = 0.5,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 2e-3,
    heal_lr: Annotated[float | None, typer.Option(help="Learning rate while healing.", show_default="--lr")] = None,
    heal_dropout: Annotated[bool, typer.Option(help="Dropout while healing.")] = True,
    schedule: Annotated[
        Literal["cosine", "constant"], typer.Option(help="Learning rate: down to zero in the last phase, or the same.")
    ] = "cosine",
    optimizer: Annotated[
        Literal["proximal-adam", "proximal-sgd", "adam"],
        typer.Option(help="Proximal ones reach exact zeros; adam takes the penalty's gradient, as the paper does."),
    ] = "proximal-adam",
    weight_decay: Annotated[float, typer.Option(help="Decoupled weight decay.")] = 0.0,
    batch: Annotated[int | None, typer.Option(help="Images per step.", show_default="400; 64 for digits")] = None,
    label_smoothing: Annotated[float, typer.Option(help="Label smoothing.")] = 0.0,
    crop: Annotated[int, typer.Option(help="Shift images at random by up to this many pixels.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror half of the images.")] = False,
    model: Annotated[str | None, typer.Option(help="A network of quern.models.", show_default="by data set")] = None,
    norm: Annotated[
        Literal["none", "after_conv", "after_activation"] | None, typer.Option(help="Batch normalisation.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout of the network.", show_default="the network's")] = None,
    seed: Annotated[int, typer.Option(help="The same command with the same seed gives the same weights.")] = 0,
    data_dir: DataDir = None,
    image_size: Annotated[
        int | None, typer.Option(help="Resize the images of a folder to this height and width.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="bfloat16 runs under autocast.")
    ] = "float32",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", show_default="all cores")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Event files in the run's folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="The result as JSON on the last line of standard output.")
    ] = False,
) -> None:
    """Train a network, to exact zeros if there is a penalty."""
    given = {name for name in context.params if _explicit(context, name)}
    if resume:
        config = _resumed(out, given)
    else:
        config = {
            "command": shlex.join(["quern", *sys.argv[1:]]),
            "dataset": dataset,
            "data_dir": str(data_dir.resolve()) if data_dir else None,
            "image_size": image_size,
            "model": model,
            "options": {k: v for k, v in (("norm", norm), ("dropout", dropout)) if v is not None},
            "threads": threads,
            "settings": {
                **{k: v for k, v in context.params.items() if k in _SETTINGS},
                "batch": batch or (64 if dataset == "digits" else 400),
                "penalty": _penalty(penalty, lambda_, plain_sums),
            },
        }
    _train(config, out, resume, tensorboard, quiet, json_)


_SETTINGS = (
    *("epochs", "warmup", "heal", "ramp", "lr", "heal_lr", "heal_dropout", "schedule", "optimizer", "weight_decay"),
    *("label_smoothing", "crop", "flip", "seed", "device", "precision"),
)
_ALLOWED_ON_RESUME = {"out", "resume", "tensorboard", "quiet", "json_"}


def _explicit(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _resumed(out: Path | None, given: set[str]) -> dict[str, Any]:
    if out is None:
        raise TrainingError("--resume needs the folder of the run: say --out FOLDER.")
    if extra := sorted(given - _ALLOWED_ON_RESUME):
        options = ", ".join(f"--{name.strip('_').replace('_', '-')}" for name in extra)
        raise TrainingError(f"a run goes on with its own settings: leave out {options}.")
    return _read_json(out / "config.json", "the settings of a run")


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainingError(f"{path} is not there: {path.parent} does not hold {what}.") from None
    except (OSError, ValueError) as reason:
        raise TrainingError(f"{path} cannot be read: {reason}.") from reason
    if not isinstance(found, dict):
        raise TrainingError(f"{path} does not hold {what}.")
    return found


def _penalty(names: list[str] | None, weights: list[float] | None, plain_sums: bool) -> list[dict[str, Any]] | None:
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
            raise TrainingError(f"there is no penalty {name}: choose among {', '.join(PENALTIES)}.")
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

    from quern import data, train
    from quern.environment import facts
    from quern.files import write_text

    if config["threads"] is not None:
        if config["threads"] < 1:
            raise TrainingError(f"--threads is {config['threads']}, but there must be at least one.")
        torch.set_num_threads(config["threads"])
    leads = os.environ.get("RANK", "0") == "0"
    settings = train.Settings.from_dict(config["settings"])
    if not resume and out is not None and (out / "config.json").exists():
        raise TrainingError(f"{out} already holds a run: go on with --resume, or choose another folder.")
    with _fetching(quiet or not leads) as progress:
        size, folder = config["image_size"], config["data_dir"]
        images = data.load(config["dataset"], Path(folder) if folder else None, size, progress)
    torch.manual_seed(settings.seed)
    network = _build(config, images)
    if settings.penalty is not None:
        try:
            settings.penalty.targets(network)
        except ValueError as reason:
            raise TrainingError(f"{str(reason).rstrip('.')} (for a built-in network: --norm after_conv).") from reason
    if leads and out is not None and not resume:
        config = {**config, "threads": torch.get_num_threads(), "sums": images.sums, "environment": facts()}
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_text(out / "config.json", json.dumps(config, indent=1))
        except OSError as reason:
            raise TrainingError(f"{out} cannot be written to ({reason.strerror}): choose another --out.") from reason
    watchers = _watchers(out, tensorboard, quiet, leads)
    if leads and not quiet:
        count = sum(p.numel() for p in network.parameters())
        said = f"{_model_name(config, images)}: {count:,} parameters; "
        said += f"{images.name}: {len(images.train):,} images to train, {len(images.val):,} to validate; "
        err_console.print(f"{said}{_phases(settings)}", highlight=False, soft_wrap=True)
    result = train.fit(network, images, settings, out, resume, watchers)
    if leads and not quiet:
        _print_result(result, settings)
        if out is not None:
            err_console.print(f"in {out}; again: quern show {out}", highlight=False, soft_wrap=True)
    if leads and json_:
        typer.echo(json.dumps({k: v for k, v in result.to_dict().items() if k != "history"}))


def _phases(settings: "Settings") -> str:
    parts = [(settings.warmup, "to warm up"), (settings.epochs, f"with {settings.penalty}" if settings.penalty else "")]
    parts.append((settings.heal, "to heal"))
    return ", ".join(f"{count} epochs {what}".strip() for count, what in parts if count)


def _watchers(out: Path | None, tensorboard: bool, quiet: bool, leads: bool) -> list[Any]:
    from quern import progress

    if not leads:
        return []
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


_DEFAULT_MODELS = {"mnist": "mnist_qcnn", "cifar10": "cifar_qcnn", "digits": "digits_qcnn"}


def _model_name(config: dict[str, Any], images: "ImageSet") -> str:
    return config["model"] or _DEFAULT_MODELS.get(images.name, "qresnet20")


def _build(config: dict[str, Any], images: "ImageSet") -> "nn.Module":
    import torch

    from quern import models

    name = _model_name(config, images)
    if name not in models.BUILDERS:
        raise TrainingError(f"there is no network {name}: choose among {', '.join(models.BUILDERS)}.")
    options = {**config["options"], "classes": len(images.classes)}
    if name in ("qresnet20", "resnet20"):
        options["channels"] = images.shape[0]
    try:
        network = models.BUILDERS[name](**options)
    except TypeError as reason:
        raise TrainingError(f"{name} does not take {', '.join(config['options'])}: {reason}.") from reason
    except ValueError as reason:
        raise TrainingError(str(reason)) from reason
    try:
        with torch.no_grad():
            network.eval()(images.normalize(images.train.pixels[:1]))
    except (RuntimeError, ValueError) as reason:
        size = " x ".join(map(str, images.shape))
        raise TrainingError(f"{name} does not take images of {size}: choose another --model ({reason}).") from reason
    return network.train()


def _print_result(result: "Result", settings: "Settings") -> None:
    found = result.sparsity
    out_console.print(
        f"test accuracy {result.test_accuracy:.2%} (validation {result.val_accuracy:.2%}, epoch {result.best_epoch} of "
        f"{settings.total})\nexact zeros: {found.component_sparsity:.1%} of components, "
        f"{found.quaternion_sparsity:.1%} of quaternions, {found.neuron_sparsity:.1%} of neurons",
        highlight=False,
        soft_wrap=True,
    )
    out_console.print(found, highlight=False)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run of quern train.")],
    history: Annotated[bool, typer.Option("--history", help="Every epoch, too.")] = False,
) -> None:
    """Print what a run was, and what it reached."""
    config = _read_json(run / "config.json", "a run of quern train")
    from quern.progress import clock, summary
    from quern.train import Result, Settings

    settings = Settings.from_dict(config["settings"])
    facts = config.get("environment") or {}
    out_console.print(f"[bold]{escape(str(config['command']))}[/]", highlight=False, soft_wrap=True)
    out_console.print(f"{config['dataset']}, seed {settings.seed}: {_phases(settings)}", highlight=False)
    out_console.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, soft_wrap=True)
    lines = []
    if (run / "history.jsonl").exists():
        lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    result = None
    if (run / "result.json").exists():
        result = Result.from_dict(_read_json(run / "result.json", "a result"))
        lines = list(result.history)
    for line in lines if history else []:
        out_console.print(summary(line, settings.total), highlight=False, soft_wrap=True)
    if result is not None:
        out_console.print(f"{len(lines)} epochs in {clock(result.seconds)}", highlight=False)
        _print_result(result, settings)
        return
    if lines and not history:
        out_console.print(summary(lines[-1], settings.total), highlight=False, soft_wrap=True)
    out_console.print(f"not finished; go on with: quern train --resume --out {run}", highlight=False, soft_wrap=True)


class _fetching:
    """Shows the download of a data set, and what the data module has to say, unless ``quiet``."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Any:
        import logging

        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=err_console, disable=self.quiet or not err_console.is_terminal)
        self.handler = logging.Handler()
        self.handler.emit = lambda record: err_console.print(record.getMessage(), highlight=False, soft_wrap=True)
        self.logger = logging.getLogger("quern.data")
        self.logger.addHandler(self.handler)
        self.logger.setLevel(logging.WARNING if self.quiet else logging.INFO)
        return self.report

    def report(self, what: str, done: int, total: int | None) -> None:
        if what not in self.tasks:
            if not self.tasks:
                self.progress.start()
            self.tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(self.tasks[what], completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self.tasks:
            self.progress.stop()
        self.logger.removeHandler(self.handler)


@data_app.command("list")
def data_list() -> None:
    """The data sets quern knows, and where they are."""
    from quern import data

    for name in data.NAMES:
        if name == "digits":
            where = "comes with scikit-learn"
        else:
            path = data.cache_file(name)
            where = (
                f"{path} ({path.stat().st_size:,} bytes)" if path.exists() else f"not fetched: quern data fetch {name}"
            )
        out_console.print(f"{name:8s} {where}", highlight=False, soft_wrap=True)


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="mnist, cifar10")],
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Fetch data sets into the cache, and check them."""
    from quern import data

    for name in names:
        with _fetching(quiet) as progress:
            path = data.fetch(name, data_dir, progress)
        if not quiet:
            out_console.print(f"{name}: {path}", highlight=False, soft_wrap=True)


@data_app.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="mnist, cifar10; by default both")] = None,
) -> None:
    """Check the data sets in the cache against their published SHA-256 sums."""
    from quern import data

    fetched = [name for name in data.NAMES if name != "digits"]
    if unknown := [name for name in names or [] if name not in fetched]:
        raise QuernError(f"there is no {unknown[0]} to verify: give {' or '.join(fetched)}.")
    wrong = False
    for name in names or fetched:
        problem = data.verify(name)
        wrong |= problem is not None
        out_console.print(problem or f"{name}: as published", highlight=False, soft_wrap=True)
    if wrong:
        raise typer.Exit(1)
