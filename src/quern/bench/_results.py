"""What a benchmark measured, and its table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from quern.records import Size

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Engine = Literal["torch", "onnxruntime", "quern_rt"]


@dataclass(frozen=True)
class Model:
    """One network: its size, None for a file of another program, the bytes of its ONNX file, and the most memory of a
    fresh process that loads it and runs one batch of the largest size; None in torch if it cannot be built there. Of
    the packed network the bytes of the file, and of the working memory that it takes. None is what there is not."""

    name: str
    size: Size | None
    onnx_bytes: int | None
    torch_peak_bytes: int | None
    onnx_peak_bytes: int | None
    packed_bytes: int | None = None
    packed_ram_bytes: int | None = None

    def to_dict(self) -> dict[str, str | int | None]:
        return {
            "name": self.name,
            "parameters": self.size and self.size.parameters,
            "macs": self.size and self.size.macs,
            "file_bytes": self.size and self.size.bytes,
            "onnx_bytes": self.onnx_bytes,
            "torch_peak_bytes": self.torch_peak_bytes,
            "onnx_peak_bytes": self.onnx_peak_bytes,
            "packed_bytes": self.packed_bytes,
            "packed_ram_bytes": self.packed_ram_bytes,
        }


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median and the quartiles."""

    model: str
    engine: Engine
    batch: int
    threads: int
    median_ms: float
    low_ms: float
    high_ms: float

    @property
    def images_per_second(self) -> float:
        return 1000 * self.batch / self.median_ms


@dataclass(frozen=True)
class Bench:
    """What :func:`bench` measured; print it with rich for tables. The first model is what the others compare with."""

    models: tuple[Model, ...]
    timings: tuple[Timing, ...]
    shape: tuple[int, ...]
    repeats: int

    def to_dict(self) -> dict[str, Any]:
        rows = [asdict(t) | {"images_per_second": t.images_per_second} for t in self.timings]
        models = [model.to_dict() for model in self.models]
        return {"models": models, "timings": rows, "shape": list(self.shape), "repeats": self.repeats}

    def timing(self, model: str, engine: Engine, batch: int, threads: int) -> Timing | None:
        wanted = (model, engine, batch, threads)
        return next((t for t in self.timings if (t.model, t.engine, t.batch, t.threads) == wanted), None)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("times in ms, with quartiles", no_wrap=True)
        for model in self.models:
            table.add_column(Text(model.name), justify="right")
            if model is not self.models[0]:
                table.add_column("ratio", justify="right")
        sizes = (
            ("parameters", "parameters", 1, ",.0f"),
            ("multiply-adds, one image", "macs", 1, ",.0f"),
            ("file, bytes", "file_bytes", 1, ",.0f"),
            ("ONNX file, bytes", "onnx_bytes", 1, ",.0f"),
            ("peak memory in torch, MB", "torch_peak_bytes", 1e6, ",.0f"),
            ("peak memory in onnxruntime, MB", "onnx_peak_bytes", 1e6, ",.0f"),
            ("packed file, bytes", "packed_bytes", 1, ",.0f"),
            ("its working memory, bytes", "packed_ram_bytes", 1, ",.0f"),
        )
        for label, field, unit, number_format in sizes:
            values: list[Any] = [model.to_dict()[field] for model in self.models]
            if any(values):
                table.add_row(label, *_cells(values, [v and format(v / unit, number_format) for v in values]))
        settings: list[tuple[Engine, int, int]] = [(t.engine, t.batch, t.threads) for t in self.timings]
        for engine, batch, threads in dict.fromkeys(settings):
            row = [self.timing(m.name, engine, batch, threads) for m in self.models]
            values = [t and t.median_ms for t in row]
            label = f"{engine}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}"
            table.add_row(
                label, *_cells(values, [t and f"{t.median_ms:.3f} ({t.low_ms:.3f}-{t.high_ms:.3f})" for t in row])
            )
            rates = [t and 1 / t.images_per_second for t in row]
            table.add_row("  images per second", *_cells(rates, [t and f"{t.images_per_second:,.0f}" for t in row]))
        yield table


def _cells(values: Sequence[Any], texts: Sequence[str | None]) -> list[str]:
    """The first one's text, then of every other one its text and by how much it is smaller."""
    cells = [texts[0] or "-"]
    for value, text in zip(values[1:], texts[1:], strict=True):
        cells += [text or "-", f"{values[0] / value:.2f}x" if value and values[0] else "-"]
    return cells
