"""Which runs make which table or figure, and how each of them is trained."""

import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quern.errors import RecordError
from quern.records import (
    DATASETS,
    FAMILIES,
    FIGURE2,
    METHODS,
    NEURONS,
    TABLE1,
    Dataset,
    Family,
    Method,
    Run,
    check_known,
    schema,
    without_penalty,
)
from quern.records.schema import Positive

if TYPE_CHECKING:
    from quern.train import Settings

# The methods whose runs a table or figure is made of; the claims about neurons go with figure 2. Table 2 is timed, not
# trained: see `time_steps`.
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "table1": TABLE1,
    "figure1": TABLE1,
    "figure2": tuple(dict.fromkeys((*FIGURE2, *NEURONS))),
    "table2": (),
}
PAPER_TOL = 1e-3
GRIND = 0.6  # the share of the epochs that the family "quern" spends on grinding; it heals for the rest


@dataclass(frozen=True)
class Protocol:
    """What all runs on a data set have in common. ``lr_bn`` is for networks with batch normalisation; ``curves`` where
    the paper shows test accuracy epoch by epoch; ``seconds`` is a guess of what an epoch takes on one core, until there
    are records to tell."""

    model: str
    twin: str
    epochs: int
    batch: int
    lr: float
    lr_bn: float
    heal_dropout: bool
    curves: bool
    seconds: float


# As the authors ran them, but for one thing: CIFAR-10 takes 12 epochs with batches of 100 in place of 50 with batches
# of 400, which is as many steps (5,400 and 5,650) in a quarter of the time, at a learning rate for small batches.
PROTOCOLS = {
    "mnist": Protocol("mnist_qcnn", "mnist_cnn", 20, 400, 2e-3, 1e-3, False, curves=False, seconds=12.0),
    "cifar10": Protocol("cifar_qcnn", "cifar_cnn", 12, 100, 1e-3, 1e-3, True, curves=True, seconds=140.0),
    "digits": Protocol("digits_qcnn", "digits_cnn", 20, 64, 5e-3, 5e-3, False, curves=True, seconds=0.5),
}


def runs(
    parts: Iterable[tuple[str, str]],
    seeds: int,
    epochs: int | None = None,
    families: Collection[str] = (),
    methods: Collection[str] = (),
) -> list[Run]:
    """The runs of some ``parts``, each an experiment and a data set; a run that several need is there once, and all
    first seeds come before the second ones. ``families`` and ``methods``, if any are named, leave out all others."""
    for names, known, what in ((families, FAMILIES, "family"), (methods, METHODS, "method")):
        for name in names:
            check_known(name, known, what)
    parts = list(parts)
    for experiment, dataset in parts:
        check_known(experiment, EXPERIMENTS, "experiment")
        check_known(dataset, DATASETS, "data set")
    chosen = dict.fromkeys(
        Run(dataset, family, method, PROTOCOLS[dataset].epochs if epochs is None else epochs, seed)
        for seed in range(seeds)
        for experiment, dataset in parts
        for method in EXPERIMENTS[experiment]
        for family in FAMILIES
        if (family != "real" or (experiment == "table1" and method == "none"))
        and (not families or family in families)
        and (not methods or method in methods)
    )
    return list(chosen)


Lambdas = dict[Dataset, dict[Family, dict[Method, Positive]]]


@cache
def _own() -> Lambdas:
    return tomllib.loads(resources.files("quern.paper").joinpath("lambdas.toml").read_text(encoding="utf-8"))


def read_lambdas(path: Path | None = None) -> Lambdas:
    """The weights of the penalties by data set, family and method, from a file of ``quern tune``, or those
    that come with quern."""
    if path is None:
        return _own()
    return schema.read(path, Lambdas, "weights of penalties", "mend it, or find them again by quern tune", toml=True)


def lambda_of(run: Run, lambdas: Lambdas) -> float | None:
    """The weight of a run's penalty, None if it has none."""
    if run.method == without_penalty(run.method):
        return None
    try:
        return float(lambdas[run.dataset][run.family][run.method])
    except KeyError:
        raise RecordError(
            f"there is no λ for {run.dataset}, {run.family}, {run.method}: "
            f"find one by quern tune --dataset {run.dataset} --family {run.family} --method {run.method}."
        ) from None


def network_of(run: Run) -> tuple[str, dict[str, str | float]]:
    """The name of a run's network in :mod:`quern.models`, and its options."""
    protocol = PROTOCOLS[run.dataset]
    options: dict[str, str | float] = {"norm": "after_conv"} if run.method.endswith("-bn") else {}
    return protocol.twin if run.family == "real" else protocol.model, options


def settings_of(run: Run, weight: float | None) -> "Settings":
    """How a run is trained, with ``weight`` as the λ of its penalty."""
    from quern import penalties
    from quern.train import Settings

    protocol = PROTOCOLS[run.dataset]
    common: dict[str, Any] = {
        "batch": protocol.batch,
        "lr": protocol.lr_bn if run.method.endswith("-bn") else protocol.lr,
        "seed": run.seed,
        "curves": protocol.curves,
    }
    kind = run.method.removesuffix("-bn")
    penalty = None
    if weight is not None:
        if kind.startswith("gamma"):
            penalty = penalties.GammaL1(weight, with_beta=kind == "gamma-beta")
        else:
            penalty = getattr(penalties, kind.upper())(weight)
    if run.family == "paper":
        return Settings(
            epochs=run.epochs, penalty=penalty, optimizer="adam", schedule="constant", ramp=0.0, tol=PAPER_TOL, **common
        )
    if penalty is None:
        return Settings(epochs=run.epochs, **common)
    grind = max(1, round(GRIND * run.epochs))
    return Settings(
        epochs=grind,
        heal=run.epochs - grind,
        penalty=penalty,
        heal_dropout=protocol.heal_dropout,
        compact_every=1,
        **common,
    )
