"""The weights of the penalties, found on validation images alone, with the same budget for every method.

Each method of each family has its own study in Optuna, with two goals: validation accuracy and quaternion sparsity
(that of neurons for L1(BN)). A trial is the run of an experiment in short: fewer images, smaller batches, fewer epochs.
The first half of the trials are spread evenly over the range of λ, the same for all but ℓ2; the others go where the
front of the two goals may grow. What is chosen is the sparsest trial that loses no more than ``DROP`` of accuracy
against a trial without penalty; if all lose more, the most accurate one.

A short trial has fewer steps for λ to act in, and smaller batches have noisier gradients, by whose spread Adam divides.
So a trial takes λ times :func:`stretch`, and the λ that is found is one for a whole run.

Studies live in one journal file, which several processes may share, and from which tuning goes on when it is stopped.
The images to test with are replaced by those to validate with before the first trial.
"""

import json
import math
import tomllib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quern import data
from quern.data import Images, ImageSet
from quern.environment import facts
from quern.errors import RecordError
from quern.experiments import PROTOCOLS, build, settings_of
from quern.files import write_text
from quern.records import METHODS, Run
from quern.train import Settings, fit

__all__ = ["SHORT", "Short", "Trial", "chosen", "front", "stretch", "tune", "write_lambdas", "write_trials"]

DROP = 0.01
RANGES = {method: (10.0, 3000.0) if method == "l2" else (1.0, 100.0) for method in METHODS}


@dataclass(frozen=True)
class Short:
    """How much of a run a trial is."""

    images: int
    batch: int
    epochs: int


SHORT = {
    "mnist": Short(images=15_000, batch=100, epochs=8),
    "cifar10": Short(images=6_000, batch=50, epochs=6),
    "digits": Short(images=1_200, batch=64, epochs=10),
}


@dataclass(frozen=True)
class Trial:
    """One λ, and what came of it on validation images; ``weight`` is None for the trial without penalty."""

    family: str
    method: str
    weight: float | None
    val_accuracy: float
    component_sparsity: float
    quaternion_sparsity: float
    neuron_sparsity: float
    nonzero_parameters: int

    @property
    def sparsity(self) -> float:
        """What the method is after."""
        return self.neuron_sparsity if self.method == "gamma-bn" else self.quaternion_sparsity


def without_test(images: ImageSet, count: int) -> ImageSet:
    """``count`` of the images to train on, evenly spaced, and nothing to test with but what validates."""
    some = torch.linspace(0, len(images.train) - 1, min(count, len(images.train))).round().long()
    train = Images(images.train.pixels[some].contiguous(), images.train.labels[some].contiguous())
    return replace(images, train=train, test=images.val)


