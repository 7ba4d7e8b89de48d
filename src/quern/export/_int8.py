"""ONNX in 8 bits: weights and activations as whole numbers, for runtimes and chips that multiply those faster."""

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from quern.compact import warn_dead
from quern.errors import DeadNetworkWarning, ExportError
from quern.export._onnx import open_session, run
from quern.export._program import check_place, first, first_line, quiet, writing

__all__ = ["Int8Report", "to_int8"]

Calibration = Literal["minmax", "entropy", "percentile"]
_BATCH = 100
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# What can stay in 8 bits between two products. Everything else, such as the modulus, is computed in floating point.
_QUANTIZED = (*_PRODUCTS, "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "MaxPool", "Relu")
_QUANTIZED += ("Reshape", "Squeeze", "Transpose", "Unsqueeze")


@dataclass(frozen=True)
class Int8Report:
    """The file that was written, its size and that of the one it was made from."""

    path: Path
    bytes: int
    bytes_before: int


def to_int8(
    onnx_path: Path | str,
    path: Path | str,
    images: Tensor | tuple[Tensor, ...],
    *,
    calibration: Calibration = "minmax",
    weight_bits: Literal[7, 8] = 7,
) -> Int8Report:
    """Write the ONNX file ``onnx_path`` with products of 8-bit numbers: one scale for each output channel of a weight,
    one for each activation, which comes from its values for ``images`` (some hundred inputs of the network; a tuple if
    it takes several).

    What comes before the first product, so the normalisation of pixels, and what comes after the last stay in floating
    point. ``calibration`` is how the range of an activation is chosen. With ``weight_bits`` 7 weights are -64 to 64:
    processors without instructions for sums of 8-bit products (x86 before VNNI) add two of them in 16 bits, where
    larger ones overflow. 8 is a little more precise on the others. A file that gives all of the images the same scores
    is a warning.
    """
    with quiet():
        import onnx
        from onnxruntime import quantization as q
        from onnxruntime.quantization.shape_inference import quant_pre_process
    source, path = Path(onnx_path), Path(path)
    check_place(path)
    inputs = images if isinstance(images, tuple) else (images,)
    count = min(map(len, inputs), default=0)
    if not count:
        raise ExportError("the ranges of activations come from images, but there are none.")
    run(open_session(source), *first(inputs, 1))  # says what is wrong with the file or the images
    methods = {
        "minmax": q.CalibrationMethod.MinMax,
        "entropy": q.CalibrationMethod.Entropy,
        "percentile": q.CalibrationMethod.Percentile,
    }
    if calibration not in methods:
        raise ExportError(f"calibration is {calibration}, but must be one of {', '.join(methods)}.")
    if weight_bits not in (7, 8):
        raise ExportError(f"weight_bits is {weight_bits}, but must be 7 or 8.")

    class Reader(q.CalibrationDataReader):
        def __init__(self, names: list[str]) -> None:
            # Histograms need batches of one size; some images more or less do not matter.
            size = min(_BATCH, count)
            whole = first(inputs, count // size * size)
            parts = zip(*(t.contiguous().cpu().split(size) for t in whole), strict=True)
            self.batches = iter([{n: t.numpy() for n, t in zip(names, part, strict=True)} for part in parts])

        def get_next(self) -> Any:
            return next(self.batches, None)

    with writing(path) as temporary, tempfile.TemporaryDirectory() as folder:
        try:
            with quiet():
                # In a folder of ours, as onnxruntime takes no path that is not UTF-8.
                copied, prepared, made = (Path(folder) / f"{name}.onnx" for name in ("copied", "prepared", "int8"))
                onnx.save(onnx.load(str(source)), str(copied))
                quant_pre_process(str(copied), str(prepared), skip_symbolic_shape=True)
                graph = onnx.load(str(prepared)).graph
                q.quantize_static(
                    str(prepared),
                    str(made),
                    Reader([node.name for node in graph.input]),
                    quant_format=q.QuantFormat.QDQ,
                    op_types_to_quantize=list(_QUANTIZED),
                    nodes_to_exclude=_before_products(graph),
                    per_channel=True,
                    activation_type=q.QuantType.QUInt8,
                    weight_type=q.QuantType.QInt8,
                    reduce_range=weight_bits == 7,
                    calibrate_method=methods[calibration],
                    extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
                )
                onnx.checker.check_model(str(made))
        except OSError:  # a full disk: of the file that is written
            raise
        except Exception as reason:
            raise ExportError(f"{source} cannot be written in 8 bits: {first_line(reason)}.") from reason
        batch = first(inputs, _BATCH)
        scores = run(open_session(made), *batch)
        if not all(bool(torch.isfinite(y).all()) for y in scores):
            raise ExportError(f"{source} in 8 bits gives scores that are not finite.")
        if any(bool((t != t[:1]).any()) for t in batch) and _alike(scores, batch[0]):
            if _alike(run(open_session(source), *batch), batch[0]):
                warn_dead()
            else:
                warnings.warn(
                    f"{path} gives every image the same scores; find the ranges with other images or calibration.",
                    DeadNetworkWarning,
                    stacklevel=2,
                )
        temporary.write_bytes(made.read_bytes())
    return Int8Report(path, path.stat().st_size, source.stat().st_size)


def _alike(scores: list[Tensor], images: Tensor) -> bool:
    """Whether every image got the same scores."""
    return all(y.dim() > 0 and len(y) == len(images) and bool((y == y[:1]).all()) for y in scores)


def _before_products(graph: Any) -> list[str]:
    """The names of the nodes that no product comes before."""
    after: set[str] = set()
    first = []
    for node in graph.node:  # in the order in which they are computed
        if node.op_type in _PRODUCTS or any(name in after for name in node.input):
            after.update(node.output)
        else:
            first.append(node.name)
    return first
