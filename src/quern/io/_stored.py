"""The size of a file that is not written."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from quern._size import size_of
from quern.compact import Plan, last_plan
from quern.graph.spec import narrowed_shapes
from quern.io._header import description_of
from quern.io._structure import state_of, verified_recipe
from quern.io.tensorfile import file_size, kinds_of
from quern.models import recipe_of


class Stored:
    """How many bytes :func:`save` would write of a network, or of what a plan would leave of it, without doing either.

    What does not change with the plan is looked at once. ``before`` is the same for the network that this one was
    before it was compacted: whether it can be built anew is known from there.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        metrics: dict[str, Any] | None = None,
        images: dict[str, Any] | None = None,
        before: "Stored | None" = None,
    ) -> None:
        self._layers = dict(model.named_modules())
        self._tensors = kinds_of(state_of(model))
        if before is None:
            self._recipe = verified_recipe(model)
        else:
            self._recipe = replace(before._recipe, steps=recipe_of(model).steps)
        self._steps, self._last_plan = last_plan(self._recipe)
        self._parameters = size_of(model).parameters
        self._description = partial(description_of, metrics=metrics or {}, images=images)

    def bytes(self, plan: Plan | None = None) -> int:
        """The bytes of the file: of the whole network, or of what ``plan`` leaves of it."""
        if plan is None:
            return file_size(self._tensors, json.dumps(self._description(self._recipe, self._parameters)))
        tensors, own = dict(self._tensors), set(self._tensors)
        for name, layer_plan in plan.layers.items():
            layer = self._layers[name]
            like = next(layer.parameters()).dtype
            for key, shape in narrowed_shapes(layer, layer_plan).items():
                full_name = f"{name}.{key}".removeprefix(".")
                tensors[full_name] = (tensors[full_name][0] if full_name in own else like, shape)
        structure = plan.structure() if self._last_plan is None else self._last_plan.then(plan.structure())
        recipe = replace(self._recipe, steps=(*self._steps, {"compact": structure.to_dict()}))
        return file_size(tensors, json.dumps(self._description(recipe, plan.after.parameters)))
