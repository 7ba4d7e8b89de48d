"""Layers as operations of the runtime. With what :mod:`.arithmetic` has, all that ``quern.graph.packing.Packer`` asks
for."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from quern.errors import ExportError
from quern.export._packed.arithmetic import Arithmetic
from quern.export._packed.operations import Place, Weights
from quern.graph.packing import Packed
from quern.runtime import format as qrn

_NO_QUANT = (0, 0, 0, 0, None, None)


def _numbers(t: Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy()


class Builder(Arithmetic):
    """Operations of layers, too."""

    # --------------------------------------------------------------------------------------------------- images

    def _images(self, x: Packed) -> Packed:
        if x.view.dim() != 4 or x.batch is None:
            raise ExportError(
                f"a layer gets {tuple(x.view.shape)}, but can be packed for (batch, channels, height, width) alone."
            )
        return self.contiguous(x)

    def pool(self, kind: Literal["MAX", "MEAN", "MODULUS"], x: Packed, **sizes: Any) -> Packed:
        x = self._images(x)
        channels, height, width = x.shape
        made = self.new((channels, *sizes["out"]))
        fields = {name.upper(): value for name, value in sizes.items()}
        count = channels // 4 if kind == "MODULUS" else channels
        self.add(
            "POOL",
            KIND=getattr(qrn, f"POOL_{kind}"),
            X=Place(x.buffer),
            Y=Place(made.buffer),
            CHANNELS=count,
            HEIGHT=height,
            WIDTH=width,
            DTYPE=qrn.F32,
            **fields,
        )
        return made

    def resize(self, x: Packed, out: Sequence[int], scale: Sequence[float], corners: bool) -> Packed:
        x = self._images(x)
        channels, height, width = x.shape
        made = self.new((channels, *out))
        self.add(
            "RESIZE",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            CHANNELS=channels,
            HEIGHT=height,
            WIDTH=width,
            OUT=tuple(out),
            CORNERS=int(corners),
            SCALE=tuple(map(float, scale)),
        )
        return made

    def pixels(self, x: Packed, scale: Tensor, shift: Tensor) -> Packed:
        channels, *space = x.shape
        made = self.new(x.shape)
        fields = {
            "SCALES": scale.double().numpy().astype(np.float32),
            "SHIFTS": shift.double().numpy().astype(np.float32),
        }
        count = math.prod(space)
        self.add("PIXELS", X=Place(x.buffer), Y=Place(made.buffer), CHANNELS=channels, COUNT=count, **fields)
        return made

    # -------------------------------------------------------------------------------------------------- products

    def _weights(self, name: str, weight: Tensor, bias: Tensor | None) -> Weights:
        components, outputs = weight.shape[:2]
        shift = np.zeros((components, outputs)) if bias is None else _numbers(bias).reshape(components, outputs)
        return Weights(name, _numbers(weight).reshape(components, outputs, -1), shift, self.dtype)

    def conv(
        self,
        name: str,
        x: Packed,
        weight: Tensor,
        bias: Tensor | None,
        constant: Tensor | None,
        *,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        stuffing: Sequence[int],
        groups: int,
        parts: int,
    ) -> Packed:
        x = self._images(x)
        components, outputs, _, *kernel = weight.shape
        channels, *space = x.shape
        out = []
        for n in range(2):
            size = (space[n] - 1) * stuffing[n] + 1 + padding[n] + padding[2 + n]
            out.append((size - (kernel[n] - 1) * dilation[n] - 1) // stride[n] + 1)
        made = self.new((components * outputs, *out))
        taken = None
        if constant is not None:  # (4, outputs, 1, kernel) to (outputs, 4, kernel)
            taken = np.ascontiguousarray(np.moveaxis(_numbers(constant).squeeze(2), 0, 1)).astype(np.float32)
        self.add(
            "CONV",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            HEIGHT=space[0],
            WIDTH=space[1],
            CHANNELS=channels // parts.bit_count(),
            GROUPS=groups,
            KERNEL=tuple(kernel),
            STRIDE=tuple(stride),
            DILATION=tuple(dilation),
            STUFFING=tuple(stuffing),
            PADDING=tuple(padding),
            PARTS=parts,
            CONSTANT=taken,
            QUANT=_NO_QUANT,
            ACTIVATION=0,
            A=0.0,
            B=0.0,
            POOL=0,
            X_DTYPE=qrn.F32,
            Y_DTYPE=qrn.F32,
            WEIGHTS=self._weights(name, weight, bias),
        )
        return made

    def linear(self, name: str, x: Packed, weight: Tensor, bias: Tensor | None, parts: int) -> Packed:
        if x.batch is None:
            raise ExportError(f"{name} is applied to what does not depend on the input.")
        components, outputs, channels = weight.shape
        batch = x.batch
        x = self.contiguous(x)
        made = self.new((*x.shape[:-1], components * outputs))
        self.add(
            "LINEAR",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            ROWS=math.prod(x.shape[:-1]),
            CHANNELS=channels,
            PARTS=parts,
            X_DTYPE=qrn.F32,
            Y_DTYPE=qrn.F32,
            QUANT=_NO_QUANT,
            ACTIVATION=0,
            A=0.0,
            B=0.0,
            WEIGHTS=self._weights(name, weight, bias),
        )
        return made.moved(lambda t: t.movedim(0, batch))

    def recurrent(
        self,
        name: str,
        kind: str,
        x: Packed,
        weight: Tensor,
        bias: Tensor,
        states: Sequence[Packed | None],
        reverse: bool,
    ) -> tuple[Packed, list[Packed]]:
        x = self.contiguous(x)
        components, _, units = weight.shape
        steps = x.shape[0]
        made = self.new((steps, components * units))
        last: list[Packed] = []
        for state in states:
            own = self.fill((components * units,), math.nan if state is not None else 0.0)
            if state is not None:
                self.copy(state, own)
            last.append(own)
        fields: dict[str, Any] = {"C": None} | dict(zip("HC", (Place(state.buffer) for state in last), strict=False))
        self.add(
            "RECURRENT",
            KIND=getattr(qrn, kind),
            X=Place(x.buffer),
            Y=Place(made.buffer),
            STEPS=steps,
            REVERSE=int(reverse),
            WEIGHTS=self._weights(name, weight, bias),
            **fields,
        )
        return made, last

    def embed(self, name: str, x: Packed, table: Tensor) -> Packed:
        if x.buffer.dtype != "I32":
            raise ExportError(f"{name} is a table, which must be given whole numbers.")
        x = self.contiguous(x)
        entries, width = table.shape
        made = self.new((*x.shape, width))
        numbers = _numbers(table).astype(np.float16 if self.dtype == "F16" else np.float32)
        self.add(
            "EMBED",
            X=Place(x.buffer),
            Y=Place(made.buffer),
            ROWS=x.count,
            WIDTH=width,
            ENTRIES=entries,
            DTYPE=getattr(qrn, self.dtype),
            TABLE=numbers,
            SCALES=None,
        )
        return made
