"""What to remove from a network, as plain data."""

import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from quern.errors import CompactionError

DEAD = "the network is dead: its output does not depend on its input"


@dataclass(frozen=True)
class Kept:
    """Which of ``total`` channels stay, in order."""

    total: int
    indices: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.indices, self.indices[1:], strict=False))
        if not (self.indices and rising and self.indices[0] >= 0 and self.indices[-1] < self.total):
            raise CompactionError(f"channels to keep must be some of 0 to {self.total - 1}, in order.")

    def then(self, later: "Kept") -> "Kept":
        if later.total != len(self.indices):
            raise CompactionError(f"{len(self.indices)} channels were left, but the next plan is for {later.total}.")
        return Kept(self.total, tuple(self.indices[n] for n in later.indices))

    def to_dict(self) -> dict[str, Any]:
        return {"of": self.total, "keep": _ranges(self.indices)}

    @staticmethod
    def from_dict(found: Any) -> "Kept":
        _check_keys(found, {"of", "keep"})
        total = found["of"]
        if type(total) is not int or not 0 < total <= 1 << 24:  # a few bytes must not take all memory
            raise CompactionError("a plan has channels of which the number is none.")
        return Kept(total, _from_ranges(found["keep"], total))

    def __str__(self) -> str:
        return f"{len(self.indices)}/{self.total}"


def _ranges(indices: Iterable[int]) -> str:
    """0-3,7 for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for n in indices:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def _from_ranges(text: Any, total: int) -> tuple[int, ...]:
    if not isinstance(text, str) or not re.fullmatch(r"(\d{1,10}(-\d{1,10})?(,(?=\d)|$))*", text):
        raise CompactionError("a plan has channels that are not a list such as 0-3,7.")
    found: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        if int(last or first) >= total or int(first) < len(found):  # rising, so that it ends soon
            raise CompactionError("a plan has channels that are not there, or not in order.")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _check_keys(found: Any, known: set[str]) -> None:
    if not isinstance(found, dict) or not set(found) <= known:
        raise CompactionError("this is not a plan of quern, or one of a newer version.")


@dataclass(frozen=True)
class LayerPlan:
    """One layer. ``inputs`` and ``outputs`` are channels of its own weight (quaternions, or real numbers for a real
    layer), heads for attention; None where there is nothing to choose. ``constants`` are input channels that always
    carry these numbers: what they do goes into the layer itself. ``still`` are hidden units of a recurrent layer that
    never leave zero, by the ending of the parameters' names."""

    kind: str
    inputs: Kept | None = None
    outputs: Kept | None = None
    constants: tuple[tuple[int, tuple[float, ...]], ...] = ()
    still: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        kept = [k for k in (self.inputs, self.outputs) if k is not None]
        return any(len(k.indices) < k.total for k in kept) or bool(self.constants or any(self.still.values()))

    def then(self, later: "LayerPlan") -> "LayerPlan":
        if later.kind != self.kind:
            raise CompactionError(f"a {self.kind} cannot go on with a plan for a {later.kind}.")
        inputs, outputs = later.inputs, later.outputs
        constants, still = later.constants, later.still
        if self.inputs is not None and inputs is not None:
            constants = tuple((self.inputs.indices[n], numbers) for n, numbers in constants)
            inputs = self.inputs.then(inputs)
        if self.outputs is not None and outputs is not None:
            if still:
                still = {k: tuple(self.outputs.indices[n] for n in units) for k, units in still.items()}
            outputs = self.outputs.then(outputs)
        merged = dict(self.constants) | dict(constants)
        names = {*self.still, *still}
        both = {k: tuple(sorted({*self.still.get(k, ()), *still.get(k, ())})) for k in sorted(names)}
        return LayerPlan(self.kind, inputs, outputs, tuple(sorted(merged.items())), both)

    def structure(self) -> "LayerPlan":
        """This plan without numbers, for networks that get theirs from a file. One constant, zero, is enough for the
        layer to have the parameter that constants go to."""
        constants = tuple((n, (0.0,) * len(numbers)) for n, numbers in self.constants[:1])
        return LayerPlan(self.kind, self.inputs, self.outputs, constants)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": self.kind}
        for name, kept in (("inputs", self.inputs), ("outputs", self.outputs)):
            if kept is not None:
                found[name] = kept.to_dict()
        if self.constants:
            found["constants"] = [[n, list(numbers)] for n, numbers in self.constants]
        if any(self.still.values()):
            found["still"] = {k: _ranges(units) for k, units in self.still.items() if units}
        return found

    @staticmethod
    def from_dict(found: Any) -> "LayerPlan":
        _check_keys(found, {"kind", "inputs", "outputs", "constants", "still"})
        kept = {name: Kept.from_dict(found[name]) for name in ("inputs", "outputs") if name in found}
        still = found.get("still", {})
        if not isinstance(found.get("kind"), str) or not isinstance(still, dict):
            raise CompactionError("this is not a plan of quern, or one of a newer version.")
        total = kept["outputs"].total if "outputs" in kept else 0
        units = {str(k): _from_ranges(v, total) for k, v in still.items()}
        limit = kept["inputs"].total if "inputs" in kept else 0
        return LayerPlan(found["kind"], **kept, constants=_constants(found.get("constants", []), limit), still=units)


