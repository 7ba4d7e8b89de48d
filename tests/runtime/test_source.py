"""The source of the C runtime: what compilers say of it, what it needs from outside, and what Python reads of it."""

import platform
import re
import subprocess
from pathlib import Path

import pytest

from quern import _native, runtime
from quern.runtime import format as qrn
from tests.runtime.compilers import COMPILERS, RUNTIME, build_flags, compiled, vectors

BUILDS = (*(_native.BUILDS if platform.machine() in ("x86_64", "AMD64") else _native.BUILDS[:1]), "scalar")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic")
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="NO C COMPILER: the source of the runtime was not looked at")


def test_the_libraries_are_what_is_installed() -> None:
    assert tuple(build_flags()) == _native.BUILDS


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_warning_and_nothing_from_outside(compiler: str, build: str, tmp_path: Path) -> None:
    """Copies and fills of memory and a square root, which a chip without an operating system has too; no global state.

    Without position independence tables of functions are constants, as they are in flash.
    """
    out = tmp_path / "quern_rt.o"
    said = compiled(compiler, out, *WARNINGS, "-O2", "-fno-pic", "-fno-pie", *vectors(build), "-c")
    assert not said
    symbols = [line.split() for line in _said("nm", "--portability", str(out)).splitlines()]
    kinds = {name: kind for name, kind, *_ in symbols}
    assert {name for name, kind in kinds.items() if kind == "U"} <= {"memcpy", "memset", "memmove", "sqrtf"}
    assert not {name for name, kind in kinds.items() if kind in "BbCDdGgSs"}
    assert {name for name, kind in kinds.items() if kind == "T"} == _functions()


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _functions() -> set[str]:
    """What the header declares."""
    return set(re.findall(r"(qrn_\w+)\([^;]*\);", (RUNTIME / "quern_rt.h").read_text()))


@needs_compiler
@pytest.mark.parametrize("build", _native.BUILDS)
def test_a_library_is_small(build: str) -> None:
    path = runtime.library_path(build)
    if path is None:
        pytest.skip(f"THE BUILD {build} IS NOT THERE: no compiler, or one that does not know these instructions")
    text, data, *_ = map(int, _said("size", str(path)).splitlines()[1].split()[:3])
    assert text + data <= 100 * 1024


@needs_compiler
def test_python_reads_the_same_numbers_as_a_compiler(tmp_path: Path) -> None:
    """Every constant of the header by its name, and no other."""
    code = re.sub(r"/\*.*?\*/", "", (RUNTIME / "quern_rt.h").read_text(), flags=re.DOTALL)
    names = sorted(set(re.findall(r"\bQRN_(\w+)\s*=", code)))
    lines = "\n".join(f'    printf("{name} %lld\\n", (long long)QRN_{name});' for name in names)
    source = tmp_path / "numbers.c"
    source.write_text(f'#include <stdio.h>\n#include "quern_rt.h"\nint main(void) {{\n{lines}\n    return 0;\n}}\n')
    compiled(COMPILERS[0], tmp_path / "numbers", *WARNINGS, sources=(source,))
    printed = (line.split() for line in _said(str(tmp_path / "numbers")).splitlines())
    assert {name: int(number) for name, number in printed} == qrn.NUMBERS
    assert len(names) > 200
    assert all(getattr(qrn, name) == number for name, number in qrn.NUMBERS.items())
    with pytest.raises(AttributeError, match="QRN_NOTHING"):
        _ = qrn.NOTHING
