"""What the paper claims, what the records say of it, and a verdict in a word."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from quern.records import DATASETS, METHODS, without_penalty
from quern.records.intervals import welch
from quern.report._load import Group, Records
from quern.report._rows import OURS, SLOWEST, neurons
from quern.report._tables import Table, mean, word

HOLDS, FAILS, OPEN = "holds", "fails", "open"
SAID = {HOLDS: "hold", FAILS: "fail", OPEN: "are open"}
_WHY_OPEN = f"“{OPEN}”: the runs are too few, or too much alike, to tell"

Of = Callable[[Group], list[float]]


@dataclass(frozen=True)
class Difference:
    """Of two groups' means, in points, with its 95 % interval (Welch) if both have several seeds."""

    points: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.points:+.2f} points (one seed)"
        low, high = self.interval
        return f"{self.points:+.2f} points ({low:+.2f} to {high:+.2f})"

    @property
    def above(self) -> str:
        """Whether the first mean is the larger."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return OPEN
        return HOLDS if self.interval[0] > 0 else FAILS

    @property
    def not_below(self) -> str:
        """Whether the first mean is not shown to be the smaller."""
        return OPEN if self.interval is None else FAILS if self.interval[1] < 0 else HOLDS


def difference(one: Group, other: Group, of: Of) -> Difference:
    """``one`` minus ``other``; they may have different numbers of seeds."""
    ours, theirs = ([100 * value for value in of(group)] for group in (one, other))
    several = min(len(ours), len(theirs)) > 1
    return Difference(mean(ours) - mean(theirs), welch(ours, theirs) if several else None)


def _accuracy(group: Group) -> list[float]:
    return [run.result.test_accuracy for run in group.runs]


def _accuracy_small(group: Group) -> list[float]:
    return [run.small.test_accuracy for run in group.runs]


def _zeros(group: Group) -> list[float]:
    return [run.quaternion_sparsity for run in group.runs]


Verdict = tuple[str, str]  # the evidence, and a word
Judge = Callable[[Records, str, str], Verdict | None]  # of records, data set and family


def table(records: Records) -> Table | None:
    """Every claim on every data set and in both families, as far as there are runs."""
    rows = []
    for what, datasets, judge in _CLAIMS:
        for dataset in datasets:
            for family in ("paper", "quern"):
                if found := judge(records, dataset, family):
                    evidence, verdict = found
                    rows.append(tuple(map(word, (what, DATASETS[dataset], OURS[family], evidence, verdict))))
    if not rows:
        return None
    columns = ("the paper says", "data", "from", "what came out", "verdict")
    of_two = (
        "In brackets is the 95 % interval of a difference (Welch's t, over seeds). A claim about two methods holds if "
        f"the interval is on its side of zero, and fails if it is on the other; {_WHY_OPEN}. A claim that nothing is "
        "lost holds unless the interval shows a loss."
    )
    of_one = (
        "Claims about one number are judged by the mean over seeds. The networks of L1(BN) are judged against the "
        "same network with batch normalisation and without penalty."
    )
    return Table("claims", "The paper's claims", columns, tuple(rows), (of_two, of_one))


def _compared(records: Records, dataset: str, family: str, methods: tuple[str, str]) -> tuple[Group, Group] | None:
    """Runs of both methods with as many epochs."""
    one, other = (records.group(dataset, family, method) for method in methods)
    return (one, other) if one and other and one.epochs == other.epochs else None


def _sparser(one: str, other: str, as_accurate: bool = False) -> Judge:
    """More zero quaternions; and, where the claim says so, no accuracy lost for it."""

    def judge(records: Records, dataset: str, family: str) -> Verdict | None:
        pair = _compared(records, dataset, family, (one, other))
        if not pair:
            return None
        zeros, accuracy = difference(*pair, _zeros), difference(*pair, _accuracy)
        verdict = FAILS if as_accurate and accuracy.not_below == FAILS else zeros.above
        return f"zero quaternions {zeros}; accuracy {accuracy}", verdict

    return judge


def _more_accurate(records: Records, dataset: str, family: str) -> Iterator[tuple[str, Difference]]:
    for method in ("l1", "rq", "rql"):
        if pair := _compared(records, dataset, family, (method, "none")):
            yield METHODS[method], difference(*pair, _accuracy)


def _improves(records: Records, dataset: str, family: str) -> Verdict | None:
    return _each(_more_accurate(records, dataset, family), lambda found: found.above)


def _loses_nothing(records: Records, dataset: str, family: str) -> Verdict | None:
    return _each(_more_accurate(records, dataset, family), lambda found: found.not_below)


def _each(found: Iterable[tuple[str, Difference]], judge: Callable[[Difference], str]) -> Verdict | None:
    """All must hold."""
    differences = dict(found)
    if not differences:
        return None
    verdicts = {judge(one) for one in differences.values()}
    verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
    return "; ".join(f"{name} {one}" for name, one in differences.items()), verdict


def _cheap(records: Records, dataset: str, family: str) -> Verdict | None:
    ratios = {
        one.method: one.ratio
        for one in records.timings.get(dataset, ())
        if one.family == family and one.method not in ("none", "l2")
    }
    if not ratios:
        return None
    steps = ", ".join(f"{METHODS[method]} {value:.2f}×" for method, value in ratios.items())
    return f"time of a step: {steps}", HOLDS if max(ratios.values()) <= SLOWEST else FAILS


def _in_neurons(column: str, text: str) -> Judge:
    """What the table of whole neurons says in a column of L1(BN)."""

    def judge(records: Records, dataset: str, family: str) -> Verdict | None:
        found = neurons(records, dataset)
        who = (METHODS["gamma-bn"], OURS[family])
        row = next((row for row in found.rows if (row[0].text, row[1].text) == who), None) if found else None
        if found is None or row is None:
            return None
        cell = row[found.columns.index(column)]
        return text.format(cell.text), HOLDS if cell.sign == "yes" else FAILS

    return judge


def _no_loss(records: Records, dataset: str, family: str) -> Verdict | None:
    pair = _compared(records, dataset, family, ("gamma-bn", without_penalty("gamma-bn")))
    if not pair:
        return None
    lost = difference(*pair, _accuracy_small)
    return f"accuracy {lost}", lost.not_below


_BOTH, _CIFAR = ("mnist", "cifar10"), ("cifar10",)
_CLAIMS: tuple[tuple[str, tuple[str, ...], Judge], ...] = (
    ("R_Q makes more quaternions zero than ℓ1, and is as accurate", _BOTH, _sparser("rq", "l1", as_accurate=True)),
    ("R_Q makes more quaternions zero than ℓ2", _BOTH, _sparser("rq", "l2")),
    ("R_QL makes more quaternions zero than R_Q on MNIST", ("mnist",), _sparser("rql", "rq")),
    ("R_QL makes fewer quaternions zero than R_Q on CIFAR-10", _CIFAR, _sparser("rq", "rql")),
    ("on MNIST a penalty costs hardly any accuracy", ("mnist",), _loses_nothing),
    ("on CIFAR-10 a penalty makes the network more accurate", _CIFAR, _improves),
    (f"a penalty costs little time (here: at most {SLOWEST:.2f}×)", _BOTH, _cheap),
    ("L1(BN) makes more quaternions zero than R_QL + BN", _CIFAR, _sparser("gamma-bn", "rql-bn")),
    ("L1(BN) leaves under 17 % of the neurons", _CIFAR, _in_neurons("neurons left, %", "{} % of the neurons left")),
    ("L1(BN) leaves under 15,000 parameters", _CIFAR, _in_neurons("parameters left", "{} parameters left")),
    ("L1(BN) needs 1/5 of the memory (here: of the file)", _CIFAR, _in_neurons("file smaller", "file {} smaller")),
    ("L1(BN) is about 3× faster", _CIFAR, _in_neurons("faster", "{} faster in onnxruntime, one image")),
    ("L1(BN) loses no accuracy", _CIFAR, _no_loss),
)
