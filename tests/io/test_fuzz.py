"""A few hundred damaged files of all kinds; ``benchmarks/fuzz_files.py`` tries thousands."""

import pytest
from benchmarks.fuzz_files import KINDS, fuzz


@pytest.mark.unchecked
def test_damaged_files_give_success_or_one_sentence() -> None:
    said: list[str] = []
    kinds = tuple(kind for kind in KINDS if kind.folder not in ("compressed", "unfinished"))  # those take long to make
    wrong = fuzz(300, 3, kinds, said.append)
    assert not wrong, "\n".join(said)
