"""What to remove from one layer, as plain data."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from quern.errors import CompactionError

NO_PLAN = "this is not a plan of quern, or one of a newer version."


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
    def from_dict(data: Any) -> "Kept":
        check_keys(data, {"of", "keep"})
        total = data["of"]
        if type(total) is not int or not 0 < total <= 1 << 24:  # a few bytes must not take all memory
            raise CompactionError("a plan has channels of which the number is none.")
        return Kept(total, _from_ranges(data["keep"], total))

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
    numbers: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        if int(last or first) >= total or int(first) < len(numbers):  # rising, so that it ends soon
            raise CompactionError("a plan has channels that are not there, or not in order.")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def check_keys(data: Any, known: set[str]) -> None:
    if not isinstance(data, dict) or not set(data) <= known:
        raise CompactionError(NO_PLAN)


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

    @property
    def left(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The inputs and the outputs that stay."""
        return (
            () if self.inputs is None else self.inputs.indices,
            () if self.outputs is None else self.outputs.indices,
        )

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
        data: dict[str, Any] = {"kind": self.kind}
        for name, kept in (("inputs", self.inputs), ("outputs", self.outputs)):
            if kept is not None:
                data[name] = kept.to_dict()
        if self.constants:
            data["constants"] = [[n, list(numbers)] for n, numbers in self.constants]
        if any(self.still.values()):
            data["still"] = {k: _ranges(units) for k, units in self.still.items() if units}
        return data

    @staticmethod
    def from_dict(data: Any) -> "LayerPlan":
        check_keys(data, {"kind", "inputs", "outputs", "constants", "still"})
        kept = {name: Kept.from_dict(data[name]) for name in ("inputs", "outputs") if name in data}
        still = data.get("still", {})
        if not isinstance(data.get("kind"), str) or not isinstance(still, dict):
            raise CompactionError(NO_PLAN)
        total = kept["outputs"].total if "outputs" in kept else 0
        units = {str(k): _from_ranges(v, total) for k, v in still.items()}
        limit = kept["inputs"].total if "inputs" in kept else 0
        return LayerPlan(data["kind"], **kept, constants=_constants(data.get("constants", []), limit), still=units)


def _constants(data: Any, total: int) -> tuple[tuple[int, tuple[float, ...]], ...]:
    try:
        pairs = tuple((n, tuple(float(x) for x in numbers)) for n, numbers in data)
    except (TypeError, ValueError, OverflowError) as reason:
        raise CompactionError("a plan has constants that are not numbers.") from reason
    for n, numbers in pairs:
        fits = type(n) is int and 0 <= n < total and len(numbers) in (1, 4)
        if not fits or not all(math.isfinite(x) for x in numbers):
            raise CompactionError("a plan has constants for channels that are not there, or that are not finite.")
    if any(a >= b for (a, _), (b, _) in pairwise(pairs)):
        raise CompactionError("a plan has constants for channels that are not in order.")
    return pairs
