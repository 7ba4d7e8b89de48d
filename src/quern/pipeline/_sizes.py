"""How large a network is without what died: by a plan of compaction, or counted in milliseconds."""

import operator
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from quern import io, records
from quern.compact import census, compact, plan
from quern.records import Budget
from quern.records.schema import Between, Count
from quern.sparsity import measure, work


@dataclass(frozen=True, kw_only=True)
class Size(records.Size):
    """How large a network is without what died. Multiply-adds and bytes are 0 where the budget does not ask for
    them."""

    parameters: Annotated[int, Between(1.0, 1e15)]
    macs: Count = 0
    bytes: Count = 0


def planned_size(
    model: nn.Module, example: Tensor, budget: Budget, images: dict[str, Any] | None = None
) -> Size | None:
    """The size of what is left; None if nothing is: the output no longer depends on the input."""
    whole_plan = plan(model, example)
    if whole_plan.dead:
        return None
    small, left = None, whole_plan.after
    if budget.max_bytes is not None or budget.min_speedup is not None:
        small = compact(model, whole_plan)
    macs, file_bytes = 0, 0
    if small is not None and budget.min_speedup is not None:
        macs = measure(small, example).macs or 0
    if small is not None and budget.max_bytes is not None:
        file_bytes = _stored(small, images).bytes()
    return Size(neurons=left.neurons, parameters=left.parameters, bytes=file_bytes, macs=macs)


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
        example: Tensor,
        budget: Budget,
        images: dict[str, Any] | None,
        before: "SizeCounter | None",
    ) -> None:
        self._parameters = list(model.parameters())
        self._census = census(model, example[:1])
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

    def fits(self, model: nn.Module) -> bool:
        """Whether this is still the network that was read: compaction gives it other parameters."""
        own = list(model.parameters())
        return len(own) == len(self._parameters) and all(map(operator.is_, own, self._parameters))

    @property
    def counts(self) -> bool:
        """Whether this network can be counted at all."""
        return self._census is not None

    def size(self) -> Size | None:
        """None if the network is dead, or if there is no count of it."""
        counted = None if self._census is None else self._census.count()
        if self._census is None or counted is None:
            return None
        file_bytes = 0 if self._stored is None else self._stored.bytes(self._census.plan())
        # A layer's multiply-adds are in proportion to its weights; one that is never narrowed keeps them.
        whole, left = self._weights, self._weights | counted.weights
        macs = sum(macs * left[name] // whole[name] for name, macs in self._macs.items())
        return Size(neurons=counted.neurons, parameters=counted.parameters, bytes=file_bytes, macs=macs)
