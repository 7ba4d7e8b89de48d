"""The ``quern`` command in tests: in this process, which has torch already, or in one of its own."""

import contextlib
import io
import os
import signal
import subprocess
import sys

import pytest

from quern.cli import main


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}


def start(*arguments: object, launcher: list[str] | None = None) -> subprocess.Popen[str]:
    command = [*(launcher or [sys.executable, "-m", "quern"]), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def quern(*arguments: object, launcher: list[str] | None = None, code: int = 0) -> tuple[str, str]:
    """Run to the end in a process of its own; what it said on standard output and standard error."""
    process = start(*arguments, launcher=launcher)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, (out, err)
    return out, err


def here(*arguments: object, code: int | None = 0) -> tuple[str, str]:
    """The same in this process: seconds less. Without a ``code``, it may end in any way."""
    before, terminated = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = ["quern", *map(str, arguments)]
    # As strict as the streams of a process: what is no text is no text here, either.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
        signal.signal(signal.SIGTERM, terminated)
    texts = _text(out), _text(err)
    assert code is None or (ended.value.code or 0) == code, texts
    return texts


def _text(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


def refused(*arguments: object) -> str:
    """The one sentence on standard error."""
    out, err = here(*arguments, code=1)
    assert out == ""
    assert err.startswith("quern: ")
    assert err.count("\n") == 1, err
    assert err.endswith((".\n", "?\n")), err
    return err
