"""The ``quern`` command in tests: in this process, which has torch already, or in one of its own."""

import contextlib
import io
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from quern.cli import main


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}


ready = multiprocessing.get_context("forkserver")
ready.set_forkserver_preload(["tests.commands", "quern.paper", "quern.pipeline", "torch._dynamo"])


class Started:
    """A command in a process of its own: a copy of one that has torch, which saves the seconds that importing takes."""

    def __init__(
        self, *arguments: object, largest_file: int | None = None, variables: dict[str, str] | None = None
    ) -> None:
        self._place = tempfile.TemporaryDirectory()
        self._streams = [Path(self._place.name) / name for name in ("out", "err")]
        words = ["quern", *map(str, arguments)]
        given = (words, environment() | (variables or {}), self._streams, largest_file)
        self._process = ready.Process(target=_run, args=given, daemon=True)
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def ended(self, timeout: float = 300) -> tuple[int, str, str]:
        """How it ended, and what it said on standard output and standard error."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None
        out, err = (path.read_text("utf-8") if path.exists() else "" for path in self._streams)
        self._place.cleanup()
        return code, out, err


def in_pair(*arguments: object) -> list[tuple[int, str, str]]:
    """How the command ends in each of two processes that train together, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [Started(*arguments, variables={**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")]
    return [process.ended() for process in started]


def _run(words: list[str], variables: dict[str, str], streams: list[Path], largest_file: int | None) -> None:
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(variables)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = words
    main()


def quern(*arguments: object, launcher: list[str] | None = None, code: int = 0) -> tuple[str, str]:
    """Run to the end by an interpreter of its own, as a user does; what it said on standard output and error."""
    process = launched(*arguments, launcher=launcher)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, (out, err)
    return out, err


def launched(*arguments: object, launcher: list[str] | None = None) -> subprocess.Popen[str]:
    command = [*(launcher or [sys.executable, "-m", "quern"]), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


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
