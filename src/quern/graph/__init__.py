"""The one reader of networks, and what it knows of each kind of layer.

A network is traced (:mod:`~quern.graph.trace`) and followed channel by channel on an example
(:mod:`~quern.graph.reader`): which channels are constant, needed, or tied (:mod:`~quern.graph.facts`). What a kind of
layer does is its :class:`Spec` (:mod:`~quern.graph.layers`), what a function does is in one table
(:mod:`~quern.graph.operations`). :func:`register` makes a layer of your own known everywhere.
"""

from quern.graph import layers
from quern.graph.layer_plan import Kept, LayerPlan
from quern.graph.listing import batch_norms, quaternion_shifts, quaternion_weights, removable
from quern.graph.spec import Call, Spec, register, spec_of
from quern.graph.trace import Example, check_module, check_traceable, inputs_of, mapped, trace
from quern.graph.work import quaternion_costs

__all__ = [
    "Call",
    "Example",
    "Kept",
    "LayerPlan",
    "Spec",
    "batch_norms",
    "check_module",
    "check_traceable",
    "inputs_of",
    "layers",
    "mapped",
    "quaternion_costs",
    "quaternion_shifts",
    "quaternion_weights",
    "register",
    "removable",
    "spec_of",
    "trace",
]
