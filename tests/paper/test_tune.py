"""Tuning: never on test images, with the same budget for every method, stopped, shared and gone on with."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quern import data
from quern.data import Images, ImageSet
from quern.errors import Diverged, RecordError, Stopped
from quern.nn import QBatchNorm2d
from quern.paper import build, read_lambdas, settings_of, tune
from quern.paper.tune import LAST, RANGE, Trial, chosen, next_weight, write_lambdas, write_trials
from quern.records import DATASETS, Run
from quern.sparsity import measure
from quern.train import Result, Settings, Watcher, fit
from tests.paper.trials import SHORT, counted, trial

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


DIGITS = data.load("digits")


def tuned(storage: Path, trials: int = 3, methods: tuple[str, ...] = ("rql",), **options: Any) -> list[Trial]:
    return tune.tune("digits", ["quern"], methods, storage, trials, SHORT, **options)


def none(accuracy: float, family: str = "quern") -> Trial:
    return trial(accuracy, 0.0, "none", None, family)


class Forbidden(Images):
    """Images that nobody may look at, not even to count them."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("pixels", "labels"):
            raise AssertionError(f"the test set's {name} were looked at")
        return super().__getattribute__(name)


def loading(monkeypatch: pytest.MonkeyPatch, test: Images) -> None:
    monkeypatch.setattr(data, "load", lambda *_: replace(DIGITS, test=test))


@pytest.mark.slow
def test_test_images_are_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden = object.__new__(Forbidden)
    with pytest.raises(AssertionError, match="looked at"):
        len(forbidden)
    loading(monkeypatch, forbidden)
    methods = ("l2", "rq", "gamma-bn")
    found = tune.tune("digits", ["paper", "quern"], methods, tmp_path / "journal", 2, SHORT)
    assert len(found) == 2 * (2 + 3 * 2)  # two without penalty: with and without batch normalisation
    write_lambdas(tmp_path / "lambdas.toml", "digits", found)
    write_trials(tmp_path, "digits", found, SHORT)


@pytest.mark.slow
def test_other_test_images_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(tmp_path / "journal")
    noise = torch.randint(0, 17, DIGITS.test.pixels.shape, dtype=torch.uint8)
    loading(monkeypatch, Images(noise, torch.zeros_like(DIGITS.test.labels)))
    assert tuned(tmp_path / "other") == found


