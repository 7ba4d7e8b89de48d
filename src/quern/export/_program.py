"""What every file of a network needs: raw images in, any batch size, a comparison with the network it came from."""

import contextlib
import copy
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quern._files import check_target, replacing
from quern.compact import is_dead
from quern.errors import ExportError
from quern.export._real import real_form
from quern.graph import Example, check_traceable, inputs_of, mapped

__all__ = ["ExportReport", "Pixels", "Program"]

# Rounding in float32, summed over the layers, relative to the largest score; what is beyond it is a mistake.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Pixels:
    """How raw images become what the network was trained on: ``(pixels / top - mean) / std`` for each channel.

    A file made with it takes images ``(batch, channels, height, width)``: bytes from 0 to ``top``, or with "float32"
    numbers from 0 to 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Literal["uint8", "float32"] = "uint8"
    top: int = 255

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0 or self.top <= 0:
            raise ExportError("Pixels needs a mean and a positive std for each channel, and a positive top.")
        if self.dtype not in ("uint8", "float32"):
            raise ExportError(f"the dtype of Pixels is {self.dtype}, but must be uint8 or float32.")


@dataclass(frozen=True)
class ExportReport:
    """A file that was written, and the largest difference from the network's scores relative to the largest score."""

    path: Path
    bytes: int
    difference: float
    batches: tuple[int, ...]


