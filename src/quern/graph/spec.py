"""What quern has to know of a kind of layer, in one place: its Spec, and the register of all of them.

    class Scale(nn.Module): ...                            # a layer of your own
    quern.graph.register(Scale, ScaleSpec())               # ScaleSpec is a Spec, or one of quern.graph.layers

Everything that looks at networks asks the Spec: penalties, measuring, compaction, folding, exports.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from quern.errors import CompactionError, ExportError
from quern.graph.functions import FunctionRules, values_of
from quern.graph.layer_plan import LayerPlan
from quern.graph.packing import Packer
from quern.graph.values import Value

Select = Callable[[Tensor], Tensor]
Shape = tuple[int, ...]
Work = tuple[Tensor, int, int]


@dataclass(frozen=True)
class Call:
    """One call of a layer: ``given`` and ``out`` as it ran on the example, and what is ``known`` of its arguments; both
    arguments are ``(args, kwargs)``. ``users`` are the nodes that take its result."""

    name: str
    layer: Any
    known: tuple[tuple[Any, ...], dict[str, Any]]
    given: tuple[tuple[Any, ...], dict[str, Any]]
    out: Any
    users: Mapping[Any, Any]

    @property
    def title(self) -> str:
        return f"{self.name} ({type(self.layer).__name__})"

    @property
    def values(self) -> list[Value]:
        return values_of(self.known)

    @property
    def tensors(self) -> list[Tensor]:
        tensors: list[Tensor] = []
        map_aggregate(self.given, lambda a: tensors.append(a) if isinstance(a, Tensor) else None)
        return tensors


@dataclass(frozen=True)
class Affine:
    """``scale * x + shift`` with one number of float64 for each real channel, before ``space`` more axes; ``whole`` if
    the four components of a quaternion have the same scale."""

    scale: Tensor
    shift: Tensor
    space: int
    whole: bool


@dataclass(frozen=True)
class Nearest:
    """The parameters and buffers of a quaternion layer that come nearest to a trained real one. ``kept`` is the squared
    norm of what its weights do, ``total`` that of the real weights."""

    tensors: dict[str, Tensor]
    kept: float
    total: float


@runtime_checkable
class Writer(Protocol):
    """A graph of torch operations in the making. The values that a Spec is given are recorded values: what is done to
    them by torch's functions and operators is recorded too."""

    root: dict[str, Any]  # modules and tensors of the new network by name

    def call(self, name: str, module: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> Any:
        """The module, made at its first use, called on recorded values."""

    def layer(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """A layer of the network, as its own Spec writes it."""
        ...

    def tensor(self, name: str, value: Tensor | None) -> Any:
        """A tensor that belongs to the network."""

    def beside(self, name: str, what: str) -> str:
        """A name that no module has for something more that a layer needs."""
        ...


class Spec:
    """A kind of layer. Every method has a default that is right for a layer without parameters of which nothing is
    known; a Spec says what is different. Channels of a layer are quaternions if ``components`` is 4, else real numbers.
    """

    components: int = 1
    gamma = False  # whether ``weight (n,)`` is the scale γ of a batch normalisation, ``bias (4, n)`` or ``(n,)`` its β
    normalises = False  # whether it is a batch normalisation, which takes away what a constant adds to its input
    costly = False  # whether running it again on the same input is to be avoided
    takes_sizes = False  # whether a number it is called with is no more than the size of its output
    absorbs = False  # whether constants that it is given can become part of it
    passes = False  # whether it hands on what it gets, when not training

    # ------------------------------------------------------------------------------------------- what it holds

    def weights(self, layer: Any) -> Sequence[str]:
        """The names of its weights, ``(4, out, in, ...)`` if it is one of quaternions: what penalties act on."""
        return ()

    def shifts(self, layer: Any) -> Sequence[str]:
        """The names of its other parameters with a component axis ``(4, ...)``: biases."""
        return ()

    def scales(self, layer: Any) -> Sequence[str]:
        """The names of numbers that channels are multiplied by: a channel whose scales are zero is a constant."""
        return ()

    def neurons(self, layer: Any) -> int:
        """How many neurons it has, as many as output channels; 0 for layers that have none."""
        return 0

    def neuron_axes(self, layer: Any) -> dict[str, tuple[int, int]]:
        """Where its neurons stand in its parameters, by name: along which axis, and how many times one after another.
        A neuron that is zero in all of these puts out zero."""
        return {}

    def silent(self, layer: Any) -> Tensor:
        """Which of its neurons ``(neurons,)`` put out a constant whatever the input is, as far as the layer knows."""
        return torch.zeros(self.neurons(layer), dtype=torch.bool)

    # -------------------------------------------------------------------------------------- how channels flow

    def follow(self, reader: FunctionRules, call: Call) -> Any:
        """What becomes of the units of its inputs: values in the structure of its output. See
        :class:`quern.graph.facts.Facts` for what an operation can be."""
        return reader.opaque(call.title, call.values, call.out)

    def keeps_constants(self, layer: Any) -> bool:
        """Whether it makes of a constant channel a constant one again, the same at every place, training or not."""
        return False

    # ---------------------------------------------------------------------------------------- how it narrows

    def sizes(self, layer: Any) -> tuple[int | None, int | None]:
        """How many inputs and outputs a plan chooses from; None where it has no choice."""
        raise CompactionError(f"{type(layer).__name__} is no layer that can be made smaller.")

    def check(self, name: str, layer: Any, plan: LayerPlan) -> None:
        """A sentence if ``plan`` is not for ``layer``."""
        if type(layer).__name__ != plan.kind:
            raise CompactionError(f"the plan has a {plan.kind} at {name!r}, but the network a {type(layer).__name__}.")
        for what, have, kept in zip(("inputs", "outputs"), self.sizes(layer), (plan.inputs, plan.outputs), strict=True):
            if (have is None) != (kept is None) or (kept is not None and kept.total != have):
                raise CompactionError(
                    f"the plan has {kept.total if kept else 'no'} {what} at {name!r}, not {have or 'none'}."
                )
        fits = all(self.absorbs and len(q) == self.components for _, q in plan.constants)
        if not fits or not set(plan.still) <= self.still_names(layer):
            raise CompactionError(f"the plan's constants do not fit {name!r}.")

    def still_names(self, layer: Any) -> set[str]:
        """What ``still`` in a plan may name."""
        return set()

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        """For every parameter and buffer that changes, what it becomes; also right for an optimizer's state of its
        shape, and after the layer was changed. None of them touches the axis of the components."""
        return {}

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        """Set the numbers a layer keeps of its own sizes."""

    def absorb(self, layer: Any, plan: LayerPlan) -> None:
        """Add to the layer what its constant inputs did, and let it look at them no more."""

    def shapes(self, layer: Any, ins: int | None, outs: int | None, constants: bool) -> dict[str, Shape] | None:
        """Its tensors when so many of its inputs and outputs are left, with those that it gets where it takes in
        ``constants``. None where these numbers do not tell."""
        return None

    def narrow(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        """Make ``layer`` smaller in place. Returns how its parameters were selected."""
        with torch.no_grad():
            self.absorb(layer, plan)
        selections = self.selections(layer, plan)
        for name, select in selections.items():
            old = getattr(layer, name, None)
            if isinstance(old, Tensor):
                new = select(old.detach()).contiguous()
                trained = isinstance(old, nn.Parameter)
                setattr(layer, name, nn.Parameter(new, requires_grad=old.requires_grad) if trained else new)
        self.resize(layer, plan)
        if not list(layer.children()):
            layer.train(layer.training)  # forgets what was derived from the old weights
        return selections

    # ----------------------------------------------------------------------------------------------- what it costs

    def work(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> list[Work]:
        """The multiply-adds of one call: weights, how often each of their numbers is used, and for how many products
        each time."""
        return []

    # ----------------------------------------------------------------------------------------------- how it folds

    def affine(self, layer: Any) -> Affine | None:
        """What it computes in eval mode, if that is a scale and a shift for each channel."""
        return None

    def followed_by(self, layer: Any, affine: Affine, flat: bool) -> Callable[[], None] | None:
        """How ``layer`` becomes one that does what it did and then ``affine``; None if it cannot. ``flat`` if
        everything after the batch was flattened to one axis in between."""
        return None

    def preceded_by(self, layer: Any, affine: Affine, flat: bool) -> Callable[[], None] | None:
        """How ``layer`` becomes one that does ``affine`` first; None if it cannot."""
        return None

    def flattens(self, layer: Any) -> bool:
        """Whether everything after the batch becomes one axis, and nothing else happens."""
        return False

    # ------------------------------------------------------------------------------------------ its real form

    def to_real(self, writer: Writer, name: str, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Write what it computes in eval mode with layers and functions of torch; returns the recorded result. What
        follows ``layer`` are the arguments of its forward. A layer of real numbers is written as it is."""
        if self.components == 4:
            raise ExportError(f"{name} ({type(layer).__name__}) has no real form that quern knows.")
        return writer.call(name, lambda: layer, *args, **kwargs)

    # ------------------------------------------------------------------------------------ its quaternion form

    splits = False  # whether it acts on each real channel alone, and so on quaternions as it is
    functions: tuple[Any, ...] = ()  # of torch that compute what it does, called with its ``weight``

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        """The quaternion layer of the same real widths, freshly initialised, in place of a layer of torch; None if none
        is known, ValueError if this one has none. ``layer`` may be of a subclass that computes the same."""
        return None

    def quaternion_form_along(self, layer: Any, axis: int) -> nn.Module | None:
        """As :meth:`quaternion_form`, of a layer whose form depends on the axis that carries quaternions."""
        return None

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        """The parameters with which ``new``, its quaternion form, comes nearest to a trained ``layer``. ``inputs`` and
        ``outputs`` ``(components, n)`` say which real channel is which component of which quaternion; None if they
        stand in this order. A layer that keeps channels apart is asked by ``inputs`` alone. ValueError if that is not
        known."""
        raise ValueError(f"no way is known to carry over the weights of a trained {type(layer).__name__}")

    def matrix(self, layer: Any) -> Tensor | None:
        """Its weight as ``(outputs, inputs, ...)``, if it is one of real numbers and all that it does is multiply by
        that; channels can then be grouped so that the nearest quaternions lose little."""
        return None

    def carried(self, layer: Any, value: Any) -> Any:
        """Which of its results carry quaternions: ``value`` or None for each, in their structure."""
        return value

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        """Along which axis its output carries quaternions, given that of its input and how many axes that has, where
        these are known; None if along none. The axis is counted from the front if it is not negative."""
        return axis if self.components == 1 else -1

    # ------------------------------------------------------------------------------------------ for the C runtime

    packs = False  # whether the runtime knows it as it is: :meth:`pack`; else its real form is packed

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, *args: Any, **kwargs: Any) -> Any:
        """What it is for the runtime: values in the structure of its output. ``out`` is what it gave for two samples,
        what follows are the arguments of its forward."""
        raise ExportError("the runtime does not know it.")


# ---------------------------------------------------------------------------------------------------- the register

_SPECS: dict[type[nn.Module], Spec] = {}
_UNKNOWN = Spec()


def register(layer_type: type[nn.Module], spec: Spec) -> None:
    """From now on ``spec`` is what quern knows of layers of the class ``layer_type``, which are not looked into. It is
    also asked about its subclasses, but where these compute something of their own: torch.fx looks into those, and
    folding and exports take none but the very class."""
    if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module) and isinstance(spec, Spec)):
        raise TypeError(f"register takes a class of layers and a Spec, but got {layer_type!r} and {spec!r}.")
    _SPECS[layer_type] = spec


def spec_of(layer: nn.Module) -> Spec:
    """The Spec of a layer's class, or of the next base class that has one; one that knows nothing if none has."""
    return next((_SPECS[kind] for kind in type(layer).__mro__ if kind in _SPECS), _UNKNOWN)


def own_spec(layer: nn.Module) -> Spec | None:
    """The Spec of a layer's very class, as a subclass may compute anything; None if it has none."""
    return _SPECS.get(type(layer))


class Watcher:
    """A forward hook that looks on and changes nothing: a layer that has one still does what its class says."""


def hooked(module: nn.Module) -> bool:
    """Whether calling ``module`` does more than its ``forward`` says."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return not all(isinstance(hook, Watcher) for hook in hooks)


def narrowed_shapes(layer: nn.Module, plan: LayerPlan) -> dict[str, Shape]:
    """The tensors of a layer after ``plan``."""
    spec = spec_of(layer)
    ins, outs = (None if kept is None else len(kept.indices) for kept in (plan.inputs, plan.outputs))
    shapes = spec.shapes(layer, ins, outs, bool(plan.constants))
    if shapes is None:
        small = copy.deepcopy(layer).to("meta")
        spec.narrow(small, plan)
        shapes = {name: tuple(t.shape) for name, t in (*small.named_parameters(), *small.named_buffers())}
    return shapes


def take(axis: int, indices: Any) -> Select:
    """The entries at ``indices``, which rise: as many as there are is all of them."""
    chosen = torch.as_tensor(indices, dtype=torch.long)
    return lambda t: t if len(chosen) == t.shape[axis] else t.index_select(axis, chosen.to(t.device))


def both(first: Select, second: Select) -> Select:
    return lambda t: second(first(t))


def add_parameter(layer: nn.Module, name: str, what: Tensor, like: Tensor) -> None:
    """Add ``what`` to a parameter, or make it one, of the type of ``like``."""
    old = getattr(layer, name)
    total = what if old is None else old.detach().to(what.dtype) + what
    trained = like.requires_grad if old is None else old.requires_grad
    setattr(layer, name, nn.Parameter(total.to(like.dtype), requires_grad=trained))
