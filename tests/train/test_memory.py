"""The memory of a step stays for the next one, and is given back at the end."""

import subprocess
import sys

import pytest

from quern.train import _memory

PROGRAM = """
import resource, torch
from quern.train._memory import kept_memory

def faults(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        torch.ones(12 << 20)  # 48 MiB, which is more than glibc keeps of its own accord
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults(4)
with kept_memory():
    faults(4)
    print(faults(4), without)
print(faults(4))
"""


@pytest.mark.skipif(_memory._allocator() is None, reason="this system's C library is not glibc")
def test_pages_are_used_again() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, without, after = map(int, ran.stdout.split())
    assert kept < without / 10
    assert after > 10 * kept


def test_other_systems_have_nothing_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "_allocator", lambda: None)
    done = False
    with _memory.kept_memory():
        done = True
    assert done
