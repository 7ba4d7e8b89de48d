"""Packed networks changed by accident or on purpose, by the thousand; and the whole ones that they are made of."""

import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from quern.errors import ExportError
from quern.export import Pixels
from quern.export._packed import pack
from quern.export._program import Program
from quern.runtime import format as qrn
from tests.networks import Wired
from tests.nn.cases import CASES

# ------------------------------------------------------------------------------------------------ networks by hand


@dataclass(frozen=True)
class At:
    """Numbers in the blob, so many bytes behind the operations."""

    offset: int


class Hand:
    """A packed network written word by word, to say what the exporter would not. Tensors follow each other."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.operations = self.tensors = 0
        self.content = bytearray()
        self.ends: dict[str, list[list[int]]] = {"inputs": [], "outputs": []}

    def tensor(self, *shape: int, dtype: str = "F32", end: str | None = None) -> int:
        """The address of a new one, which may be one of the ``end`` s of the network."""
        address = self.tensors
        size = 4 if dtype in ("F32", "I32") else 1
        self.tensors += -(-size * int(np.prod(shape)) // 4) * 4
        if end is not None:
            axes = [*shape, *[1] * (qrn.AXES - len(shape))]
            self.ends[end].append([getattr(qrn, dtype), len(shape), *axes, address])
        return address

    def numbers(self, values: Any, dtype: Any) -> At:
        self.content += bytes(-len(self.content) % 4)
        place = At(len(self.content))
        self.content += np.ascontiguousarray(values, dtype).tobytes()
        return place

    def add(self, code: str, **fields: Any) -> None:
        """An operation; fields are named as in the header, and those that are missing are 0."""
        prefix = {"DEQUANTIZE": "QUANTIZE", "ADD_I8": "ADD"}.get(code, code)
        words: list[Any] = [0] * getattr(qrn, f"{prefix}_WORDS")
        for name, value in fields.items():
            many = value if isinstance(value, (tuple, list)) else [value]
            first = getattr(qrn, f"{prefix}_{name}")
            words[first : first + len(many)] = many
        self.words += [getattr(qrn, f"OP_{code}"), len(words), *words]
        self.operations += 1

    def weights(
        self, rng: np.random.Generator, components: int, outputs: int, taps: int, kind: str, keep: float, pairs: bool,
        alone: bool = False,
    ) -> list[Any]:  # fmt: skip
        """The ten words of random weights, sparse if not all of them are kept; `alone`: one channel to a group."""
        dtype = {"F32": np.float32, "F16": np.float16, "I8": np.int8}[kind]
        unit = 4 if components == 4 else 2 if pairs and not alone else 1
        values = (
            rng.integers(-127, 128, (outputs, taps, unit)) if kind == "I8" else rng.normal(size=(outputs, taps, unit))
        )
        places = [qrn.NONE] * 3
        if keep < 1:
            there = rng.random((outputs, taps)) < keep
            gaps = [_gaps(row) for row in there]
            values = values[there]
            starts, gap_starts = (np.cumsum([0, *many]) for many in (there.sum(1), map(len, gaps)))
            places = [self.numbers(starts, np.uint32), self.numbers(list(b"".join(gaps)), np.uint8)]
            places.append(self.numbers(gap_starts, np.uint32))
        bias = rng.integers(-99, 99, (components, outputs))
        scales = self.numbers(rng.random(outputs), np.float32) if kind == "I8" else qrn.NONE
        stored = [self.numbers(values, dtype), *places, self.numbers(bias, np.int32 if pairs else np.float32)]
        return [components, getattr(qrn, kind), outputs, taps, *stored, scales]

    def quant(self, outputs: int, zero: int = 3) -> list[Any]:
        multipliers, shifts = self.numbers([1 << 30] * outputs, np.int32), self.numbers([7] * outputs, np.uint8)
        return [zero, -5, -128, 127, multipliers, shifts]

    def blob(self) -> bytes:
        ends = [word for end in (*self.ends["inputs"], *self.ends["outputs"]) for word in end]
        start = 4 * (qrn.HEADER_WORDS + len(ends) + len(self.words))
        words = [qrn.IN_BLOB + start + word.offset if isinstance(word, At) else word for word in self.words]
        self.content += bytes(-len(self.content) % 4)
        counts = [len(self.ends["inputs"]), len(self.ends["outputs"]), self.operations]
        header = [qrn.MAGIC, start + len(self.content), 0, qrn.VERSION, self.tensors, *counts]
        everything = [word & 0xFFFFFFFF for word in (*header, *ends, *words)]
        return sealed(struct.pack(f"<{len(everything)}I", *everything) + self.content)


def _gaps(there: np.ndarray) -> bytes:
    gaps, before = bytearray(), -1
    for place in np.flatnonzero(there):
        gap = int(place) - before - 1
        gaps += b"\xff" * (gap // 255) + bytes([gap % 255])
        before = int(place)
    return bytes(gaps)


def sealed(blob: bytes) -> bytes:
    """The same with the right checksum."""
    start = 4 * qrn.HEADER_VERSION
    return blob[: 4 * qrn.HEADER_CRC] + struct.pack("<I", zlib.crc32(blob[start:])) + blob[start:]


def whole_numbers(components: int, keep: float, seed: int) -> bytes:
    """A network in int8: convolutions with every kind of border and group, poolings, sums, tables, linear layers."""
    rng, made = np.random.default_rng(seed), Hand()
    channels, outs = (2, 4) if components == 4 else (6, 4)
    x = made.tensor(components * channels, 7, 9, end="inputs")
    bytes_of_x = made.tensor(components * channels, 7, 9, dtype="I8")
    made.add("QUANTIZE", X=x, Y=bytes_of_x, COUNT=components * channels * 63, SCALE=_bits(0.02), ZERO=3)
    sizes: dict[str, Any] = {"HEIGHT": (7, 9), "CHANNELS": channels, "DILATION": (1, 1), "STUFFING": (1, 1)}
    sizes |= {"PARTS": 15 if components == 4 else 1, "CONSTANT": qrn.NONE, "X_DTYPE": qrn.I8}
    groups, taps = 2, (1 if components == 4 else 2) * 9
    first, second = (made.tensor(components * outs, 7, 9, dtype="I8") for _ in range(2))
    for y in (first, second):
        weights = made.weights(rng, components, outs, taps, "I8", keep, True)
        more: dict[str, Any] = {"KERNEL": (3, 3), "STRIDE": (1, 1), "PADDING": (1, 1, 1, 1), "GROUPS": groups}
        if components == 4 and y == first:
            more["CONSTANT"] = made.numbers(rng.integers(-99, 99, (outs, 4, 9)), np.int32)
        made.add("CONV", X=bytes_of_x, Y=y, **sizes | more, Y_DTYPE=qrn.I8, QUANT=made.quant(outs), WEIGHTS=weights)
    if components == 1:  # one channel to a group, and no scales, as the result is int8 too
        weights = made.weights(rng, 1, channels, 9, "I8", keep, True, alone=True)
        weights[qrn.W_SCALES] = qrn.NONE
        more = {"KERNEL": (3, 3), "STRIDE": (1, 1), "PADDING": (1, 1, 1, 1), "GROUPS": channels}
        y = made.tensor(channels, 7, 9, dtype="I8")
        made.add("CONV", X=bytes_of_x, Y=y, **sizes | more, Y_DTYPE=qrn.I8, QUANT=made.quant(channels), WEIGHTS=weights)
        made.add(
            "TABLE",
            X=y,
            Y=bytes_of_x,
            CHANNELS=channels,
            COUNT=63,
            TABLE=made.numbers(rng.integers(0, 256, (channels, 256)), np.uint8),
        )
    count = components * outs * 63
    total = made.tensor(count, dtype="I8")
    zeros = {"A_ZERO": 1, "B_ZERO": -2, "Y_ZERO": 5, "LOW": -128, "HIGH": 127}
    made.add(
        "ADD_I8", A=first, B=second, Y=total, COUNT=count, A_MULTIPLIER=1 << 20, B_MULTIPLIER=1 << 19, SHIFT=20, **zeros
    )
    table = made.numbers(rng.integers(0, 256, (components * outs, 256)), np.uint8)
    made.add("TABLE", X=total, Y=total, CHANNELS=components * outs, COUNT=63, TABLE=table)
    pooled = made.tensor(components * outs, 3, 4, dtype="I8")
    window = {"KERNEL": (3, 3), "STRIDE": (2, 2), "PADDING": (1, 0), "DILATION": (1, 1)}
    made.add(
        "POOL", KIND=qrn.POOL_MAX, X=total, Y=pooled, CHANNELS=components * outs, HEIGHT=(7, 9), OUT=(3, 4), **window,
        DTYPE=qrn.I8, ZERO=4,
    )  # fmt: skip
    average, mean = made.tensor(components * outs, 2, 2), made.tensor(components * outs, 2, 2, dtype="I8")
    made.add(
        "POOL", KIND=qrn.POOL_MEAN, X=pooled, Y=average, CHANNELS=components * outs, HEIGHT=(3, 4), OUT=(2, 2),
        DTYPE=qrn.I8, ZERO=4, SCALE=_bits(0.1),
    )  # fmt: skip
    made.add("QUANTIZE", X=average, Y=mean, COUNT=4 * components * outs, SCALE=_bits(0.1), ZERO=4)
    copied = made.tensor(4 * components * outs, dtype="I8")
    axes = {"SIZES": (1, 1, 1, 4, components * outs), "STRIDES_A": (0, 0, 0, 1, 4)}
    axes |= {"STRIDES_Y": (0, 0, 0, components * outs, 1)}
    made.add("NEST", KIND=qrn.NEST_COPY, DTYPE=qrn.I8, A=mean, B=qrn.NONE, Y=copied, **axes)
    scores, small = made.tensor(4, 3 * components, end="outputs"), made.tensor(4, 3 * components, dtype="I8")
    taps = outs if components == 4 else (outs + 1) // 2
    for y, dtype in ((scores, qrn.F32), (small, qrn.I8)):
        quant = made.quant(3)
        made.add(
            "LINEAR", X=copied, Y=y, ROWS=4, CHANNELS=outs, PARTS=sizes["PARTS"], ACTIVATION=qrn.TANH, X_DTYPE=qrn.I8,
            Y_DTYPE=dtype, QUANT=quant, WEIGHTS=made.weights(rng, components, 3, taps, "I8", keep, True),
        )  # fmt: skip
    last = made.tensor(4, 3 * components, end="outputs")
    made.add("DEQUANTIZE", X=small, Y=last, COUNT=12 * components, SCALE=_bits(0.1), ZERO=-5)
    strided = made.tensor(components * outs, 2, 2, end="outputs")
    more = {"KERNEL": (2, 3), "STRIDE": (2, 3), "DILATION": (2, 1), "PADDING": (1, 0, 2, 3), "GROUPS": 1, "POOL": 1}
    weights = made.weights(rng, components, outs, (channels if components == 4 else 3) * 6, "I8", keep, True)
    made.add("CONV", X=bytes_of_x, Y=strided, **sizes | more, Y_DTYPE=qrn.F32, QUANT=made.quant(outs), WEIGHTS=weights)
    return made.blob()


def small_weights(kind: str, seed: int) -> bytes:
    """Floats multiplied by weights of one kind: a table, a convolution, a linear and every recurrent layer."""
    rng, made = np.random.default_rng(seed), Hand()
    words, embedded = made.tensor(5, dtype="I32", end="inputs"), made.tensor(5, 16, end="outputs")
    scales = made.numbers(rng.random(7), np.float32)
    dtype = {"I8": np.int8, "F16": np.float16, "F32": np.float32}[kind]
    table = made.numbers(rng.integers(-100, 100, (7, 16)), dtype)
    kinds = {"DTYPE": getattr(qrn, kind), "TABLE": table, "SCALES": scales}
    made.add("EMBED", X=words, Y=embedded, ROWS=5, WIDTH=16, ENTRIES=7, **kinds)
    for components, keep in ((1, 1.0), (1, 0.4), (4, 1.0), (4, 0.4)):
        y = made.tensor(components * 6, 2, 3, end="outputs")
        weights = made.weights(rng, components, 6, 16 // components * 4, kind, keep, False)
        made.add(
            "CONV", X=embedded, Y=y, HEIGHT=(1, 5), CHANNELS=16 // components, GROUPS=1, KERNEL=(2, 2), STRIDE=(1, 2),
            DILATION=(1, 1), STUFFING=(1, 1), PADDING=(1, 1, 1, 1), PARTS=15 if components == 4 else 1,
            CONSTANT=qrn.NONE, ACTIVATION=qrn.GELU, WEIGHTS=weights,
        )  # fmt: skip
        for recurrent, gates in ((qrn.RNN_TANH, 1), (qrn.RNN_RELU, 1), (qrn.LSTM, 4), (qrn.GRU, 3)):
            units = 4
            gated, y = made.tensor(5, components * gates * units), made.tensor(5, components * units, end="outputs")
            state = [made.tensor(components * units, end="inputs") for _ in range(2)]
            weights = made.weights(rng, components, gates * units, 16 // components, kind, keep, False)
            parts = {"PARTS": 15 if components == 4 else 1, "CHANNELS": 16 // components}
            made.add("LINEAR", X=embedded, Y=gated, ROWS=5, **parts, WEIGHTS=weights)
            weights = made.weights(rng, components, gates * units, units, kind, keep, False)
            made.add(
                "RECURRENT", KIND=recurrent, X=gated, Y=y, H=state[0], C=state[1], STEPS=5, REVERSE=gates % 2,
                WEIGHTS=weights,
            )  # fmt: skip
    return made.blob()


def every_kind() -> bytes:
    """Every activation, and every kind of loop, on numbers of which some are 0 and some are large."""
    made = Hand()
    x, y = made.tensor(3, 40, end="inputs"), made.tensor(3, 40, end="inputs")
    for kind in range(qrn.ACTIVATIONS):
        z = made.tensor(3, 40, end="outputs")
        made.add("UNARY", KIND=kind, X=x, Y=z, COUNT=120, A=_bits(1.5), B=_bits(3.0))
        made.add("UNARY", KIND=kind, X=z, Y=z, COUNT=120, A=_bits(-1e30), B=_bits(-1.0))
    for kind in range(qrn.NEST_KINDS):
        z = made.tensor(3, 40)
        zero = made.numbers([0], np.float32)
        sizes, strides = (1, 1, 1, 3, 40), (0, 0, 0, 40, 1)
        axes = {"SIZES": sizes, "STRIDES_Y": strides}
        made.add("NEST", KIND=qrn.NEST_COPY, A=zero, B=qrn.NONE, Y=z, **axes)
        made.add("NEST", KIND=kind, A=x, B=y, Y=z, **axes, STRIDES_A=strides, STRIDES_B=(0, 0, 0, 0, 1))
    for kind in (qrn.U8, qrn.I32):
        dtype = "U8" if kind == qrn.U8 else "I32"
        a, b = made.tensor(6, dtype=dtype, end="inputs"), made.tensor(6, dtype=dtype, end="outputs")
        axes = {"SIZES": (1, 1, 1, 3, 2), "STRIDES_A": (0, 0, 0, 2, 1), "STRIDES_Y": (0, 0, 0, 1, 3)}
        made.add("NEST", KIND=qrn.NEST_COPY, DTYPE=kind, A=a, B=qrn.NONE, Y=b, **axes)
    return made.blob()


def _bits(number: float) -> int:
    return struct.unpack("<I", struct.pack("<f", number))[0]


# --------------------------------------------------------------------------------------------- networks of the exporter


def _sparse(model: nn.Module, left: float = 0.3) -> nn.Module:
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 2:
                p *= (torch.rand(p.shape[1:]) < left).float()
    return model


def _constant() -> nn.Module:
    layer = qnn.QConv2d(8, 16, 3, padding=1)
    layer.constant = nn.Parameter(torch.randn(4, 4, 1, 3, 3))
    return layer


def _networks() -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
    image = torch.randn(2, 8, 7, 9)
    convolutions: list[nn.Module] = [
        qnn.QConv2d(8, 24, 3, padding=1),
        qnn.QConv2d(8, 16, 1),
        qnn.QConv2d(8, 8, (2, 3), stride=2, padding=1, dilation=2, groups=2),
        qnn.QConv2d(8, 8, 3, padding=1, input_parts="r"),
        qnn.QConv2d(6, 8, 3, padding=1, input_parts="ijk"),
        qnn.QConv2d(8, 8, 2, stride=3, input_parts="ik"),
        _constant(),
        qnn.QConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Conv2d(8, 8, 3, padding=2, stride=2, groups=8),
        nn.Conv2d(8, 8, 5, padding=(0, 2)),
        nn.ConvTranspose2d(8, 6, 3, stride=3, groups=2),
    ]
    for layer in convolutions:
        given = image[:, :6] if getattr(layer, "in_channels", 8) == 6 else image
        yield layer, (given,)
        yield _sparse(nn.Sequential(layer, nn.ReLU(), nn.MaxPool2d(2))), (given,)
    for groups, left in ((1, 1.0), (2, 1.0), (1, 0.8)):  # two rows of results at once
        layer = _sparse(qnn.QConv2d(8, 24, 3, groups=groups), left)
        for model in (layer, nn.Sequential(layer, nn.ReLU(), nn.MaxPool2d(2))):
            yield model, (torch.randn(2, 8, 8, 10),)
    pools: list[nn.Module] = [
        nn.MaxPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(2, 1, 1, count_include_pad=False, ceil_mode=True),
        nn.AdaptiveAvgPool2d((3, 2)),
        nn.AdaptiveMaxPool2d(4),
        qnn.QMaxPool2d(3, 2),
        Wired(lambda m, x: TF.interpolate(x, size=(5, 11), mode="bilinear")),
        Wired(lambda m, x: TF.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)),
        Wired(lambda m, x: torch.softmax(x.flatten(1), -1).argmax(-1)),
        Wired(lambda m, x: (x.amax((2, 3)) - x.amin((2, 3))) / x.sum((2, 3))),
    ]
    for layer in pools:
        yield layer, (image,)
    head = Wired(lambda m, x: m.b(m.a(x).flatten(1)), a=qnn.QConv2d(8, 8, 3), b=qnn.QLinear(280, 8))
    yield head, (image,)


_CORPUS: list[bytes] = []


def corpus() -> Sequence[bytes]:
    """Whole packed networks, small ones, that together have all there is in the format."""
    if _CORPUS:
        return _CORPUS
    torch.manual_seed(0)
    made: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
        (case.build(torch.float32), tuple(case.draw(torch.float32))) for case in CASES if not case.training
    ]
    for n, (model, inputs) in enumerate([*made, *_networks()]):
        try:
            _CORPUS.append(pack(Program(model.eval(), inputs, None), "float16" if n % 4 == 0 else "float32")[0])
        except ExportError:  # volumes, and the like
            continue
    raw = torch.randint(0, 256, (2, 3, 6, 5), dtype=torch.uint8)
    pixels = Pixels((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), "uint8")
    _CORPUS.append(pack(Program(nn.Conv2d(3, 4, 3), raw, pixels), "float32")[0])
    _CORPUS.extend(whole_numbers(components, keep, seed=3) for components in (1, 4) for keep in (0.3, 1.0))
    _CORPUS.extend(small_weights(kind, seed=4) for kind in ("F32", "F16", "I8"))
    _CORPUS.append(every_kind())
    return _CORPUS


def operations(blob: bytes) -> list[tuple[int, int]]:
    """Where each operation of a whole blob begins, and how many words it has, with its code and length."""
    words = np.frombuffer(blob[: len(blob) // 4 * 4], np.uint32).astype(np.int64)
    place = qrn.HEADER_WORDS + int(words[qrn.HEADER_INPUTS] + words[qrn.HEADER_OUTPUTS]) * (3 + qrn.AXES)
    found = []
    for _ in range(int(words[qrn.HEADER_OPS])):
        found.append((place, 2 + int(words[place + 1])))
        place += found[-1][1]
    return found


# ---------------------------------------------------------------------------------------------- operations at random


def _few(rng: random.Random, most: int, least: int = 1) -> int:
    return rng.randint(least, most)


def drawn(rng: random.Random) -> bytes:
    """A network of one operation whose arguments are at random, small, and often fit each other."""
    made = Hand()
    code = rng.choice(("CONV", "CONV", "CONV", "POOL", "POOL", "RESIZE", "NEST", "ARGMAX", "EMBED", "TABLE", "PIXELS"))
    x, y = 0, 4 * _few(rng, 400)
    made.tensor(y // 4 + _few(rng, 800))
    both = {"X": x, "Y": y}
    two = lambda most, least=1: (_few(rng, most, least), _few(rng, most, least))  # noqa: E731
    match code:
        case "CONV":
            _draw_conv(rng, made, both)
        case "POOL":
            kernel = two(4) if rng.random() < 0.8 else (0, 0)
            sizes: dict[str, Any] = {"HEIGHT": two(7), "OUT": two(5), "KERNEL": kernel, "STRIDE": two(4)}
            sizes |= {"PADDING": two(2, 0), "DILATION": two(8), "DIVISOR": _few(rng, 3, -1), "CHANNELS": _few(rng, 3)}
            made.add("POOL", KIND=_few(rng, 2, 0), **both, **sizes, DTYPE=_few(rng, 1, 0), ZERO=_few(rng, 127, -128))
        case "RESIZE":
            scale = [_bits(rng.choice((0.3, 1.0, 2.5, 1e30, -1.0, float("nan"), float("inf")))) for _ in range(2)]
            sizes = {"HEIGHT": two(7), "OUT": two(9), "CORNERS": _few(rng, 1, 0), "SCALE": scale}
            made.add("RESIZE", **both, CHANNELS=_few(rng, 3), **sizes)
        case "NEST":
            sizes = {f"STRIDES_{of}": [_few(rng, 9, 0) for _ in range(5)] for of in "ABY"}
            sizes["SIZES"] = [_few(rng, 4) for _ in range(5)]
            made.add("NEST", KIND=_few(rng, 8, 0), DTYPE=rng.choice((0, 0, 1, 3)), A=x, B=x + 4, Y=y, **sizes)
        case "ARGMAX":
            made.add("ARGMAX", **both, OUTER=_few(rng, 5, 0), COUNT=_few(rng, 9), INNER=_few(rng, 5, 0))
        case "EMBED":
            entries, width = _few(rng, 9, 0), _few(rng, 9, 0)
            table, scales = made.numbers([1] * entries * width, np.float32), made.numbers([1] * entries, np.float32)
            kinds = {"DTYPE": rng.choice((qrn.F32, qrn.F16, qrn.I8)), "TABLE": table, "SCALES": scales}
            made.add("EMBED", **both, ROWS=_few(rng, 9, 0), WIDTH=width, ENTRIES=entries, **kinds)
        case _:
            channels = _few(rng, 3, 0)
            table = made.numbers([*range(256)] * channels, np.uint8)
            scales = {"TABLE": table} if code == "TABLE" else {"SCALES": table, "SHIFTS": table}
            made.add(code, **both, CHANNELS=channels, COUNT=_few(rng, 99, 0), **scales)
    for end, address in (("inputs", x), ("outputs", y)):
        made.ends[end] = [[qrn.F32, 1, _few(rng, made.tensors // 4 - address // 4), *[1] * 4, address]]
    return made.blob()


def _draw_conv(rng: random.Random, made: Hand, both: dict[str, int]) -> None:
    components, pairs = rng.choice((1, 4)), rng.random() < 0.4
    groups = rng.choice((1, 1, 2))
    channels, outputs = groups * _few(rng, 3), groups * _few(rng, 5)
    kernel = [_few(rng, 4) for _ in range(2)]
    per_group = channels // groups
    taps = kernel[0] * kernel[1] * ((per_group + 1) // 2 if pairs and components == 1 else per_group)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    kind = "I8" if pairs else rng.choice(("F32", "F32", "F16", "I8"))
    keep = rng.choice((0.0, 0.4, 0.8, 1.0))
    weights = made.weights(numbers, components, outputs, taps, kind, keep, pairs, per_group == 1)
    constant: Any = qrn.NONE
    if components == 4 and rng.random() < 0.3:
        constant = made.numbers(np.ones(4 * outputs * kernel[0] * kernel[1]), np.int32 if pairs else np.float32)
    two = {name: [_few(rng, most) for _ in range(2)] for name, most in (("STRIDE", 3), ("DILATION", 3), ("HEIGHT", 9))}
    dtypes = {"X_DTYPE": int(pairs), "Y_DTYPE": int(pairs and rng.random() < 0.5), "QUANT": made.quant(outputs)}
    made.add(
        "CONV", **both, **two, **dtypes, CHANNELS=channels, GROUPS=groups, KERNEL=kernel, CONSTANT=constant,
        STUFFING=[rng.choice((1, 1, 2)) for _ in range(2)], PADDING=[_few(rng, 2, 0) for _ in range(4)],
        PARTS=1 if components == 1 else rng.choice((15, 15, 14, 1, 5)), ACTIVATION=rng.choice((0, 1, 4)),
        POOL=_few(rng, 1, 0), WEIGHTS=weights,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- damage

EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 63, 64, 255, 256, 4096, 1 << 16, (1 << 24) - 1, 1 << 24, (1 << 24) + 1)
EDGES = (*EDGES, 1 << 28, (1 << 30) - 4, 1 << 30, (1 << 30) + 4, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 32) - 4)
EDGES = (*EDGES, _bits(1e38), _bits(-1.0), _bits(float("inf")), _bits(float("nan")), _bits(1e-45))


def _changed_word(words: np.ndarray, at: int, rng: random.Random) -> None:
    old = int(words[at])
    step = rng.choice((1, 4, 32))
    values = (rng.choice(EDGES), old + step, old - step, 2 * old, old // 2, rng.randrange(12), int(rng.choice(words)))
    words[at] = rng.choice(values) & 0xFFFFFFFF


def _damaged_once(blob: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """One change. ``blob`` may be damaged already, so its operations are where they were in a whole one, or not."""
    words = np.frombuffer(blob[: len(blob) // 4 * 4], np.uint32).copy()
    rest, count = blob[len(words) * 4 :], len(words)
    try:
        places = operations(blob)
        end = sum(places[-1])
    except IndexError:
        places, end = [], count
    end = min(end, count)
    match rng.randrange(12):
        case 0:  # bits anywhere
            changed = bytearray(blob)
            for _ in range(rng.choice((1, 1, 2, 8))):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:  # bytes of numbers, of gaps and of where they begin
            changed = bytearray(blob)
            changed[rng.randrange(min(4 * end, len(blob) - 1), len(blob))] = rng.choice((0, 1, 127, 128, 254, 255))
            return bytes(changed)
        case 2:
            _changed_word(words, rng.randrange(min(end, count - 1), count), rng)
        case 3:
            _changed_word(words, rng.randrange(min(qrn.HEADER_VERSION, count - 1), min(end, 40, count)), rng)
        case 4:  # swapped
            a, b = rng.randrange(count), rng.randrange(end) if end else 0
            words[a], words[b] = words[b], words[a]
        case 5:  # shorter, and the header says so or not
            cut = blob[: rng.randrange(len(blob))]
            return _with_size(cut) if rng.random() < 0.5 else cut
        case 6:
            grown = blob + rng.randbytes(rng.choice((1, 4, 64)))
            return _with_size(grown) if rng.random() < 0.5 else grown
        case 7 | 8 if places:
            return _spliced(words, places, rng, others) + rest
        case _:  # arguments of operations
            for _ in range(rng.choice((1, 1, 2, 4))):
                start, size = rng.choice(places) if places else (0, count)
                at = min(start + rng.randrange(size), count - 1)
                _changed_word(words, at, rng)
    return words.tobytes() + rest


def _spliced(words: np.ndarray, places: list[tuple[int, int]], rng: random.Random, others: Sequence[bytes]) -> bytes:
    """An operation twice, in another order, gone, or one of another network. Addresses in the blob move with it."""
    operation_list = [words[start : start + size] for start, size in places]
    at = rng.randrange(len(operation_list))
    match rng.randrange(4):
        case 0:
            operation_list.insert(at, rng.choice(operation_list))
        case 1:
            rng.shuffle(operation_list)
        case 2:
            del operation_list[at]
        case _:
            other = rng.choice(others)
            start, size = rng.choice(operations(other))
            operation_list[at] = np.frombuffer(other, np.uint32)[start : start + size]
    first, end = places[0][0], sum(places[-1])
    moved = 4 * (sum(map(len, operation_list)) - (end - first))
    body = np.concatenate([words[:0], *operation_list])
    in_blob = (body >= qrn.IN_BLOB) & (body < qrn.IN_BLOB + 4 * len(words))
    body = np.where(in_blob, body + np.int64(moved), body).astype(np.uint32)
    head = words[:first].copy()
    head[qrn.HEADER_OPS] = len(operation_list)
    return _with_size(np.concatenate([head, body, words[end:]]).tobytes())


def _with_size(blob: bytes) -> bytes:
    at = 4 * qrn.HEADER_BYTES
    return blob if len(blob) < at + 4 else blob[:at] + struct.pack("<I", len(blob)) + blob[at + 4 :]


def damaged(rng: random.Random, number: int) -> bytes:
    """A network of the corpus, or of an operation at random, changed once or a few times; every second one gets a right
    checksum again."""
    others = corpus()
    at_random = rng.random() < 0.4
    blob = drawn(rng) if at_random else rng.choice(others)
    for _ in range(rng.choice((0, 0, 1, 2) if at_random else (1, 1, 1, 2, 3))):
        if len(blob) < 16:
            break
        blob = _damaged_once(blob, rng, others)
    return sealed(blob) if number % 2 and len(blob) >= 16 else blob
