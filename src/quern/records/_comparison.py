"""A budget, and two networks next to each other: what ``quern compress`` was asked for and what came of it."""

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from quern.errors import TrainingError
from quern.records._compression import Answers, Chance, Network, Scratch, Verdict
from quern.records._metric import ACCURACY, Metric
from quern.records.schema import to_plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True)
class Budget:
    """What the small network may take: quaternion neurons, parameters, bytes of its ``.safetensors`` file, bytes of its
    packed file (``max_flash``) and of the memory that the C runtime takes for it on a device, arena and stack
    (``max_ram``); how many times faster than the dense one it has to be, with one input and one thread, in the C
    runtime if both networks were packed, else in onnxruntime; and how much it may lose: points of accuracy, or another
    metric in its own unit."""

    max_neurons: int | None = None
    max_params: int | None = None
    max_bytes: int | None = None
    max_flash: int | None = None
    max_ram: int | None = None
    min_speedup: float | None = None
    max_drop: float | None = None

    def __post_init__(self) -> None:
        for name in self.sizes:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TrainingError(f"{name} is {value}, but a network needs at least 1.")
        if self.min_speedup is not None and not 1 <= self.min_speedup < math.inf:
            raise TrainingError(f"min_speedup is {self.min_speedup}, but must be at least 1.")
        if self.max_drop is not None and not 0 <= self.max_drop < math.inf:
            raise TrainingError(f"max_drop is {self.max_drop}, but must be a number that is not negative.")

    sizes: ClassVar = ("max_neurons", "max_params", "max_bytes", "max_flash", "max_ram")

    @property
    def of_size(self) -> bool:
        return any(getattr(self, name) is not None for name in (*self.sizes, "min_speedup"))

    @property
    def of_packed(self) -> bool:
        return self.max_flash is not None or self.max_ram is not None

    def check_drop(self, metric: Metric) -> None:
        """One sentence if more of ``metric`` may be lost than there can be."""
        if metric.percent and self.max_drop is not None and self.max_drop >= 100:
            raise TrainingError(
                f"max_drop is {self.max_drop}, but must be points of accuracy, at least 0 and below 100."
            )

    def __bool__(self) -> bool:
        return self.of_size or self.max_drop is not None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """The dense network, the small one, and what the budget came to. Print it for the table. ``answers`` are what both
    got right on the same inputs, by class. ``chance`` is None, and ``answers`` empty, for records that do not
    say, and where they were judged by another ``metric`` than accuracy. ``scratch`` is the small network's structure
    trained from fresh weights, if that was asked for."""

    dense: Network
    small: Network
    budget: Budget
    chance: Chance | None
    answers: tuple[Answers, ...]
    metric: Metric = field(default=ACCURACY, kw_only=True)
    scratch: Scratch | None = field(default=None, kw_only=True)

    @property
    def useless(self) -> str | None:
        """A sentence if the small network cannot be told from one that always answers with the largest class."""
        if self.chance is None:
            return None
        accuracy = self.small.value
        low, high = self.chance.interval(accuracy)
        if low > self.chance.largest_class:
            return None
        return (
            f"the small network cannot be told from chance by {self.chance.inputs:,} inputs: {100 * accuracy:.2f} % "
            f"(95 % interval {100 * low:.2f} to {100 * high:.2f}) where the largest class alone has "
            f"{100 * self.chance.largest_class:.2f} %; allow it more, heal for longer, or judge it by more inputs."
        )

    def verdicts(self) -> tuple[Verdict, ...]:
        dense, small, budget = self.dense, self.small, self.budget
        most = (
            ("neurons", budget.max_neurons, small.neurons),
            ("parameters", budget.max_params, small.parameters),
            ("bytes", budget.max_bytes, small.bytes),
            ("bytes packed", budget.max_flash, small.packed and small.packed.bytes),
            ("bytes of working memory", budget.max_ram, small.packed and small.packed.ram),
            (self._lost, budget.max_drop, self.metric.lost(dense.value, small.value)),
        )
        known = ((what, a, b) for what, a, b in most if a is not None and b is not None)
        verdicts = [Verdict(what, float(a), float(b), b <= a) for what, a, b in known]
        if budget.min_speedup is not None:
            faster, where = dense.latency_ms / small.latency_ms, "onnxruntime"
            if dense.packed is not None and small.packed is not None:
                faster, where = dense.packed.latency_ms / small.packed.latency_ms, "the C runtime"
            what = f"times faster in {where}"
            verdicts.append(Verdict(what, budget.min_speedup, faster, faster >= budget.min_speedup))
        return tuple(verdicts)

    @property
    def _lost(self) -> str:
        judged_by, name = self.small.judged_by, self.metric.title
        return f"points of {judged_by} {name} lost" if self.metric.percent else f"{judged_by} {name} lost"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for records."""
        return {
            "metric": to_plain(self.metric),
            "dense": to_plain(self.dense),
            "small": to_plain(self.small),
            "budget": to_plain(self.verdicts()),
            "chance": to_plain(self.chance),
            "answers": to_plain(self.answers),
            "scratch": to_plain(self.scratch),
        }

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table

        dense, small = self.dense, self.small
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        for name in ("dense", "compacted", "ratio"):
            table.add_column(name, justify="right", no_wrap=True)
        values = (self.metric.text(n.value) for n in (dense, small))
        change = self.metric.change(dense.value, small.value)
        table.add_row(f"{small.judged_by} {self.metric.title}", *values, change)
        if self.answers:
            *each, (low, high) = Answers.total(self.answers).intervals()
            intervals = [f"{100 * a:.2f} to {100 * b:.2f}" for a, b in each]
            table.add_row("its 95 % interval", *intervals, f"{100 * low:+.2f} to {100 * high:+.2f}")
        if (scratch := self.scratch) is not None:
            change = self.metric.change(small.value, scratch.value)
            table.add_row(scratch.title, "", self.metric.text(scratch.value), change)
        rows: list[tuple[str, float, float, str]] = [
            ("neurons", dense.neurons, small.neurons, ",d"),
            ("parameters", dense.parameters, small.parameters, ",d"),
            ("file, bytes", dense.bytes, small.bytes, ",d"),
            ("ONNX file, bytes", dense.onnx_bytes, small.onnx_bytes, ",d"),
            ("multiply-adds, one input", dense.macs, small.macs, ",d"),
            ("onnxruntime, one input, one thread, ms", dense.latency_ms, small.latency_ms, ".3f"),
        ]
        if dense.packed is not None and small.packed is not None:
            rows += [
                ("packed file, bytes", dense.packed.bytes, small.packed.bytes, ",d"),
                ("its working memory, bytes", dense.packed.ram, small.packed.ram, ",d"),
                ("C runtime, one input, one thread, ms", dense.packed.latency_ms, small.packed.latency_ms, ".4f"),
            ]
        for name, before, after, how in rows:
            ratio = f"{before / after:.1f}x" if after else "-"
            table.add_row(name, format(before, how), format(after, how), ratio)
        yield table
        for verdict in self.verdicts():
            yield str(verdict)
        if self.useless:
            yield self.useless

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, color_system=None, emoji=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()
