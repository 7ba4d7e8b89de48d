"""The weights of the penalties, found on validation images alone, by one rule for every method of both families.

Each method of each family has its own study in Optuna, with two goals: validation accuracy and quaternion sparsity
(for L1(BN), the share of neurons that compaction removes). A trial is the run of an experiment in short: fewer images,
smaller batches, fewer epochs. It is judged by the mean of its last ``LAST`` epochs, with a penalty and without, in
which quern's runs heal: one epoch alone may be points off, and the best of several flatters. The first half of the
trials part ``RANGE``, the same for all, evenly on a scale of powers; it is so wide that its ends, taken to be too weak
and too strong, are not tried. A trial is *good enough* if it loses no more than ``DROP`` of accuracy against a trial
without penalty on the same network; each of the others halves the gap between the largest λ that is good enough and the
next one. A trial that died is not good enough, whatever else it gave: it diverged, it had its last path kept
(:class:`~quern.errors.LastPathWarning`), or its accuracy is that of guessing.

Chosen is the trial with the most zeros among those that are good enough; of several with as many, the one with more
zero components, then the more accurate, then the smaller λ. If none is good enough, it is the most accurate that lived.

A short trial has fewer steps for λ to act in, so a whole run with the same λ has at least as many zeros; what a λ costs
in accuracy shows in the trial.

Studies live in one journal file, which several processes may share, and from which tuning goes on when it is stopped.
The images to test with are replaced by those to validate with before the first trial.
"""

import itertools
import json
import math
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from quern import data
from quern.bench.machine import facts
from quern.compact import plan
from quern.data import Images, ImageSet
from quern.errors import CompactionError, Diverged, LastPathWarning, Stopped
from quern.paper import build, read_lambdas, settings_of
from quern.paper._journal import OUTCOME, claim, one_sentence, open_study, process_of, states, turn
from quern.records import Environment, Family, Method, Run, TrialRow, Trials, keep, schema, without_penalty
from quern.records.intervals import wilson
from quern.records.schema import Count, Positive, Share
from quern.sparsity import measure
from quern.train import fit

__all__ = ["SHORT", "Short", "Trial", "chosen", "read_trials", "tune", "write_lambdas", "write_trials"]

DROP = 0.02
LAST = 3  # epochs by whose mean a trial is judged
RANGE = (0.5, 5000.0)
WAIT = 0.5  # seconds between looks at what another process is at


@dataclass(frozen=True)
class Short:
    """How much of a run a trial is: of so many epochs that quern's heal for ``LAST`` of them."""

    images: int
    batch: int
    epochs: int


SHORT = {
    "mnist": Short(images=15_000, batch=100, epochs=8),
    "cifar10": Short(images=8_000, batch=25, epochs=8),
    "digits": Short(images=1_200, batch=64, epochs=10),
}


@dataclass(frozen=True)
class Trial:
    """One λ, and what came of it on validation images; ``weight`` is None for the trial without penalty. ``died`` says
    of what, and what is measured of a training that did not end is that of the network before it."""

    family: Family
    method: Method
    weight: Positive | None
    val_accuracy: Share
    component_sparsity: Share
    quaternion_sparsity: Share
    neuron_sparsity: Share
    nonzero_parameters: Count
    died: str | None = None
    environment: Environment = field(default_factory=Environment, compare=False)

    @property
    def sparsity(self) -> float:
        """What the method is after."""
        return self.neuron_sparsity if self.method.startswith("gamma") else self.quaternion_sparsity

    def good_enough(self, floor: float) -> bool:
        return self.died is None and self.val_accuracy >= floor


def without_test(images: ImageSet, count: int) -> ImageSet:
    """``count`` of the images to train on, evenly spaced, and nothing to test with but what validates."""
    some = torch.linspace(0, len(images.train) - 1, min(count, len(images.train))).round().long()
    train = Images(images.train.pixels[some].contiguous(), images.train.labels[some].contiguous())
    return replace(images, train=train, test=images.val)