def _constants(found: Any, total: int) -> tuple[tuple[int, tuple[float, ...]], ...]:
    try:
        pairs = tuple((n, tuple(float(x) for x in numbers)) for n, numbers in found)
    except (TypeError, ValueError, OverflowError) as reason:
        raise CompactionError("a plan has constants that are not numbers.") from reason
    for n, numbers in pairs:
        fits = type(n) is int and 0 <= n < total and len(numbers) in (1, 4)
        if not fits or not all(math.isfinite(x) for x in numbers):
            raise CompactionError("a plan has constants for channels that are not there, or that are not finite.")
    if any(a >= b for (a, _), (b, _) in pairwise(pairs)):
        raise CompactionError("a plan has constants for channels that are not in order.")
    return pairs


@dataclass(frozen=True)
class Plan:
    """What :func:`quern.compact.compact` is to do: print it, keep it as JSON, do it again to a network freshly built.

    ``layers`` has what changes, by name. ``parameters`` and ``neurons`` are counts before and after. Weights up to
    ``tol`` count as zero. ``dead`` if the output no longer depends on the input; ``notes`` says what was kept, and why.
    """

    layers: dict[str, LayerPlan]
    tol: float = 0.0
    parameters: tuple[int, int] = (0, 0)
    neurons: tuple[int, int] = (0, 0)
    dead: bool = False
    notes: tuple[str, ...] = ()

    def then(self, later: "Plan") -> "Plan":
        """This plan and then ``later``, one for the network it left, as one."""
        layers = dict(self.layers)
        for name, layer in later.layers.items():
            layers[name] = layers[name].then(layer) if name in layers else layer
        return Plan(
            layers,
            max(self.tol, later.tol),
            (self.parameters[0], later.parameters[1]),
            (self.neurons[0], later.neurons[1]),
            later.dead,
            tuple(dict.fromkeys((*self.notes, *later.notes))),
        )

    def structure(self) -> "Plan":
        """This plan without numbers: it makes a network of the same shapes, not of the same values."""
        return replace(self, layers={name: layer.structure() for name, layer in self.layers.items()}, tol=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "layers": {name: layer.to_dict() for name, layer in self.layers.items()},
            "tol": self.tol,
            "parameters": list(self.parameters),
            "neurons": list(self.neurons),
            "dead": self.dead,
            "notes": list(self.notes),
        }

    @staticmethod
    def from_dict(found: Any) -> "Plan":
        """The reverse of :meth:`to_dict`; CompactionError for anything else."""
        _check_keys(found, {"layers", "tol", "parameters", "neurons", "dead", "notes"})
        layers, tol = found.get("layers"), found.get("tol", 0.0)
        counts = [found.get(name, [0, 0]) for name in ("parameters", "neurons")]
        notes = found.get("notes", [])
        plain = (
            isinstance(layers, dict)
            and type(tol) in (int, float)
            and 0 <= tol <= sys.float_info.max
            and all(isinstance(c, list) and len(c) == 2 and all(type(n) is int for n in c) for c in counts)
            and isinstance(notes, list)
            and all(isinstance(note, str) for note in notes)
            and isinstance(found.get("dead", False), bool)
        )
        if not plain:
            raise CompactionError("this is not a plan of quern, or one of a newer version.")
        made = {name: LayerPlan.from_dict(layer) for name, layer in layers.items()}
        first, second = (tuple(c) for c in counts)
        return Plan(made, float(tol), first, second, found.get("dead", False), tuple(notes))

    def __str__(self) -> str:
        lines = [f"{'layer':<28}{'inputs':>12}{'outputs':>12}{'constants':>12}"]
        for name, layer in self.layers.items():
            cells = [str(layer.inputs or "-"), str(layer.outputs or "-"), str(len(layer.constants) or "-")]
            lines.append(f"{f'{name} {layer.kind}'.strip():<28}" + "".join(f"{cell:>12}" for cell in cells))
        if not self.layers:
            lines = ["nothing to remove"]
        lines.append(
            f"neurons {self.neurons[0]:,} -> {self.neurons[1]:,}, "
            f"parameters {self.parameters[0]:,} -> {self.parameters[1]:,}"
        )
        if self.dead:
            lines.append(DEAD)
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
