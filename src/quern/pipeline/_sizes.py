"""How large a network is without what died: by a plan of compaction, or counted in milliseconds."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from quern import io, records
from quern.compact import census, compact, plan
from quern.graph import Example, quaternion_weights
from quern.records import Budget
from quern.records.schema import Between, Count
from quern.sparsity import work
from quern.train import first


@dataclass(frozen=True, kw_only=True)
class Size(records.Size):
    """How large a network is without what died: ``macs`` are those with weights that are not zero, ``flash`` and
    ``ram`` bytes of the packed network. What the budget does not ask for is 0."""

    parameters: Annotated[int, Between(1.0, 1e15)]
    macs: Count = 0
    bytes: Count = 0
    flash: Count = 0
    ram: Count = 0


@dataclass(frozen=True)
class Packing:
    """What a network takes as a packed one: bytes of its file, of which ``fixed`` are no weights, and of memory."""

    bytes: int
    fixed: int
    ram: int


Packs = Callable[[nn.Module], Packing]


def planned_size(
    model: nn.Module, example: Example, budget: Budget, images: dict[str, Any] | None = None, packs: Packs | None = None
) -> Size | None:
    """The size of what is left; None if nothing is: the output no longer depends on the input. ``packs`` says what a
    network takes when it is packed."""
    whole_plan = plan(model, example)
    if whole_plan.dead:
        return None
    small, left = None, whole_plan.after
    if budget.max_bytes is not None or budget.min_speedup is not None or budget.of_packed:
        small = compact(model, whole_plan)
    macs, file_bytes, packing = 0, 0, Packing(0, 0, 0)
    if small is not None and budget.of_packed:
        assert packs is not None
        packing = packs(small)
    if small is not None and budget.min_speedup is not None:
        macs = sum(left for _, left in work(small, example).values())
    if small is not None and budget.max_bytes is not None:
        file_bytes = _stored(small, images).bytes()
    more = {"bytes": file_bytes, "macs": macs, "flash": packing.bytes, "ram": packing.ram}
    return Size(neurons=left.neurons, parameters=left.parameters, **more)


def _stored(model: nn.Module, images: dict[str, Any] | None, before: io.Stored | None = None) -> io.Stored:
    """The file that a training writes of its network: accuracies such as 2/3 take more digits than most."""
    return io.Stored(model, metrics={"test_accuracy": 2 / 3, "val_accuracy": 2 / 3}, images=images, before=before)


class SizeCounter:
    """The size of a network without what died, counted: in milliseconds, as often as weights become zero.

    ``before`` is the counter of the network that this one was before it was compacted, if there is one.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Example,
        budget: Budget,
        images: dict[str, Any] | None,
        before: "SizeCounter | None",
        packs: Packs | None,
    ) -> None:
        self._parameters = list(model.parameters())
        self._packing = None if packs is None or budget.max_flash is None else packs(model)
        self._needs_plans = budget.max_ram is not None  # memory is known of networks that are there
        self._census = census(model, first(example, 1))
        self._stored = None
        if budget.max_bytes is not None:
            self._stored = _stored(model, images, before and before._stored)
        self._macs: dict[str, int] = {}
        if budget.min_speedup is not None:
            self._macs = {name: macs for name, (macs, _) in work(model, example).items()}
        self._weights: dict[str, int] = {}
        for name, layer in model.named_modules():
            weights = (p for key, p in layer.named_parameters(recurse=False) if key in ("weight", "constant"))
            self._weights[name] = sum(p.numel() for p in weights)
        own = {name.rpartition("."): weight.detach() for name, weight in quaternion_weights(model).items()}
        self._quaternions = {layer: weight for (layer, _, key), weight in own.items() if key == "weight"}

    def fits(self, model: nn.Module) -> bool:
        """Whether this is still the network that was read: compaction gives it other parameters."""
        own = list(model.parameters())
        return len(own) == len(self._parameters) and all(map(operator.is_, own, self._parameters))

    @property
    def counts(self) -> bool:
        """Whether this network can be counted at all."""
        return self._census is not None and not self._needs_plans

    def size(self) -> Size | None:
        """None if the network is dead, or if there is no count of it."""
        counted = None if self._census is None else self._census.count()
        if self._census is None or counted is None:
            return None
        file_bytes = 0 if self._stored is None else self._stored.bytes(self._census.plan())
        # A layer's multiply-adds are in proportion to its weights; one that is never narrowed keeps them. What is zero
        # by itself and what goes with a neuron are mostly the same: the larger of the two is taken for both.
        whole, left = self._weights, self._weights | counted.weights
        if self._macs or self._packing is not None:
            left = {name: min(count, self._nonzero(name)) for name, count in left.items()}
        macs = sum(macs * left[name] // whole[name] for name, macs in self._macs.items())
        flash = 0
        if self._packing is not None:  # about: weights are packed in proportion to those that are not zero
            share = sum(left.values()) / sum(whole.values())
            flash = math.ceil(self._packing.fixed + share * (self._packing.bytes - self._packing.fixed))
        more = {"bytes": file_bytes, "macs": macs, "flash": flash}
        return Size(neurons=counted.neurons, parameters=counted.parameters, **more)

    def _nonzero(self, name: str) -> int:
        """The numbers of a layer's weight, without those of quaternions that are zero."""
        weight = self._quaternions.get(name)
        return self._weights[name] - (0 if weight is None else 4 * int((weight == 0).all(0).sum()))