def try_weight(images: ImageSet, run: Run, weight: float | None, batch: int) -> Trial:
    """Train a run in short with ``weight`` as its λ. It ends where it dies."""
    network = build(run)
    size, accuracy, died = measure(network), 0.0, None
    dead_neurons = 0.0
    settings = replace(settings_of(run, weight), batch=batch, curves=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LastPathWarning)
            result = fit(network, images, settings)
        neurons = plan(network, images.normalize(images.train.pixels[:2]), settings.tol).after.neurons
        dead_neurons, size = 1 - neurons / size.neurons, result.sparsity
        accuracy = statistics.fmean(line.val for line in result.history[-LAST:])
        if _at_chance(accuracy, images.val.labels):
            died = "chance"
    except (Diverged, LastPathWarning, CompactionError) as reason:
        if weight is None:  # there is nothing to compare with then
            raise
        died = {Diverged: "diverged", LastPathWarning: "last path"}.get(type(reason), "not to be compacted")
    return Trial(
        family=run.family,
        method=run.method,
        weight=weight,
        val_accuracy=accuracy,
        component_sparsity=size.component_sparsity,
        quaternion_sparsity=size.quaternion_sparsity,
        neuron_sparsity=dead_neurons,
        nonzero_parameters=size.nonzero_parameters,
        died=died,
        environment=facts(),
    )


def _at_chance(accuracy: float, labels: Tensor) -> bool:
    """Whether an accuracy may be that of always saying the commonest label."""
    return wilson(accuracy, len(labels))[0] <= float(labels.bincount().max()) / len(labels)


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
    """All trials: ``trials`` of each method, and before them one without penalty of each family and kind of network,
    with and without batch normalisation. Trials that the journal ``storage`` has are not run again."""
    torch.set_num_threads(1)
    short = short or SHORT[dataset]
    images = without_test(data.load(dataset, data_dir), short.images)
    methods, tried = list(dict.fromkeys(methods)), []
    for family in dict.fromkeys(families):
        floors: dict[str, float] = {}
        for method in methods:
            run = Run(dataset, family, method, short.epochs, 0)
            plain = without_penalty(method)
            if plain not in floors:
                [one] = _study(images, replace(run, method=plain), None, short, storage, 1, 0.0, tell)
                floors[plain] = one.val_accuracy - DROP
                tried.append(one)
            tried += _study(images, run, RANGE, short, storage, trials, floors[plain], tell)
    return tried


