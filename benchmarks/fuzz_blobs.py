"""Damaged packed networks, by the ten thousand: the C runtime must refuse or run them, and touch nothing else.

    python -m benchmarks.fuzz_blobs                  (20,000 blobs on every build; some minutes)
    python -m benchmarks.fuzz_blobs --count 1000000 --seed 7 --only scalar

The runtime is compiled with the sanitizers of the compiler, once without vectors and once for each kind of them that
this processor has. Half of the blobs get a right checksum again. Prints a line per build, and exits with 1 if a blob
did harm or did not end; such a blob is written to a file.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.runtime.compilers import COMPILERS, Harm, hostile_program, outcomes
from tests.runtime.mutations import damaged

from quern import runtime

BATCH = 1000


def say(text: str) -> None:
    """Print at once: the whole takes a while."""
    print(text, flush=True)


def fuzz(count: int, seed: int, program: Path, tell: Callable[[str], None] = say) -> int:
    """Try ``count`` damaged blobs; how many batches held one that did harm, or whether too few did anything."""
    wrong, rng, found = 0, random.Random(seed), Counter[str]()
    for first in range(0, count, BATCH):
        blobs = [damaged(rng, number) for number in range(first, min(first + BATCH, count))]
        try:
            found.update(outcomes(program, blobs))
        except Harm as harm:
            wrong += 1
            kept = program.with_suffix(f".{wrong}.qrn")
            kept.write_bytes(harm.blob)
            tell(f"*** {kept}: {harm}")
    counts = {"refused": found["r"], "refused while running": found["n"], "run": found["k"]}
    tell(f"{program.name:<16} {count} blobs, seed {seed}: {counts}")
    if found["k"] < count / 10 or found["r"] < count / 2:
        wrong += 1
        tell(f"*** {program.name}: too few blobs were run or refused to say anything")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the name of a build")
    options = parser.parse_args()
    if not COMPILERS:
        sys.exit("*** NO C COMPILER: no damaged blob was tried. ***")
    chosen = [build for build in ("scalar", *runtime.builds()) if options.only in build]
    folder = Path(tempfile.mkdtemp(prefix="quern-fuzz-"))
    harmful = [fuzz(options.count, options.seed, hostile_program(folder, build)) for build in chosen]
    sys.exit(1 if any(harmful) else 0)