@pytest.mark.slow
def test_validation_images_are_what_it_goes_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterpart: with labels that are all wrong the accuracy is what is left of it."""
    found = tuned(tmp_path / "journal", 1)
    wrong = Images(DIGITS.val.pixels, (DIGITS.val.labels + 5) % 10)
    monkeypatch.setattr(data, "load", lambda *_: replace(DIGITS, val=wrong))
    other = tuned(tmp_path / "other", 1)
    assert [t.quaternion_sparsity for t in found] == [t.quaternion_sparsity for t in other]
    assert [t.val_accuracy for t in found] != [t.val_accuracy for t in other]


def test_a_trial_trains_on_as_many_images_as_were_asked_for() -> None:
    few = tune.without_test(DIGITS, 128)
    assert len(few.train) == 128
    assert few.test is few.val is DIGITS.val
    places = np.linspace(0, len(DIGITS.train) - 1, 128).round().astype(int)
    assert np.array_equal(few.train.pixels.numpy(), DIGITS.train.pixels.numpy()[places])
    assert np.array_equal(few.train.labels.numpy(), DIGITS.train.labels.numpy()[places])
    assert len(tune.without_test(DIGITS, 10**6).train) == len(DIGITS.train)


shares = st.integers(0, 4).map(lambda n: n / 4)


some_trials = st.lists(st.tuples(shares, shares, st.booleans()), min_size=1, max_size=8)


@given(some_trials, shares, st.sampled_from([0.0, 0.25, 0.5]))
def test_the_sparsest_that_lived_within_the_drop_is_chosen_or_the_most_accurate(
    values: list[tuple[float, float, bool]], base: float, drop: float
) -> None:
    """Of equal ones, that with the smallest λ."""
    trials = [trial(a, s, weight=float(n + 1), died="chance" if d else None) for n, (a, s, d) in enumerate(values)]
    [(key, best)] = chosen([none(base), *trials, none(0.0, "paper")], drop).items()
    assert key == ("quern", "rq")
    lived = [n for n, (_, _, died) in enumerate(values) if not died]
    good = [n for n in lived if values[n][0] >= base - drop]
    if good:
        n = min(good, key=lambda n: (-values[n][1], -values[n][0], n))
    else:
        n = min(lived or range(len(values)), key=lambda n: (-values[n][0], -values[n][1], n))
    assert best == trials[n]


def test_of_trials_with_as_many_zero_quaternions_components_decide() -> None:
    more = replace(trial(0.9, 0.5, weight=2.0), component_sparsity=0.7)
    assert chosen([none(0.9), trial(0.91, 0.5), more, trial(0.9, 0.5)])["quern", "rq"] == more


def judged(monkeypatch: pytest.MonkeyPatch, run: Run, weight: float | None, *accuracies: float) -> Trial:
    """A trial whose training gave these accuracies on validation images."""
    history = tuple(Mock(val=accuracy) for accuracy in accuracies)
    result = Mock(history=history, val_accuracy=max(accuracies), sparsity=measure(build(run)))
    monkeypatch.setattr(tune, "fit", lambda *_: result)
    return tune.try_weight(DIGITS, run, weight, 64)


@pytest.mark.parametrize("weight", [None, 1.0])
@pytest.mark.parametrize("family", ["paper", "quern"])
def test_a_trial_is_judged_by_the_same_epochs_in_both_families_with_and_without_penalty(
    family: str, weight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(monkeypatch, Run("digits", family, "rq", 1, 0), weight, 0.2, 0.9, 0.8, 0.4)
    assert found.val_accuracy == pytest.approx(0.7)
    assert found.died is None


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("method", ["none", "rq", "gamma-bn"])
def test_the_epochs_that_a_trial_is_judged_by_have_no_penalty_in_querns_family(dataset: str, method: str) -> None:
    """They heal, so that both families are judged by networks that are done."""
    epochs = tune.SHORT[dataset].epochs
    settings = settings_of(Run(dataset, "quern", method, epochs, 0), None if method == "none" else 1.0)
    assert epochs >= LAST
    assert {settings.strength_at(epochs - n, 0, 10) for n in range(1, LAST + 1)} == {0.0}


# Digits have 200 validation images; 24 are of the commonest kind, or fewer.
@pytest.mark.parametrize(("right", "died"), [(0, "chance"), (20, "chance"), (30, "chance"), (60, None), (190, None)])
def test_a_trial_at_chance_has_died(right: int, died: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, Run("digits", "paper", "rq", 1, 0), 1.0, right / 200).died == died


def test_a_trial_ends_where_its_last_path_is_kept() -> None:
    run = Run("digits", "quern", "rq", 2, 0)
    found = tune.try_weight(tune.without_test(DIGITS, 128), run, 1e6, 32)
    assert (found.died, found.val_accuracy, found.sparsity) == ("last path", 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gamma-bn", "gamma-beta-bn"])
@pytest.mark.parametrize("family", ["paper", "quern"])
def test_a_trial_on_neurons_counts_those_that_compaction_removes(
    family: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 22, one that is constant within the tolerance of the family, and one that is so in none."""
    run = Run("digits", family, method, 1, 0)

    def trained(network: torch.nn.Module, *_: object) -> Mock:
        first, second = (layer for layer in network.modules() if isinstance(layer, QBatchNorm2d))
        with torch.no_grad():
            for layer, n, scale in ((first, 1, 9e-4 if family == "paper" else 0.0), (second, 2, 2e-3)):
                assert layer.weight is not None
                assert layer.bias is not None
                layer.weight[n] = scale
                layer.bias.fill_(0.5)
        return Mock(history=[Mock(val=0.9)], sparsity=measure(network))

    monkeypatch.setattr(tune, "fit", trained)
    found = tune.try_weight(DIGITS, run, 1.0, 64)
    assert found.died is None
    assert found.sparsity == found.neuron_sparsity == pytest.approx(1 / 22)


def test_each_family_is_measured_against_its_own_network_without_penalty() -> None:
    both = [none(0.9), none(0.5, "paper")]
    both += [trial(a, s, family=family) for family in ("quern", "paper") for a, s in ((0.895, 0.2), (0.5, 0.8))]
    picked = chosen(both)
    assert picked["quern", "rq"].sparsity == 0.2
    assert picked["paper", "rq"].sparsity == 0.8


