"""What is said of the machine: which kernels are in use, and if not why."""

from io import StringIO

import pytest
import torch
from rich.console import Console

from quern import _native, runtime
from quern.bench.machine import Library, machine
from quern.functional import native


def printed() -> str:
    file = StringIO()
    Console(width=100, file=file).print(machine())
    return file.getvalue()


def test_the_builds_are_those_that_run() -> None:
    facts = machine()
    for library, package in ((facts.training_kernels, native.PACKAGE), (facts.runtime, runtime.__name__)):
        builds = _native.builds(package)
        names = {"_any": "any processor", "_avx2": "AVX2", "_avx512": "AVX-512", "_vnni": "AVX-512 with VNNI"}
        if builds and package == runtime.__name__:
            assert library == Library(names[builds[-1]])
        assert (library.build is None) == (library.why_not is not None)
    assert (facts.training_kernels.build is not None) == native.is_available()
    assert (facts.torch, facts.threads) == (torch.__version__, torch.get_num_threads())


@pytest.mark.skipif(not _native.builds(native.PACKAGE), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")
def test_kernels_that_are_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERN_NATIVE", "0")
    facts = machine()
    assert facts.training_kernels == Library(None, "QUERN_NATIVE=0 turns them off")
    assert facts.runtime.build == machine().runtime.build
    assert "not in use: QUERN_NATIVE=0 turns them off" in printed()


def test_an_install_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "builds", lambda _: ())
    facts = machine()
    for library in (facts.training_kernels, facts.runtime):
        assert library.build is None
        assert library.why_not is not None
        assert "no C compiler when quern was installed" in library.why_not
    assert printed().count("not in use: it was not built") == 2


@pytest.mark.parametrize(("level", "name"), [(0, "any processor"), (1, "AVX2"), (2, "AVX-512")])
def test_the_fastest_build_is_named(level: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUERN_NATIVE", raising=False)
    monkeypatch.setattr(_native, "builds", lambda _: _native.BUILDS[: level + 1])
    assert machine().training_kernels == Library(name)
    assert f"in use, the build for {name}" in printed()


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quern.bench.machine._of_processor", lambda *_: None)
    assert machine().instructions is None
    assert "not known" in printed()
