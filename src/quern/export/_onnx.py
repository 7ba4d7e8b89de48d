"""ONNX: a file that any runtime can run, checked against the network before it gets its name."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quern._files import path_or_content
from quern.compact import warn_dead
from quern.errors import ExportError
from quern.export._program import ExportReport, Pixels, Program, check_place, first_line, quiet, writing
from quern.graph import Example

__all__ = ["accuracy", "open_session", "to_onnx"]


def to_onnx(
    model: nn.Module,
    path: Path | str,
    example: Example,
    *,
    pixels: Pixels | None = None,
    opset: int | None = None,
) -> ExportReport:
    """Write the real form of ``model`` as ONNX: ``image`` in, ``scores`` out (``scores_0``... if there are several).

    It takes batches of any size and has its weights in the one file. ``example`` is some input of the network (raw
    images with ``pixels``), or a tuple of several, which then have the names that they have in ``forward``; onnxruntime
    must give the scores for it that ``model.eval()`` gives, up to rounding. A network whose output does not depend on
    its input any more is a warning.
    """
    import onnx

    path = Path(path)
    check_place(path)
    program = Program(model, example, pixels)
    if program.dead:
        warn_dead()
    exported, count = program.exported(), len(program.outputs)
    outputs = ["scores"] if count == 1 else [f"scores_{n}" for n in range(count)]
    with writing(path) as temporary:
        try:
            with quiet():
                written = torch.onnx.export(
                    exported,
                    input_names=_input_names(model, len(program.example), outputs),
                    output_names=outputs,
                    opset_version=opset,
                    dynamo=True,
                    verbose=False,
                )
                assert written is not None
                content = _tidied(written.model_proto).SerializeToString()
                onnx.checker.check_model(content, full_check=True)
            temporary.write_bytes(content)
        except Exception as reason:  # of torch, onnxscript and onnx
            raise ExportError(f"the network cannot be written as ONNX: {first_line(reason)}.") from reason
        session = open_session(temporary)
        difference, sizes = program.compare(partial(run, session))
    return ExportReport(path, path.stat().st_size, difference, sizes)


def _input_names(model: nn.Module, count: int, taken: list[str]) -> list[str]:
    """``image`` for one input; for several those of ``forward``, made unlike those of the outputs."""
    names = list(inspect.signature(model.forward).parameters)[:count]
    return ["image"] if count == 1 else [f"{name}_in" if name in taken else name for name in names]


def _tidied(model: Any) -> Any:
    """Without the exporter's notes, which tell of the files on this machine; and the batch is called that."""
    graph = model.graph
    (image, *_) = graph.input
    batch = image.type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if batch and dim.dim_param == batch:
                dim.dim_param = "batch"
    del graph.value_info[:]
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *model.functions):
        part.doc_string = ""
        del part.metadata_props[:]
    model.producer_name, model.producer_version = "quern", ""
    return model


def open_session(path: Path, threads: int | None = None, *, spinning: bool = True) -> Any:
    """The ONNX file in onnxruntime, on ``threads`` threads of the CPU (as many as it likes if None), which wait for
    work by ``spinning`` or not."""
    with quiet():
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    if threads is not None:
        options.intra_op_num_threads = threads
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(path_or_content(path), options, providers=["CPUExecutionProvider"])
    except Exception as reason:  # onnxruntime has an exception for every way to fail
        raise ExportError(f"onnxruntime cannot read {path}: {first_line(reason)}.") from reason


def run(session: Any, *inputs: Tensor) -> list[Tensor]:
    """The outputs for one batch of each input."""
    nodes = session.get_inputs()
    try:
        arrays = {node.name: x.contiguous().cpu().numpy() for node, x in zip(nodes, inputs, strict=True)}
        outputs = session.run(None, arrays)
    except Exception as reason:
        takes = " and ".join(f"{node.type} of shape {tuple(node.shape)}" for node in nodes)
        given = " and ".join(f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}" for x in inputs)
        raise ExportError(f"the ONNX file takes {takes}, but was given {given}: {first_line(reason)}.") from reason
    return [torch.from_numpy(y) for y in outputs]


def accuracy(
    path: Path | str,
    images: Tensor | tuple[Tensor, ...],
    labels: Tensor,
    *,
    threads: int | None = None,
    batch: int = 500,
) -> float:
    """The share of ``images``, or of a tuple of inputs, whose largest score, by the ONNX file, is that of their
    label."""
    inputs = images if isinstance(images, tuple) else (images,)
    if not len(labels) or any(len(t) != len(labels) for t in inputs):
        count = " and ".join(str(len(t)) for t in inputs)
        raise ExportError(f"there are {count} images and {len(labels)} labels, but each image needs a label.")
    session = open_session(Path(path), threads)
    parts = zip(*(t.split(batch) for t in (*inputs, labels)), strict=True)
    right = sum(int((run(session, *x)[0].argmax(1) == y.cpu()).sum()) for *x, y in parts)
    return right / len(labels)
