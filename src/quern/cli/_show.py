"""``quern show``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from quern.cli._console import out_console, say
from quern.cli._folder import begun, how_to_go_on
from quern.cli._run import print_result
from quern.errors import TrainingError
from quern.records import (
    ACCURACY,
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
from quern.records.text import clock, in_epochs, summary


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
    whole = run.resolve().parent
    if not path.exists() and (stages := begun(whole)) is not None and run.resolve().name in ("dense", "small"):
        _show_stage(run, stages, history)
        return
    config = schema.read(path, TrainConfig, "a run of quern train", "restore it, or train again")
    settings = _course(config["settings"], path)
    lines, result = _reached(run)  # all files are read before anything is said
    say(visible(config["command"]))
    say(f"{visible(config['dataset'])}, seed {settings.seed}: {settings.phases}")
    _say_facts(config.get("environment", {}))
    _say_course(settings, lines, result, history, how_to_go_on(run))


def _show_stage(run: Path, config: Begun, history: bool) -> None:
    """One of the two networks of a run of ``quern compress``."""
    stage, whole = run.resolve().name, run.resolve().parent
    given = config["settings"][stage]
    settings = _course({"epochs": 0} if given is None else given, whole / "config.json")
    lines, result = _reached(run)
    say(f"the {stage} network of {visible(config.get('command') or 'quern.compress')}")
    if given is None:
        say("it was given, not trained")
    _say_course(settings, lines, result, history, how_to_go_on(whole))


def _reached(run: Path) -> tuple[list[Epoch], Result | None]:
    """The epochs of a training, and what it came to if it is finished."""
    if not (run / "result.json").exists():
        return _history(run), None
    result = schema.read(run / "result.json", Result, "the result of a run", "remove it, and go on with --resume")
    return list(result.history), result


def _say_course(settings: Course, lines: list[Epoch], result: Result | None, history: bool, go_on: str) -> None:
    epochs = [summary(line, settings.total) for line in lines]
    for line in epochs if history else []:
        say(line)
    if result is not None:
        say(f"{in_epochs(len(lines))} in {clock(result.seconds)}")
        print_result(result, settings, out_console)
        return
    if epochs and not history:
        say(epochs[-1])
    say(f"not finished; go on with: {go_on}")


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
            record["dense"],
            record["small"],
            budget,
            record.get("chance"),
            record.get("answers", ()),
            metric=record.get("metric", ACCURACY),
            scratch=record.get("scratch"),
        )
    for stage in ("dense", "small", "scratch"):
        lines = _history(run / stage) if record is None else record["history"].get(stage, [])
        total = _course(settings.get(stage), path if record else run / "config.json").total if lines else 0
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
