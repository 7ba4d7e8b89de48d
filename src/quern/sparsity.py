"""How sparse and how large a network is.

Zero means \\|.\\| <= tol. **Component** sparsity is the share of zero numbers among the quaternion weights,
**quaternion** sparsity the share of quaternions whose four components are all zero, **neuron** sparsity the share of
neurons that no longer matter: γ = 0, no non-zero incoming weight, or no non-zero outgoing weight, cascading through the
network (:mod:`quern.liveness`). Biases count as parameters but not as weights.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.graph import REAL_CONVOLUTIONS, check_module, inputs_of
from quern.liveness import liveness
from quern.nn._conv import _QConvolution
from quern.nn._recurrent import _QRecurrent
from quern.schema import Count, check

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["LayerSparsity", "Sparsity", "measure"]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class LayerSparsity:
    """One quaternion layer. ``macs`` are real multiply-adds for one sample, or None without an example input."""

    name: str
    kind: str
    quaternions: Count
    zero_components: Count
    zero_quaternions: Count
    neurons: Count
    dead_neurons: Count
    macs: Count | None
    nonzero_macs: Count | None

    @property
    def component_sparsity(self) -> float:
        return _share(self.zero_components, 4 * self.quaternions)

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
    """

    layers: tuple[LayerSparsity, ...]
    parameters: Count
    nonzero_parameters: Count
    bytes: Count
    macs: Count | None
    nonzero_macs: Count | None
    tol: float
    notes: tuple[str, ...] = field(default=())

    def _sum(self, what: str) -> int:
        return sum(getattr(layer, what) for layer in self.layers)

    @property
    def component_sparsity(self) -> float:
        return _share(self._sum("zero_components"), 4 * self._sum("quaternions"))

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

    def within(self, whole: "Sparsity") -> "Sparsity":
        """As parts of ``whole``, the network that this one was before compaction: what was removed counts as zero."""
        mine = {layer.name: layer for layer in self.layers}
        layers = []
        for old in whole.layers:
            new = mine.get(old.name, old)
            layers.append(
                replace(
                    old,
                    zero_components=4 * old.quaternions - 4 * new.quaternions + new.zero_components,
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

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @staticmethod
    def from_dict(found: Any) -> "Sparsity":
        """The reverse of :meth:`to_dict`; ValueError for anything else."""
        return check(found, Sparsity)

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


@torch.no_grad()
def measure(model: nn.Module, example_input: Tensor | tuple[Any, ...] | None = None, tol: float = 0.0) -> Sparsity:
    """Sparsity and size of ``model``; numbers up to ``tol`` count as zero.

    With an ``example_input`` (or a tuple of arguments) the network runs once in eval mode to count multiply-adds; they
    are given for one sample, the first axis of the example being the batch.
    """
    if not (tol >= 0 and math.isfinite(tol)):
        raise ValueError(f"tol is {tol}, but it must be a finite number that is not negative.")
    check_module(model)
    work = None if example_input is None else _work(model, inputs_of(model, example_input), tol)
    found = liveness(model, tol)
    layers, seen = [], set()
    for name, layer in model.named_modules():
        if not isinstance(layer, (qnn.QLinear, _QConvolution, qnn.QEmbedding, _QRecurrent)):
            continue
        weights = [w for w in qnn.quaternion_weights(layer).values() if id(w) not in seen]
        seen.update(map(id, weights))
        zero = [w.abs() <= tol for w in weights]
        alive = found.alive[name]
        macs, nonzero_macs = (None, None) if work is None else work.get(name, (0, 0))
        layers.append(
            LayerSparsity(
                name=name,
                kind=type(layer).__name__,
                quaternions=sum(z[0].numel() for z in zero),
                zero_components=sum(int(z.sum()) for z in zero),
                zero_quaternions=sum(int(z.all(0).sum()) for z in zero),
                neurons=len(alive),
                dead_neurons=int((~alive).sum()),
                macs=macs,
                nonzero_macs=nonzero_macs,
            )
        )
    parameters = list(model.parameters())
    return Sparsity(
        layers=tuple(layers),
        parameters=sum(p.numel() for p in parameters),
        nonzero_parameters=sum(_nonzero(p, tol) for p in parameters),
        bytes=sum(t.numel() * t.element_size() for t in (*parameters, *model.buffers())),
        macs=None if work is None else sum(macs for macs, _ in work.values()),
        nonzero_macs=None if work is None else sum(rest for _, rest in work.values()),
        tol=tol,
        notes=found.notes,
    )


def _nonzero(t: Tensor, tol: float) -> int:
    return t.numel() - int((t.abs() <= tol).sum())  # what is not a number is not zero


def _work(model: nn.Module, args: tuple[Any, ...], tol: float) -> dict[str, tuple[int, int]]:
    """Real multiply-adds of every weighted layer by name, with and without zeros, for one sample."""
    found: dict[str, tuple[int, int]] = {}
    batch = max(1, next((a.shape[0] for a in args if isinstance(a, Tensor)), 1))

    def count(name: str, weights: Iterable[Tensor], uses: int, per_number: int) -> None:
        weights = list(weights)
        here = per_number * uses * sum(w.numel() for w in weights) // batch
        left = per_number * uses * sum(_nonzero(w, tol) for w in weights) // batch
        before = found.get(name, (0, 0))
        found[name] = (before[0] + here, before[1] + left)

    def after(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        input = args[0] if args else kwargs["input"]
        if isinstance(layer, _QRecurrent):
            data = input.data if isinstance(input, nn.utils.rnn.PackedSequence) else input
            count(name, qnn.quaternion_weights(layer).values(), data.numel() // data.shape[-1], 4)
        elif isinstance(layer, qnn.QLinear):
            count(name, [layer.weight], output.numel() // output.shape[-1], len(layer.input_parts))
        elif isinstance(layer, nn.Linear):
            count(name, [layer.weight], output.numel() // output.shape[-1], 1)
        elif isinstance(layer, (_QConvolution, *REAL_CONVOLUTIONS)):
            side = input if layer.transposed else output  # where every number of the weight is used once
            batched = side.dim() == len(layer.kernel_size) + 2
            positions = math.prod(side.shape[2 if batched else 1 :]) * (side.shape[0] if batched else 1)
            parts = len(layer.input_parts) if isinstance(layer, _QConvolution) else 1
            count(name, [layer.weight], positions, parts)
            if isinstance(layer, _QConvolution) and layer.constant is not None:  # once for all of a batch
                count(name, [layer.constant], positions, 1)

    handles = [
        layer.register_forward_hook(partial(after, name), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, (_QRecurrent, qnn.QLinear, nn.Linear, _QConvolution, *REAL_CONVOLUTIONS))
    ]
    modes = {layer: layer.training for layer in model.modules()}
    try:
        model.eval()
        model(*args)
    finally:
        for handle in handles:
            handle.remove()
        for layer, training in modes.items():
            layer.train(training)  # the outer ones first, so that each ends as it was
    return found
