"""``quern show``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from quern.cli._console import out_console, say
from quern.cli._folder import begun, how_to_go_on
from quern.cli._run import print_result
from quern.errors import TrainingError
from quern.records import (
    Begun,
    Budget,
    Comparison,
    Course,
    Environment,
    Epoch,
    Result,
    TrainConfig,
    read_compression,
    schema,
)
from quern.records.schema import visible
from quern.records.text import clock, summary


def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run of quern train or compress.")],
    history: Annotated[bool, typer.Option("--history", help="Every epoch, too.")] = False,
) -> None:
    """Print what a run was, and what it reached."""
    if run.is_file():
        raise TrainingError(f"{run} is a file: give the folder of a run.")
    if (config := begun(run)) is not None:
        _show_compressed(run, config, history)
        return
    path = run / "config.json"
    if not path.exists() and (run / "record.json").exists():
        read_compression(run / "record.json")  # says what is wrong with it
    config = schema.read(path, TrainConfig, "a run of quern train", "restore it, or train again")
    settings, result = _course(config["settings"], path), None
    if (run / "result.json").exists():
        result = schema.read(run / "result.json", Result, "the result of a run", "remove it, and go on with --resume")
    lines = _history(run) if result is None else list(result.history)
    epochs = [summary(line, settings.total) for line in lines]
    say(visible(config["command"]))
    say(f"{visible(config['dataset'])}, seed {settings.seed}: {settings.phases}")
    _say_facts(config.get("environment", {}))
    for line in epochs if history else []:
        say(line)
    if result is not None:
        say(f"{len(lines)} epochs in {clock(result.seconds)}")
        print_result(result, settings, out_console)
        return
    if epochs and not history:
        say(epochs[-1])
    say(f"not finished; go on with: {how_to_go_on(run)}")


def _course(settings: Any, path: Path) -> Course:
    return schema.checked(path, settings, Course, "settings of quern")


def _say_facts(environment: Environment) -> None:
    say(", ".join(f"{name} {value}" for name, value in environment.items()))


def _history(run: Path) -> list[Epoch]:
    """The epochs of a training so far."""
    path = run / "history.jsonl"
    if not path.exists():
        return []
    return schema.read_lines(path, Epoch, "the history of a run", "remove it, and go on with --resume")


def _show_compressed(run: Path, config: Begun, history: bool) -> None:
    path, comparison, epochs = run / "record.json", None, []
    record = read_compression(path) if path.exists() else None
    settings = config["settings"] if record is None else record["settings"]
    if record is not None:
        budget = schema.checked(path, settings["budget"], Budget, "a budget")
        comparison = Comparison(
            record["dense"], record["small"], budget, record.get("chance"), record.get("answers", ())
        )
    for stage in ("dense", "small"):
        lines = _history(run / stage) if record is None else record["history"][stage]
        total = _course(settings[stage], path if record else run / "config.json").total if lines else 0
        epochs += [f"{stage}: {summary(line, total)}" for line in lines]
    if (command := config.get("command")) is not None:
        say(visible(command))
    _say_facts(config.get("environment", {}))
    for line in epochs if history else epochs[-1:] if not comparison else []:
        say(line)
    if comparison:
        out_console.print(comparison, highlight=False)
    else:
        say(f"not finished; go on with: {how_to_go_on(run)}")
