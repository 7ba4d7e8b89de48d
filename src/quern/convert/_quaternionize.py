"""Networks written in ``torch.nn`` become quaternion networks of the same real widths."""

import copy
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import fx, nn

from quern.convert._axes import form_along
from quern.convert._channels import Channels
from quern.convert._nodes import shapes_of
from quern.convert._subclasses import INNER, subclass_form
from quern.convert._trained import Carried, carry, some_of
from quern.errors import ConversionError, TraceError
from quern.graph import Example, check_module, inputs_of
from quern.graph.spec import Nearest, own_spec
from quern.graph.trace import Tracer, traced

Keep = str | type[nn.Module] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Row:
    """Layers of one kind, and what became of them. ``share`` is how much of the squared norm of their trained weights
    the nearest quaternions keep; None if none were carried over."""

    kind: str
    becomes: str
    names: tuple[str, ...]
    why: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Conversion:
    """A network of quaternions, and what became of the layers and functions of the one it was made of. Printed, it is a
    short table. ``notes`` are about the order of channels, where trained weights were carried over."""

    network: nn.Module
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        trained = any(row.share is not None for row in self.rows)
        lines = [("layers", "of", "became", *(("keeps",) if trained else ()), "")]
        for row in self.rows:
            share = "" if row.share is None else f"{100 * row.share:.0f} %"
            lines.append((str(len(row.names)), row.kind, row.becomes, *((share,) if trained else ()), row.why))
        widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
        table = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join((*table, *self.notes))


def quaternionize(
    module: nn.Module, keep: Keep | Iterable[Keep] = (), *, example: Example | None = None, trained: bool = False
) -> nn.Module:
    """The quaternion network of the same real widths, freshly initialised: a quarter of the weights.

    Linear layers, convolutions, normalisations, embeddings, recurrent layers, attention and torch's transformer layers
    are replaced; layers that act on every channel alone (activations, pooling, padding, Flatten) stay. Classes derived
    from known layers become what their ``forward`` does around the quaternion layer. A layer with 3 or 1 input channels
    takes RGB (gray) images as they are. Where a convolution or a GroupNorm has more groups than there are whole
    quaternions for, it gets as many as there can be: a depthwise convolution has one for each quaternion channel.
    Parameters of the network itself, such as a class token or positions, stay: numbers for 4·C channels are those of C
    quaternions.

    What stays real is named by ``keep``: names of layers (``"head"``, with everything in it, or ``"blocks.*.fc"``),
    types, or functions of ``(name, layer)``. What cannot be converted is named in one error, by kind; the given module
    is not changed.

    Functions in ``forward`` that cut or join channels (``torch.cat``, ``chunk``, ``split``, slices, views into heads)
    become those for whole quaternions. torch.fx has to see them, so the network must be traceable; and where it depends
    on shapes what a function does, ``example``, an input or a tuple of several, has to tell. If anything was rewritten,
    the result is a ``torch.fx.GraphModule`` with the same submodules. :func:`conversion` also tells what was done.

    With ``trained`` the quaternion network does not begin anew, but with the weights nearest to those of ``module``:
    each 4x4 block becomes the quaternion that is nearest in least squares, and normalisations keep their statistics.
    Given an ``example``, quern looks for groups of four channels that lose little. What is kept stays as it is.
    """
    return conversion(module, keep, example=example, trained=trained).network


def conversion(
    module: nn.Module, keep: Keep | Iterable[Keep] = (), *, example: Example | None = None, trained: bool = False
) -> Conversion:
    """:func:`quaternionize`, with a table of what was converted, what was kept, and why."""
    check_module(module)
    kept_names = _kept(module, keep)
    network = copy.deepcopy(module)
    kept = {layer for name, layer in network.named_modules() if name in kept_names}
    layers = _Layers(kept)
    network = layers.convert(network, "")
    problems = layers.problems
    rewritten: list[str] = []
    if not problems and list(network.children()):
        network, channels = _rewritten(network, kept, example)
        problems, rewritten = channels.problems, channels.rewritten
        for layer, axes in channels.axes.items():
            spec = own_spec(layer)
            new = None if spec is None else form_along(spec, layer, axes)
            if new is not None:
                layers.note(layer, type(new).__name__, "")
                _replace(network, layer, new.train(layer.training))
    if problems:
        raise ConversionError(_sentence(problems))
    carried = Carried()
    if trained:
        if rewritten and example is None:
            raise ConversionError(
                f"forward joins or cuts channels ({', '.join(dict.fromkeys(rewritten))}), and which trained weight is "
                "for which channel then depends on shapes: give an input as example=."
            )
        stays = {name: layer for name, layer in network.named_modules() if name and layer not in layers.new}
        carried = carry(module, layers.pairs, stays, example)
        if carried.problems:
            raise ConversionError(_sentence(carried.problems))
    rows = layers.rows(carried.nearest)
    if rewritten:
        counts = {name: rewritten.count(name) for name in rewritten}
        rows += [Row(name, "whole quaternions", ("",) * n, "in forward") for name, n in counts.items()]
    return Conversion(network, tuple(rows), tuple(carried.notes))