def test_a_penalty_on_neurons_is_judged_by_neurons() -> None:
    assert trial(0.9, 0.6, "gamma-bn").sparsity == trial(0.9, 0.6, "gamma-beta-bn").sparsity == 0.3
    assert trial(0.9, 0.6, "rq-bn").sparsity == 0.6


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial]]:
    path = tmp_path_factory.mktemp("tune") / "deep" / "journal"
    return path, tuned(path, 4, ("l2", "rql"))


@pytest.mark.slow
def test_every_method_has_its_trials_spread_over_its_range(journal: tuple[Path, list[Trial]]) -> None:
    _, found = journal
    assert [(t.family, t.method) for t in found] == [("quern", "none")] + [
        ("quern", method) for method in ("l2", "rql") for _ in range(4)
    ]
    assert found[0].weight is None
    for method in ("l2", "rql"):
        weights = [t.weight for t in found if t.method == method and t.weight is not None]
        low, high = RANGE
        assert weights[:2] == pytest.approx([low * (high / low) ** (n / 3) for n in (1, 2)])
        assert all(low < weight < high for weight in weights)
        assert len(set(weights)) == 4


def test_a_trial_is_a_training_on_fewer_images(journal: tuple[Path, list[Trial]]) -> None:
    from quern.penalties import RQL
    from quern.train import Settings, fit

    found = next(t for t in journal[1] if t.method == "rql")
    assert found.weight is not None
    torch.manual_seed(0)
    from quern.models import digits_qcnn

    network = digits_qcnn().train()
    settings = Settings(epochs=1, batch=64, lr=5e-3, heal_dropout=False, compact_every=1, penalty=RQL(found.weight))
    result = fit(network, tune.without_test(DIGITS, 128), settings)
    assert (result.val_accuracy, result.sparsity.quaternion_sparsity, result.sparsity.component_sparsity) == (
        *(found.val_accuracy, found.quaternion_sparsity),
        found.component_sparsity,
    )


