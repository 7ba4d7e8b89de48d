"""``python memory.py MODEL BATCH CHANNELS HEIGHT WIDTH``: run a model once, print the most memory that took.

A process of its own, because memory once taken is not given back. Torch is not imported for an ONNX file: whoever runs
one does without it; so this file is run by its path, which imports nothing around it.
"""

import sys
from pathlib import Path

__all__ = ["peak_bytes"]


def peak_bytes() -> int:
    """The most resident memory of this process so far."""
    try:
        # Not ru_maxrss: on Linux that starts at what the process that started this one had.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _run(path: str, shape: list[int]) -> None:
    if path.endswith(".onnx"):
        import numpy as np
        import onnxruntime

        from quern._files import path_or_content

        session = onnxruntime.InferenceSession(path_or_content(Path(path)), providers=["CPUExecutionProvider"])
        (image,) = session.get_inputs()
        dtype = np.uint8 if "uint8" in image.type else np.float32
        session.run(None, {image.name: np.zeros(shape, dtype)})
        return
    import torch

    from quern import io

    network = io.load(path)
    with torch.inference_mode():
        network(torch.zeros(shape))


if __name__ == "__main__":
    _run(sys.argv[1], [int(n) for n in sys.argv[2:]])
    print(peak_bytes())