# ---------------------------------------------------------------------------------------------------------- layers


def _kept(module: nn.Module, keep: Keep | Iterable[Keep]) -> set[str]:
    """The names of the layers that stay real, with all that is inside of them."""
    rules = [keep] if isinstance(keep, (str, type)) or callable(keep) else list(keep)
    names = {name: layer for name, layer in module.named_modules(remove_duplicate=False) if name}
    chosen: set[str] = set()
    for rule in rules:
        if isinstance(rule, str):
            hits = {name for name in names if fnmatchcase(name, rule)}
        elif isinstance(rule, type):
            hits = {name for name, layer in names.items() if isinstance(layer, rule)}
        elif callable(rule):
            hits = {name for name, layer in names.items() if rule(name, layer)}
        else:
            raise ConversionError(f"keep takes names, types and functions, but got {rule!r}.")
        if not hits and isinstance(rule, (str, type)):
            what = rule if isinstance(rule, str) else rule.__name__
            raise ConversionError(f"keep names {what}, which the network does not have.")
        chosen |= hits
    return chosen


class _Layers:
    def __init__(self, kept: set[nn.Module]) -> None:
        self.kept = kept
        self.problems: list[tuple[str, str]] = []
        self.done: dict[nn.Module, nn.Module] = {}  # a layer used twice stays one layer
        self.names: dict[nn.Module, str] = {}
        self.became: dict[nn.Module, tuple[str, str, str]] = {}
        self.pairs: dict[str, tuple[nn.Module, nn.Module]] = {}  # by name, (old, new)
        self.free: list[str] = []  # parameters of no layer, such as a class token

    def note(self, layer: nn.Module, becomes: str, why: str) -> None:
        self.became[layer] = (type(layer).__name__, becomes, why)

    def rows(self, nearest: dict[str, Nearest]) -> list[Row]:
        groups: dict[tuple[str, str, str], list[str]] = {}
        for layer, what in self.became.items():
            groups.setdefault(what, []).append(self.names.get(layer, ""))
        if self.free:
            groups["Parameter", "itself", "real numbers of 4·C channels are C quaternions"] = self.free
        return [Row(*what[:2], tuple(names), what[2], _share(nearest, names)) for what, names in groups.items()]

    @property
    def new(self) -> set[nn.Module]:
        """The quaternion layers that were made, and their parts."""
        return {part for _, new in self.pairs.values() for part in new.modules()}

    def convert(self, old: nn.Module, name: str) -> nn.Module:
        if old in self.done:
            return self.done[old]
        self.names[old] = name
        new = self._converted(old, name)
        self.done[old] = new
        return new

    def _converted(self, old: nn.Module, name: str) -> nn.Module:
        spec = own_spec(old)
        if old in self.kept:
            if list(old.parameters()):
                self.note(old, "kept", "by keep=")
            return old
        if spec is not None and spec.components == 4:
            return old
        try:
            new = subclass_form(old) if spec is None else spec.quaternion_form(old)
        except ValueError as error:
            self.problems.append((_kind_of(str(error)), name or "the module"))
            return old
        if new is not None and new is not old:
            self.note(old, type(new).__name__, _changed(old, new))
            self.pairs[name] = (old, new)
            if isinstance(new, fx.GraphModule):
                self.pairs[name] = (old, new.get_submodule(INNER))
                self._children(new, name)
            return new.train(old.training)
        if new is old or (spec is not None and (spec.splits or spec.passes)):
            self.note(old, "itself", "acts on each channel alone")
            return old
        is_container = type(old) in _CONTAINERS or list(old.children())
        foreign = type(old).__module__.startswith("torch.nn.modules") and type(old) not in _CONTAINERS
        if foreign or (not is_container and list(old.parameters(recurse=False))):
            self.problems.append((f"no quaternion form of {type(old).__name__} is known", name or "the module"))
            return old
        self.free += [f"{name}.{own}" if name else own for own, _ in old.named_parameters(recurse=False)]
        self._children(old, name)
        return old

    def _children(self, old: nn.Module, name: str) -> None:
        # not named_children(), which leaves out the second name of a layer used twice
        for child_name, child in [(n, m) for n, m in old._modules.items() if m is not None]:
            new = self.convert(child, f"{name}.{child_name}" if name else child_name)
            if new is not child:
                old._modules[child_name] = new


