"""Networks for other programs: plain ``torch.nn``, a ``torch.export`` file, ONNX, ONNX in 8 bits."""

from quern.export._int8 import Int8Report, to_int8
from quern.export._onnx import accuracy, open_session, to_onnx
from quern.export._packed import PackedReport, packed_size, to_packed
from quern.export._program import ExportReport, Pixels, normalized
from quern.export._pt2 import to_pt2
from quern.export._real import to_real

__all__ = ["ExportReport", "Int8Report", "PackedReport", "Pixels", "accuracy", "normalized"]
__all__ += ["open_session"]
__all__ += ["packed_size", "to_int8", "to_onnx", "to_packed", "to_pt2", "to_real"]
