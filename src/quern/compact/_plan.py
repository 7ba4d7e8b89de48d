"""What to remove from a network, as plain data."""

import sys
from dataclasses import dataclass, replace
from typing import Any

from quern.errors import CompactionError
from quern.graph.layer_plan import NO_PLAN, LayerPlan, check_keys
from quern.records import Size

DEAD = "the network is dead: its output does not depend on its input"
_UNKNOWN = Size(neurons=0, parameters=0, macs=None, bytes=None)


@dataclass(frozen=True)
class Plan:
    """What :func:`quern.compact.compact` is to do: print it, keep it as JSON, do it again to a network freshly built.

    ``layers`` has what changes, by name. ``before`` and ``after`` are the sizes of the network, 0 where the plan does
    not say. Weights up to ``tol`` count as zero. ``dead`` if the output no longer depends on the input; ``notes`` says
    what was kept, and why.
    """

    layers: dict[str, LayerPlan]
    tol: float = 0.0
    before: Size = _UNKNOWN
    after: Size = _UNKNOWN
    dead: bool = False
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[int, int]:
        """Parameters before and after."""
        return self.before.parameters, self.after.parameters

    @property
    def neurons(self) -> tuple[int, int]:
        """Neurons before and after."""
        return self.before.neurons, self.after.neurons

    def then(self, later: "Plan") -> "Plan":
        """This plan and then ``later``, one for the network it left, as one."""
        layers = dict(self.layers)
        for name, layer in later.layers.items():
            layers[name] = layers[name].then(layer) if name in layers else layer
        return Plan(
            layers,
            max(self.tol, later.tol),
            self.before,
            later.after,
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
    def from_dict(data: Any) -> "Plan":
        """The reverse of :meth:`to_dict`; CompactionError for anything else."""
        check_keys(data, {"layers", "tol", "parameters", "neurons", "dead", "notes"})
        layers, tol = data.get("layers"), data.get("tol", 0.0)
        counts = [data.get(name, [0, 0]) for name in ("parameters", "neurons")]
        notes = data.get("notes", [])
        plain = (
            isinstance(layers, dict)
            and type(tol) in (int, float)
            and 0 <= tol <= sys.float_info.max
            and all(isinstance(c, list) and len(c) == 2 and all(type(n) is int for n in c) for c in counts)
            and isinstance(notes, list)
            and all(isinstance(note, str) for note in notes)
            and isinstance(data.get("dead", False), bool)
        )
        if not plain:
            raise CompactionError(NO_PLAN)
        made = {name: LayerPlan.from_dict(layer) for name, layer in layers.items()}
        before, after = (replace(_UNKNOWN, parameters=p, neurons=n) for p, n in zip(*counts, strict=True))
        return Plan(made, float(tol), before, after, data.get("dead", False), tuple(notes))

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