def _share(nearest: dict[str, Nearest], names: list[str]) -> float | None:
    found = [nearest[name] for name in names if name in nearest and nearest[name].total]
    return sum(one.kept for one in found) / sum(one.total for one in found) if found else None


_CONTAINERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)  # the first in graphs of torch.fx


def _changed(old: Any, new: Any) -> str:
    for name in ("groups", "num_groups"):
        before, after = getattr(old, name, None), getattr(new, name, None)
        if before is not None and after is not None and before != after:
            return f"groups of whole quaternions: {after} in place of {before}"
    return ""


def _kind_of(sentence: str) -> str:
    """The kind of problem that a refusal is: the same words without the numbers of one layer."""
    if "multiple of 4" in sentence or "divisible" in sentence or "quaternion channels" in sentence:
        return "sizes that are no whole numbers of quaternions (multiples of 4)"
    return sentence.rstrip(".")


def _sentence(problems: list[tuple[str, str]]) -> str:
    groups: dict[str, list[str]] = {}
    for kind, place in problems:
        if place not in groups.setdefault(kind, []):
            groups[kind].append(place)
    lines = []
    for kind, places in groups.items():
        lines.append(f"{kind}: {some_of(places)}")
    return "\n  ".join(["cannot convert the network.", *lines]) + "\nLayers named in keep=... stay real."


# -------------------------------------------------------------------------------------------------------- functions


class _KeepTracer(Tracer):
    """What is kept is not looked into."""

    def __init__(self, kept: set[nn.Module]) -> None:
        super().__init__()
        self.kept = kept

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.kept or super().is_leaf_module(m, module_qualified_name)


def _rewritten(network: nn.Module, kept: set[nn.Module], example: Example | None) -> tuple[nn.Module, Channels]:
    """``network``, or a graph of it if functions had to be rewritten."""
    inputs = None if example is None else inputs_of(network, example)
    count = None if inputs is None else len(inputs)

    def tracer() -> Tracer:
        return _KeepTracer(kept)

    try:
        root, graph, _ = traced(network, count, tracer)
    except TraceError as reason:
        raise ConversionError(
            f"cannot convert the network, because what forward does between layers is not seen: {reason}"
        ) from reason
    names, training = [node.name for node in graph.nodes], None
    with suppress(TraceError):
        _, training, _ = traced(network, count, tracer, training=True)
    shapes = None
    if inputs is not None:
        modes = [(m, m.training) for m in root.modules()]
        root.eval()
        try:
            shapes = shapes_of(root, graph, inputs)
        except Exception as reason:
            words = (str(reason).strip().splitlines() or [type(reason).__name__])[0]
            raise ConversionError(f"the network does not take the example: {words}.") from reason
        finally:
            for m, mode in modes:
                m.training = mode
    channels = Channels(root, shapes, kept)
    channels.run(graph)
    if not channels.rewritten or channels.problems:
        return network, channels
    if training is None or [node.name for node in training.nodes] != names:
        raise ConversionError(
            "cannot convert the network: its forward does something else when training than when not, which torch.fx "
            "cannot keep apart while functions are rewritten; use layers (nn.Dropout) for what depends on training."
        )
    _by_mode(graph, training)
    result = fx.GraphModule(root, graph, type(network).__name__)
    result.train(network.training)
    for name, module in network.named_modules():
        if name in dict(result.named_modules()):
            result.get_submodule(name).training = module.training
    return result, channels


def _by_mode(graph: fx.Graph, training: fx.Graph) -> None:
    """Where a function was called with ``self.training``, it asks for that each time. Both are graphs of the same
    network, ``graph`` of its eval mode."""
    asked: fx.Node | None = None
    before = {node.name: node for node in training.nodes}
    for node in graph.nodes:
        other = before.get(node.name)
        if other is None or node.op not in ("call_function", "call_method"):
            continue

        def asks(own: Any, theirs: Any) -> Any:
            nonlocal asked
            if own is False and theirs is True:
                if asked is None:
                    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
                        asked = graph.get_attr("training")
                return asked
            return own

        if len(node.args) == len(other.args):
            node.args = tuple(asks(a, b) for a, b in zip(node.args, other.args, strict=True))
        node.kwargs = {key: asks(a, other.kwargs.get(key)) for key, a in node.kwargs.items()}


def _replace(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for module in network.modules():
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new
