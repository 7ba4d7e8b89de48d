"""The weights of a trained real network carried over to its quaternion form: the nearest ones, layer by layer.

Which real channels become one quaternion is the same for all layers that make or take a channel. The reader says which
these are; where channels cannot be told apart from others, or may not change places, they keep their order.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quern.convert._grouping import gains, grouped, incoming, outgoing
from quern.errors import CompactionError, TraceError
from quern.graph import Example, inputs_of, mapped
from quern.graph.reader import read
from quern.graph.spec import Nearest, spec_of
from quern.graph.units import Record

ROUNDS = 2  # over all groups of channels, as each depends on its neighbours
ORDER = "channels stay in the order given: "


@dataclass(eq=False)
class _Stream:
    """The output channels of one layer, wherever they go. ``fixed`` says why they must keep their order."""

    name: str
    ids: Tensor
    fixed: str = ""


@dataclass(frozen=True)
class _Segment:
    """A whole stream among the inputs of a layer, each channel ``spread`` times, from input ``first`` on."""

    stream: _Stream
    first: int
    spread: int

    @property
    def size(self) -> int:
        return len(self.stream.ids) * self.spread


@dataclass(eq=False)
class _Sides:
    """A layer, and what it takes and makes; None where that is not known."""

    layer: nn.Module
    inputs: list[_Segment] | None = None
    outputs: _Stream | None = None
    matrix: Tensor | None = None


@dataclass
class Carried:
    """How the layers of a network came over, by name, and what is to be said of the order of channels."""

    nearest: dict[str, Nearest] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


@torch.inference_mode(False)
@torch.no_grad()
def carry(
    network: nn.Module,
    pairs: dict[str, tuple[nn.Module, nn.Module]],
    kept: dict[str, nn.Module],
    example: Example | None,
) -> Carried:
    """Give every new layer of ``pairs``, (old, new) by name, the nearest weights to those of the old. ``kept`` are the
    layers that stay; of those only what they are given may come in another order."""
    done = Carried()
    for name, (old, _) in pairs.items():
        if not all(p.isfinite().all() for p in old.parameters()):
            done.problems.append(("weights that are not finite: load those of a training that went well", name))
    if done.problems:
        return done
    groups = _Groups(network, pairs, done.notes, example)
    groups.search()
    if groups.moved:
        done.notes.insert(0, f"channels grouped anew: {some_of(groups.moved)}")
    for name, (old, new) in pairs.items():
        sides = groups.sides.get(name)
        places = (None, None) if sides is None else (groups.inputs(sides), groups.outputs(sides))
        try:
            one = spec_of(old).nearest(old, new, *places)
        except ValueError as reason:
            done.problems.append((str(reason), name))
            continue
        own = {**dict(new.named_parameters()), **dict(new.named_buffers())}
        for key, tensor in one.tensors.items():
            own[key].copy_(tensor)
        done.nearest[name] = one
    for name, layer in kept.items():
        sides = groups.sides.get(name)
        places = None if sides is None else groups.inputs(sides)
        if places is not None and not torch.equal(places.flatten(), torch.arange(places.numel())):
            _reorder(name, layer, places.flatten(), done)
    return done


def _reorder(name: str, layer: Any, places: Tensor, done: Carried) -> None:
    if getattr(layer, "groups", 1) == 1 and spec_of(layer).matrix(layer) is not None:
        axis = 0 if getattr(layer, "transposed", False) else 1
        layer.weight.copy_(layer.weight.index_select(axis, places.to(layer.weight.device)))
        done.notes.append(f"{name} stays real, its columns in the order in which whole quaternions are joined")
    else:
        kind = f"{type(layer).__name__} stays real, but is given channels in another order: convert it too"
        done.problems.append((kind, name))


class _Groups:
    """The streams of a real network, and which of their channels are which component of which quaternion."""

    def __init__(self, network: nn.Module, pairs: dict[str, Any], notes: list[str], example: Example | None) -> None:
        self.notes = notes
        self.sides: dict[str, _Sides] = {}
        self.streams: list[_Stream] = []
        self.classes: list[list[_Stream]] = []
        self.places: dict[_Stream, Tensor] = {}
        self.moved: list[str] = []
        if example is None:
            notes.append(f"{ORDER}give example=, an input, and quern looks for groups that lose less")
            return
        real = copy.deepcopy(network).eval()
        try:
            inputs = mapped(inputs_of(real, example), Tensor.clone)
            facts, _, _ = read(real, inputs, keep_unknown=True)
        except (CompactionError, TraceError) as reason:
            notes.append(f"{ORDER}{reason}")
            return
        records = {record.name: record for record in facts.records.values()}
        self._read(records, pairs)
        self._tie(facts.roots, facts._pinned)
        for stream in self.streams:
            if not len(stream.ids) % 4:
                self.places[stream] = torch.arange(len(stream.ids)).view(4, -1)
        why: dict[str, list[str]] = {}
        for stream in self.streams:
            if stream.fixed and stream in self.places:
                why.setdefault(stream.fixed, []).append(stream.name)
        notes += [f"{ORDER}{some_of(names)}, because {reason}" for reason, names in why.items()]

    # ------------------------------------------------------------------------------------------------ what is tied

    def _read(self, records: dict[str, Record], pairs: dict[str, Any]) -> None:
        owner: dict[int, tuple[_Stream, int]] = {}
        for name, record in records.items():
            makes = record.outputs is not None and record.outputs is not record.inputs
            stream = None
            if makes:
                assert record.outputs is not None
                stream = _Stream(name, record.outputs)
                self.streams.append(stream)
                owner |= {int(unit): (stream, n) for n, unit in enumerate(record.outputs)}
            self.sides[name] = _Sides(record.layer, outputs=stream)
        for name, record in records.items():
            sides = self.sides[name]
            if name in pairs:
                sides.matrix = spec_of(record.layer).matrix(record.layer)
            taken = [] if record.inputs is None else [owner.get(int(unit)) for unit in record.inputs]
            sides.inputs = _segments(taken)
            in_groups = getattr(record.layer, "groups", 1) > 1
            apart = record.outputs is None and spec_of(record.layer).normalises  # takes channels in any order
            moves = not in_groups and (sides.matrix is not None or apart or record.inputs is None)
            for stream in {found[0] for found in taken if found} | ({sides.outputs} - {None}):
                assert stream is not None
                if name not in pairs:
                    stream.fixed = "a layer that stays as it is takes them"
                elif sides.inputs is None and any(found and found[0] is stream for found in taken):
                    stream.fixed = "a layer does not take them whole"
                elif not moves:
                    stream.fixed = f"a {type(record.layer).__name__}{' with groups' if in_groups else ''} has them"

    def _tie(self, roots: Any, pinned: Iterable[int]) -> None:
        """Streams that are added to each other are one class."""
        held = set(roots(torch.tensor(sorted(pinned), dtype=torch.long)).tolist()) if pinned else set()
        of_root: dict[int, _Stream] = {}
        parent: dict[_Stream, _Stream] = {stream: stream for stream in self.streams}
        order = {stream: roots(stream.ids).tolist() for stream in self.streams}
        for stream in self.streams:
            for other in {of_root[root] for root in order[stream] if root in of_root}:
                if order[other] != order[stream]:
                    stream.fixed = other.fixed = "tied to some of another layer's, or in another order"
                parent[stream] = parent[other]
            if held & set(order[stream]) and not stream.fixed:
                stream.fixed = "what they become depends on their order"
            for root in order[stream]:
                of_root.setdefault(root, stream)
        classes: dict[_Stream, list[_Stream]] = {}
        for stream in self.streams:
            top = stream
            while parent[top] is not top:
                top = parent[top]
            classes.setdefault(top, []).append(stream)
        for members in classes.values():
            reason = next((stream.fixed for stream in members if stream.fixed), "")
            for stream in members:
                stream.fixed = stream.fixed or reason
            if not reason and not len(members[0].ids) % 4:
                self.classes.append(members)

    # ---------------------------------------------------------------------------------------------------- places

    def outputs(self, sides: _Sides) -> Tensor | None:
        return None if sides.outputs is None else self.places.get(sides.outputs)

    def inputs(self, sides: _Sides) -> Tensor | None:
        """Which input is which component of which quaternion, where all inputs are streams."""
        if not sides.inputs or not all(segment.stream in self.places for segment in sides.inputs):
            return None
        parts = [
            (self.places[s.stream].unsqueeze(2) * s.spread + torch.arange(s.spread)).flatten(1) + s.first
            for s in sides.inputs
        ]
        return torch.cat(parts, 1)

    # ---------------------------------------------------------------------------------------------------- search

    def search(self) -> None:
        starts = {members[0]: self.places[members[0]] for members in self.classes}
        for _ in range(ROUNDS):
            for members in self.classes:
                self._regroup(members)
        for members in self.classes:
            if not torch.equal(starts[members[0]], self.places[members[0]]):
                self.moved += [stream.name for stream in members]

    def _regroup(self, members: list[_Stream]) -> None:
        vectors, scale = [], 0.0
        for sides in self.sides.values():
            if sides.matrix is None:
                continue
            matrix = sides.matrix.cpu().float()
            if sides.outputs in members:
                places = self.inputs(sides)
                parts = {1: 1, 3: 3}.get(matrix.shape[1], 4)
                columns = torch.arange(matrix.shape[1]) if places is None else places.flatten()
                vectors.append(outgoing(matrix[:, columns], parts))
                scale += float(matrix.square().sum())
            for segment in sides.inputs or ():
                rows = self.outputs(sides)
                if segment.stream not in members or rows is None:
                    continue
                own = matrix[rows.flatten(), segment.first : segment.first + segment.size]
                vectors.append(incoming(own.unflatten(1, (-1, segment.spread))))
                scale += float(own.square().sum())
        if not vectors:
            return
        places = grouped(gains(vectors), self.places[members[0]], scale)
        for stream in members:
            self.places[stream] = places


def some_of(names: list[str]) -> str:
    """The first three, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _segments(taken: list[tuple[_Stream, int] | None]) -> list[_Segment] | None:
    """The streams that the inputs of a layer are, one after another; None if they are not whole streams in order."""
    segments, first = list[_Segment](), 0
    while first < len(taken):
        found = taken[first]
        if found is None or found[1] != 0:
            return None
        stream, spread = found[0], 1
        while first + spread < len(taken) and taken[first + spread] == (stream, 0) and len(stream.ids) > 1:
            spread += 1
        segment = _Segment(stream, first, spread)
        whole = [(stream, n) for n in range(len(stream.ids)) for _ in range(spread)]
        if taken[first : first + segment.size] != whole:
            return None
        segments.append(segment)
        first += segment.size
    return segments or None
