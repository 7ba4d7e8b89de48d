"""``quern tune``."""

from pathlib import Path
from typing import Annotated

from quern.cli._console import Fetching, err_console, out_console, say
from quern.cli._folder import check_out
from quern.cli._options import DataDirOfPaper, of_what, of_where
from quern.errors import RecordError

EXAMPLES = """
Examples:

  quern tune --dataset digits --trials 6

  quern tune --dataset mnist --lambdas lambdas.toml    (run it twice at once for two cores: they share the journal)

  quern reproduce table1 --dataset mnist --seeds 5 --lambdas lambdas.toml
"""


def tune(
    dataset: Annotated[str, of_what(help="mnist, cifar10 or digits.")] = "digits",
    family: Annotated[list[str] | None, of_what(help="paper or quern; repeat it.", show_default="both")] = None,
    method: Annotated[
        list[str] | None,
        of_what(
            help="l2, l1, rq, rql, rq-bn, rql-bn, gamma-bn (γ alone), gamma-beta-bn (γ with β); repeat it.",
            show_default="all",
        ),
    ] = None,
    trials: Annotated[int, of_what(help="Trials of every method.")] = 8,
    images: Annotated[int | None, of_what(help="Images to train on in a trial.", show_default="by data set")] = None,
    epochs: Annotated[int | None, of_what(help="Epochs of a trial.", show_default="by data set")] = None,
    lambdas: Annotated[Path, of_where(help="File for the chosen weights; others in it stay.")] = Path("lambdas.toml"),
    storage: Annotated[Path, of_where(help="Journal of the studies; what is in it is not run again.")] = Path(
        "runs/tune.journal"
    ),
    results: Annotated[Path, of_where(help="Folder for the record of all trials.")] = Path("results"),
    data_dir: DataDirOfPaper = None,
) -> None:
    """Find the weight of every penalty on validation images, with the same budget for every method."""
    from dataclasses import replace

    from rich.table import Table

    from quern import data
    from quern.paper import read_lambdas, tune
    from quern.records import DATASETS, METHODS, check_known, check_writable, without_penalty

    check_known(dataset, DATASETS, "data set")
    penalised = [name for name in METHODS if name != without_penalty(name)]
    families, methods = family or ["paper", "quern"], method or penalised
    for name in families:
        check_known(name, ("paper", "quern"), "family with penalties")
    for name in methods:
        check_known(name, penalised, "method with a weight")
    asked = {name: value for name, value in (("images", images), ("epochs", epochs)) if value is not None}
    short = replace(tune.SHORT[dataset], **asked)
    for name, value in (("trials", trials), *asked.items()):
        if value < 1:
            raise RecordError(f"--{name} is {value}, but there must be at least one.")
    if short.images < short.batch:
        raise RecordError(f"--images is {short.images}, but a batch has {short.batch}: give more.")
    if lambdas.exists():  # found damaged now, not after all trials
        check_out(lambdas)
        read_lambdas(lambdas)
    tune.read_trials(results / dataset / "tuning.json")
    check_writable(results / dataset, "--results")
    check_writable(lambdas.parent, "--lambdas")
    with Fetching(False) as progress:
        data.load(dataset, data_dir, None, progress)
    all_trials = tune.tune(
        *(dataset, families, methods, storage, trials, short, data_dir), tell=lambda text: say(text, err_console)
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("family", "method", "λ", "validation accuracy", "quaternions zero", "neurons zero"):
        table.add_column(column, justify="left" if column in ("family", "method") else "right", no_wrap=True)
    for (name, which), trial in tune.chosen(all_trials).items():
        shares = (trial.val_accuracy, trial.quaternion_sparsity, trial.neuron_sparsity)
        table.add_row(name, which, f"{trial.weight:.4g}", *(f"{share:.2%}" for share in shares))
    out_console.print(table)
    tune.write_lambdas(lambdas, dataset, all_trials)
    record = tune.write_trials(results, dataset, all_trials, short)
    say(f"in {lambdas}, all trials in {record}; go on with: quern reproduce --lambdas {lambdas}", err_console)