def stretch(whole: Settings, images: int, trial: Settings, fewer: int) -> float:
    r"""How much larger λ must be in a trial on ``fewer`` images to pull weights as far as in the whole run.

    In :math:`s` steps, with a gradient whose spread is :math:`\propto 1/\sqrt{b}` for batches of :math:`b`, a weight is
    pulled by :math:`\propto \lambda s \sqrt{b}`; both are trained at the same rate.
    """
    steps = [one.epochs * (count // one.batch) for one, count in ((whole, images), (trial, fewer))]
    return steps[0] / steps[1] * math.sqrt(whole.batch / trial.batch)


def try_weight(images: ImageSet, run: Run, weight: float | None, short: Short, whole_images: int) -> Trial:
    """Train a run in short, with a λ that stands for ``weight`` in the whole run."""
    factor = 1.0
    if weight is not None:
        whole = settings_of(replace(run, epochs=PROTOCOLS[run.dataset].epochs), weight)
        brief = replace(settings_of(run, weight), batch=short.batch)
        factor = stretch(whole, whole_images, brief, len(images.train))
    settings = settings_of(run, None if weight is None else factor * weight)
    network = build(run)
    found = fit(network, images, replace(settings, batch=short.batch))
    size = found.sparsity
    return Trial(
        family=run.family,
        method=run.method,
        weight=weight,
        val_accuracy=found.val_accuracy,
        component_sparsity=size.component_sparsity,
        quaternion_sparsity=size.quaternion_sparsity,
        neuron_sparsity=size.neuron_sparsity,
        nonzero_parameters=size.nonzero_parameters,
    )


def tune(
    dataset: str,
    families: Iterable[str],
    methods: Iterable[str],
    storage: Path,
    trials: int = 8,
    short: Short | None = None,
    data_dir: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """All trials, first the one without penalty of each family and kind of network, ``trials`` of each method after.

    Trials that the journal ``storage`` has are not run again.
    """
    torch.set_num_threads(1)
    short = short or SHORT[dataset]
    loaded = data.load(dataset, data_dir)
    whole, images = len(loaded.train), without_test(loaded, short.images)
    del loaded
    methods, found = list(methods), []
    for family in families:
        for method in dict.fromkeys(["none", *methods]):
            run = Run(dataset, family, method, short.epochs, 0)
            count = 1 if method == "none" else trials
            found += _study(images, whole, run, short, storage, count, tell)
    return found


def _study(
    images: ImageSet, whole: int, run: Run, short: Short, storage: Path, count: int, tell: Callable[[str], None]
) -> list[Trial]:
    """The trials of one method, to ``count`` of them."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage.parent.mkdir(parents=True, exist_ok=True)
    name = f"{run.name}-{short.images}x{short.batch}"
    low, high = RANGES[run.method]
    first = max(1, (count + 1) // 2)

    def goal(trial: optuna.Trial) -> tuple[float, float]:
        weight = None if run.method == "none" else trial.suggest_float("lambda", low, high, log=True)
        done = try_weight(images, run, weight, short, whole)
        trial.set_user_attr("found", asdict(done))
        said = "" if weight is None else f", λ = {weight:.3g}"
        tell(f"{name}{said}: {done.val_accuracy:.2%} on validation images, {done.sparsity:.1%} zero")
        return done.val_accuracy, done.sparsity

    try:
        journal = JournalStorage(JournalFileBackend(str(storage)))
        study = optuna.create_study(
            storage=journal, study_name=name, directions=["maximize", "maximize"], load_if_exists=True
        )
    except (OSError, ValueError, KeyError) as reason:
        raise RecordError(
            f"{storage} does not hold studies of Optuna: choose another --storage ({reason})."
        ) from reason
    if run.method != "none":
        for n in range(first):
            weight = low * (high / low) ** (n / max(1, first - 1))
            study.enqueue_trial({"lambda": weight}, skip_if_exists=True)
    while len(finished := study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < count:
        # Seeded by what is there, so that two processes do not try the same, and one gives the same every time.
        seed = zlib.crc32(f"{name} {len(study.get_trials(deepcopy=False))}".encode())
        study.sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=first)
        study.optimize(goal, n_trials=1)
    # Processes that share a study may finish one more than was asked for: every method has the same number.
    return [Trial(**trial.user_attrs["found"]) for trial in finished[:count]]


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other one beats in accuracy and sparsity at once, by rising sparsity."""
    kept = [
        a
        for a in trials
        if not any(
            b.val_accuracy >= a.val_accuracy
            and b.sparsity >= a.sparsity
            and (b.val_accuracy, b.sparsity) != (a.val_accuracy, a.sparsity)
            for b in trials
        )
    ]
    return sorted(kept, key=lambda trial: trial.sparsity)


def chosen(trials: Sequence[Trial], drop: float = DROP) -> dict[tuple[str, str], Trial]:
    """The trial to go on with, by family and method: the sparsest within ``drop`` of the accuracy without penalty."""
    found = {}
    for family, method in dict.fromkeys((t.family, t.method) for t in trials if t.weight is not None):
        mine = [t for t in trials if (t.family, t.method) == (family, method)]
        none = next(t for t in trials if t.family == family and t.method == "none")
        good = [t for t in mine if t.val_accuracy >= none.val_accuracy - drop]
        best = max(good, key=lambda t: (t.sparsity, t.val_accuracy), default=None)
        found[family, method] = best or max(mine, key=lambda t: (t.val_accuracy, t.sparsity))
    return found


def write_lambdas(path: Path, dataset: str, trials: Sequence[Trial]) -> None:
    """Put the chosen λs into a file that may hold those of other data sets and methods."""
    try:
        known = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as reason:
        raise RecordError(f"{path} does not hold weights of penalties: {reason}.") from reason
    for (family, method), trial in chosen(trials).items():
        assert trial.weight is not None
        known.setdefault(dataset, {}).setdefault(family, {})[method] = float(f"{trial.weight:.4g}")
    lines = [
        "# Weights of the penalties (with the factor 1/Q, or 1/|Γ|), by data set, family and method: quern tune.\n"
    ]
    for name, families in known.items():
        for family, weights in families.items():
            lines.append(f"\n[{name}.{family}]\n")
            lines += [f"{method} = {weight}\n" for method, weight in weights.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(lines))


def write_trials(results: Path, dataset: str, trials: Sequence[Trial], short: Short) -> Path:
    """Keep all trials, with the chosen ones marked; those of families and methods not among them stay."""
    path = results / dataset / "tuning.json"
    picked = set(chosen(trials).values())
    mine = {(t.family, t.method) for t in trials}
    before: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["trials"] if path.exists() else []
    rows = [row for row in before if (row["family"], row["method"]) not in mine]
    for trial in trials:
        row = asdict(trial)
        rows.append({"lambda": row.pop("weight"), **row, "chosen": trial in picked})
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"dataset": dataset, "settings": asdict(short), "environment": facts(), "trials": rows}
    write_text(path, json.dumps(record, indent=1) + "\n")
    return path