class _Raw(nn.Module):
    """``network`` behind the normalisation of pixels, in the order of operations of ``ImageSet.normalize``."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, pixels: Pixels, like: Tensor) -> None:
        super().__init__()
        self.network = network
        mean, std = (torch.tensor(v, device=like.device).view(1, -1, 1, 1) for v in (pixels.mean, pixels.std))
        top = pixels.top if pixels.dtype == "uint8" else 1
        self.register_buffer("scale", (1 / (top * std)).to(like.dtype))
        self.register_buffer("shift", (mean / std).to(like.dtype))

    def normalized(self, image: Tensor) -> Tensor:
        return image.to(self.scale.dtype) * self.scale - self.shift

    def forward(self, image: Tensor) -> Any:
        return self.network(self.normalized(image))


def normalized(images: Tensor, pixels: Pixels | None) -> Tensor:
    """Raw images as the network was trained on them; without ``pixels`` they are that already."""
    return images if pixels is None else _Raw(nn.Identity(), pixels, torch.empty(0)).normalized(images)


class Program:
    """The real form of ``model`` ready to be written, with the outputs it must have.

    ``example`` is an input of the network as it is, or a tuple of several, each with the batch as its first axis; with
    ``pixels``, raw images.
    """

    def __init__(self, model: nn.Module, example: Example, pixels: Pixels | None) -> None:
        check_traceable(model)
        source = copy.deepcopy(model).cpu().eval()  # files are read and run there
        self.example = batches_of(source, example)
        network = real_form(source, len(self.example))
        if pixels is not None:
            example, *others = self.example
            if others:
                raise ExportError(f"pixels are for networks with one input, but the example has {1 + len(others)}.")
            if str(example.dtype) != f"torch.{pixels.dtype}" or example.shape[1:2] != (len(pixels.mean),):
                raise ExportError(
                    f"the example must be raw images (batch, {len(pixels.mean)}, height, width) of {pixels.dtype}, "
                    f"but it is {tuple(example.shape)} of {str(example.dtype).removeprefix('torch.')}."
                )
            like = next((p for p in source.parameters() if p.is_floating_point()), torch.empty(0))
            raw, network = (_Raw(m, pixels, like).eval() for m in (source, network))
            self.source, two_inputs = raw, (raw.normalized(example[:2]),)
            self.parts = source, raw
        else:
            self.source, two_inputs = source, first(self.example, 2)
            self.parts = source, None
        self.network = network
        self.outputs = self._run(self.example)
        if not all(bool(t.isfinite().all()) for t in self.outputs):
            raise ExportError(
                "what the network gives for the example is not finite, so a file of it cannot be checked."
            )
        self.dead = is_dead(source, two_inputs)

    @torch.no_grad()
    def _run(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        try:
            output = self.source(*mapped(inputs, Tensor.clone))  # a layer that works in place may be the first
        except Exception as reason:  # whatever a network says to an input that is not its own
            given = f"an input of shape {shapes(inputs)}" if len(inputs) == 1 else f"inputs of shapes {shapes(inputs)}"
            raise ExportError(f"the network does not take {given}: {first_line(reason)}.") from reason
        outputs = [output] if isinstance(output, Tensor) else output
        if not isinstance(outputs, list | tuple) or not all(isinstance(t, Tensor) for t in outputs):
            raise ExportError("the network must return a tensor or several of them, not a dict or tuples in tuples.")
        return list(outputs)

    def exported(self) -> torch.export.ExportedProgram:
        """The network as ``torch.export`` has it, for batches of any size."""
        # A batch of one would be taken for a size that never changes.
        several = mapped(self.example, lambda t: t if len(t) > 1 else torch.cat([t] * 2))
        batch = torch.export.Dim("batch", min=1, max=1 << 20)
        try:
            with quiet(), torch.no_grad():
                return torch.export.export(self.network, several, dynamic_shapes=tuple({0: batch} for _ in several))
        except Exception as reason:  # torch has many ways to say what it cannot trace
            raise ExportError(
                f"the network cannot be exported for batches of any size: {first_line(reason)}."
            ) from reason

    def compare(
        self, run: Callable[..., Sequence[Tensor]], tolerance: float | None = TOLERANCE
    ) -> tuple[float, tuple[int, ...]]:
        """The largest difference of what ``run`` computes, an error if it is more than rounding, ``tolerance`` of the
        largest score; and with which batch sizes."""
        whole = len(self.example[0])
        worst, sizes = 0.0, tuple(sorted({n for n in (1, 3, whole) if n <= whole}))
        for n in sizes:
            part = first(self.example, n)
            expected = self.outputs if n == whole else self._run(part)
            for output, wanted in zip(run(*part), expected, strict=True):
                if output.shape != wanted.shape:
                    raise ExportError(
                        f"the exported network gives {tuple(output.shape)} and not {tuple(wanted.shape)}."
                    )
                if wanted.numel():
                    gap = (output.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp_min(1e-30)
                    worst = max(worst, float(gap.nan_to_num(torch.inf)))
            if worst > (math.inf if tolerance is None else tolerance) or worst == math.inf:
                raise ExportError(
                    f"the exported network does not compute the same: its scores differ by {worst:.2g} of the largest."
                )
        return worst, sizes


def batches_of(network: nn.Module, example: Example) -> tuple[Tensor, ...]:
    """The inputs that ``example`` is, if all are tensors with the same batch as their first axis."""
    inputs = inputs_of(network, example)
    for n, t in enumerate(inputs):
        if not isinstance(t, Tensor):
            raise ExportError(
                f"a file takes tensors, but input {n} of the example is of type {type(t).__name__}: leave it out if it "
                "has a default, or give a tensor (batch, ...)."
            )
    if not inputs or any(t.dim() == 0 or not len(t) for t in inputs) or len({len(t) for t in inputs}) > 1:
        needed = "a batch of inputs" if len(inputs) == 1 else "batches of the same size"
        raise ExportError(f"the example must be {needed}, but its shape is {shapes(inputs)}.")
    return inputs


def first(inputs: tuple[Tensor, ...], n: int) -> tuple[Tensor, ...]:
    return mapped(inputs, lambda t: t[:n])


def shapes(inputs: tuple[Tensor, ...]) -> str:
    return " and ".join(str(tuple(t.shape)) for t in inputs)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """As ``quern._files.replacing``, with one sentence if it cannot be done."""
    with sentence(path), replacing(path) as temporary:
        yield temporary


def check_place(path: Path) -> None:
    """One sentence if ``path`` is nothing that a file can be written to."""
    with sentence(path):
        check_target(path)


@contextlib.contextmanager
def sentence(path: Path) -> Iterator[None]:
    """One sentence if ``path`` cannot be written."""
    try:
        yield
    except OSError as reason:
        raise ExportError(f"{path} cannot be written: {reason.strerror or reason}.") from reason


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters tell along the way: their errors say what matters."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def first_line(reason: BaseException) -> str:
    """What the first of a chain of errors says, without colours."""
    while reason.__cause__ is not None:
        reason = reason.__cause__
    lines = [line.strip() for line in re.sub("\x1b\\[[0-9;]*m", "", str(reason)).splitlines() if line.strip()]
    return (lines[0] if lines else type(reason).__name__).rstrip(".:")
