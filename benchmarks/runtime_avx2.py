"""The C runtime against onnxruntime as on a processor with AVX2 and without AVX-512: ``benchmarks/runtime.py``, held
to that on one which has more.

    python benchmarks/runtime_avx2.py [--json FILE] [--repeats N]

Both libraries take what the processor has. Of quern's own the builds for more than AVX2 are left out. onnxruntime
asks the processor, which cannot be told to answer otherwise, and then with the instruction XGETBV which registers the
operating system saves: a copy of its library in a temporary folder is given the answer "none wider than AVX's".
"""

import importlib
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from quern import _native

# xor ecx, ecx; xgetbv, whose answer is in eax. In its place: xor ecx, ecx; push 7; pop rax, which are as many bytes.
# The bits of 7 are the registers of x87, SSE and AVX.
ASKS, ANSWERS = bytes.fromhex("31c9 0f01d0"), bytes.fromhex("31c9 6a0758")


def hold_onnxruntime(folder: Path) -> None:
    """From now on ``import onnxruntime`` gives a copy in ``folder`` that takes the processor for one with AVX2."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None or "onnxruntime" in sys.modules:
        raise SystemExit("onnxruntime must be installed, and not be loaded yet.")
    copy = folder / "onnxruntime"
    shutil.copytree(Path(spec.origin).parent, copy)
    library = next(copy.glob("capi/onnxruntime_pybind11_state*"))
    code = library.read_bytes()
    if ASKS not in code:
        raise SystemExit("this onnxruntime does not ask which registers there are as the one known here does.")
    library.write_bytes(code.replace(ASKS, ANSWERS))
    sys.path.insert(0, str(folder))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="quern-") as name:
        hold_onnxruntime(Path(name))
        _native.BUILDS = _native.BUILDS[: _native.BUILDS.index("_avx2") + 1]
        runtime = importlib.import_module("runtime")
        assert str(runtime.onnxruntime.__file__).startswith(name)
        runtime.main(__doc__, runtime.measure, 15)
