"""How fast, how large: networks next to each other, in torch and in onnxruntime.

All networks of a setting take turns in one run, so that whatever else the machine does hits them alike. Times are
medians with the quartiles; every time is of one call with a whole batch.
"""

from quern.bench._bench import bench, peak_memory
from quern.bench._results import Bench, Model, Timing
from quern.bench._timing import time_onnx, time_packed

__all__ = ["Bench", "Model", "Timing", "bench", "peak_memory", "time_onnx", "time_packed"]