def _study(
    images: ImageSet,
    run: Run,
    weights: tuple[float, float] | None,
    short: Short,
    storage: Path,
    count: int,
    floor: float,
    tell: Callable[[str], None],
) -> list[Trial]:
    """The trials of one method, to ``count`` of them, with λ in the range ``weights`` or without penalty; from
    ``floor`` on, an accuracy is good enough."""
    import optuna

    name = f"{run.name}-{short.images}x{short.batch}-last{LAST}"
    low, high = weights or (1.0, 1.0)
    with one_sentence(storage):
        study = open_study(storage, name)
    told = False
    while True:
        with turn(storage):
            done, busy = states(study, Trial)
            if len(done) >= count:
                return done[:count]
            trial = weight = None
            if len(done) + len(busy) < count:
                if weights:
                    good = {t.weight: t.good_enough(floor) for t in done if t.weight is not None}
                    # What another process is at may turn out either way.
                    good |= {t.params["lambda"]: False for t in busy if "lambda" in t.params}
                    study.enqueue_trial({"lambda": next_weight(good, low, high, (count + 1) // 2)})
                trial = study.ask()
                weight = trial.suggest_float("lambda", low, high, log=True) if weights else None
                claim(trial)
        if trial is None:
            if not told:
                tell(f"{name}: waiting for {', '.join(process_of(one) for one in busy)} to finish")
            told = True
            time.sleep(WAIT)
            continue
        try:
            outcome = try_weight(images, run, weight, short.batch)
            trial.set_user_attr(OUTCOME, asdict(outcome))
            line = name if weight is None else f"{name}, λ = {weight:.3g}"
            line += ": " if outcome.died is None else f": too large ({outcome.died}), "
            tell(f"{line}{outcome.val_accuracy:.2%} on validation images, {outcome.sparsity:.1%} zero")
        except BaseException as reason:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)  # its λ is tried again
            if isinstance(reason, Stopped):
                advice = f"finished trials are in {storage}, and the same command goes on."
                raise Stopped(f"stopped by {signal.Signals(reason.signal).name}: {advice}", reason.signal) from None
            raise
        with one_sentence(storage):
            study.tell(trial, (outcome.val_accuracy, outcome.sparsity))


def next_weight(good: Mapping[float, bool], low: float, high: float, first: int) -> float:
    """The λ to try next between ``low`` and ``high``, from those tried so far and whether each was good enough: the
    ``first`` ones part the range, and each later one the gap above the largest good one; evenly on a scale of powers.
    The ends stand for a good and a bad one."""
    for n in range(1, first + 1):
        weight = low * (high / low) ** (n / (first + 1))
        if not any(math.isclose(one, weight) for one in good):
            return weight
    below = max((weight for weight, fine in good.items() if fine), default=low)
    above = min((weight for weight in good if weight > below), default=high)
    return math.sqrt(below * above)


def chosen(trials: Sequence[Trial], drop: float = DROP) -> dict[tuple[str, str], Trial]:
    """The trial to go on with, by family and method: the sparsest within ``drop`` of the accuracy without penalty."""

    def smaller(t: Trial) -> float:
        return -(t.weight or 0.0)

    best_of = {}
    for family, method in dict.fromkeys((t.family, t.method) for t in trials if t.weight is not None):
        mine = [t for t in trials if (t.family, t.method) == (family, method)]
        none = next(t for t in trials if (t.family, t.method) == (family, without_penalty(method)))
        good = [t for t in mine if t.good_enough(none.val_accuracy - drop)]
        best = max(good, key=lambda t: (t.sparsity, t.component_sparsity, t.val_accuracy, smaller(t)), default=None)
        lived = [t for t in mine if t.died is None] or mine
        best_of[family, method] = best or max(lived, key=lambda t: (t.val_accuracy, t.sparsity, smaller(t)))
    return best_of


def write_lambdas(path: Path, dataset: str, trials: Sequence[Trial]) -> None:
    """Put the chosen λs into a file that may hold those of other data sets and methods."""
    known = read_lambdas(path) if path.exists() else {}
    header = "# Weights of the penalties (with the factor 1/Q, or 1/|Γ|), by data set, family and method: quern tune.\n"
    if path.exists():  # what it says of itself stays
        own = path.read_text(encoding="utf-8").splitlines(keepends=True)
        header = "".join(itertools.takewhile(lambda line: line.startswith("#"), own)) or header
    for (family, method), trial in chosen(trials).items():
        assert trial.weight is not None
        known.setdefault(dataset, {}).setdefault(family, {})[method] = float(f"{trial.weight:.4g}")
    lines = [header]
    for name, families in known.items():
        for family, weights in families.items():
            lines.append(f"\n[{name}.{family}]\n")
            lines += [f"{method} = {weight}\n" for method, weight in weights.items()]
    keep(path, "".join(lines))


def write_trials(results: Path, dataset: str, trials: Sequence[Trial], short: Short) -> Path:
    """Keep all trials, each with how much of a run it was and where it ran, and the chosen ones marked; those of
    families and methods not among them stay."""
    path = results / dataset / "tuning.json"
    picked = {id(trial) for trial in chosen(trials).values()}  # one of several that are equal
    mine = {(t.family, t.method) for t in trials}
    rows = [row for row in read_trials(path) if (row.family, row.method) not in mine]
    rows += [TrialRow(**vars(trial), chosen=id(trial) in picked, trained=asdict(short)) for trial in trials]
    keep(path, json.dumps(schema.to_plain(Trials(dataset=dataset, trials=tuple(rows))), indent=1) + "\n")
    return path


def read_trials(path: Path) -> list[TrialRow]:
    """What :func:`write_trials` wrote to a file, if it is there."""
    if not path.exists():
        return []
    return list(schema.read(path, Trials, "trials of quern tune", "mend it, or remove it and tune again").trials)
