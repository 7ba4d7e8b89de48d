"""Random networks with zeros, made smaller: how far their outputs move.

    python -m benchmarks.exactness [COUNT] [--seed SEED] [--json FILE]

Every network is compared with itself before, zeros and all, at up to three sizes of input, and once more in 16 bits. As
many others compute with sizes and numbers, and meet other sizes, batches and numbers. Differences are relative to the
largest output.
"""

import argparse
import json
import random
import statistics
from pathlib import Path

import torch
from tests.networks import Halves, draw, measure, measure_halves, numbered_network

from quern._files import write_text
from quern.bench.machine import facts
from quern.compact import compact, plan

HALVES = (torch.float16, torch.bfloat16)


def main(count: int, seed: int) -> dict[str, object]:
    """What ``count`` networks came to."""
    rng = random.Random(seed)
    measured, removed, dead = [], [], 0
    halves: dict[torch.dtype, list[Halves]] = {dtype: [] for dtype in HALVES}
    for _ in range(count):
        drawn = draw(rng)
        removal = plan(drawn.model, drawn.inputs[0])
        measured.append(measure(drawn, removal, compact(drawn.model, removal)))
        removed.append(1 - removal.parameters[1] / removal.parameters[0])
        dead += removal.dead
        for dtype, differences in halves.items():
            differences.append(measure_halves(drawn, dtype))
    numbered = []
    for _ in range(count):
        drawn = numbered_network(rng)
        removal = plan(drawn.model, drawn.inputs[0])
        numbered.append(measure(drawn, removal, compact(drawn.model, removal), single=False))
    in_16_bits: dict[str, float] = {}
    for dtype, differences in halves.items():
        name = str(dtype).removeprefix("torch.")
        in_16_bits[f"worst_{name}_in_float64"] = max(network.compacted for network in differences)
        in_16_bits[f"worst_{name}"] = max(network.compacted_as_it_is for network in differences)
        in_16_bits[f"worst_{name}_before"] = max(network.as_it_is for network in differences)
    return {
        "environment": facts(),
        "networks": count,
        "dead": dead,
        "seed": seed,
        "networks_times_sizes": sum(network.sizes for network in measured),
        "worst_float64": max(network.float64 for network in measured),
        "worst_float32": max(network.float32 for network in measured),
        "worst_with_numbers_float64": max(network.float64 for network in numbered),
        **in_16_bits,
        "removed_on_average": statistics.mean(removed),
        "removed_at_most": max(removed),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the record")
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = main(given.count, given.seed)
    print("\n".join(f"{name:28} {value}" for name, value in record.items()))
    if given.json:
        write_text(given.json, json.dumps(record, indent=1) + "\n")
