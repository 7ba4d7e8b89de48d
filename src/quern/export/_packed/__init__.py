"""Packed networks: files for the C runtime, checked against the network before they get their names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from quern.compact import warn_dead
from quern.errors import ExportError, PackedError
from quern.export._packed import blob
from quern.export._packed.builder import Builder
from quern.export._packed.fusing import fused, in_place
from quern.export._packed.int8 import quantized
from quern.export._packed.operations import Dtype
from quern.export._program import Pixels, Program, check_place, first, first_line, writing
from quern.export._real import real_form
from quern.graph import Example
from quern.graph.operations import operation
from quern.graph.packing import FUNCTIONS, Packed, reshape
from quern.graph.spec import own_spec
from quern.runtime import PackedNetwork, check_built

__all__ = ["PackedReport", "packed_size", "to_packed"]

PackedDtype = Literal["float32", "float16", "int8"]
# What scores may be off by, relative to the largest: rounding. In int8 nobody can say; the accuracy tells.
_TOLERANCE = {"float32": 1e-4, "float16": 2e-2}


@dataclass(frozen=True)
class PackedReport:
    """A packed network that was written: its size, the working memory it takes at most speed and at least, all memory
    that it takes on a microcontroller, how its layers are stored, and the largest difference from the network's scores
    relative to the largest score."""

    path: Path
    bytes: int
    arena: int
    least_arena: int
    ram: int
    layers: tuple[blob.StoredLayer, ...]
    difference: float

    @property
    def stored(self) -> int:
        """Units of weight, quaternions of quaternion layers, that are stored."""
        return sum(layer.stored for layer in self.layers)


def to_packed(
    model: nn.Module,
    path: Path | str,
    example: Example,
    *,
    dtype: PackedDtype = "float32",
    pixels: Pixels | None = None,
) -> PackedReport:
    """Write ``model`` as a packed network, which the C runtime ``quern_rt`` runs: :mod:`quern.runtime`, or a device.

    Batch normalisations are folded, every quaternion is stored once, and those that are zero are not stored where that
    is smaller. ``example`` is some input of the network (raw images with ``pixels``), or a tuple of several: the file
    is run on it and compared with the network before it gets its name. With ``dtype`` "float16" weights take half of
    the bytes; with "int8" products are made in 8 bits, with ranges of activations that come from the example, which
    should then be some hundred inputs that are typical. What cannot be packed is refused by name.
    """
    path = Path(path)
    check_place(path)
    check_built()
    if dtype not in ("float32", "float16", "int8"):
        raise ExportError(f"dtype is {dtype}, but must be float32, float16 or int8.")
    program = Program(model, example, pixels)
    if program.dead:
        warn_dead()
    content, layers = pack(program, dtype)
    with writing(path) as temporary:
        temporary.write_bytes(content)
        network = PackedNetwork(content, str(path))
        difference = _difference(program, network, dtype)
    sizes = (network.arena, network.least_arena, network.ram)
    return PackedReport(path, len(content), *sizes, tuple(layers), difference)


def packed_size(model: nn.Module, example: Example, pixels: Pixels | None = None) -> tuple[int, int, int]:
    """The bytes of ``model`` as a packed network in float32, how many of them are no weights, and the memory that it
    takes on a microcontroller; without writing or comparing it."""
    content, layers = pack(Program(model, example, pixels), "float32")
    return len(content), len(content) - sum(layer.bytes for layer in layers), PackedNetwork(content).ram


def pack(program: Program, dtype: PackedDtype) -> tuple[bytes, list[blob.StoredLayer]]:
    """The blob of a network, and how its layers are stored."""
    builder = Builder("F16" if dtype == "float16" else "F32")
    inputs, outputs = _build(program, builder)
    made, taken = [t.buffer for t in outputs], [t.buffer for t in inputs]
    operations = fused(builder.operations, made, dtype == "int8")
    if dtype == "int8":
        operations = quantized(operations, inputs, made, [t.numpy() for t in program.example])
    return blob.write(in_place(operations, made, taken), inputs, outputs)


def _difference(program: Program, network: PackedNetwork, dtype: PackedDtype) -> float:
    def run(*inputs: Tensor) -> Sequence[Tensor]:
        try:
            outputs = network(*(t.numpy() for t in inputs))
        except PackedError as reason:
            raise ExportError(f"the packed network does not run: {reason}") from reason
        return [torch.from_numpy(y) for y in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return program.compare(run, _TOLERANCE.get(dtype))[0]


_DTYPES: dict[torch.dtype, Dtype] = {torch.float32: "F32", torch.uint8: "U8", torch.int32: "I32", torch.int64: "I32"}


def _build(program: Program, builder: Builder) -> tuple[list[blob.Tensor], list[blob.Tensor]]:
    """All operations of the network, with its inputs and outputs."""
    source, raw = program.parts
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in source.parameters()):
        raise ExportError("only networks in float32 can be packed: convert it, network.float().")
    network = real_form(source, len(program.example), packing=True)
    values: list[Packed] = []
    inputs = []
    for given in program.example:
        if given.dtype not in _DTYPES:
            raise ExportError(f"an input of {str(given.dtype).removeprefix('torch.')} cannot be packed: give float32.")
        value = builder.input(tuple(given.shape[1:]), _DTYPES[given.dtype])
        inputs.append(blob.Tensor(value.buffer, value.shape))
        values.append(value if raw is None else _normalized(builder, value, raw))
    samples = first(program.example, 2)
    if len(samples[0]) == 1:
        samples = tuple(torch.cat([t, t]) for t in samples)
    if raw is not None:
        samples = (raw.normalized(samples[0]),)
    walk = _Walk(network, builder, iter(values))
    result = walk.pack(*samples)
    outputs = []
    results = result if isinstance(result, (tuple, list)) else (result,)
    for value in results:
        if not isinstance(value, Packed) or value.batch is None:
            raise ExportError("an output of the network does not depend on its input, so it cannot be packed.")
        if value.batch != 0:
            raise ExportError("the batch must be the first axis of the outputs of a network that is packed.")
        value = builder.contiguous(value)
        taken = any(value.buffer is t.buffer for t in (*inputs, *outputs))
        if taken:  # an input handed on, or one value as two outputs
            value = builder.unary("IDENTITY", value)
        outputs.append(blob.Tensor(value.buffer, value.shape))
    return inputs, outputs


def _normalized(builder: Builder, value: Packed, raw: Any) -> Packed:
    scale, shift = raw.scale.flatten(), raw.shift.flatten()
    if value.buffer.dtype == "U8":
        return builder.pixels(value, scale, shift)
    shape = (-1, 1, 1)
    scaled = builder.binary("MUL", value, builder.constant(scale.view(shape)))
    return builder.binary("SUB", scaled, builder.constant(shift.view(shape)))


class _Walk(fx.Interpreter):
    """Runs the network on two samples, for the shapes of its values, and packs each operation on the way."""

    def __init__(self, network: fx.GraphModule, builder: Builder, inputs: Any) -> None:
        super().__init__(network)
        self.nodes = network.graph.nodes
        self.extra_traceback = False  # of our own errors every word counts
        self.builder, self.inputs = builder, inputs
        self.packed: dict[fx.Node, Any] = {}

    @torch.no_grad()
    def pack(self, *samples: Any) -> Any:
        """The packed values of what the network gives for these samples."""
        self.run(*samples)
        return self.packed[next(node for node in self.nodes if node.op == "output")]

    def run_node(self, n: fx.Node) -> Any:
        try:
            out = super().run_node(n)
        except Exception as reason:
            sizes = "a batch of two samples, as a network that is packed must"
            raise ExportError(f"{_title(n, self.module)} does not take {sizes}: {first_line(reason)}.") from reason
        try:
            self.packed[n] = self._pack(n, out)
            if _writes(n, self.module):
                self._overwritten(n)
        except ExportError as reason:
            raise ExportError(f"{_title(n, self.module)} cannot be packed: {reason}") from reason
        return out

    def _overwritten(self, node: fx.Node) -> None:
        """What was changed in place is the result of the operation from now on, under every name that it has."""
        changed = self.env[node.all_input_nodes[0]]
        place = changed.untyped_storage().data_ptr()
        for other, value in self.env.items():
            later = any(user not in self.packed for user in other.users)
            if not (later and isinstance(value, Tensor) and value.untyped_storage().data_ptr() == place):
                continue
            if (value.shape, value.stride(), value.data_ptr()) != (changed.shape, changed.stride(), changed.data_ptr()):
                raise ExportError("it changes in place what is used in another shape too.")
            self.packed[other] = self.packed[node]

    def _pack(self, node: fx.Node, out: Any) -> Any:
        builder = self.builder
        given: Any = map_arg((node.args, node.kwargs), self.packed.__getitem__)
        args, kwargs = given
        if node.op == "placeholder":
            return next(self.inputs) if _holds(out, Tensor) else out  # an input that a call may leave out
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            return builder.constant(out)
        if not _holds(out, Tensor):
            return out  # sizes and the like: a packed network is for inputs of one size
        if node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            spec = own_spec(layer)
            if spec is None:
                raise ExportError("nobody registered how.")
            return spec.pack(builder, str(node.target), layer, out, *args, **kwargs)
        if not _holds((args, kwargs), Packed):  # a tensor made of nothing but sizes
            return _made_up(builder, out)
        kind = operation(node.target).kind
        if kind in ("view", "flatten") or node.target == "unflatten":
            return reshape(builder, args[0], out.shape)
        if node.target in _LIKE:
            return _made_up(builder, out)
        if node.target == "expand_as":
            return args[0].moved(lambda t: t.expand(out.shape))
        if node.target is getattr and args[1] in ("mT", "T"):
            return args[0].moved(lambda t: getattr(t, args[1]))
        function = _function(node.target, out)
        if function is None:
            raise ExportError("the runtime has no such operation.")
        if node.target == "to":
            args = args[:1]
        return function(builder, *args, **kwargs)


def _writes(node: fx.Node, network: Any) -> bool:
    """Whether an operation changes its input."""
    if node.op == "call_module":
        return bool(getattr(network.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    calls = node.op in ("call_function", "call_method")
    return calls and (operation(node.target).writes or name.endswith("_") or node.kwargs.get("inplace") is True)


_LIKE = {torch.zeros_like, torch.ones_like, torch.full_like, "new_zeros", "new_ones", "new_full"}


def _function(target: Any, out: Any) -> Callable[..., Any] | None:
    if target in FUNCTIONS:
        return FUNCTIONS[target]
    pool = operation(target)
    if pool.pack is not None and isinstance(out, Tensor):
        return lambda packer, *args, **kwargs: pool.pack(packer, out, *args, **kwargs)  # pyright: ignore[reportOptionalCall]
    return None


def _made_up(builder: Builder, out: Any) -> Packed:
    """A tensor that is the same number everywhere."""
    if not isinstance(out, Tensor) or not bool((out == out.flatten()[0]).all()):
        raise ExportError("it makes a tensor of numbers that belong to neither the input nor the network.")
    return builder.constant(out.flatten()[:1].view((1,) * out.dim()).float()).moved(lambda t: t.expand(out.shape))


def _holds(what: Any, kind: type) -> bool:
    if isinstance(what, (tuple, list)):
        return any(_holds(one, kind) for one in what)
    if isinstance(what, dict):
        return any(_holds(one, kind) for one in what.values())
    return isinstance(what, kind)


def _title(node: fx.Node, network: Any) -> str:
    if node.op == "call_module":
        return f"{node.target} ({type(network.get_submodule(str(node.target))).__name__})"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.name)
    return f"{node.name} ({name})"
