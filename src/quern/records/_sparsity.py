"""How sparse and how large a network is, as numbers. :func:`quern.sparsity.measure` finds them."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from quern.records._size import Size
from quern.records.schema import Count, check

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class LayerCounts:
    """One quaternion layer of a network."""

    name: str
    kind: str
    quaternions: Count
    zero_components: Count
    zero_quaternions: Count
    neurons: Count
    dead_neurons: Count


@dataclass(frozen=True)
class LayerSparsity(LayerCounts):
    """The same with real multiply-adds for one sample, None without an example input. A layer of real numbers has one
    of ``components``: its weights stand in place of quaternions, and its real neurons in place of quaternion ones."""

    macs: Count | None
    nonzero_macs: Count | None
    components: Literal[1, 4] = 4

    @property
    def component_sparsity(self) -> float:
        return _share(self.zero_components, self.components * self.quaternions)

    @property
    def quaternion_sparsity(self) -> float:
        return _share(self.zero_quaternions, self.quaternions)

    @property
    def neuron_sparsity(self) -> float:
        return _share(self.dead_neurons, self.neurons)

    @property
    def neurons_left(self) -> int:
        return self.neurons - self.dead_neurons


@dataclass(frozen=True)
class Sparsity:
    """What :func:`measure` found. Print it with rich (or ``str``) for a table; ``to_json()`` for a record.

    ``parameters`` counts all numbers in parameters, real layers and biases included, ``nonzero_parameters`` those
    that are not zero; ``bytes`` is what parameters and buffers take as stored now, zeros included. ``macs`` is what
    the weights cost for one sample, zeros included, ``nonzero_macs`` what zeros leave of it; torch's linear layers and
    convolutions count, its recurrent and attention layers do not.

    Shares and neurons of the whole network are those of its quaternion layers together, as the paper counts. In a
    network without any they are those of its real layers.
    """

    layers: tuple[LayerSparsity, ...]
    parameters: Count
    nonzero_parameters: Count
    bytes: Count
    macs: Count | None
    nonzero_macs: Count | None
    tol: float
    notes: tuple[str, ...] = field(default=())

    @property
    def quaternion_layers(self) -> tuple[LayerSparsity, ...]:
        return tuple(layer for layer in self.layers if layer.components == 4)

    @property
    def counted_layers(self) -> tuple[LayerSparsity, ...]:
        """Those that shares and neurons of the whole network are of."""
        return self.quaternion_layers or self.layers

    def _sum(self, what: str) -> int:
        return sum(getattr(layer, what) for layer in self.counted_layers)

    @property
    def component_sparsity(self) -> float:
        components = 4 if self.quaternion_layers else 1
        return _share(self._sum("zero_components"), components * self._sum("quaternions"))

    @property
    def quaternion_sparsity(self) -> float:
        return _share(self._sum("zero_quaternions"), self._sum("quaternions"))

    @property
    def neuron_sparsity(self) -> float:
        return _share(self._sum("dead_neurons"), self._sum("neurons"))

    @property
    def neurons(self) -> int:
        return self._sum("neurons")

    @property
    def neurons_left(self) -> int:
        return self._sum("neurons") - self._sum("dead_neurons")

    @property
    def size(self) -> Size:
        """The size of the network; its bytes are those of its tensors."""
        return Size(
            neurons=self.neurons,
            parameters=self.parameters,
            nonzero_parameters=self.nonzero_parameters,
            macs=self.macs,
            bytes=self.bytes,
        )

    def within(self, whole: "Sparsity") -> "Sparsity":
        """As parts of ``whole``, the network that this one was before compaction: what was removed counts as zero."""
        mine = {layer.name: layer for layer in self.layers}
        layers = []
        for old in whole.layers:
            new = mine.get(old.name, old)
            layers.append(
                replace(
                    old,
                    zero_components=old.components * (old.quaternions - new.quaternions) + new.zero_components,
                    zero_quaternions=old.quaternions - new.quaternions + new.zero_quaternions,
                    dead_neurons=old.neurons - new.neurons_left,
                    nonzero_macs=new.nonzero_macs,
                )
            )
        return replace(self, layers=tuple(layers), parameters=whole.parameters, macs=whole.macs)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, the shares included."""
        shares = ("component_sparsity", "quaternion_sparsity", "neuron_sparsity", "neurons_left")
        layers = [asdict(layer) | {name: getattr(layer, name) for name in shares} for layer in self.layers]
        own = asdict(self) | {name: getattr(self, name) for name in (*shares, "neurons")}
        return own | {"layers": layers, "notes": list(self.notes)}

    to_plain = to_dict

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @staticmethod
    def from_dict(values: Any) -> "Sparsity":
        """The reverse of :meth:`to_dict`; ValueError for anything else."""
        return check(values, Sparsity)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("layer", no_wrap=True)
        for column in ("weights", "zero comp.", "zero quat.", "dead neurons", "left", "MACs", "non-zero"):
            table.add_column(column, justify="right")
        for layer in self.layers:
            table.add_row(Text(f"{layer.name} {layer.kind}"), *_cells(layer, layer.quaternions))
        table.add_row("all", *_cells(self, self._sum("quaternions")), style="bold")
        yield table
        if 0 < len(self.quaternion_layers) < len(self.layers):
            yield "all: weights, shares and neurons of the quaternion layers alone"
        size = f"{self.bytes:,} bytes"
        yield f"{self.nonzero_parameters:,} of {self.parameters:,} parameters are not zero; {size} as stored"
        for note in self.notes:
            yield Text(f"note: {note}")

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None, highlight=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def _short(count: int) -> str:
    """A number that fits a column: 9,216, 294.9k, 18.87M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 10 * size or (count >= size and unit != "k"):
            return f"{count / size:.4g}{unit}"
    return f"{count:,}"


def _cells(row: LayerSparsity | Sparsity, quaternions: int) -> list[str]:
    macs = ["-" if n is None else _short(n) for n in (row.macs, row.nonzero_macs)]
    shares = [row.component_sparsity, row.quaternion_sparsity, row.neuron_sparsity]
    return [f"{quaternions:,}", *(f"{share:.1%}" for share in shares), f"{row.neurons_left:,}/{row.neurons:,}", *macs]
