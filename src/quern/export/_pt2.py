"""A file of ``torch.export``: torch alone runs it."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn

from quern.compact import warn_dead
from quern.export._program import ExportReport, Pixels, Program, check_place, quiet, writing
from quern.graph import Example

__all__ = ["to_pt2"]


def to_pt2(model: nn.Module, path: Path | str, example: Example, *, pixels: Pixels | None = None) -> ExportReport:
    """Write the real form of ``model`` as a file for ``torch.export.load``, which needs no quern to run it.

    It takes batches of any size. ``example`` is some input of the network (raw images with ``pixels``), or a tuple of
    several, on which the file is read again and compared before it gets its name. A network whose output does not
    depend on its input any more is a warning.
    """
    path = Path(path)
    check_place(path)
    program = Program(model, example, pixels)
    if program.dead:
        warn_dead()
    file = io.BytesIO()
    exported = program.exported()
    with quiet():
        torch.export.save(exported, file)
        file.seek(0)
        read_back = torch.export.load(file).module()

    def run(*inputs: Tensor) -> list[Tensor]:
        with torch.no_grad():
            output = read_back(*inputs)
        return [output] if isinstance(output, Tensor) else list(output)

    difference, sizes = program.compare(run)
    with writing(path) as temporary:
        temporary.write_bytes(file.getvalue())
    return ExportReport(path, path.stat().st_size, difference, sizes)
