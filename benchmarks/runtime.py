"""The C runtime against onnxruntime: the same networks, one image at a time, one core.

    python benchmarks/runtime.py [--json FILE] [--repeats N]

Each network is written as ONNX and packed in float32 and int8; onnxruntime (one thread, float32) and both packed files
run the same image in turns, and the ratio of the medians is printed with its target. The C runtime is given 16 images
a call, as onnxruntime's time for a call from Python is small beside its own; both have their files in memory. Zeros
are at random places, but for networks that were trained: those have two rows, one against their own ONNX file, without
the neurons that died, and one against that of the dense network they come from, and the accuracy of both packed
files on all test images. Of ``benchmarks/runtime_avx2.py``, the rows of CIFAR-10 from 5 to 100 % are drawn by
``benchmarks/chart.py`` as docs/runtime.svg.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from quern import _native, data, export, io, models, runtime
from quern.graph import quaternion_weights
from timing import main, medians

ROOT = Path(__file__).parent.parent
AT_ONCE = 16
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MNIST, CIFAR = ("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))


@torch.no_grad()
def sparse(model: nn.Module, left: float) -> nn.Module:
    """A share of the quaternions of each weight stays."""
    for p in model.parameters():
        if p.dim() > 2 and p.shape[0] == 4:
            p *= (torch.rand(p.shape[1:]) < left).float()
    return model


def trained(name: str) -> nn.Module | None:
    """The network of a record, if it is there."""
    files = (ROOT / "results" / name / file for file in ("small.safetensors", "model.safetensors"))
    path = next((file for file in files if file.exists()), None)
    return None if path is None else io.load(path)


@dataclass(frozen=True)
class Case:
    """A network, its images, and how much faster than its own ONNX file it should be; for one that was trained, the
    dense network it comes from and how much faster than that."""

    what: str
    model: nn.Module | None
    images: tuple[str, tuple[int, ...]]
    target: float | None = None
    dense: Callable[[], nn.Module] | None = None
    dense_target: float | None = None


def cases() -> list[Case]:
    mnist, cifar = models.mnist_qcnn, models.cifar_qcnn
    return [
        Case("digits, dense", models.digits_qcnn(), ("digits", (1, 8, 8)), 3.0),
        Case("MNIST, dense", mnist(), MNIST, 1.8),
        Case("MNIST, 19 % of the quaternions", sparse(mnist(), 0.19), MNIST, 5.0),
        Case("MNIST, 11 %", sparse(mnist(), 0.11), MNIST, 7.0),
        Case("MNIST, R_Q (mnist-rq)", trained("mnist-rq"), MNIST, None, mnist),
        Case("MNIST, compacted (mnist-1500)", trained("mnist-1500"), MNIST, None, mnist),
        Case("CIFAR-10, dense", cifar(), CIFAR, 1.6),
        Case("CIFAR-10, 20 %", sparse(cifar(), 0.2), CIFAR, 4.0),
        Case("CIFAR-10, R_Q (cifar10-rq)", trained("cifar10-rq"), CIFAR, None, cifar),
        Case("CIFAR-10, R_Q by cost (cifar10-rq-cost)", trained("cifar10-rq-cost"), CIFAR, None, cifar, 4.0),
        Case("CIFAR-10, compacted (cifar10-43)", trained("cifar10-43"), CIFAR, 2.0, cifar),
        Case("CIFAR-10, compacted (cifar10-60k)", trained("cifar10-60k"), CIFAR, None, cifar),
        Case("CIFAR-10, and 75 % zeros (cifar10-paper-15k)", trained("cifar10-paper-15k"), CIFAR, None, cifar),
        *(Case(f"CIFAR-10 at {100 * share:.0f} %", sparse(cifar(), share), CIFAR) for share in SHARES),
    ]


def images(name: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, data.ImageSet | None]:
    """Inputs to calibrate int8 with: real ones, where they are here, and their data set."""
    if name == "digits" or data.cache_file(name).exists():
        found = data.load(name)
        return found.normalize(found.train.pixels[:512]), found
    return torch.randn(512, *shape), None


def accuracy(network: runtime.PackedNetwork, found: data.ImageSet) -> float:
    """On all test images."""
    scores = [network(found.normalize(pixels).numpy()) for pixels in found.test.pixels.split(256)]
    return float((np.concatenate(scores).argmax(1) == found.test.labels.numpy()).mean())


def times(case: Case, repeats: int) -> dict[str, Any]:
    """Milliseconds for one image, bytes and working memory."""
    assert case.model is not None
    model = case.model.eval()
    inputs, found = images(*case.images)
    with tempfile.TemporaryDirectory(prefix="quern-") as name:
        folder = Path(name)
        export.to_onnx(model, folder / "net.onnx", inputs[:2])
        session = export.open_session(folder / "net.onnx", 1)
        calls: dict[str, Any] = {"onnxruntime": lambda: session.run(None, {"image": one})}
        one, many = inputs[:1].numpy(), np.repeat(inputs[:1].numpy(), AT_ONCE, 0)
        row: dict[str, Any] = {"onnx_bytes": (folder / "net.onnx").stat().st_size}
        if case.dense is not None:
            export.to_onnx(case.dense().eval(), folder / "dense.onnx", inputs[:2])
            dense = export.open_session(folder / "dense.onnx", 1)
            calls["dense onnxruntime"] = lambda: dense.run(None, {"image": one})
        for dtype in ("float32", "int8"):
            report = export.to_packed(model, folder / f"{dtype}.qrn", inputs, dtype=dtype)
            network = runtime.load(folder / f"{dtype}.qrn")
            outputs = [np.empty((AT_ONCE, *t.shape), t.dtype) for t in network.outputs]
            calls[dtype] = lambda network=network, outputs=outputs: network.run_into([many], outputs)
            row[dtype] = {"bytes": report.bytes, "arena": report.arena, "least_arena": report.least_arena}
            if case.dense is not None and found is not None:
                row[dtype]["accuracy"] = accuracy(network, found)
            row["units"] = sum(layer.total for layer in report.layers)
        row["stored"] = sum(int((w != 0).any(0).sum()) for w in quaternion_weights(model).values())
        seconds = medians(calls, repeats)
    row |= {f"{name.replace(' ', '_')}_ms": 1000 * s for name, s in seconds.items() if name.endswith("onnxruntime")}
    for dtype in ("float32", "int8"):
        row[dtype]["ms"] = 1000 * seconds[dtype] / AT_ONCE
    return row


def measure(repeats: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    library = max(path.stat().st_size for path in map(runtime.library_path, _native.BUILDS) if path is not None)
    heads = ("ort ms", "ours ms", "ratio", "target", "int8 ms", "bytes", "int8 bytes")
    print(f"{'one image, one core':<56}" + "".join(f"{head:>11}" for head in heads))
    theirs = sum(path.stat().st_size for path in Path(onnxruntime.__file__).parent.glob("capi/*.so*"))
    print(f"library: {library:,} bytes (target: at most 100 KB), onnxruntime's {theirs:,}\n")
    rows: list[dict[str, Any]] = [{"what": "library, bytes", "quern": library, "baseline": theirs}]
    for case in cases():
        if case.model is None:
            print(f"{case.what:<56}{'not in results/':>24}")
            continue
        found = times(case, repeats)
        for key, what, target in (
            ("onnxruntime_ms", case.what, case.target),
            ("dense_onnxruntime_ms", f"{case.what}, against dense", case.dense_target),
        ):
            if key not in found:
                continue
            row = {"what": what, "target": target, **found, "quern": found["float32"]["ms"], "baseline": found[key]}
            row["ratio"] = row["baseline"] / row["quern"]
            rows.append(row)
            cells = [f"{row['baseline']:.4f}", f"{row['quern']:.4f}", f"{row['ratio']:.2f}x"]
            cells += ["" if target is None else f"{target:.1f}x", f"{row['int8']['ms']:.4f}"]
            cells += [f"{row[dtype]['bytes']:,}" for dtype in ("float32", "int8")]
            print(f"{what:<56}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as docs/runtime.md has them, without those that are drawn."""
    heads = ("one image, one core", "onnxruntime", "quern_rt", "faster", "asked for", "int8", "bytes", "int8")
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in rows:
        if "ratio" not in row or row["what"].startswith("CIFAR-10 at "):
            continue
        cells = [row["what"], f"{row['baseline']:.4f} ms", f"{row['quern']:.4f} ms", f"{row['ratio']:.2f}x"]
        cells += ["" if row["target"] is None else f"{row['target']:g}x", f"{row['int8']['ms']:.4f} ms"]
        cells += [f"{row[dtype]['bytes']:,}" for dtype in ("float32", "int8")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(__doc__, measure, 15)
