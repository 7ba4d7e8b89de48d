"""The runs of the experiments: their names, and the paper's numbers."""

from collections.abc import Iterable
from dataclasses import dataclass

from quern.errors import RecordError, instead_of

DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
# How each method is written. The last five stand on networks with batch normalisation.
METHODS = {
    "none": "none",
    "l2": "ℓ2",
    "l1": "ℓ1",
    "rq": "R_Q",
    "rql": "R_QL",
    "none-bn": "none + BN",
    "rq-bn": "R_Q + BN",
    "rql-bn": "R_QL + BN",
    "gamma-bn": "L1(BN)",
    "gamma-beta-bn": "L1(BN), γ with β",
}
# What each family does with a penalty, and what it counts as zero.
FAMILIES = {
    "paper": "sub-gradient under Adam, zero below 0.001, no healing",
    "quern": "proximal steps, exact zeros, healing, compaction",
    "real": "the real-valued network of as many parameters",
}

# What the tables and figure 1, figure 2, and the claims about neurons are made of.
TABLE1 = ("none", "l2", "l1", "rq", "rql")
FIGURE2 = ("rq", "rq-bn", "rql-bn", "gamma-bn", "gamma-beta-bn")
NEURONS = ("gamma-bn", "gamma-beta-bn", "rq-bn", "rql-bn", "none-bn")


def without_penalty(method: str) -> str:
    """What a method is compared with: the same network, trained without penalty."""
    return "none-bn" if method.endswith("-bn") else "none"


def _row(*values: float) -> dict[str, float]:
    return dict(zip(TABLE1, values, strict=True))


# Tables 1 and 2 and the claims of the neuron-level section: shares in percent, times in seconds of the authors' GPU.
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "mnist": {
        "test_accuracy": _row(98.95, 96.69, 93.46, 96.81, 96.29),
        "component_sparsity": _row(1.71, 54.68, 34.08, 68.40, 75.08),
        "quaternion_sparsity": _row(0.0, 40.01, 23.45, 53.82, 69.42),
        "seconds": _row(179.35, 183.17, 185.43, 184.22, 186.22),
    },
    "cifar10": {
        "test_accuracy": _row(71.30, 72.58, 73.43, 72.03, 73.20),
        "component_sparsity": _row(0.77, 8.58, 44.24, 59.29, 35.91),
        "quaternion_sparsity": _row(0.0, 4.77, 42.61, 58.73, 31.89),
        "seconds": _row(924.77, 1146.89, 1160.48, 1151.50, 1168.37),
    },
}


def check_known(name: str, known: Iterable[str], what: str) -> None:
    """One sentence if there is none of that name."""
    if name not in (known := list(known)):
        raise RecordError(f"there is no {what} {name}: {instead_of(name, known)}")


@dataclass(frozen=True, order=True)
class Run:
    """One training of an experiment."""

    dataset: str
    family: str
    method: str
    epochs: int
    seed: int

    def __post_init__(self) -> None:
        for value, known, what in (
            (self.dataset, DATASETS, "data set"),
            (self.family, FAMILIES, "family"),
            (self.method, METHODS, "method"),
        ):
            check_known(value, known, what)
        if self.epochs < 1 or self.seed < 0:
            raise RecordError(f"{self.epochs} epochs with seed {self.seed} cannot be run: give at least 1 and 0.")

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.family}-{self.method}-{self.epochs}-{self.seed}"
