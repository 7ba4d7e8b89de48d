"""What got slower, or takes more memory, than the last committed record says.

    python benchmarks/compare.py benchmarks/layers.json benchmarks/training.json

A row's cost is quern over its baseline, both of one run, so records of machines of different speed can be compared.
"""

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORSE = 1.15  # less is noise


@dataclass(frozen=True)
class Change:
    """The costs of one row, quern over its baseline, in two records."""

    what: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def changes(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[Change]:
    """The rows that both records have, in the order of the new one."""
    costs = {row["what"]: row["quern"] / row["baseline"] for row in before}
    return [
        Change(row["what"], costs[row["what"]], row["quern"] / row["baseline"]) for row in after if row["what"] in costs
    ]


def worse(rows: Sequence[Change], limit: float = WORSE) -> list[Change]:
    """Those whose cost grew by more than ``limit``, the worst first."""
    return sorted((c for c in rows if c.ratio > limit), key=lambda c: -c.ratio)


def committed(path: Path) -> list[dict[str, Any]]:
    """The rows of the record as it was last committed; none if it never was."""
    shown = subprocess.run(
        ["git", "show", f"HEAD:./{path.name}"], cwd=path.parent, capture_output=True, text=True, check=False
    )
    return json.loads(shown.stdout)["rows"] if shown.returncode == 0 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path)
    for path in parser.parse_args().records:
        both = changes(committed(path), json.loads(path.read_text("utf-8"))["rows"])
        slower = worse(both)
        print(f"{path}: {len(slower)} of {len(both)} rows cost more than {WORSE - 1:.0%} more than committed.")
        for c in slower:
            print(f"  {c.what:58s} {c.before:6.2f} -> {c.after:6.2f} of its baseline, {c.ratio - 1:+.0%}")


if __name__ == "__main__":
    main()
