"""``quern show``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from quern.cli._console import out_console, say
from quern.cli._folder import how_to_go_on, is_compressed, written
from quern.cli._train import CONFIG, phases, print_result
from quern.errors import TrainingError
from quern.records import read_json, reading

_RESULT = ("history", "best_epoch", "val_accuracy", "test_accuracy", "test_loss", "sparsity", "seconds")


def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run of quern train or compress.")],
    history: Annotated[bool, typer.Option("--history", help="Every epoch, too.")] = False,
) -> None:
    """Print what a run was, and what it reached."""
    if run.is_file():
        raise TrainingError(f"{run} is a file: give the folder of a run.")
    if is_compressed(run):
        _show_compressed(run, history)
        return
    config = read_json(run / "config.json", "a run of quern train", CONFIG)
    from quern.progress import clock, summary
    from quern.train import Result, Settings

    settings, result = Settings.from_dict(config["settings"]), None
    if (run / "result.json").exists():
        result = Result.from_dict(read_json(run / "result.json", "a result", _RESULT))
    lines = _history(run) if result is None else list(result.history)
    facts = config.get("environment") or {}
    say(str(config["command"]))
    say(f"{config['dataset']}, seed {settings.seed}: {phases(settings)}")
    say(", ".join(f"{name} {value}" for name, value in facts.items()))
    for line in lines if history else []:
        say(summary(line, settings.total))
    if result is not None:
        say(f"{len(lines)} epochs in {clock(result.seconds)}")
        print_result(result, settings, out_console)
        return
    if lines and not history:
        say(summary(lines[-1], settings.total))
    say(f"not finished; go on with: {how_to_go_on(run)}")


def _history(run: Path) -> list[dict[str, Any]]:
    """The epochs of a training so far, each fit to be printed."""
    from quern.progress import summary

    path = run / "history.jsonl"
    if not path.exists():
        return []
    with reading(path, "the history of a run"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        _ = [summary(line, len(lines)) for line in lines]
    return lines


def _show_compressed(run: Path, history: bool) -> None:
    from quern.pipeline import Budget, Chance, Comparison, Network
    from quern.progress import summary
    from quern.train import Settings

    path, about, record = run / "record.json", written(run), None
    if path.exists():
        record = read_json(path, "a run of quern compress", ("dense", "small", "settings", "history"))
    found, said = None, []
    with reading(path if record else run / "config.json", "a run of quern compress"):
        if record:
            networks = (Network(**record["dense"]), Network(**record["small"]))
            chance = record.get("chance")
            found = Comparison(*networks, Budget(**record["settings"]["budget"]), chance and Chance(**chance))
        for stage in ("dense", "small"):
            lines = record["history"][stage] if record else _history(run / stage)
            total = Settings.from_dict(about["settings"][stage]).total if lines else 0
            said += [f"{stage}: {summary(line, total)}" for line in lines]
    if "command" in about:
        say(str(about["command"]))
    say(", ".join(f"{name} {value}" for name, value in (about.get("environment") or {}).items()))
    for line in said if history else said[-1:] if not found else []:
        say(line)
    if found:
        out_console.print(found, highlight=False)
    else:
        say(f"not finished; go on with: {how_to_go_on(run)}")