def test_what_is_in_the_journal_is_not_run_again(
    journal: tuple[Path, list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, found = journal
    tried = counted(monkeypatch)
    assert tuned(storage, 4, ("l2", "rql")) == found
    fewer = tuned(storage, 3, ("l2", "rql"))
    assert [t.method for t in fewer] == ["none", *["l2"] * 3, *["rql"] * 3]
    assert fewer == [t for n, t in enumerate(found) if n not in (4, 8)]
    assert tried == []


@pytest.mark.slow
def test_methods_with_batch_normalisation_are_compared_with_such_a_network(tmp_path: Path) -> None:
    from quern.models import digits_qcnn
    from quern.train import Settings, fit

    first, *others = tuned(tmp_path / "journal", 2, ("gamma-bn", "rq-bn"))
    torch.manual_seed(0)
    settings = Settings(epochs=1, batch=64, lr=5e-3)
    result = fit(digits_qcnn(norm="after_conv").train(), tune.without_test(DIGITS, 128), settings)
    assert (first.method, first.weight, first.val_accuracy) == ("none-bn", None, result.val_accuracy)
    assert [t.method for t in others] == ["gamma-bn"] * 2 + ["rq-bn"] * 2
    assert all(t.weight is not None for t in others)
    assert chosen([first, *others]).keys() == {("quern", "gamma-bn"), ("quern", "rq-bn")}


@given(st.floats(0.4, 6000), st.integers(1, 5), st.integers(0, 9))
def test_trials_close_in_on_the_largest_weight_that_is_good_enough(limit: float, first: int, count: int) -> None:
    """As if every λ up to ``limit`` were good enough."""
    low, high = RANGE
    good: dict[float, bool] = {}
    for _ in range(first + count):
        weight = next_weight(good, low, high, first)
        assert low < weight < high
        assert not any(math.isclose(weight, one) for one in good)
        good[weight] = weight <= limit
    best = max((weight for weight, fine in good.items() if fine), default=low)
    gap = math.log(high / low) / (first + 1) / 2**count
    assert best / 1.0001 <= min(max(limit, low), high) <= best * math.exp(gap) * 1.0001


def test_the_next_weight_where_all_or_none_are_good_enough() -> None:
    assert next_weight({}, 1.0, 1000.0, 2) == pytest.approx(10)
    assert next_weight({10.0: False}, 1.0, 1000.0, 2) == pytest.approx(100)
    assert next_weight({10.0: False, 100.0: False}, 1.0, 1000.0, 2) == pytest.approx(math.sqrt(10))
    assert next_weight({10.0: True, 100.0: True}, 1.0, 1000.0, 2) == pytest.approx(math.sqrt(100 * 1000))
    # One that is bad below a good one is chance.
    assert next_weight({10.0: False, 100.0: True}, 1.0, 1000.0, 2) == pytest.approx(math.sqrt(100 * 1000))


def test_a_weight_that_diverges_is_not_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tune.fit

    def diverges(network: Any, images: ImageSet, settings: Settings) -> Result:
        weight = float(str(settings.penalty)[4:-1]) if settings.penalty else 0.0
        if weight > 100:
            raise Diverged("the loss is nan")
        found = real(network, images, settings)
        return replace(found, history=tuple(replace(line, val_accuracy=0.5) for line in found.history))  # good enough

    monkeypatch.setattr(tune, "fit", diverges)
    tried = counted(monkeypatch)
    found = tuned(tmp_path / "journal", 4)
    low, high = RANGE
    first, second = (low * (high / low) ** (n / 3) for n in (1, 2))
    third = math.sqrt(first * second)
    assert first < third < 100 < second
    assert tried[1:] == pytest.approx([first, second, third, math.sqrt(third * second)])
    bad = [t for t in found if t.weight is not None and t.weight > 100]
    assert bad
    assert {(t.died, t.val_accuracy, t.sparsity) for t in bad} == {("diverged", 0.0, 0.0)}
    assert chosen(found)["quern", "rql"].val_accuracy == 0.5
    assert tuned(tmp_path / "journal", 4) == found
    assert len(tried) == 5  # not tried again


def test_nothing_to_compare_with_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "fit", Mock(side_effect=Diverged("the loss is nan")))
    with pytest.raises(Diverged):
        tuned(tmp_path / "journal")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [AssertionError("tell fails"), KeyboardInterrupt()])
def test_stopped_and_gone_on_with_is_never_stopped(
    journal: tuple[Path, list[Trial]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if len(said) == 3:  # the third trial is done, but not in the journal yet
            raise stop

    tried = counted(monkeypatch)
    with pytest.raises(type(stop)):
        tuned(tmp_path / "journal", 4, ("l2", "rql"), tell=tell)
    assert len(tried) == 3
    assert tuned(tmp_path / "journal", 4, ("l2", "rql")) == journal[1]
    assert tried[2] == tried[3]  # the trial that was lost is the first to be done
    assert len(tried) == 9 + 1


def study_of(storage: Path, name: str = "digits/quern-rql-1-0-128x64-last3") -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(storage))))


@pytest.mark.slow
def test_a_signal_says_where_the_trials_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = Mock(Watcher)
    impatient.step.side_effect = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    expected = tuned(tmp_path / "whole", 2)
    tuned(tmp_path / "journal", 1)
    monkeypatch.setattr(tune, "fit", lambda *given: fit(*given, watchers=[impatient]))
    with pytest.raises(Stopped, match=r"stopped by SIGTERM: finished trials are in .*journal, and the same command"):
        tuned(tmp_path / "journal", 2)
    monkeypatch.undo()
    tried = counted(monkeypatch)
    assert tuned(tmp_path / "journal", 2) == expected
    assert len(tried) == 1


@pytest.mark.slow
@pytest.mark.parametrize("who", ["another", "this one's number", "a living one's number"])
def test_the_trial_of_a_process_that_is_gone_is_done_again(tmp_path: Path, who: str) -> None:
    expected = tuned(tmp_path / "whole", 3)
    storage = tmp_path / "journal"
    with pytest.raises(InterruptedError):
        tuned(storage, 3, tell=Mock(side_effect=[None, None, InterruptedError]))  # one is done, and one without penalty
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    study = study_of(storage)
    left = study.ask()
    left.suggest_float("lambda", *RANGE, log=True)
    process = {"another": [gone.pid], "this one's number": [os.getpid()]}.get(who, [os.getppid(), "a boot ago 7"])
    left.set_user_attr("process", [socket.gethostname(), *process])
    said: list[str] = []

    def tell(text: str) -> None:
        assert "waiting" not in text  # for nobody, and without end
        said.append(text)

    assert tuned(storage, 3, tell=tell) == expected
    assert len(said) == 2
    assert [t.state.name for t in study_of(storage).trials].count("COMPLETE") == 3
    assert "RUNNING" not in {t.state.name for t in study_of(storage).trials}


