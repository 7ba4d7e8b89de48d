"""The main number of every section of the page of experiments, for a reader who does not open it."""

from collections.abc import Callable

from quern.records import DATASETS
from quern.report import _claims, _rows
from quern.report._load import Group, Records
from quern.report._tables import mean


def headline(section: str, records: Records) -> str:
    """One sentence; nothing if there are no records of what it says."""
    if section == "compress":
        ratios = [one.dense.bytes / one.small.bytes for one in records.compressed if one.small.bytes]
        return f"Files up to {max(ratios):,.1f} times smaller; runs: {len(ratios)}." if ratios else ""
    if section == "claims":
        found = _claims.table(records)
        verdicts = [row[-1].text for row in found.rows] if found else []
        counts = ", ".join(f"{verdicts.count(one)} {text}" for one, text in _claims.SAID.items())
        return f"Of {len(verdicts)} judgements {counts}." if verdicts else ""
    if section == "runs":
        runs = [run for group in records.groups for run in group.runs]
        return f"{len(runs)} runs, {sum(run.result.seconds for run in runs) / 3600:,.1f} hours." if runs else ""
    start, number = _NUMBERS[section]
    numbers = [f"{text} on {name}" for dataset, name in DATASETS.items() if (text := number(records, dataset))]
    return f"{start}: {', '.join(numbers)}." if numbers else ""


def _beaten(records: Records, dataset: str) -> str | None:
    table = _rows.table1(records, dataset)
    if table is None or "beats the paper" not in table.columns:
        return None
    place = table.columns.index("beats the paper")
    signs = [row[place].sign for row in table.rows if row[1].text == _rows.OURS["quern"]]
    return f"{signs.count('yes')} of {len(signs)}" if signs else None


def _slower(records: Records, dataset: str) -> str | None:
    ratios = [one.ratio for one in records.timings.get(dataset, ()) if (one.family, one.method) == ("quern", "rq")]
    return f"{ratios[0]:.2f}" if ratios else None


def _lambda(records: Records, dataset: str) -> str | None:
    trials = [one for one in records.trials.get(dataset, ()) if (one.family, one.method) == ("quern", "rq")]
    chosen = [one.weight for one in trials if one.chosen and one.weight is not None]
    return f"{chosen[0]:.4g} from {len(trials)} trials" if chosen else None


def _exact(records: Records, dataset: str) -> str | None:
    """The weights that are zero to the last bit in quern's family, and in the paper's."""
    groups = [group for family in ("quern", "paper") if (group := records.group(dataset, family, "rq"))]
    return " and ".join(map(_zero, groups)) if len(groups) == 2 else None


def _zero(group: Group) -> str:
    return _percent([run.moduli.zeros / max(1, run.moduli.zeros + sum(run.moduli.counts)) for run in group.runs])


def _neurons(records: Records, dataset: str) -> str | None:
    """By γ alone, else with β."""
    for method, how in (("gamma-bn", ""), ("gamma-beta-bn", " (γ with β)")):
        if group := records.group(dataset, "quern", method):
            return _percent([run.small.neurons / max(1, run.dense.neurons) for run in group.runs]) + how
    return None


def _left(group: Group) -> str:
    all_ = [sum(layer.quaternions for layer in run.result.sparsity.layers) for run in group.runs]
    zero = [sum(layer.zero_quaternions for layer in run.result.sparsity.layers) for run in group.runs]
    return f"{mean(all_) - mean(zero):,.0f} of {mean(all_):,.0f}"


def _percent(shares: list[float]) -> str:
    return f"{100 * mean(shares):.2f}\u00a0%"


def _quern(method: str, say: Callable[[Group], str]) -> Callable[[Records, str], str | None]:
    """Something of quern's runs with a method."""
    return lambda records, dataset: say(group) if (group := records.group(dataset, "quern", method)) else None


def _quaternion(group: Group) -> str:
    return _percent([run.quaternion_sparsity for run in group.runs])


def _accuracy(group: Group) -> str:
    return _percent([run.result.test_accuracy for run in group.runs])


# What a section says, and the number of it for a data set.
_NUMBERS: dict[str, tuple[str, Callable[[Records, str], str | None]]] = {
    "table1": ("Methods by which quern beats the paper", _beaten),
    "table2": ("A step with R_Q, as a multiple of one without penalty", _slower),
    "curves": ("Quaternions that R_Q makes zero", _quern("rq", _quaternion)),
    "neurons": ("Neurons that L1(BN) leaves", _neurons),
    "front": (
        "R_Q, accuracy at zero quaternions",
        _quern("rq", lambda group: f"{_accuracy(group)} at {_quaternion(group)}"),
    ),
    "tuning": ("λ of R_Q", _lambda),
    "layers": ("Quaternions that R_Q leaves", _quern("rq", _left)),
    "moduli": ("Weights that are exactly zero under R_Q, quern's way and the paper's", _exact),
}
