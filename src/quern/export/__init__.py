"""Networks for other programs and devices: plain ``torch.nn``, a ``torch.export`` file, ONNX, ONNX in 8 bits, packed
networks for the C runtime, folders for microcontrollers."""

from quern.export._int8 import Int8Report, to_int8
from quern.export._mcu import McuReport, to_mcu
from quern.export._onnx import accuracy, open_session, to_onnx
from quern.export._packed import PackedReport, packed_size, to_packed
from quern.export._program import ExportReport, Pixels, normalized
from quern.export._pt2 import to_pt2
from quern.export._real import to_real

__all__ = ["ExportReport", "Int8Report", "McuReport", "PackedReport", "Pixels", "accuracy", "normalized"]
__all__ += ["open_session"]
__all__ += ["packed_size", "to_int8", "to_mcu", "to_onnx", "to_packed", "to_pt2", "to_real"]