SCRIPT = """
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from quern.paper import tune
storage = Path(sys.argv[1])
deadline = time.monotonic() + 60

def told(text):
    # With its first λ each waits for the other's, so that who is quicker does not do it all.
    print(text, file=sys.stderr)
    if "λ =" in text:
        storage.with_name(f"{os.getpid()}.done").touch()
        while len(list(storage.parent.glob("*.done"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

found = tune.tune("digits", ["quern"], ["l1", "rql"], storage, 4, tune.Short(128, 64, 1), tell=told)
print(json.dumps([asdict(one) for one in found]))
"""


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path: Path) -> None:
    storage = tmp_path / "journal"
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(storage)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=120) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], ended
    first, second = (json.loads(out) for out, _ in ended)
    assert first == second
    assert [one["method"] for one in first] == ["none", *["l1"] * 4, *["rql"] * 4]
    for method in ("l1", "rql"):
        trials = study_of(storage, f"digits/quern-{method}-1-0-128x64-last3").trials
        assert [t.state.name for t in trials] == ["COMPLETE"] * 4
        assert len({t.params["lambda"] for t in trials}) == 4
    done = [[line for line in err.splitlines() if "on validation images" in line] for _, err in ended]
    assert sum(map(len, done)) == 9
    assert all(done), "one of them did nothing"


def test_what_a_file_of_weights_says_of_itself_stays(tmp_path: Path) -> None:
    path = tmp_path / "lambdas.toml"
    path.write_text("# Mine.\n# Of two lines.\n\n# not this\n[digits.quern]\nl1 = 2.0 # nor this\n")
    write_lambdas(path, "digits", [none(0.9), trial(0.9, 0.5, "rq", 3.0)])
    assert path.read_text() == "# Mine.\n# Of two lines.\n\n[digits.quern]\nl1 = 2.0\nrq = 3.0\n"


def test_weights_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lambdas.toml"
    normal = trial(0.9, 0.0, "none-bn", None)
    write_lambdas(path, "mnist", [none(0.9), normal, trial(0.9, 0.5, "rq", 3.14159), trial(0.9, 0.5, "gamma-bn", 1e-5)])
    assert read_lambdas(path) == {"mnist": {"quern": {"rq": 3.142, "gamma-bn": 1e-5}}}
    write_lambdas(path, "digits", [none(0.9, "paper"), trial(0.9, 0.5, "l1", 7.0, "paper")])
    write_lambdas(path, "mnist", [none(0.9), trial(0.9, 0.5, "rq", 8.0)])
    assert read_lambdas(path) == {
        "mnist": {"quern": {"rq": 8.0, "gamma-bn": 1e-5}},
        "digits": {"paper": {"l1": 7.0}},
    }


@pytest.mark.parametrize(
    "text", ["[mnist", "mnist = 3", "[mnist]\nquern = 3", "[mnist.quern]\nrq = -1", "[a.b]\nc = 1"]
)
def test_a_file_that_holds_no_weights_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lambdas.toml"
    path.write_text(text)
    with pytest.raises(RecordError, match="does not hold weights of penalties"):
        write_lambdas(path, "digits", [none(0.9), trial(0.9, 0.5)])
    assert path.read_text() == text


def test_one_trial_of_each_method_is_marked(tmp_path: Path) -> None:
    """Also among trials that are equal, as when λ is so large that nothing is left."""
    trials = [none(0.9), *(trial(0.9, 1.0, method, 5.0) for method in ("rq", "rql") for _ in range(3))]
    longer = replace(SHORT, epochs=SHORT.epochs + 1)
    write_trials(tmp_path, "digits", [none(0.9), trial(0.9, 0.5, "l1")], longer)
    path = write_trials(tmp_path, "digits", trials, SHORT)
    assert path == tmp_path / "digits" / "tuning.json"
    found = json.loads(path.read_text())
    rows = found["trials"]
    assert [row["trained"] for row in rows] == [asdict(longer)] + [asdict(SHORT)] * 7
    marked = [(row["family"], row["method"]) for row in rows if row["chosen"]]
    assert sorted(marked) == [("quern", "l1"), ("quern", "rq"), ("quern", "rql")]
    assert [row["method"] for row in rows] == ["l1", "none", *["rq"] * 3, *["rql"] * 3]
    assert rows[1]["lambda"] is None
    assert rows[2]["lambda"] == 5.0


def test_trials_of_a_method_stay_when_its_network_is_compared_with_again(tmp_path: Path) -> None:
    plain = trial(0.9, 0.0, "none-bn", None)
    write_trials(tmp_path, "digits", [plain, trial(0.9, 0.5, "gamma-bn", 3.0)], SHORT)
    path = write_trials(tmp_path, "digits", [plain, trial(0.8, 0.5, "rq-bn", 4.0)], SHORT)
    rows = json.loads(path.read_text())["trials"]
    assert [(row["method"], row["lambda"]) for row in rows] == [("gamma-bn", 3.0), ("none-bn", None), ("rq-bn", 4.0)]
    assert [row["chosen"] for row in rows] == [True, False, True]


def test_a_trial_keeps_the_environment_it_ran_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "facts", lambda: {"commit": "old"})
    tuned(tmp_path / "journal", 1)
    monkeypatch.setattr(tune, "facts", lambda: {"commit": "new"})
    path = write_trials(tmp_path, "digits", tuned(tmp_path / "journal", 2), SHORT)
    rows = json.loads(path.read_text())["trials"]
    assert [row["environment"]["commit"] for row in rows] == ["old", "old", "new"]


def test_a_damaged_record_of_trials_is_one_sentence(tmp_path: Path) -> None:
    path = write_trials(tmp_path, "digits", [none(0.9), trial(0.9, 0.5)], SHORT)
    for text in ("{", "[]", '{"dataset": "digits"}', '{"trials": 3}', '{"trials": [{"family": "quern"}]}'):
        path.write_text(text)
        with pytest.raises(RecordError, match=r"tuning\.json .*\.$"):
            write_trials(tmp_path, "digits", [none(0.9), trial(0.9, 0.5)], SHORT)
        assert path.read_text() == text


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_line_that_a_killed_process_left_half_written_is_cut_off(
    journal: tuple[Path, list[Trial]], tmp_path: Path, cut: int
) -> None:
    """The trial of that line is not done, and is run again."""
    storage = tmp_path / "journal"
    storage.write_bytes(journal[0].read_bytes()[:-cut])
    assert tuned(storage, 4, ("l2", "rql")) == journal[1]
    for line in storage.read_text().splitlines():
        json.loads(line)
    storage.write_text('{"op_c')  # of the very first line
    assert len(tuned(storage, 1, ("rql",))) == 2


def test_a_damaged_journal_is_one_sentence(journal: tuple[Path, list[Trial]], tmp_path: Path) -> None:
    storage, lines = tmp_path / "journal", journal[0].read_text().splitlines()
    done = next(n for n, line in enumerate(lines) if '"found"' in line)
    for n, new in (
        (2, lines[2][:-10]),
        (done, lines[done].replace('"val_accuracy":', '"val_accuracy":9')),
        (done, lines[done].replace('"family"', '"tribe"')),
        (0, lines[0].replace("study_name", "name")),
    ):
        assert lines[n] != new
        storage.write_text("".join(line + "\n" for line in [*lines[:n], new, *lines[n + 1 :]]))
        with pytest.raises(RecordError, match=r"does not hold studies of Optuna \(.*\): choose another --storage\.$"):
            tuned(storage, 4, ("l2", "rql"))


def test_a_family_named_twice_is_tuned_once(tmp_path: Path) -> None:
    once = tune.tune("digits", ["quern"], ["rq"], tmp_path / "j", 1, SHORT)
    assert tune.tune("digits", ["quern", "quern"], ["rq"], tmp_path / "j", 1, SHORT) == once
